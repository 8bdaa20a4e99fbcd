"""Chains of the backward pass that can be computed over tiles: elementwise ops, and sums.

A tile is a run of the same share of the elements of every tensor of a chain, in their order. The
number of tiles has to divide the length of each op's first axes together: those along which all
that it reads is as long as what it makes or has length 1, and over which it does not sum. Views are
part of a chain, whatever their shapes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from onnx import numpy_helper

from onnxremat.grad.assembly import makers_and_readers
from onnxremat.grad.roles import is_backward
from onnxremat.grad.tape import BROADCAST, Shape, Tape
from onnxremat.graph.ir import Op
from onnxremat.graph.traits import is_alias

LEAST = 8 << 20  # bytes of a tensor from which it does not stay in some cache by itself
LONGEST = 32  # most ops of a chain
ELEMENTWISE = BROADCAST | {
    "Abs", "Cast", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Log",
    "Mish", "Neg", "Not", "Reciprocal", "Relu", "Selu", "Sigmoid", "Sign", "Softplus", "Softsign",
    "Sqrt", "Tanh",
}  # fmt: skip
REDUCTIONS = frozenset({"ReduceMean", "ReduceSum"})
COMPUTED = ELEMENTWISE | REDUCTIONS


@dataclass
class Chain:
    """Ops by their places, ascending, and what the number of tiles has to divide."""

    places: list[int]
    length: int


class Chains:
    """All of a step.

    Args:
        ops: in a topological order.
    """

    def __init__(self, t: Tape, ops: Sequence[Op]) -> None:
        self.t, self.ops = t, ops
        self.maker, self.readers = makers_and_readers(ops)
        self.place = {op.name: k for k, op in enumerate(ops)}
        self.numbers = {each.name: each for each in t.initializers if len(each.dims) == 1}
        self.of = dict[int, Chain]()

    def found(self) -> list[Chain]:
        """Chains of two ops and more. Computed each at once they do not wait for each other."""
        for place, op in enumerate(self.ops):
            if self._fits(op):
                self._join(place, op)
        every = {id(chain): chain for chain in self.of.values()}
        return [chain for chain in every.values() if len(chain.places) > 1]

    # ---- what an op allows ----------------------------------------------------------------

    def _fits(self, op: Op) -> bool:
        """Whether an op can be in a chain."""
        if not (is_backward(op) and op.standard) or len(op.outputs) != 1 or op.captures:
            return False
        if not (op.op_type in COMPUTED or is_alias(op)):
            return False
        return all(self._known(name) for name in (*read_of(op), *op.outputs))

    def _known(self, name: str) -> bool:
        shape = self.t.tensors[name].shape
        return bool(shape is not None and 0 not in shape and not any(map(self.t.varies, shape)))

    def _length(self, op: Op) -> int:
        """What the number of tiles of an op that fits has to divide; 1 where there are none."""
        shape = self.t.shape(op.outputs[0])
        if is_alias(op):
            return math.prod(shape)
        if op.op_type in ELEMENTWISE:
            axes, own = len(shape), [padded(self.t.shape(n), len(shape)) for n in op.reads]
            while any(each[:axes] not in (shape[:axes], (1,) * axes) for each in own):
                axes -= 1
            return math.prod(shape[:axes])
        # Two sums a tile at least: of a single one onnxruntime adds in another order.
        length = math.prod(self.t.shape(op.inputs[0])[: min(self.axes(op), default=0)])
        return length // 2 if length % 2 == 0 else 1

    def axes(self, op: Op) -> list[int]:
        """Axes that an op reduces, as far as they are known."""
        known = self.numbers.get(op.inputs[1]) if len(op.inputs) > 1 else None
        rank = self.t.rank(op.inputs[0])
        return [] if known is None else [int(k) % rank for k in numpy_helper.to_array(known)]

    # ---- which ops go together ------------------------------------------------------------

    def _join(self, place: int, op: Op) -> None:
        """Let an op follow the chains that make what it reads."""
        large = self.t.size(op.outputs[0]) * 4 >= LEAST
        chain = Chain([place], self._length(op))
        for name in read_of(op):
            maker = self.maker.get(name)
            former = self.of.get(self.place[maker.name]) if maker else None
            if former is None or former.places[0] in chain.places:
                continue
            length = math.gcd(former.length, chain.length)
            places = sorted({*former.places, *chain.places})
            if length > 1 and len(places) <= LONGEST and not self._waits_for_itself(places):
                chain = Chain(places, length)
        if len(chain.places) > 1 or (large and chain.length > 1 and op.op_type in ELEMENTWISE):
            self.of |= dict.fromkeys(chain.places, chain)

    def _waits_for_itself(self, places: Sequence[int]) -> bool:
        """Whether ops, computed at once, would wait for others that wait for them; other chains
        are computed at once, too."""
        first, every = places[0], {id(chain): chain for chain in self.of.values()}
        for chain in sorted(every.values(), key=lambda chain: -chain.places[-1]):
            if chain.places[-1] < first:  # nothing up to there reads what comes later
                break
            first = min(first, chain.places[0])
        inside, seen = set(places), set[int]()
        waiting = [k for place in places for k in self._before(place) if k not in inside]
        while waiting:
            place = waiting.pop()
            if place in inside:
                return True
            if place in seen or place < first:
                continue
            other = self.of.get(place)
            together = other.places if other and inside.isdisjoint(other.places) else [place]
            seen.update(together)
            waiting += [k for each in together for k in self._before(each) if k not in seen]
        return False

    def _before(self, place: int) -> list[int]:
        made = (self.maker.get(name) for name in self.ops[place].reads)
        return [self.place[op.name] for op in made if op is not None]


def read_of(op: Op) -> tuple[str, ...]:
    """The tensors whose elements an op of a chain reads."""
    return op.inputs[:1] if is_alias(op) or op.op_type in REDUCTIONS else op.inputs


def padded(shape: Shape, rank: int) -> Shape:
    """With as many axes as another, as operands are broadcast."""
    return (1,) * (rank - len(shape)) + shape


def tile_of(shape: Shape, count: int) -> Shape:
    """The shape of each of so many tiles: the first axes are one, as few as can be divided."""
    axes = next(k for k in range(1, len(shape) + 1) if math.prod(shape[:k]) % count == 0)
    return (math.prod(shape[:axes]) // count, *shape[axes:])
