"""Which parts of a chain gain by tiles.

A part is ops of a chain that follow each other. As a Scan over tiles it reads what it needs from
memory and writes what others need, once each, where its ops one by one read and write all that
they make; but each run of the body and each op in it takes a time of its own. A Scan holds all
that it reads and all that it makes at once, and never computes in place: where that is more than
the ops hold one after the other, or more than the largest op of the step, which no plan goes
below, these stay. Of all ways to divide a chain the one is taken that saves most.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from onnxremat.grad.host.chains import ELEMENTWISE, Chain, Chains, padded, read_of, tile_of
from onnxremat.graph.ir import Op
from onnxremat.graph.traits import is_alias, takeover_inputs

TILE, MOST = 1 << 20, 6 << 20  # bytes of a tile of a tensor: wanted, and at most
WHOLE = 16  # elements that kernels compute at once: tiles are multiples of so many
# Picoseconds that a byte takes to or from memory more than to the nearest cache, and bytes of a
# tensor from which it does: less stays in a cache further away. What a run of the body takes, and
# each op in it. Measured on an AMD EPYC (Zen 4), see docs/gradients.md.
BYTE, FAR, RUN, CALL = 20.0, 10 << 20, 15e6, 4e6
SURELY = 1.0  # so many times what tiles take has to be saved
LARGEST = 1.05  # times the need of the largest op: sums of rows are made beside the rest


@dataclass(frozen=True)
class Part:
    """Ops that are computed together.

    Attributes:
        ops: in a topological order.
        inputs: what each tile reads a part of.
        results: what is read outside.
        tiles: how many.
        saved: picoseconds.
    """

    ops: tuple[Op, ...]
    inputs: tuple[str, ...]
    results: tuple[str, ...]
    tiles: int
    saved: float


def worthwhile(chains: Chains, outputs: Collection[str]) -> list[Part]:
    """All parts of chains that gain by tiles.

    Args:
        outputs: tensors that the step returns; no Scan makes one.
    """
    choice = _Choice(chains, set(outputs))
    return [part for chain in chains.found() for part in choice.parts(chain)]


class _Choice:
    def __init__(self, chains: Chains, outputs: set[str]) -> None:
        self.chains, self.t, self.outputs = chains, chains.t, outputs
        self.most = max((self._needs(op) for op in chains.ops), default=0)

    def parts(self, chain: Chain) -> list[Part]:
        """The parts of a chain that save most together."""
        best: list[tuple[float, list[Part]]] = [(0.0, [])]
        for end in range(1, len(chain.places) + 1):
            best.append(best[-1])
            for begin in range(end - 1):
                part = self._part(chain, begin, end)
                if part is not None and best[begin][0] + part.saved > best[end][0]:
                    best[end] = best[begin][0] + part.saved, [*best[begin][1], part]
        return best[-1][1]

    def _part(self, chain: Chain, begin: int, end: int) -> Part | None:
        """A part that gains."""
        ops = [self.chains.ops[k] for k in chain.places[begin:end]]
        made = {op.outputs[0] for op in ops}
        if any(is_alias(op) and op.inputs[0] not in made for op in ops):
            return None
        results = tuple(op.outputs[0] for op in ops if self._outside(op.outputs[0], ops))
        widest = max(map(self._bytes, made))
        elements = max(map(self.t.size, made))
        count = _tiles(chain.length, widest, elements)
        if count == 1 or not self.outputs.isdisjoint(results):
            return None
        read = dict.fromkeys(n for op in ops for n in self._cut(op, count) if n not in made)
        inputs = tuple(read)
        needs = sum(map(self._bytes, {*inputs, *self._roots(ops, results)}))
        if needs > LARGEST * self.most:
            return None
        moved = self._moved(ops) - needs
        takes = count * (RUN + CALL * len(ops))
        saved = BYTE * min(1.0, widest / FAR) * moved - takes
        if saved < SURELY * takes or not self._takes_no_more(ops, inputs, results):
            return None
        return Part(tuple(ops), inputs, results, count, saved)

    def _cut(self, op: Op, count: int) -> list[str]:
        """What each tile reads a part of."""
        shape = self.t.shape(op.outputs[0])
        if op.op_type not in ELEMENTWISE:
            return list(read_of(op))
        axes = 1 + len(shape) - len(tile_of(shape, count))
        return [n for n in op.reads if padded(self.t.shape(n), len(shape))[:axes] == shape[:axes]]

    def _outside(self, name: str, ops: Sequence[Op]) -> bool:
        """Whether anybody else reads what a part makes."""
        names = {op.name for op in ops}
        readers = self.chains.readers.get(name, [])
        return name in self.outputs or any(op.name not in names for op in readers)

    def _roots(self, ops: Sequence[Op], names: Collection[str]) -> set[str]:
        """What tensors are, or are views of."""
        shown = dict[str, str]()
        for op in ops:
            source = shown.get(op.inputs[0], op.inputs[0]) if is_alias(op) else op.outputs[0]
            shown[op.outputs[0]] = source
        return {shown.get(name, name) for name in names}

    def _moved(self, ops: Sequence[Op]) -> int:
        """Bytes that ops one by one read and write."""
        working = [op for op in ops if not is_alias(op)]
        return sum(self._bytes(name) for op in working for name in {*read_of(op), *op.writes})

    def _needs(self, op: Op) -> int:
        """Bytes that an op reads and writes, which have to be there at once."""
        known = self.t.tensors
        return sum(known[name].bytes for name in {*op.reads, *op.writes} if name in known)

    def _bytes(self, name: str) -> int:
        return self.t.tensors[name].bytes

    def _takes_no_more(
        self, ops: Sequence[Op], inputs: Collection[str], results: Collection[str]
    ) -> bool:
        """Whether results, and inputs that nobody reads later, are no more than what the ops hold
        one after the other."""
        names, kept = {op.name for op in ops}, self._roots(ops, results)
        ends = {name for name in inputs if self._ends(name, names)}
        last = dict[str, int]()
        for k, op in enumerate(ops):
            last.update(dict.fromkeys(self._roots(ops, read_of(op)), k))
        held, most = set(ends), 0
        for k, op in enumerate(ops):
            if not is_alias(op):
                over = self._roots(ops, [op.inputs[i] for i in takeover_inputs(op)])
                dying = {n for n in held if last.get(n) == k and n not in kept}
                same = [n for n in over & dying if self._bytes(n) == self._bytes(op.outputs[0])]
                held = held.difference(same[:1]) | {op.outputs[0]}
                most = max(most, sum(map(self._bytes, held)))
            held = {n for n in held if last.get(n, -1) != k or n in kept}
        return sum(map(self._bytes, ends | kept)) <= most

    def _ends(self, name: str, names: Collection[str]) -> bool:
        """Whether nobody but some ops reads a tensor, or one that it is a view of."""
        maker = self.chains.maker.get(name)
        if maker is None or name in self.outputs:
            return False
        if any(op.name not in names for op in self.chains.readers.get(name, [])):
            return False
        return not is_alias(maker) or self._ends(maker.inputs[0], {*names, maker.name})


def _tiles(length: int, widest: int, elements: int) -> int:
    """How many tiles: the fewest that are small enough, or the most that there can be; 1 for none.

    Args:
        length: what their number divides.
        widest: bytes of the largest tensor, of so many ``elements``.
    """
    counts = [k for k in _divisors(length) if k > 1 and elements % (k * WHOLE) == 0]
    count = next((k for k in counts if widest <= k * TILE), max(counts, default=1))
    return count if widest <= count * MOST else 1


def _divisors(number: int) -> list[int]:
    """All, ascending."""
    low = [k for k in range(1, math.isqrt(number) + 1) if number % k == 0]
    return sorted({*low, *(number // k for k in low)})
