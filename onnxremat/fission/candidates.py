"""Regions that may be computed in parts: a stretch of the order, cut down to what splits."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from onnxremat.fission.paper import Paper
from onnxremat.fission.region import Region
from onnxremat.fission.rows import length_of
from onnxremat.graph.axes import partial_of, piece_of, total_of
from onnxremat.graph.ir import Op
from onnxremat.graph.spans import CannotSplitError, Span

GRAINS = (1, 2, 4, 8, 16, 32, 64, 128)  # multiples that bounds of parts are tried at
CONVOLUTIONS = ("Conv", "FusedConv", "ConvTranspose")  # rows that are dearer to make than to keep


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


class Regions:
    """What can be split of a graph."""

    def __init__(self, paper: Paper) -> None:
        self.paper, self.graph, self.facts = paper, paper.graph, paper.facts

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
        end = self._with_sums(first, end)
        ops, writes = self.graph.ops, self.paper.writes
        inside = [at for at in range(first, end) if ops[at].name not in without]
        made = [name for at in inside for name in writes[at] if self._leaves(name, end)]
        if not made:
            return []
        last = next((name for name in reversed(made) if not self.is_sum(name)), made[-1])
        found: dict[frozenset[str], Region] = {}
        cuts = [cut for name in dict.fromkeys((last, made[-1])) for cut in self._cuts(name)]
        if not every:
            alike = {(cut.name, cut.summed, cut.length): cut for cut in reversed(cuts)}
            cuts = [cut for cut in cuts if cut in alike.values()]
        for cut in cuts:
            for grain in GRAINS:
                region = self._region(inside, replace(cut, grain=grain))
                if region is not None and self.graph.ops[peak].name in region.ops:
                    key = frozenset((*region.ops, f"axis {cut.axis} {cut.summed}"))
                    found.setdefault(key, region)
                    break
        return list(found.values())

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
        return name in self.graph.outputs or any(i >= end for i in self.graph.readers.get(name, ()))

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

    def _region(self, inside: Sequence[int], cut: _Cut) -> Region | None:
        """The largest region of these ops with a result that is cut; what is needed whole is left
        out, with all that it is made of."""
        walk = _Walk(self, inside, cut)
        for place in reversed(inside):
            if place not in walk.left:
                continue
            try:
                walk.back(place)
            except (_LeftOutError, CannotSplitError):  # a shape may depend on data
                walk.leave_out(place)
        if self.graph.producer[cut.name] not in walk.left:
            return None
        axes, sums = walk.results, walk.sums
        names = tuple(self.graph.ops[place].name for place in inside if place in walk.left)
        results = {name: axis for name, axis in axes.items() if name not in sums}
        totals = {name: axis for name, axis in axes.items() if name in sums}
        sizes = {name: self.shape(name, name in sums)[axis] for name, axis in axes.items()}
        grains = {name: max(1, n * cut.grain // cut.length) for name, n in sizes.items()}
        return Region(names, results, (1, 1), grains, sums=totals)

    def policies(self, region: Region) -> list[frozenset[str]]:
        """Which rows may be kept for the next part: none, those that convolutions make, all; one
        choice where no two parts need the same rows."""
        try:
            if not self.overlapping(region):
                return [frozenset()]
        except CannotSplitError:
            return []
        ops = [self.graph.ops[self.paper.place[name]] for name in region.ops]
        costly = frozenset(_values(op for op in ops if op.op_type in CONVOLUTIONS))
        return list(dict.fromkeys((frozenset(), costly, frozenset(_values(ops)))))

    def overlapping(self, region: Region) -> list[str]:
        """Values of which two parts compute the same rows where none are kept, in the order of the
        graph.

        Raises:
            CannotSplitError: an op cannot be split so.
        """
        parts = self.paper.rows(replace(region, kept=frozenset()))
        found: list[str] = []
        for place in self.paper.members(region):
            op = self.graph.ops[place]
            pieces = [rows.pieces[op.name].made for rows in parts if op.name in rows.pieces]
            axis = pieces[0].axis if pieces else 0
            value = op.inputs[0] if op.writes[0] in region.sums else op.writes[0]
            if sum(made.size for made in pieces) > self.facts.shape(value)[axis]:
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

    Args:
        inside: places of ops, ascending.

    Attributes:
        left: places of ops that are not left out.
        results: the axis along which each value that is read elsewhere is in parts; of sums, that
            of what they sum.
        sums: which of these are sums.
    """

    def __init__(self, of: Regions, inside: Sequence[int], cut: _Cut) -> None:
        self.of, self.graph, self.cut = of, of.graph, cut
        self.inside, self.left = frozenset(inside), set(inside)
        self.wanted: dict[str, Span] = {}
        self.results: dict[str, int] = {}
        self.sums: set[str] = set()

    def leave_out(self, place: int) -> None:
        """Leave out an op and all that it is made of: nothing that stays makes what it reads, so
        that what was found of later ops holds."""
        for name in self.of.paper.writes[place]:
            self.results.pop(name, None)
            self.sums.discard(name)
        todo = [place]
        while todo:
            at = todo.pop()
            if at in self.left:
                self.left.discard(at)
                todo += self.of.paper.before[at]

    def back(self, place: int) -> None:
        """From the outputs of an op to its inputs.

        Raises:
            _LeftOutError: it has to be computed as a whole, before the region.
        """
        op, writes = self.graph.ops[place], self.of.paper.writes[place]
        for name in writes:
            if self._is_result(name):
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
        except CannotSplitError:
            raise _LeftOutError from None
        for name, read in piece.taken(op.inputs):
            made = self.graph.producer.get(name)
            if made is None or made not in self.left:
                continue
            if read is None or (name in self.wanted and self.wanted[name].axis != read.axis):
                self.leave_out(made)
            else:
                self.wanted[name] = self.wanted[name].hull(read) if name in self.wanted else read

    def _is_result(self, name: str) -> bool:
        readers = self.graph.readers.get(name, ())
        return name in self.graph.outputs or any(at not in self.inside for at in readers)

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
