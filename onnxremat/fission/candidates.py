"""Regions that may be computed in parts: a stretch of the order, cut down to what splits."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
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
        self, first: int, end: int, peak: int, without: Collection[str] = ()
    ) -> list[Region]:
        """Regions of two parts among ops ``first`` to ``end`` (excluded) of the order which hold
        op ``peak``: one per axis of the value that the last of them makes.

        Args:
            without: ops that are left out.
        """
        end = self._with_sums(first, end)
        inside = [op for op in self.graph.ops[first:end] if op.name not in without]
        made = [name for op in inside for name in op.writes if self._leaves(name, end)]
        if not made:
            return []
        last = next((name for name in reversed(made) if not self._is_sum(name)), made[-1])
        found: dict[frozenset[str], Region] = {}
        for cut in self._cuts(last):
            for grain in GRAINS:
                region = self._region(inside, replace(cut, grain=grain))
                if region is not None and self.graph.ops[peak].name in region.ops:
                    key = frozenset((*region.ops, f"axis {cut.axis} {cut.summed}"))
                    found.setdefault(key, region)
                    break
        return list(found.values())

    def _with_sums(self, first: int, end: int) -> int:
        """A stretch with the sums behind it of what it makes: what they sum need not be joined."""
        made = {name for op in self.graph.ops[first:end] for name in op.writes}
        while end < len(self.graph.ops):
            op = self.graph.ops[end]
            if total_of(op) is None or op.inputs[0] not in made:
                break
            end += 1
        return end

    def _is_sum(self, name: str) -> bool:
        return total_of(self.graph.ops[self.graph.producer[name]]) is not None

    def _leaves(self, name: str, end: int) -> bool:
        """A value is read after op ``end``, or handed out."""
        return name in self.graph.outputs or any(i >= end for i in self.graph.readers.get(name, ()))

    def _cuts(self, name: str) -> list[_Cut]:
        """Axes of a value that are worth a try, the longest first; of a sum those of what it sums,
        too."""
        cuts = []
        for summed in (False, True) if self._is_sum(name) else (False,):
            shape = self._shape(name, summed)
            axes = [axis for axis, size in enumerate(shape) if size > 1]
            axes.sort(key=lambda axis: (-shape[axis], axis))
            cuts += [_Cut(name, axis, summed, shape[axis]) for axis in axes]
        return cuts

    def _shape(self, name: str, summed: bool) -> tuple[int, ...]:
        """Dimensions of a value, or of what it sums."""
        op = self.graph.ops[self.graph.producer[name]]
        return self.facts.shape(op.inputs[0] if summed else name)

    def _region(self, inside: list[Op], cut: _Cut) -> Region | None:
        """The largest region of these ops with a result that is cut; what is needed whole is left
        out, with all that it is made of."""
        while inside:
            try:
                axes, sums = self._walk(inside, cut)
            except _LeftOutError as wrong:
                inside = self._without(inside, wrong.op)
                if not any(cut.name in op.writes for op in inside):
                    return None
                continue
            names = tuple(op.name for op in inside)
            results = {name: axis for name, axis in axes.items() if name not in sums}
            totals = {name: axis for name, axis in axes.items() if name in sums}
            sizes = {name: self._shape(name, name in sums)[axis] for name, axis in axes.items()}
            grains = {name: max(1, n * cut.grain // cut.length) for name, n in sizes.items()}
            return Region(names, results, (1, 1), grains, sums=totals)
        return None

    def _walk(self, inside: Sequence[Op], cut: _Cut) -> tuple[dict[str, int], set[str]]:
        """Axes of all results, found backwards, and which of these are sums.

        Raises:
            _LeftOutError: an op that has to be computed as a whole, before the region.
        """
        names = {op.name for op in inside}
        made = {name for op in inside for name in op.writes}
        wanted: dict[str, Span] = {}
        results: dict[str, int] = {}
        sums: set[str] = set()
        for op in reversed(inside):
            for name in op.writes:
                if self._is_result(name, names):
                    if self._summed(op, name, cut, wanted):
                        sums.add(name)
                    results[name] = self._join(op, name, cut, wanted, name in sums)
            spans = [wanted[name] for name in op.writes if name in wanted]
            if not spans:
                continue  # no part needs it
            if any(span.axis != spans[0].axis for span in spans):
                raise _LeftOutError(op)
            span = Span(spans[0].axis, min(s.first for s in spans), max(s.end for s in spans))
            try:
                rule = partial_of if op.writes[0] in sums else piece_of
                piece = rule(op, self.facts, span)
            except CannotSplitError:
                raise _LeftOutError(op) from None
            for name, read in piece.taken(op.inputs):
                if name in made:
                    if read is None or (name in wanted and wanted[name].axis != read.axis):
                        raise _LeftOutError(self.graph.ops[self.graph.producer[name]])
                    wanted[name] = wanted[name].hull(read) if name in wanted else read
        return results, sums

    def _summed(self, op: Op, name: str, cut: _Cut, wanted: Mapping[str, Span]) -> bool:
        """A value is made as the sum of what parts give: it is one along this axis, and nobody in
        the region reads it."""
        if name == cut.name:
            return cut.summed
        if not self._is_sum(name) or name in wanted or cut.axis >= len(self._shape(name, True)):
            return False
        try:
            partial_of(op, self.facts, Span(cut.axis, 0, 1))
        except CannotSplitError:
            return False
        return True

    def _is_result(self, name: str, names: set[str]) -> bool:
        readers = self.graph.readers.get(name, ())
        outside = any(self.graph.ops[i].name not in names for i in readers)
        return name in self.graph.outputs or outside

    def _join(self, op: Op, name: str, cut: _Cut, wanted: dict[str, Span], summed: bool) -> int:
        """The axis along which a result is joined, or what it sums is cut: that in which it is
        read inside, else that of the main one."""
        if name in wanted:
            return wanted[name].axis
        shape, axis = self._shape(name, summed), cut.axis
        if name != cut.name and (axis >= len(shape) or shape[axis] < 2):
            raise _LeftOutError(op)
        length = shape[axis] * cut.grain // cut.length
        if length < 1 or 2 * length > shape[axis]:
            raise _LeftOutError(op)
        wanted[name] = Span(axis, length, 2 * length)
        return axis

    def _without(self, inside: Sequence[Op], op: Op) -> list[Op]:
        """Ops without one and all that it is made of."""
        gone = {op.name}
        needed = set(op.reads)
        for other in reversed(inside[: inside.index(op)]):
            if needed.intersection(other.writes):
                gone.add(other.name)
                needed.update(other.reads)
        return [other for other in inside if other.name not in gone]

    def policies(self, region: Region) -> list[frozenset[str]]:
        """Which rows may be kept for the next part: none, those that convolutions make, all; one
        choice where no two parts need the same rows."""
        try:
            parts = self.paper.rows(region)
        except CannotSplitError:
            return []
        computed = [sum(p.pieces[n].made.size for p in parts if n in p.pieces) for n in region.ops]
        ops = [self.graph.ops[self.paper.place[name]] for name in region.ops]
        axes = [
            parts[0].pieces[op.name].made.axis if op.name in parts[0].pieces else 0 for op in ops
        ]
        whole = [
            self.facts.shape(op.inputs[0] if op.writes[0] in region.sums else op.writes[0])[axis]
            for op, axis in zip(ops, axes, strict=True)
        ]
        if all(some <= all_ for some, all_ in zip(computed, whole, strict=True)):
            return [frozenset()]
        costly = frozenset(_values(op for op in ops if op.op_type in CONVOLUTIONS))
        return list(dict.fromkeys((frozenset(), costly, frozenset(_values(ops)))))

    def length(self, region: Region) -> int:
        """The most parts that every result can be made in."""
        return min(
            length_of(self.graph, self.facts, region, name) // region.grain[name]
            for name in region.axes
        )


class _LeftOutError(Exception):
    """An op has to be computed as a whole."""

    def __init__(self, op: Op) -> None:
        super().__init__(op.name)
        self.op = op


def _values(ops: Iterable[Op]) -> Iterable[str]:
    return (name for op in ops for name in op.writes)
