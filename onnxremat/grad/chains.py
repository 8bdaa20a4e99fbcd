"""Chains of the backward pass that can be computed over tiles: elementwise ops, and reductions and
products that make one number of each row.

Tiles are runs along the first axes of all tensors of a chain. What an op allows is a set of cuts:
(how many elements the first axes have together, the other axes); what a chain allows is what all of
its ops do. Views are part of a chain as long as they leave the same runs together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from onnx import helper, numpy_helper

from onnxremat.grad.assembly import makers_and_readers
from onnxremat.grad.roles import is_backward
from onnxremat.grad.tape import BROADCAST, Shape, Tape
from onnxremat.graph.ir import Op
from onnxremat.graph.traits import is_alias

LEAST = 4 << 20  # bytes of a tensor from which it does not stay in the cache by itself
LONGEST = 32  # most ops of a chain
ELEMENTWISE = BROADCAST | {
    "Abs", "Cast", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Log",
    "Mish", "Neg", "Not", "Reciprocal", "Relu", "Selu", "Sigmoid", "Sign", "Softplus", "Softsign",
    "Sqrt", "Tanh",
}  # fmt: skip
REDUCTIONS = frozenset({"ReduceMean", "ReduceSum"})

Cut = tuple[int, Shape]


@dataclass
class Chain:
    """Ops by their places, ascending, and all cuts that they allow."""

    places: list[int]
    cuts: set[Cut]


class Chains:
    """All of a step.

    Args:
        ops: in a topological order.
    """

    def __init__(self, t: Tape, ops: Sequence[Op]) -> None:
        self.t, self.ops = t, ops
        self.maker, self.readers = makers_and_readers(ops)
        self.place = {op.name: k for k, op in enumerate(ops)}
        self.axes = {each.name: each for each in t.initializers if len(each.dims) == 1}
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
        return all(self._known(name) for name in (*read_of(op), *op.outputs))

    def _known(self, name: str) -> bool:
        shape = self.t.tensors[name].shape
        return bool(shape is not None and 0 not in shape and not any(map(self.t.varies, shape)))

    def _cuts(self, op: Op) -> set[Cut]:
        t, kind, operands = self.t, op.op_type, [self.t.shape(name) for name in read_of(op)]
        shape = t.shape(op.outputs[0])
        if is_alias(op):
            return _cuts(shape, []) & _cuts(operands[0], [])
        if kind in ELEMENTWISE:
            return _cuts(shape, operands)
        if kind in REDUCTIONS:
            kept = self._rows_of(op, operands[0])
            return {cut for cut in _cuts(operands[0], []) if len(cut[1]) >= len(operands[0]) - kept}
        return set()

    def _rows_of(self, op: Op, shape: Shape) -> int:
        """How many axes come before those that an op reduces; 0 where it does not keep these, or
        they are not the last ones."""
        how = {a.name: helper.get_attribute_value(a) for a in op.node.attribute}
        known = self.axes.get(op.inputs[1]) if len(op.inputs) > 1 else None
        if known is None or not how.get("keepdims", 1):
            return 0
        axes = sorted(int(axis) % len(shape) for axis in numpy_helper.to_array(known))
        return axes[0] if axes == list(range(axes[0], len(shape))) else 0

    # ---- which ops go together ------------------------------------------------------------

    def _join(self, place: int, op: Op) -> None:
        """Let an op follow the chains that make what it reads."""
        cuts, large = self._cuts(op), self.t.size(op.outputs[0]) * 4 >= LEAST
        chain = Chain([place], cuts)
        for name in read_of(op):
            maker = self.maker.get(name)
            former = self.of.get(self.place[maker.name]) if maker else None
            if former is None or former.places[0] in chain.places:
                continue
            both = {cut for a in former.cuts for b in chain.cuts for cut in _common(a, b)}
            places = sorted({*former.places, *chain.places})
            if both and len(places) <= LONGEST and not self._waits_for_itself(places):
                chain = Chain(places, both)
        if len(chain.places) > 1 or (large and cuts and op.op_type in ELEMENTWISE):
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
            chain = self.of.get(place)
            together = chain.places if chain and inside.isdisjoint(chain.places) else [place]
            seen.update(together)
            waiting += [k for each in together for k in self._before(each) if k not in seen]
        return False

    def _before(self, place: int) -> list[int]:
        made = (self.maker.get(name) for name in self.ops[place].reads)
        return [self.place[op.name] for op in made if op is not None]


def read_of(op: Op) -> tuple[str, ...]:
    """The tensors whose elements an op of a chain reads."""
    return op.inputs[:1] if is_alias(op) or op.op_type in REDUCTIONS else op.reads


def cut_of(op: Op) -> tuple[str, ...]:
    """Those of them that may be cut into tiles: all but the column that rows are multiplied with."""
    return op.inputs[:1] if op.op_type == "MatMul" else read_of(op)


def lead_of(shape: Shape, cut: Cut) -> int:
    """How many elements a tensor has along the axes that are cut: as many as the cut, or one, where
    all tiles read the same."""
    return math.prod(shape[: max(0, len(shape) - len(cut[1]))])


def _cuts(shape: Shape, operands: Sequence[Shape]) -> set[Cut]:
    """Along the first axes each operand is as long as the shape, or has length 1."""
    full = [(1,) * (len(shape) - len(operand)) + operand for operand in operands]
    return {
        (math.prod(shape[:axes]), shape[axes:])
        for axes in range(1, len(shape) + 1)
        if all(each[:axes] in (shape[:axes], (1,) * axes) for each in full)
    }


def _common(a: Cut, b: Cut) -> list[Cut]:
    """What two cuts are together: along other axes one may have length 1."""
    (lead, last), (other, rest) = a, b
    if lead != other or len(last) != len(rest):
        return []
    if any(m != n and 1 not in (m, n) for m, n in zip(last, rest, strict=True)):
        return []
    return [(lead, tuple(map(max, last, rest)))]
