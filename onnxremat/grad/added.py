"""Contributions to one cotangent added up."""

from __future__ import annotations

from onnx import TensorProto as T

from onnxremat.grad.lowering.row_sums import is_better_added, rows_added
from onnxremat.grad.tape import Tape


def added(tape: Tape, earlier: str, more: str) -> str:
    """The sum of two contributions. Where one is rows at indices of a large table, as of an
    embedding that is tied to the last layer, these rows are added onto the other in its place."""
    for onto, other in ((earlier, more), (more, earlier)):
        rows, indices = tape.rows_at.get(other, ("", ""))
        fits = rows and tape.dtype(onto) == T.FLOAT and tape.rank(onto) == 2
        if fits and is_better_added(tape, rows, tape.shape(onto)[0]):
            return rows_added(tape, onto, rows, indices)
    return tape.add(earlier, more)
