"""Updates in place: a parameter may only be overwritten after its last reader."""

from __future__ import annotations

from collections.abc import Sequence

from onnxremat.grad.tape import Tape
from onnxremat.graph.ir import Op
from onnxremat.graph.traits import is_alias


class Readers:
    """Who reads a tensor, and who is sure to have run before another tensor is made."""

    def __init__(self, ops: Sequence[Op]) -> None:
        self._ops = ops
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

    def late(self, parameter: str, gradient: str) -> list[str]:
        """An output of each op that reads a parameter and may run after its gradient is made."""
        at = self._index.get(gradient)
        done = self._before[at] if at is not None else 0
        found: list[int] = []
        waiting, seen = [parameter], {parameter}
        while waiting:
            for index in self._readers.get(waiting.pop(), ()):
                op = self._ops[index]
                if is_alias(op) and op.outputs[0] not in seen:
                    seen.add(op.outputs[0])  # a view: its readers read the parameter
                    waiting.append(op.outputs[0])
                elif not is_alias(op) and not done >> index & 1:
                    found.append(index)
        return [self._ops[index].writes[0] for index in sorted(set(found))]


def gate(t: Tape, value: str, after: Sequence[str]) -> str:
    """``value``, not available before all of ``after`` are made.

    A Reshape whose target depends on their sizes and says "as it is": no data is copied, no
    runtime optimization removes it, and the order holds under any scheduling.
    """
    if not after:
        return value
    target = t.constant([0] * t.rank(value), 7)
    for name in after:
        size = t.op("Size", name, shape=(), dtype=7)
        target = t.op("Mul", target, size)
    return t.op("Reshape", value, target, shape=t.shape(value))
