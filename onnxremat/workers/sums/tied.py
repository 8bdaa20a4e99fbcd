"""Gradients of parameters that several layers share: parts of their own, which nobody waits for.

W of a layer may read what W of another one makes: the gradient of a tied embedding is a sum of both
layers' shares. Schedules know of no order among W of one micro-batch, and two ranks that wait for
each other's would stand still. So the sum is a part of its own, *J*, which runs when all shares are
there, at the latest at the end of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from onnxremat.graph.ir import Op
from onnxremat.workers.pipeline import W
from onnxremat.workers.sums.layers import J, Key


def apart(parts: Mapping[Key, Sequence[Op]]) -> dict[Key, list[Op]]:
    """Parts, those W that read from W of other layers without what they make of it.

    Args:
        parts: F, B and W per layer, W reading from W of later layers at most.
    """
    found = {key: list(ops) for key, ops in parts.items()}
    maker = {name: key for key, ops in parts.items() for op in ops for name in op.writes}
    for (kind, layer), ops in parts.items():
        if kind != W:
            continue
        joined = set[str]()
        for op in ops:
            if any(n in joined or _other(maker.get(n), layer) for n in op.reads):
                joined.update(op.writes)
                found.setdefault((J, layer), []).append(op)
        found[W, layer] = [op for op in ops if joined.isdisjoint(op.writes)]
    return {key: ops for key, ops in found.items() if ops}


def _other(maker: Key | None, layer: int) -> bool:
    return maker is not None and maker[0] == W and maker[1] != layer


class Joints:
    """Parts J of one rank that are due, each for one micro-batch after the other.

    Args:
        ready: whether all that a part reads of a micro-batch is there.
        run: runs a part for a micro-batch, waiting where something is not there yet.
    """

    def __init__(self, ready: Callable[[Key, int], bool], run: Callable[[Key, int], None]) -> None:
        self._ready, self._run = ready, run
        self._due: dict[Key, list[int]] = {}

    def due(self, key: Key, batch: int) -> None:
        """W of this stage and micro-batch has run."""
        self._due.setdefault(key, []).append(batch)

    def go_on(self) -> None:
        """Run what can be run without waiting."""
        for key, batches in self._due.items():
            while batches and self._ready(key, batches[0]):
                self._run(key, batches.pop(0))

    def finish(self) -> None:
        """Run all that is left, in the same order on all ranks: none waits for one that waits for
        it. J of a layer reads from J of later layers at most."""
        left = sorted((k, -key[1], key) for key, batches in self._due.items() for k in batches)
        for batch, _, key in left:
            self._run(key, batch)
        self._due.clear()
