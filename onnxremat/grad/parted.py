"""A forward pass some of which is computed in parts: what that changes in a training step.

Gradients need no rules of their own for it: the forward pass is split first and differentiated
then, so that each part goes back as it came, and a weight's gradient is the sum of what parts give.
What has to be seen to is the loss, whose cotangent is written in closed form for all of the
prediction, and the order: a part is to go back as soon as it can.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import onnx

from onnxremat.errors import UnsupportedError
from onnxremat.grad.assembly import needed
from onnxremat.grad.tape import Tape
from onnxremat.graph.ir import Graph, Op, Role, Tensor


@dataclass(frozen=True)
class Parted:
    """A forward pass and its loss, some of it in parts.

    Attributes:
        graph: ops part by part.
        pairs: for each stretch of the prediction its cotangent.
    """

    graph: Graph
    pairs: Mapping[str, str]


# From the forward pass with its loss, the prediction and its cotangent. The last two are outputs of
# the graph; raises UnsupportedError where it does not go.
Parting = Callable[[Graph, str, str], Parted]


def made_of(ops: Sequence[Op], wanted: Collection[str]) -> set[str]:
    """Names of the ops that some tensors are made of."""
    return {op.name for op in needed(ops, wanted)}


def ahead(parted: Parted, wanted: Sequence[str]) -> set[str]:
    """Names of the ops of the forward pass.

    Args:
        wanted: values of it that the step returns.

    Raises:
        UnsupportedError: one of these is there in parts alone.
    """
    graph = parted.graph
    there = {name for op in graph.ops for name in op.writes}.union(graph.inputs)
    lacking = next((name for name in wanted if name not in there), None)
    if lacking is not None:
        raise UnsupportedError(
            f"the step does not return '{lacking}' with its forward pass in parts",
            why="it is there in parts alone, which go back one after the other",
        )
    return made_of(graph.ops, {*parted.pairs, *wanted})


def with_loss(
    graph: Graph,
    t: Tape,
    given: Sequence[str],
    weights: Collection[str],
    wanted: Sequence[str],
) -> Graph:
    """A forward pass and what the tape has of the loss, as one graph.

    Args:
        given: inputs that the loss has.
        weights: of the model, those that are trained among its inputs.
        wanted: outputs.
    """
    frame = onnx.ModelProto()
    frame.CopyFrom(graph.model)
    frame.graph.initializer.extend(t.initializers)
    inputs = (*graph.inputs, *given)
    roles = dict.fromkeys(inputs, Role.INPUT)
    stored = (tensor.name for tensor in frame.graph.initializer)
    roles.update(dict.fromkeys((*weights, *stored), Role.WEIGHT))
    known = {
        name: replace(tensor, role=roles.get(name, tensor.role))
        for name, tensor in t.tensors.items()
    }
    every = (*graph.ops, *t.ops)
    asked = made_of(every, wanted)
    ops = tuple(op for op in every if op.name in asked)
    return Graph(ops, known, inputs, tuple(dict.fromkeys(wanted)), frame)


def with_pieces(sources: Mapping[str, str], ops: Sequence[Op]) -> dict[str, str]:
    """The 16-bit tensor that each float32 value was made from, or is made into, and each piece.

    Args:
        sources: of whole values.
        ops: of a forward pass in parts; names of pieces are those of the whole with an ending.
    """
    made, found = {name for op in ops for name in op.writes}, dict(sources)
    for name in made:
        whole, _, end = name.rpartition("/")
        half = f"{sources.get(whole, '')}/{end}"
        if half in made:
            found[name] = half
    return found


def due_back(ops: Sequence[Op], roots: Sequence[str]) -> dict[str, int]:
    """When each op of a forward pass can go back: behind which of the stretches of its prediction.

    Args:
        roots: these stretches.
    """
    after = {name: number for number, name in enumerate(roots)}
    found: dict[str, int] = {}
    for op in reversed(ops):
        found[op.name] = due = max((after.get(name, 0) for name in op.writes), default=0)
        for name in op.reads:
            after[name] = max(after.get(name, 0), due)
    return found


def in_turn(
    ops: Sequence[Op],
    forward: Sequence[str],
    roots: Collection[str],
    tensors: Mapping[str, Tensor],
) -> list[Op]:
    """A step in the order in which its parts are computed: each op that goes back runs as soon as
    what it needs of the forward pass is there, and what is made of neither when it is read.

    Args:
        ops: in a topological order.
        forward: names of ops of the forward pass and the loss, part by part.
        roots: cotangents that the way back begins with.
        tensors: with sizes.
    """
    return _Turns(ops, forward, roots, tensors).listed()


class _Turns:
    """Attributes:
    place: of ops of the forward pass.
    made: op by tensor.
    back: what depends on the cotangents that the way back begins with.
    due: per op the place of the last op of the forward pass that it waits for.
    """

    def __init__(
        self,
        ops: Sequence[Op],
        forward: Sequence[str],
        roots: Collection[str],
        tensors: Mapping[str, Tensor],
    ) -> None:
        self.ops, self.tensors = ops, tensors
        self.place = {name: at for at, name in enumerate(forward)}
        self.made = {name: index for index, op in enumerate(ops) for name in op.writes}
        self.readers: dict[str, list[int]] = {}
        self.back, self.due = set(roots), list[int]()
        self.chained = [False] * len(ops)
        for index, op in enumerate(ops):
            after = max((self.due[self.made[n]] for n in op.reads if n in self.made), default=-1)
            self.due.append(max(after, self.place.get(op.name, -1)))
            if op.name not in self.place and not self.back.isdisjoint(op.reads):
                self.chained[index] = True
                self.back.update(op.writes)
            for name in op.reads:
                self.readers.setdefault(name, []).append(index)
        self._listed: dict[int, None] = {}

    def listed(self) -> list[Op]:
        """All ops."""
        every = range(len(self.ops))
        asked = [i for i in every if self.chained[i] or self.ops[i].name in self.place]
        asked.sort(key=lambda index: (self.due[index], self.chained[index], index))
        for index in (*asked, *every):
            self._run(index)
        return [self.ops[index] for index in self._listed]

    def _run(self, index: int) -> None:
        """An op after all that it reads; and behind it ops that take no room, sums of gradients
        and updates among them."""
        waiting = [index]
        while waiting:
            at = waiting[-1]
            before = self._missing(at)
            if before and at not in self._listed:
                waiting += before
                continue
            waiting.pop()
            if at in self._listed:
                continue
            self._listed[at] = None
            if self.chained[at]:
                waiting += [r for name in self.ops[at].writes for r in self._free(name)]

    def _missing(self, index: int) -> list[int]:
        names = (name for name in self.ops[index].reads if name in self.made)
        return [at for name in names if (at := self.made[name]) not in self._listed]

    def _free(self, name: str) -> list[int]:
        """The reader of a tensor, where it alone reads what it is made of on the way back, all of
        that is there, and it makes no more bytes."""
        readers = self.readers.get(name, ())
        if len(readers) != 1:
            return []
        op = self.ops[readers[0]]
        read = [n for n in op.reads if n in self.back and n in self.made]
        if self._missing(readers[0]) or any(len(self.readers[n]) > 1 for n in read):
            return []
        taken, made = (sum(self.tensors[n].bytes for n in some) for some in (read, op.writes))
        return readers if made <= taken else []
