"""Elementwise chains of the backward pass: which ops, over which tiles, and whether these gain.

A chain is a set of ops that make tensors of equally many elements, from each other and from what
others make. A tile is a run along the first axes of all of them. Views in between (a residual
added in another shape) are part of a chain as long as tiles are runs of the same elements in both.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from onnxremat.grad.assembly import makers_and_readers
from onnxremat.grad.roles import is_backward
from onnxremat.grad.tape import BROADCAST, Shape, Tape
from onnxremat.graph.ir import Op
from onnxremat.graph.traits import is_alias, takeover_inputs

LEAST = 4 << 20  # bytes of a tensor from which it does not stay in the cache by itself
TILE = 1 << 20  # most bytes of a tile of a tensor
WHOLE = 16  # elements that kernels compute at once: tiles are multiples of so many
# Picoseconds that a byte takes to or from memory more than to the cache; that a run of the body
# takes, and each op in it.
BYTE, RUN, CALL = 20.0, 15e6, 4e6
ELEMENTWISE = BROADCAST | {
    "Abs", "Cast", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Log",
    "Mish", "Neg", "Not", "Reciprocal", "Relu", "Selu", "Sigmoid", "Sign", "Softplus", "Softsign",
    "Sqrt", "Tanh",
}  # fmt: skip

Cut = tuple[int, Shape]  # elements along the axes that tiles are runs of, and the other axes


@dataclass
class Chain:
    """Ops by their places, ascending.

    Attributes:
        cuts: what tiles may be runs of; None where it is all one.
        inputs: what tiles have a part each of.
        results: what is read outside, or returned.
        cut: the longest.
        tiles: how many; 1 is none.
    """

    places: list[int]
    cuts: set[Cut] | None
    inputs: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    cut: Cut = (0, ())
    tiles: int = 1


class Chains:
    """All of a step.

    Args:
        ops: in a topological order.
        outputs: tensors that the step returns; no chain makes one.
    """

    def __init__(self, t: Tape, ops: Sequence[Op], outputs: Collection[str]) -> None:
        self.t, self.ops, self.outputs = t, ops, set(outputs)
        self.maker, self.readers = makers_and_readers(ops)
        self.place = {op.name: k for k, op in enumerate(ops)}
        self.chain_of = dict[int, Chain]()

    def worthwhile(self) -> list[Chain]:
        """Those that gain by tiles."""
        for place, op in enumerate(self.ops):
            if self._fits(op):
                self._join(place, op)
        every = {id(chain): chain for chain in self.chain_of.values()}
        return [chain for chain in every.values() if self._gains(chain)]

    # ---- which ops ------------------------------------------------------------------------

    def _fits(self, op: Op) -> bool:
        """Whether an op of the backward pass can be in a chain."""
        if not (is_backward(op) and op.standard) or len(op.outputs) != 1 or op.captures:
            return False
        if not (op.op_type in ELEMENTWISE or is_alias(op)) or not all(map(self._known, read_of(op))):
            return False
        (result,) = op.outputs
        return self._known(result) and self.t.size(result) * 4 >= LEAST

    def _known(self, name: str) -> bool:
        shape = self.t.tensors[name].shape
        return shape is not None and not any(map(self.t.varies, shape))

    def _join(self, place: int, op: Op) -> None:
        """Let an op follow the chains that make what it reads, where nobody else reads of these
        before: a chain is computed at the place of its last op."""
        chain = Chain([place], None if is_alias(op) else self._cuts(op))
        for name in read_of(op):
            maker = self.maker.get(name)
            former = self.chain_of.get(self.place[maker.name]) if maker else None
            if former is None or self.t.size(name) != self.t.size(op.outputs[0]):
                continue
            cuts = _common(former.cuts, chain.cuts)
            if cuts == set() or former.places[0] in chain.places:
                continue
            if all(self.place[reader.name] >= place for reader in self._outside(former)):
                chain = Chain(sorted({*former.places, *chain.places}), cuts)
        if len(chain.places) > 1 or not is_alias(op):
            self.chain_of |= dict.fromkeys(chain.places, chain)

    def _outside(self, chain: Chain) -> Iterator[Op]:
        """Who else reads what a chain makes."""
        for place in chain.places:
            for reader in self.readers.get(self.ops[place].outputs[0], []):
                if self.place[reader.name] not in chain.places:
                    yield reader

    def _cuts(self, op: Op) -> set[Cut] | None:
        """Of an op: along its first axes each operand is as long as the result, or has length 1."""
        shape = self.t.shape(op.outputs[0])
        operands = [(1,) * (len(shape) - self.t.rank(n)) + self.t.shape(n) for n in op.reads]
        if all(operand == shape or math.prod(operand) == 1 for operand in operands):
            return None
        return {
            (math.prod(shape[:axes]), shape[axes:])
            for axes in range(1, len(shape) + 1)
            if all(o[:axes] in (shape[:axes], (1,) * axes) for o in operands)
        }

    # ---- whether tiles gain ---------------------------------------------------------------

    def _gains(self, chain: Chain) -> bool:
        """Whether tiles save time and take no more memory; says what tiles there are."""
        ops = [self.ops[k] for k in chain.places]
        made = {op.outputs[0] for op in ops}
        read = dict.fromkeys(name for op in ops for name in read_of(op) if name not in made)
        outside = {name for op in self._outside(chain) for name in op.reads}
        chain.results = [op.outputs[0] for op in ops if op.outputs[0] in outside | self.outputs]
        size = self.t.size(ops[0].outputs[0])
        chain.cut = max(chain.cuts or {(size, ())})
        chain.inputs = [name for name in read if self._is_cut(name, chain, ops)]
        widest = max(self.t.tensors[name].bytes for name in made)
        chain.tiles = next((k for k in divisors(chain.cut[0]) if widest <= k * TILE), 1)
        if chain.tiles == 1 or size // chain.tiles % WHOLE:
            return False
        if not self.outputs.isdisjoint(chain.results):
            return False
        return self._saved(chain, ops) > 0 and self._takes_no_more(chain, ops)

    def _is_cut(self, name: str, chain: Chain, ops: Sequence[Op]) -> bool:
        """Whether each tile reads its own part of an operand."""
        size, rest = self.t.size(name), math.prod(chain.cut[1])
        op = next(op for op in ops if name in read_of(op))
        shape, operand = self.t.shape(op.outputs[0]), self.t.shape(name)
        axes = len(shape) - len(chain.cut[1])
        own = (1,) * (len(shape) - len(operand)) + operand
        return size > 1 and (size == rest * chain.cut[0] or math.prod(own[:axes]) == chain.cut[0])

    def _saved(self, chain: Chain, ops: Sequence[Op]) -> float:
        """Picoseconds."""
        sizes = {name: self.t.tensors[name].bytes for op in ops for name in (*read_of(op), *op.writes)}
        working = [op for op in ops if not is_alias(op)]
        moved = sum(sizes[name] for op in working for name in (*read_of(op), *op.writes))
        left = sum(sizes[name] for name in (*chain.inputs, *chain.results))
        return BYTE * (moved - left) - chain.tiles * (RUN + CALL * len(working))

    def _takes_no_more(self, chain: Chain, ops: Sequence[Op]) -> bool:
        """Whether a chain's inputs that end with it and its results, which a Scan holds all at
        once, are no more than what its ops hold one after the other."""
        names = {op.name for op in ops}
        sizes = {name: self.t.tensors[name].bytes for op in ops for name in (*read_of(op), *op.writes)}
        home = {op.outputs[0]: op.inputs[0] for op in ops if is_alias(op)}

        def root(name: str) -> str:
            while name in home:
                name = home[name]
            return name

        last = {root(name): k for k, op in enumerate(ops) for name in read_of(op)}
        kept = {root(name) for name in chain.results}
        ends = {name for name in chain.inputs if self._ends(name, names)}
        held = {name: sizes[name] for name in ends}
        most = sum(held.values())
        for k, op in enumerate(ops):
            if not is_alias(op):
                result, over = op.outputs[0], [root(op.inputs[i]) for i in takeover_inputs(op)]
                held[result] = sizes[result]
                for name in over[:1]:
                    fits = last[name] == k and name in held and name not in kept
                    if fits and sizes[name] == sizes[result]:
                        del held[name]
                most = max(most, sum(held.values()))
            for name in [n for n in held if last.get(n, -1) == k and n not in kept]:
                del held[name]
        return sum(sizes[name] for name in {*ends, *kept}) <= most

    def _ends(self, name: str, names: Collection[str]) -> bool:
        """Whether nobody else reads a tensor, or one that it is a view of."""
        if name in self.outputs or any(op.name not in names for op in self.readers[name]):
            return False
        maker = self.maker.get(name)
        if maker is None:
            return False
        return not is_alias(maker) or self._ends(maker.inputs[0], {*names, maker.name})


def read_of(op: Op) -> tuple[str, ...]:
    """The tensors whose elements an op of a chain reads."""
    return op.inputs[:1] if is_alias(op) else op.reads


def _common(a: set[Cut] | None, b: set[Cut] | None) -> set[Cut] | None:
    if a is None or b is None:
        return b if a is None else a
    return a & b


def divisors(number: int) -> list[int]:
    """All, ascending."""
    low = [k for k in range(1, math.isqrt(number) + 1) if number % k == 0]
    return sorted({*low, *(number // k for k in low)})
