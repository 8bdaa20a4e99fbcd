"""Models planned for devices of which one got everything: a session of its provider."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx

from onnxremat import plain_json
from onnxremat.device.files import parse_machine
from onnxremat.device.machine import Device
from onnxremat.errors import UsageError
from onnxremat.graph.onnx_io import read_model, to_model
from onnxremat.ort.infer import build_graph
from onnxremat.ort.providers import open_on
from onnxremat.ort.session import Options
from onnxremat.rewrite.emit import metadata
from onnxremat.rewrite.openvino import for_openvino
from onnxremat.rewrite.restore import restored


def only_device(head: onnx.ModelProto) -> Device | None:
    """The one device that a plan over devices gives everything to, if that computes elsewhere than
    in onnxruntime's own kernels; None otherwise, and for any other model.

    Raises:
        UsageError: the plan is damaged.
    """
    facts = metadata(head)
    if "devices" not in facts:
        return None
    try:
        about = plain_json.loads(facts["devices"])
        parts = [row["device"] for row in about["actions"] if "partition" in row]
        machine = parse_machine(about["machine"])
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            "the device plan is damaged", why=plain_json.why_damaged(error), hint="plan again"
        ) from error
    device = machine.device(parts[0]) if len(parts) == 1 else None
    return device if device is not None and device.opaque else None


def open_whole(file: Path, device: Device, options: Options) -> Any:
    """An ``InferenceSession`` of the model on a device.

    Raises:
        MissingComponentError: its provider is not here.
        ModelError: the provider does not take it.
    """
    graph = build_graph(restored(read_model(file)), file.parent)
    session = open_on(device, to_model(for_openvino(graph)), options, file.parent)
    session.describe = lambda: f"all on '{device.name}', which holds memory of its own"
    return session
