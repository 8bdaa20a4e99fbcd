"""The parameters and buffers of a module as PyTorch's exporter (dynamo) lists them in a file: all
of them, also those that its optimizer took away."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import onnx

_KEY = "pkg.torch.export.ExportedProgram.graph_signature"
_ENTRY = re.compile(r"\s*(\w+): (PARAMETER|BUFFER) target='([^']+)'")
PARAMETER, BUFFER = "PARAMETER", "BUFFER"


@dataclass(frozen=True)
class Listed:
    """A tensor of the module: its name there, and ``PARAMETER`` or ``BUFFER``."""

    name: str
    kind: str


def ends_of(model: onnx.ModelProto, which: str) -> tuple[str, ...]:
    """Names in PyTorch's graph of its ``inputs`` that are no parameters and buffers, or of its
    ``outputs``."""
    parts = _text(model).split("# outputs", 1)
    text = parts[0] if which == "inputs" else "".join(parts[1:])
    lines = [line.strip() for line in text.splitlines() if ":" in line and not _ENTRY.match(line)]
    return tuple(line.split(":", 1)[0] for line in lines)


def signature_of(model: onnx.ModelProto) -> Mapping[str, Listed]:
    """What the file lists, by the name in PyTorch's graph (``p_layers_0_weight``); empty where it
    lists nothing."""
    entries = map(_ENTRY.match, _text(model).split("# outputs", 1)[0].splitlines())
    return {entry[1]: Listed(entry[3], entry[2]) for entry in entries if entry is not None}


def _text(model: onnx.ModelProto) -> str:
    return next((e.value for e in model.graph.metadata_props if e.key == _KEY), "")
