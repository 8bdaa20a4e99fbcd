"""Functions with a backward of their own (``torch.autograd.Function``).

An ONNX file has what such a function computes, not the gradient that it declares. PyTorch's
exporter (dynamo) writes beside each node the lines of code that made it: ``Round.apply(x)``, and
the ``forward`` that this called. A function that hands its input on leaves a node only with
``optimize=False``. Files of the older exporter say nothing.
"""

from __future__ import annotations

import re
from itertools import pairwise

import onnx

from onnxremat.grad.exported.marks import CODE, first_of
from onnxremat.graph.ir import all_nodes

_FRAME = re.compile(r'File "(.*?)", line \d+, in (\w+)\n\s*(.*)')
_APPLIED = re.compile(r"(\w+)\.apply\(")
_OF_TORCH = re.compile(r"-packages[\\/]torch[\\/]")  # that of a checkpoint is the derivative
_SHOWN = 4


def own_gradients(model: onnx.ModelProto) -> list[str]:
    """A warning about functions that may declare another gradient than that of what they compute,
    if the file tells of any."""
    names = {name: None for node in all_nodes(model.graph) for name in _functions_of(node)}
    if not names:
        return []
    return [
        f"the module computes with functions that have a backward of their own: "
        f"{first_of([*names], _SHOWN)}; it is not in the file, and gradients are those of what "
        "they compute: where they declare others (rounding that passes gradients on), the "
        "parameters before them are trained otherwise (onnxremat.check_export tells)"
    ]


def _functions_of(node: onnx.NodeProto) -> list[str]:
    """The function in which a node was made, and others that its line of code calls."""
    code = next((entry.value for entry in node.metadata_props if entry.key == CODE), "")
    frames = _FRAME.findall(code) if ".apply(" in code else []
    return [
        name
        for (_, _, line), (file, called, _) in pairwise(frames)
        if called == "forward" and not _OF_TORCH.search(file)
        for name in _APPLIED.findall(line)
    ]
