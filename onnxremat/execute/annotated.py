"""A model on several devices as one session, where onnxruntime takes the placement from the model.

onnxruntime reads ``layer_ann`` of each node when ``session.layer_assignment_settings`` says which
provider stands for which annotation, and puts the copies in itself. That works for providers that
are built in, one device each; it neither overlaps devices nor frees by plan.
"""

from __future__ import annotations

from typing import Any

from onnxremat.device.machine import PROVIDERS
from onnxremat.errors import UnsupportedError, VerificationError
from onnxremat.execute.deployment import Deployment
from onnxremat.ort.providers import assigned, open_annotated, require
from onnxremat.rewrite.annotate import annotated

BUILT_IN = (PROVIDERS["cpu"], PROVIDERS["cuda"])


def load_annotated(made: Deployment) -> Any:
    """One ready ``InferenceSession`` with every op where it was planned.

    Raises:
        UnsupportedError: two devices of one provider, or a provider that refuses parts of a graph.
        MissingComponentError: a provider is not here.
        VerificationError: onnxruntime placed an op elsewhere.
    """
    used = dict.fromkeys(part.device for part in made.parts.partitions)
    devices = [made.machine.device(name) for name in used]
    names = [device.provider for device in devices]
    wrong = [d.name for d in devices if d.provider not in BUILT_IN or names.count(d.provider) > 1]
    if wrong:
        raise UnsupportedError(
            f"device '{wrong[0]}' cannot be one of several in one session",
            why="onnxruntime takes one device per built-in provider",
            hint="run one session per partition: Deployment.executor()",
        )
    for device in devices:
        require(device)
    session = open_annotated(devices, annotated(made.parts), made.folder)
    where = {op.name: part.device for part in made.parts.partitions for op in part.graph.ops}
    for node, provider in assigned(session).items():
        if node in where and provider != made.machine.device(where[node]).provider:
            raise VerificationError(
                f"onnxruntime put '{node}' on {provider}, planned is '{where[node]}'",
                hint="run one session per partition: Deployment.executor()",
            )
    return session
