"""Bytes of values that are sequences of tensors: onnxruntime copies every tensor into them."""

from __future__ import annotations

from collections.abc import Mapping

from onnxremat.graph.ir import Op, Tensor

# Operators that make a sequence, with how many leading inputs it holds the tensors of (None: all).
MAKERS: dict[str, int | None] = {
    "SplitToSequence": 1, "SequenceConstruct": None, "SequenceInsert": 2, "SequenceErase": 1,
    "SequenceEmpty": 0, "Identity": 1,
}  # fmt: skip


def sequence_bytes(op: Op, tensors: Mapping[str, Tensor]) -> int | None:
    """Bytes of the sequence that an op makes (the most there can be after SequenceErase), None
    where only a run shows them (an If or Loop)."""
    if not op.standard or op.op_type not in MAKERS:
        return None
    held = [name for name in op.inputs[: MAKERS[op.op_type]] if name]
    return sum(tensors[name].bytes for name in held)
