"""Large images made a second time, instead of held until what is summed over them is known.

An image that is normalised is read twice: for its sums, and for its result. In any parts it is held
from the one to the other. Here a second maker of it goes right before the second reading, with all
that it is made of back to what is small or held anyway; and an op between them stands for *either*:
the rows that are held, or those that are made again. How many are held is said by a region
(:attr:`onnxremat.fission.region.Region.again`): all by default, so that nothing is made again.

Values that are made of an image beside it and held as long (the product of a shortcut) go the same
way. What is made of it before its second reading and read behind that alone is made right there:
of the rows that are held or made again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_
from typing import TypeVar

import onnx

from onnxremat.fission.apart import is_copy
from onnxremat.graph.axes import total_of
from onnxremat.graph.ir import Graph, Op, Role, Tensor
from onnxremat.graph.traits import has_bodies, is_random

AGAIN = "/again for/"  # between the names of what is made again and the value that it is for
EITHER = "/held or made again"  # ends the names of values, and of the ops that stand for either
LARGE = 4  # such a share of the largest value, at least, is worth a second maker
SMALL = 2  # such a share of a value, at most, is held for it
LONGEST = 16  # ops that make a value again
ROWS = 2  # axis of an image

Number = TypeVar("Number", int, float)


def is_either(op: Op) -> bool:
    """An op stands for rows that are held or made again."""
    return op.op_type == "Max" and op.name.endswith(EITHER)


def is_again(op: Op) -> bool:
    """An op makes something again: it runs only where a region needs that."""
    return AGAIN in op.name


def twice(graph: Graph, which: Collection[str] | None = None) -> Graph:
    """The graph with second makers of large images.

    Args:
        which: ops that stand for either or make something again; all that are worth it by default.
    """
    made = _Twice(graph)
    for name, tensor in graph.tensors.items():
        if LARGE * tensor.bytes >= made.largest and name in graph.producer:
            made.image(name)
    if which is not None:
        made.only(which)
    return made.written() if made.eithers else graph


def twice_for(graph: Graph, names: Collection[str]) -> Graph:
    """The graph with the second makers that some of these ops belong to."""
    which = {name for name in names if name.endswith(EITHER) or AGAIN in name}
    return twice(graph, which) if which else graph


def as_first(graph: Graph, known: Mapping[str, Number]) -> dict[str, Number]:
    """What is known of ops, and of those that make something again as of the first time."""
    found = dict(known)
    for op in graph.ops:
        of = op.name.partition(AGAIN)[0]
        if is_again(op) and of in known:
            found[op.name] = known[of]
    return found


@dataclass
class _Either:
    """A value that is held or made again.

    Attributes:
        name: of the value.
        at: place of the op that it is made again right before.
        readers: places of ops that read either.
        ops: that make it again, before that.
        late: places of readers that are moved there.
        beside: it is made of another image that is made again; of several, the last.
    """

    name: str
    at: int
    readers: tuple[int, ...]
    ops: list[Op]
    late: tuple[int, ...] = ()
    beside: bool = False


class _TooLongError(Exception):
    """It takes too many ops, or one that may not run again, to make a value."""


@dataclass
class _Twice:
    """A graph under way.

    Attributes:
        before: ops that each is made of, a bit per place.
        sums: ops that sum over all rows of an image, a bit per place.
        largest: bytes of the largest value.
        tensors: of what is made again, too.
        handed: what the graph hands out.
    """

    graph: Graph
    before: list[int] = field(default_factory=list)
    sums: int = 0
    largest: int = 0
    eithers: dict[str, _Either] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    handed: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        graph = self.graph
        self.tensors, self.handed = dict(graph.tensors), frozenset(graph.outputs)
        for place, places in enumerate(graph.predecessors()):
            self.before.append(
                reduce(or_, (self.before[other] | 1 << other for other in places), 0)
            )
            if self._is_sum(graph.ops[place]):
                self.sums |= 1 << place
        sizes = (t.bytes for t in graph.tensors.values() if t.role is Role.ACTIVATION)
        self.largest = max(sizes, default=0)

    def _is_sum(self, op: Op) -> bool:
        if total_of(op) is None:
            return False
        old, new = (self.graph.tensors[name].shape for name in (op.inputs[0], op.outputs[0]))
        if old is None or new is None or len(old) <= ROWS or old[ROWS] == 1:
            return False
        return len(new) <= ROWS or new[ROWS] == 1

    def _uses(self, name: str) -> list[tuple[int, tuple[int, ...]]]:
        """Ops that read a value: places of those that do themselves, with those that read the
        copies that these are."""
        graph, found = self.graph, list[tuple[int, tuple[int, ...]]]()
        for place in graph.readers.get(name, ()):
            op = graph.ops[place]
            behind = graph.readers.get(op.outputs[0], ()) if is_copy(op) else ()
            found.append((place, tuple(behind) or (place,)))
        return found

    def _behind(self, places: int) -> int:
        """Sums of what any of these ops makes, a bit per place."""
        return sum(
            1 << place
            for place in range(len(self.before))
            if self.sums >> place & 1 and (self.before[place] | 1 << place) & places
        )

    def image(self, name: str) -> None:
        """A second maker of a value, where it is held until sums over it are known and not longer,
        and of others that are held as long and made of the same."""
        graph, uses = self.graph, self._uses(name)
        if name in graph.outputs or len(graph.tensors[name].shape or ()) <= ROWS:
            return
        sums = self._behind(_bits(place for place, _ in uses))
        at = min((p for p, behind in uses if self._waits(behind, sums)), default=None)
        late = [(p, behind) for p, behind in uses if at is not None and p >= at]
        if at is None or len(late) == len(uses):
            return
        further = self._behind(_bits(p for p, _ in late))
        if any(self._waits(behind, further) for _, behind in late):
            return
        size = graph.tensors[name].bytes
        chain = _Chain(self, name, sums, size // SMALL)
        try:
            chain.make(name)
        except _TooLongError:
            return
        moved = self._late(uses, at, sums)
        readers = (*moved, *(place for place, _ in late))
        self.eithers[name] = _Either(name, at, readers, list(chain.ops), moved)
        for other, tensor in graph.tensors.items():
            place = graph.producer.get(other)
            if place is None or place in moved:
                continue
            if place < at and SMALL * tensor.bytes >= size:
                self._beside(other, at, chain, sums)

    def _late(
        self, uses: Sequence[tuple[int, tuple[int, ...]]], at: int, sums: int
    ) -> tuple[int, ...]:
        """Of the ops that read an image before its second reading, those whose results are only
        read behind that.

        Args:
            at: place of the second reading.
            sums: what it waits for.
        """
        graph, found = self.graph, []
        moved = {place for each in self.eithers.values() for place in each.late}  # for another
        for place in (place for place, _ in uses if place < at and place not in moved):
            op = graph.ops[place]
            readers = [reader for name in op.writes for reader in graph.readers.get(name, ())]
            if is_copy(op) or not readers or not self.handed.isdisjoint(op.writes):
                continue
            if min(readers) > at and self._waits(readers, sums):
                found.append(place)
        return tuple(found)

    def _beside(self, name: str, at: int, chain: _Chain, sums: int) -> None:
        """A second maker of a value that is made of what is made again anyway.

        Args:
            at: place of the op that this is made again before.
        """
        graph, uses = self.graph, self._uses(name)
        place = graph.producer[name]
        if name in chain.made or name in graph.outputs or not uses or is_copy(graph.ops[place]):
            return
        known = self.eithers.get(name)
        if known is not None and not known.beside:
            return
        if not all(p >= at and self._waits(behind, sums) for p, behind in uses):
            return
        if self.before[place] & sums or not chain.has(place):
            return
        before = len(chain.ops)
        try:
            chain.make(name)
        except _TooLongError:
            return
        readers = tuple(place for place, _ in uses)
        self.eithers.pop(name, None)  # what stands for it comes behind all that it is made of
        self.eithers[name] = _Either(name, min(readers), readers, chain.ops[before:], beside=True)

    def _waits(self, places: Collection[int], sums: int) -> bool:
        """All of these ops need some of these sums."""
        return all(self.before[place] & sums for place in places)

    def only(self, which: Collection[str]) -> None:
        """No others than these."""
        self.eithers = {
            name: each
            for name, each in self.eithers.items()
            if name + EITHER in which or any(op.name in which for op in each.ops)
        }

    def written(self) -> Graph:
        """The graph."""
        graph, before = self.graph, dict[int, list[Op | int]]()
        renamed: dict[int, dict[str, str]] = {}
        for each in self.eithers.values():
            own = each.name + EITHER
            again = f"{each.name}{AGAIN}{each.ops[-1].name.partition(AGAIN)[2]}"
            self.tensors[own] = replace(self.tensors[each.name], name=own, role=Role.ACTIVATION)
            node = onnx.helper.make_node("Max", [each.name, again], [own], own)
            either = Op(own, "Max", "", (each.name, again), (own,), (), node)
            before.setdefault(each.at, []).extend((*each.ops, either, *each.late))
            for place in each.readers:
                renamed.setdefault(place, {})[each.name] = own
        late = {place for each in self.eithers.values() for place in each.late}

        def own_of(place: int) -> Op:
            op = graph.ops[place]
            return op.renamed(op.name, renamed[place]) if place in renamed else op

        ops: list[Op] = []
        for place in range(len(graph.ops)):
            ops += [own_of(op) if isinstance(op, int) else op for op in before.get(place, ())]
            if place not in late:
                ops.append(own_of(place))
        made = {*graph.inputs, *(name for op in ops for name in (*op.reads, *op.writes))}
        tensors = {name: t for name, t in self.tensors.items() if name in made}
        return replace(graph, ops=tuple(ops), tensors=tensors)


class _Chain:
    """Ops that make a value again.

    Args:
        sums: that are known then.
        small: bytes up to which what it is made of is held for it.

    Attributes:
        made: what is made again, and its names.
    """

    def __init__(self, of: _Twice, value: str, sums: int, small: int) -> None:
        self.of, self.graph, self.value = of, of.graph, value
        self.sums, self.small = sums, small
        self.ops: list[Op] = []
        self.made: dict[str, str] = {}
        self.begun = 0

    def make(self, name: str) -> str:
        """A value that is made again."""
        if name in self.made:
            return self.made[name]
        op = self.graph.ops[self.graph.producer[name]]
        self.begun += 1
        if self.begun > LONGEST or has_bodies(op) or is_random(op):
            raise _TooLongError
        names = {read: read if self.held(read) else self.make(read) for read in op.reads}
        for output in op.writes:
            own = f"{output}{AGAIN}{self.value}"
            self.made[output] = names[output] = own
            tensor = self.graph.tensors[output]
            self.of.tensors[own] = replace(tensor, name=own, role=Role.ACTIVATION)
        self.ops.append(op.renamed(f"{op.name}{AGAIN}{self.value}", names))
        return self.made[name]

    def held(self, name: str) -> bool:
        """A value is there anyway, or small enough to be."""
        if name not in self.graph.producer or self.graph.tensors[name].bytes <= self.small:
            return True
        return any(
            self.of.before[place] & self.sums
            for _, behind in self.of._uses(name)
            for place in behind
        )

    def has(self, place: int) -> bool:
        """All that an op reads is there, or made again already."""
        return all(name in self.made or self.held(name) for name in self.graph.ops[place].reads)


def _bits(places: Iterable[int]) -> int:
    return reduce(or_, (1 << place for place in places), 0)
