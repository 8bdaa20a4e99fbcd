"""Updates in place: a parameter may only be overwritten after its last reader."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from onnx import TensorProto as T

from onnxremat.grad.tape import Tape
from onnxremat.graph.ir import Op
from onnxremat.graph.traits import MOVING, SIZES


class Readers:
    """Who reads a tensor, and who is sure to have run before another tensor is made.

    Args:
        ops: all ops, in a topological order.
        constants: tensors known before the run.
    """

    def __init__(self, ops: Sequence[Op], constants: Collection[str]) -> None:
        self._ops = ops
        self._constants = set(constants)
        self._index: dict[str, int] = {}
        self._readers: dict[str, list[int]] = {}
        self._before: list[int] = []  # per op a bit set of all its ancestors and itself
        for index, op in enumerate(ops):
            mask = 1 << index
            for name in op.reads:
                self._readers.setdefault(name, []).append(index)
                if name in self._index:
                    mask |= self._before[self._index[name]]
            self._before.append(mask)
            for name in op.writes:
                self._index[name] = index
            if op.op_type in SIZES or all(name in self._constants for name in op.reads):
                self._constants.update(op.writes)

    def late(self, parameter: str, gradient: str) -> list[str]:
        """An output of each op that uses a parameter and may run after its gradient is made.

        What only the parameter enters (a Transpose, Slice or multiple of it) is no use yet, nor is
        a view whose shape or type is computed: runtimes fuse it into the op that uses it, which
        then reads the parameter itself, and later.
        """
        at = self._index.get(gradient)
        done = self._before[at] if at is not None else 0
        found: set[int] = set()
        waiting, derived = [parameter], {parameter}
        while waiting:
            for index in self._readers.get(waiting.pop(), ()):
                op = self._ops[index]
                view = op.op_type in MOVING and op.inputs[0] in derived
                if view or all(name in derived or name in self._constants for name in op.reads):
                    fresh = [name for name in op.writes if name not in derived]
                    derived.update(fresh)
                    waiting += fresh
                elif not done >> index & 1:
                    found.add(index)
        return [self._ops[index].writes[0] for index in sorted(found)]


def gate(t: Tape, scalar: str, after: Sequence[str]) -> str:
    """``scalar``, not available before all of ``after`` are made.

    It gets a multiple of their sizes added, the multiple being 0. (A Reshape by a computed shape
    would cost less, but onnxruntime drops one that follows another Reshape.)
    """
    for name in after:
        size = t.cast(t.op("Size", name, shape=(), dtype=T.INT64), t.dtype(scalar))
        scalar = t.add(scalar, t.mul(size, 0.0))
    return scalar
