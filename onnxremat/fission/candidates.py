"""Regions that may be computed in parts: a stretch of the order, cut down to what splits."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace

from onnxremat.fission.paper import Paper
from onnxremat.fission.region import Region
from onnxremat.fission.rows import length_of
from onnxremat.fission.twice import is_again, is_either
from onnxremat.graph.axes import partial_of, piece_of, total_of
from onnxremat.graph.ir import Op
from onnxremat.graph.spans import CannotSplitError, Span, UnevenError
from onnxremat.graph.traits import is_alias, takeover_inputs

GRAINS = (1, 2, 4, 8, 16, 32, 64, 128)  # multiples that bounds of parts are tried at
CONVOLUTIONS = ("Conv", "FusedConv", "ConvTranspose")  # rows that are dearer to make than to keep
LAST = 512  # stretches that are remembered


@dataclass(frozen=True)
class _Cut:
    """A result that decides how a region is cut.

    Attributes:
        axis: of the result, or of what is summed.
        length: of that axis.
        grain: bounds of parts are multiples of it.
    """

    name: str
    axis: int
    summed: bool
    length: int
    grain: int = 1


@dataclass(frozen=True)
class _Stretch:
    """Ops that a region is looked for among, with the sums behind them of what they make.

    Attributes:
        inside: their places, ascending.
        all: the set of them, a bit per place.
        makers: for each the set of those that it is made of, and it.
        leaving: what they make and others read, or is handed out.
        behind: of that, what is read behind the stretch, or handed out, in the order of the ops.
        found: by how its last value is cut.
        coarser: multiples at which an op would have whole rows that has none at those of a cut.
    """

    inside: tuple[int, ...]
    all: int
    makers: dict[int, int]
    leaving: frozenset[str]
    behind: tuple[str, ...]
    found: dict[_Cut, Region | None] = field(default_factory=dict)
    coarser: dict[_Cut, int] = field(default_factory=dict)


class Regions:
    """What can be split of a graph."""

    def __init__(self, paper: Paper) -> None:
        self.paper, self.graph, self.facts = paper, paper.graph, paper.facts
        self._handed = frozenset(self.graph.outputs)
        self._stretches: dict[tuple[int, int, frozenset[str]], _Stretch] = {}

    def within(
        self,
        first: int,
        end: int,
        peak: int,
        without: Collection[str] = (),
        every: bool = True,
    ) -> list[Region]:
        """Regions of two parts among ops ``first`` to ``end`` (excluded) of the order which hold
        op ``peak``: one per axis of the value that the last of them makes, and of the last that is
        no sum.

        Args:
            without: ops that are left out.
            every: along every axis; else of axes of one length, as rows and columns of a square
                image are, along the first alone.
        """
        stretch = self._stretch(first, end, frozenset(without))
        made = stretch.behind
        if not made:
            return []
        last = next((name for name in reversed(made) if not self.is_sum(name)), made[-1])
        found: dict[frozenset[str], Region] = {}
        cuts = [cut for name in dict.fromkeys((last, made[-1])) for cut in self._cuts(name)]
        if not every:
            alike = {(cut.name, cut.summed, cut.length): cut for cut in reversed(cuts)}
            cuts = [cut for cut in cuts if cut in alike.values()]
        for cut in cuts:
            for region in self._of_any_grain(stretch, cut, self.graph.ops[peak].name):
                found.setdefault(frozenset((*region.ops, f"axis {cut.axis} {cut.summed}")), region)
        return list(found.values())

    def _of_any_grain(self, stretch: _Stretch, cut: _Cut, op: str) -> Iterator[Region]:
        """Regions that hold an op: of the finest bounds that do, and of those at which more ops
        have whole rows, as those of windows of an image have."""
        tries = list(GRAINS)
        while tries:
            cut = replace(cut, grain=tries.pop(0))
            region = self._region(stretch, cut)
            if region is not None and op in region.ops:
                yield region
                tries.clear()
            coarser = stretch.coarser.get(cut, cut.grain)
            if coarser > cut.grain and 2 * coarser <= cut.length:
                tries = [coarser, *(grain for grain in tries if grain > coarser)]

    def splits(self, place: int) -> bool:
        """An op goes in some region."""
        return bool(self.within(place, place + 1, place))

    def never_within(self, limit: int) -> bool:
        """An op that goes in no region needs more bytes."""
        size, made = self.graph.tensors, self.graph.producer
        for place, op in enumerate(self.graph.ops):
            reads = max((size[name].bytes for name in op.reads if name in made), default=0)
            writes = max((size[name].bytes for name in op.writes), default=0)
            in_place = is_alias(op) or takeover_inputs(op)
            takes = max(reads, writes) if in_place else reads + writes
            if takes > limit and not self.splits(place):
                return True
        return False

    def _stretch(self, first: int, end: int, without: frozenset[str]) -> _Stretch:
        """Ops of the order but for these; the last stretches are remembered."""
        key = first, end, without
        found = self._stretches.pop(key, None)
        if found is None:
            found = self._looked_up(first, self._with_sums(first, end), without)
            while len(self._stretches) >= LAST:
                del self._stretches[next(iter(self._stretches))]
        self._stretches[key] = found
        return found

    def _looked_up(self, first: int, end: int, without: frozenset[str]) -> _Stretch:
        graph, before = self.graph, self.paper.before
        inside = tuple(at for at in range(first, end) if graph.ops[at].name not in without)
        makers, every = dict[int, int](), 0
        for at in inside:
            makers[at] = 1 << at
            every |= 1 << at
            for other in before[at]:
                makers[at] |= makers.get(other, 0)
        made = [name for at in inside for name in self.paper.writes[at]]
        leaving = frozenset(
            name for name in made
            if name in self._handed or any(at not in makers for at in graph.readers.get(name, ()))
        )  # fmt: skip
        behind = tuple(name for name in made if name in leaving and self._leaves(name, end))
        return _Stretch(inside, every, makers, leaving, behind)

    def _with_sums(self, first: int, end: int) -> int:
        """A stretch with the sums behind it of what it makes: what they sum need not be joined."""
        made = {name for at in range(first, end) for name in self.paper.writes[at]}
        while end < len(self.graph.ops):
            op = self.graph.ops[end]
            if total_of(op) is None or op.inputs[0] not in made:
                break
            end += 1
        return end

    def is_sum(self, name: str) -> bool:
        """A value sums over an axis."""
        return total_of(self.graph.ops[self.graph.producer[name]]) is not None

    def _leaves(self, name: str, end: int) -> bool:
        """A value is read after op ``end``, or handed out."""
        return name in self._handed or any(i >= end for i in self.graph.readers.get(name, ()))

    def _cuts(self, name: str) -> list[_Cut]:
        """Axes of a value that are worth a try, the longest first; of a sum those of what it sums,
        too."""
        cuts = []
        for summed in (False, True) if self.is_sum(name) else (False,):
            try:
                shape = self.shape(name, summed)
            except CannotSplitError:  # it depends on data
                continue
            axes = [axis for axis, size in enumerate(shape) if size > 1]
            axes.sort(key=lambda axis: (-shape[axis], axis))
            cuts += [_Cut(name, axis, summed, shape[axis]) for axis in axes]
        return cuts

    def shape(self, name: str, summed: bool) -> tuple[int, ...]:
        """Dimensions of a value, or of what it sums."""
        op = self.graph.ops[self.graph.producer[name]]
        return self.facts.shape(op.inputs[0] if summed else name)

    def _region(self, stretch: _Stretch, cut: _Cut) -> Region | None:
        """The largest region of a stretch with a result that is cut, or None."""
        if cut not in stretch.found:
            stretch.found[cut] = self._cut_down(stretch, cut)
        return stretch.found[cut]

    def _cut_down(self, stretch: _Stretch, cut: _Cut) -> Region | None:
        """What is needed whole is left out, with all that it is made of."""
        walk, last = _Walk(self, stretch, cut), self.graph.producer[cut.name]
        for place in reversed(stretch.inside):
            if not walk.left >> place & 1:
                continue
            try:
                walk.back(place)
            except (_LeftOutError, CannotSplitError):  # a shape may depend on data
                walk.leave_out(place)
            if not walk.left >> last & 1:
                return None
        axes, sums = walk.results, walk.sums
        names = tuple(
            self.graph.ops[place].name for place in stretch.inside if walk.left >> place & 1
        )
        results = {name: axis for name, axis in axes.items() if name not in sums}
        ops, made = self.graph.ops, self.graph.producer
        if any(is_either(ops[made[name]]) or is_again(ops[made[name]]) for name in results):
            return None  # of no use apart from what reads it
        totals = {name: axis for name, axis in axes.items() if name in sums}
        sizes = {name: self.shape(name, name in sums)[axis] for name, axis in axes.items()}
        grains = {name: max(1, n * cut.grain // cut.length) for name, n in sizes.items()}
        return Region(names, results, (1, 1), grains, sums=totals)

    def policies(self, region: Region) -> list[frozenset[str]]:
        """Which rows may be kept for the next part: none, those that convolutions make, all; one
        choice where no two parts need the same rows."""
        try:
            if not self.overlapping(replace(region, again=self.all_again(region))):
                return [frozenset()]
        except CannotSplitError:
            return []
        ops = [self.graph.ops[self.paper.place[name]] for name in region.ops]
        costly = frozenset(_values(op for op in ops if op.op_type in CONVOLUTIONS))
        every = frozenset(_values(op for op in ops if not is_either(op)))
        return list(dict.fromkeys((frozenset(), costly, every)))

    def all_again(self, region: Region) -> dict[str, int]:
        """All that may be made again is, from the first row on."""
        return {name: 0 for name in region.ops if name in self.paper.either}

    def with_eithers(self, region: Region) -> Region:
        """A region with what stands for either before its ops, and all that this is made of."""
        graph, more, waiting = self.graph, set[int](), self.paper.members(region)
        inside = set(waiting)
        while waiting:
            for other in self.paper.before[waiting.pop()]:
                op = graph.ops[other]
                if other not in more and (is_either(op) or is_again(op)):
                    more.add(other)
                    waiting.append(other)
        return replace(region, ops=tuple(graph.ops[at].name for at in sorted(inside | more)))

    def summed(self, regions: tuple[Region, ...], value: str) -> tuple[Region, ...]:
        """With one region that makes a value and what is summed over it, in place of several."""
        graph, either, place = self.graph, self.paper.either, self.paper.place
        at = graph.producer[value]
        readers = {p for p in graph.readers[value] if graph.ops[p].name not in either}
        names = {graph.ops[place].name for place in readers | {at}}
        both = [region for region in regions if not names.isdisjoint(region.ops)]
        if not both or (len(both) == 1 and names.issubset(both[0].ops)):
            return regions
        inside = [place[name] for region in both for name in region.ops]
        rest = tuple(region for region in regions if region not in both)
        without = {name for region in rest for name in region.ops}
        for found in self.within(min(inside), max(inside) + 1, at, without):
            if names.issubset(found.ops) and value in found.results:
                kept = frozenset(name for region in both for name in region.kept)
                again = {n: row for r in both for n, row in r.again.items() if n in found.ops}
                parts = max((region.parts for region in both), key=len)
                return (*rest, replace(found, parts=parts, kept=kept, again=again))
        return regions

    def eithers(self, region: Region) -> dict[str, int]:
        """Values of a region that stand for what is held or made again, and the length of the axis
        that is in parts."""
        names = [name for name in region.ops if name in self.paper.either]
        parts = self.paper.rows(region) if names else []
        wanted = {n: rows.wanted[n].axis for rows in parts for n in names if n in rows.wanted}
        return {name: self.facts.shape(name)[axis] for name, axis in wanted.items()}

    def overlapping(self, region: Region) -> list[str]:
        """Values of which two parts compute the same rows where none are kept, in the order of the
        graph.

        Raises:
            CannotSplitError: an op cannot be split so.
        """
        found, each = list[str](), defaultdict[str, list[Span]](list)
        for rows in self.paper.rows(replace(region, kept=frozenset())):
            for name, piece in rows.pieces.items():
                each[name].append(piece.made)
        for place in self.paper.members(region):
            op = self.graph.ops[place]
            if is_either(op):
                continue
            pieces = each.get(op.name)
            axis = pieces[0].axis if pieces else 0
            value = op.inputs[0] if op.writes[0] in region.sums else op.writes[0]
            size = sum([made.end - made.first for made in pieces or ()])
            if size > self.facts.shape(value)[axis]:
                found += op.writes
        return found

    def length(self, region: Region) -> int:
        """The most parts that every result can be made in."""
        return min(
            length_of(self.graph, self.facts, region, name) // region.grain[name]
            for name in region.axes
        )


class _LeftOutError(Exception):
    """An op has to be computed as a whole."""


class _Walk:
    """Axes of all results of a region, found backwards from the one that is cut.

    Attributes:
        left: places of ops that are not left out, a bit for each.
        results: the axis along which each value that is read elsewhere is in parts; of sums, that
            of what they sum.
        sums: which of these are sums.
    """

    def __init__(self, of: Regions, stretch: _Stretch, cut: _Cut) -> None:
        self.of, self.graph, self.cut, self.stretch = of, of.graph, cut, stretch
        self.left = stretch.all
        self.wanted: dict[str, Span] = {}
        self.results: dict[str, int] = {}
        self.sums: set[str] = set()

    def leave_out(self, place: int) -> None:
        """Leave out an op and all that it is made of: nothing that stays makes what it reads, so
        that what was found of later ops holds."""
        for name in self.of.paper.writes[place]:
            self.results.pop(name, None)
            self.sums.discard(name)
        self.left &= ~self.stretch.makers[place]

    def back(self, place: int) -> None:
        """From the outputs of an op to its inputs.

        Raises:
            _LeftOutError: it has to be computed as a whole, before the region.
        """
        op, writes = self.graph.ops[place], self.of.paper.writes[place]
        for name in writes:
            if name in self.stretch.leaving:
                if self._summed(op, name):
                    self.sums.add(name)
                self.results[name] = self._join(name)
        spans = [self.wanted[name] for name in writes if name in self.wanted]
        if not spans:
            return  # no part needs it
        if any(span.axis != spans[0].axis for span in spans):
            raise _LeftOutError
        span = Span(spans[0].axis, min(s.first for s in spans), max(s.end for s in spans))
        try:
            rule = partial_of if writes[0] in self.sums else piece_of
            piece = rule(op, self.of.facts, span)
        except CannotSplitError as error:
            if isinstance(error, UnevenError):
                self._coarser(error.multiple // math.gcd(error.multiple, span.size))
            raise _LeftOutError from None
        for name, read in piece.sample(op.inputs):
            made = self.graph.producer.get(name)
            if made is None or not self.left >> made & 1:
                continue
            held = is_either(op) and name == op.inputs[0]  # it was made before
            if (
                held
                or read is None
                or (name in self.wanted and self.wanted[name].axis != read.axis)
            ):
                self.leave_out(made)
            else:
                self.wanted[name] = self.wanted[name].hull(read) if name in self.wanted else read

    def _coarser(self, factor: int) -> None:
        """An op has whole rows at so many times the bounds."""
        known, cut = self.stretch.coarser, self.cut
        if 2 * cut.grain * factor <= cut.length:
            known[cut] = min(known.get(cut, cut.length), cut.grain * factor)

    def _summed(self, op: Op, name: str) -> bool:
        """A value is made as the sum of what parts give: it is one along this axis, and nobody in
        the region reads it."""
        cut = self.cut
        if name == cut.name:
            return cut.summed
        if not self.of.is_sum(name) or name in self.wanted:
            return False
        try:
            if cut.axis >= len(self.of.shape(name, True)):
                return False
            partial_of(op, self.of.facts, Span(cut.axis, 0, 1))
        except CannotSplitError:
            return False
        return True

    def _join(self, name: str) -> int:
        """The axis along which a result is joined, or what it sums is cut: that in which it is
        read inside, else that of the main one."""
        if name in self.wanted:
            return self.wanted[name].axis
        cut = self.cut
        shape, axis = self.of.shape(name, name in self.sums), cut.axis
        if name != cut.name and (axis >= len(shape) or shape[axis] < 2):
            raise _LeftOutError
        length = shape[axis] * cut.grain // cut.length
        if length < 1 or 2 * length > shape[axis]:
            raise _LeftOutError
        self.wanted[name] = Span(axis, length, 2 * length)
        return axis


def _values(ops: Iterable[Op]) -> Iterable[str]:
    return (name for op in ops for name in op.writes)
