"""A model on several devices against one session: outputs, order, placement, bytes per device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from onnxremat.device.machine import PROVIDERS
from onnxremat.execute.deployment import Deployment
from onnxremat.execute.device_memory import DeviceBytes
from onnxremat.execute.metered import Recorded, record
from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import to_model
from onnxremat.ort.profile import run_session
from onnxremat.ort.session import TUNED, open_session, session_options
from onnxremat.pipeline.verify import Check
from onnxremat.rewrite.partition import Partition, part_graph
from onnxremat.rewrite.pins import is_added
from onnxremat.session.compare import TOLERANCE, Difference, compare
from onnxremat.units import format_bytes

# How far a provider's float32 results may be from the processor's, relative to the largest value
# of an output. The processor itself, running the same kernels, gives the same bits.
FLOAT32 = {PROVIDERS["cpu"]: 0.0, PROVIDERS["cuda"]: 5e-3, PROVIDERS["openvino"]: 5e-3}
OTHERS = 1e-2


@dataclass(frozen=True)
class DeviceVerification:
    """What :func:`verify_devices` found.

    Attributes:
        checks: in the order they were made.
        outputs: what the deployment returned.
        measured: bytes per device, counted.
        predicted: the same, predicted; empty for a deployment that was read from a file.
    """

    checks: tuple[Check, ...]
    outputs: Mapping[str, np.ndarray]
    measured: Mapping[str, DeviceBytes]
    predicted: Mapping[str, DeviceBytes]

    @property
    def ok(self) -> bool:
        """Every check passed."""
        return all(check.ok for check in self.checks)


def verify_devices(
    made: Deployment, feeds: Mapping[str, np.ndarray], *, expected: Graph | None = None
) -> DeviceVerification:
    """Run a deployment and one session of the whole on the same inputs, and look at what ran.

    Args:
        expected: the graph to compare outputs with; the deployment's own when None.

    Raises:
        MissingComponentError, ModelError: it cannot be run.
    """
    reference = run_whole(expected or made.graph, feeds, made)
    outputs, checks = {}, []
    for overlap in (False, True) if made.side_by_side else (False,):
        with made.executor(overlap=overlap) as executor:
            outputs = executor.run(feeds)
        how = "side by side" if overlap else "one by one"
        checks.append(_outputs(made, outputs, reference, how))
    # Under the meter state is updated in place, as a trainer does it.
    state = {old: np.array(feeds[old]) for old, _ in made.parts.pairs}
    found = record(made.parts, made.machine, feeds, folder=made.folder, state=state)
    checks += [_order(made, found), _placement(made, found)]
    for name, device in found.bytes.items():
        checks += _peaks(made, name, device)
    return DeviceVerification(tuple(checks), outputs, found.bytes, made.predicted)


def run_whole(
    graph: Graph, feeds: Mapping[str, np.ndarray], made: Deployment
) -> dict[str, np.ndarray]:
    """Outputs of one session on the processor that runs the graph as it is listed, with as many
    threads as the processor's partitions have."""
    options = session_options(replace(TUNED, threads=min(_threads(made), default=1)))
    session = open_session(to_model(graph), options, made.folder)
    return dict(zip(graph.outputs, run_session(session, dict(feeds)), strict=True))


def tolerance(made: Deployment) -> float:
    """What the providers in use may differ by, in float32. Another number of threads may sum in
    another order."""
    used = {made.machine.device(part.device).provider for part in made.parts.partitions}
    several = TOLERANCE["float32"] if len(_threads(made)) > 1 else 0.0
    return max(several, *(FLOAT32.get(provider, OTHERS) for provider in used))


def _threads(made: Deployment) -> set[int]:
    devices = [made.machine.device(part.device) for part in made.parts.partitions]
    return {device.threads for device in devices if not device.opaque}


def within(difference: Difference, made: Deployment) -> bool:
    """Whether outputs are as near as the providers in use allow."""
    allowed = tolerance(made)
    if not allowed:
        return difference.bit_equal
    return difference.bit_equal or difference.worst <= max(allowed, TOLERANCE["float32"])


def _outputs(
    made: Deployment,
    found: Mapping[str, np.ndarray],
    reference: Mapping[str, np.ndarray],
    how: str,
) -> Check:
    one = compare(found, reference)
    if one.bit_equal:
        text = "bit-equal to one session"
    else:
        allowed = max(tolerance(made), TOLERANCE["float32"]) if tolerance(made) else 0.0
        text = f"'{one.output}' within {one.worst:.1e} of the largest value (allowed {allowed:.0e})"
    return Check(f"same outputs, {how}", within(one, made), text)


def _order(made: Deployment, found: Recorded) -> Check:
    """Executed order inside the partitions whose order is onnxruntime's to keep."""
    wrong, kernels = [], 0
    for index, part in enumerate(made.parts.actions):
        if not isinstance(part, Partition) or made.machine.device(part.device).opaque:
            continue
        planned = [op.name for op in part.graph.ops]
        ran = [k.name for k in found.profiles[index].kernels if not is_added(k.name)]
        kernels += len(ran)
        if planned != ran:
            wrong.append(part.name)
    text = f"{kernels} kernels as planned" if not wrong else f"differs in {', '.join(wrong[:5])}"
    return Check("executed order", not wrong, text)


def _placement(made: Deployment, found: Recorded) -> Check:
    """Every op ran on the provider of its device, by onnxruntime's record and by the profile."""
    strays, count = [], 0
    for index, part in enumerate(made.parts.actions):
        if not isinstance(part, Partition):
            continue
        device = made.machine.device(part.device)
        taken = found.taken[index]
        count += len(part.graph.ops)
        ours = {op.name for op in part_graph(part, device).ops if not is_added(op.name)}
        strays += [
            f"{name} ({provider})"
            for name, provider in taken.items()
            if name in ours and provider != device.provider
        ]
        ran = {kernel.provider for kernel in found.profiles[index].kernels} - {"", device.provider}
        strays += [f"{part.name} ran on {provider}" for provider in ran if not taken]
    text = f"{count} ops on the providers of their devices"
    return Check("placement", not strays, text if not strays else "not: " + ", ".join(strays[:5]))


def _peaks(made: Deployment, name: str, device: DeviceBytes) -> list[Check]:
    checks = []
    how = f", {device.how}"
    if name in made.predicted and device.steps:
        planned = made.predicted[name].peak
        error = planned / device.peak - 1 if device.peak else 0.0
        opaque = made.machine.device(name).opaque
        text = f"{format_bytes(planned)}, {error:+.2%} of measured{how}"
        # What a provider that compiles its parts holds inside is not ours to know beforehand.
        checks.append(Check(f"predicted peak of {name}", opaque or abs(error) <= 0.02, text))
    if name in made.limits:
        limit = made.limits[name]
        text = f"{device.peak} B of {limit} B ({device.peak / limit:.1%}){how}"
        checks.append(Check(f"peak of {name} within budget", device.peak <= limit, text))
    return checks
