"""Tensors of PyTorch's older exporter that may have been computed from parameters.

It stores what it computed of parameters, buffers and constants under names such as ``onnx::Mul_7``
and says nothing more: ``weight[:4]`` and ``1 - weight`` look alike. Weights of linear and recurrent
layers, and scales and shifts of group normalizations, are only moved, which their readers tell.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import onnx

from onnxremat.grad.exported.marks import Marks, first_of, folded_norms, module_of
from onnxremat.grad.exported.patterns import EQUAL, LIMIT, seems_made
from onnxremat.grad.exported.provenance import SINGLE, Kind, Origin
from onnxremat.grad.exported.restored import Restored
from onnxremat.grad.exported.stored import Stored

_MOVED = {"MatMul": (1,), "GRU": (1, 2, 3), "LSTM": (1, 2, 3), "RNN": (1, 2, 3)}


def unsaid(
    model: onnx.ModelProto,
    marks: Marks,
    origins: Mapping[str, Origin],
    restored: Sequence[Restored],
) -> list[str]:
    """A warning about tensors that may be functions of parameters, if there are any.

    Args:
        model: with its parameters restored.
        restored: how; the numbers of these tell that they were only moved.
    """
    if not marks.named or marks.trained is not None:
        return []
    return _told(_perhaps_computed(model, origins, {entry.parameter for entry in restored}))


def perhaps_made(stored: Stored, marks: Marks, origins: Mapping[str, Origin]) -> tuple[str, ...]:
    """Trained tensors that may be buffers, where the file does not say what is one (that of the
    older exporter has parameters and buffers under the names of the module)."""
    if marks.kinds or marks.trained is not None:
        return ()
    return tuple(
        name
        for name, origin in origins.items()
        if origin.kind is Kind.PARAMETER
        and not (origin.told or origin.label)
        and name in stored.tensors
        and stored.size(name) <= LIMIT
        and stored.readable(name)
        and seems_made(stored.value(name))
    )


def _perhaps_computed(
    model: onnx.ModelProto, origins: Mapping[str, Origin], undone: Collection[str]
) -> list[str]:
    """Trained tensors, and equal or single numbers: what code gives is no initializer, but for what
    is put in the place of masked elements."""
    moved, read, elsewhere = set(undone), set(), set()
    norms = _of_folded_norms(model)
    groups = {module_of(n) for n in model.graph.node if n.op_type == "InstanceNormalization"}
    for node in model.graph.node:
        for position, name in enumerate(node.input):
            read.add(name)
            if node.op_type != "Where":
                elsewhere.add(name)
            if position in _MOVED.get(node.op_type, ()) or name in norms:
                moved.add(name)  # of folded normalizations, another warning tells
            elif node.op_type in ("Mul", "Add") and module_of(node) in groups - {""}:
                moved.add(name)
    return [
        name
        for name, origin in origins.items()
        if name.startswith("onnx::")
        and "/" not in name  # a number that what was computed is made with again
        and name in read
        and name not in moved
        and (
            origin.kind is Kind.PARAMETER
            or origin.why == EQUAL
            or (origin.why == SINGLE and name in elsewhere)
        )
    ]


def _of_folded_norms(model: onnx.ModelProto) -> set[str]:
    """Weights and biases of convolutions that normalizations were folded into."""
    weights = {*folded_norms(model)}
    scopes = {module_of(node) for node in model.graph.node} & weights
    return {
        name
        for node in model.graph.node
        if node.op_type.startswith("Conv") and len(node.input) > 2
        and (node.input[1] in weights or module_of(node) in scopes)
        for name in node.input[1:3]
    }  # fmt: skip


def _told(names: Sequence[str]) -> list[str]:
    if not names:
        return []
    return [
        f"PyTorch's older exporter stored {len(names)} tensors that it made of parameters, buffers "
        f"or constants: {first_of(names, 4)}: where it computed them (1 - weight), "
        "training them, or not where their elements are equal, is not training the parameter "
        "(do_constant_folding=False or onnxremat.export keeps it; onnxremat.check_export tells)"
    ]
