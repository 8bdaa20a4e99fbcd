"""Regions that may be computed in parts: a stretch of the order, cut down to what splits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onnxremat.fission.region import Region
from onnxremat.fission.rows import rows_of
from onnxremat.graph.axes import piece_of
from onnxremat.graph.ir import Graph, Op
from onnxremat.graph.spans import CannotSplitError, Facts, Span

GRAINS = (1, 2, 4, 8, 16, 32, 64, 128)  # multiples that bounds of parts are tried at
CONVOLUTIONS = ("Conv", "FusedConv", "ConvTranspose")  # rows that are dearer to make than to keep


class Regions:
    """What can be split of a graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.facts = graph, Facts(graph)
        self.place = {op.name: index for index, op in enumerate(graph.ops)}

    def within(self, first: int, end: int, peak: int) -> list[Region]:
        """Regions of two parts among ops ``first`` to ``end`` (excluded) of the order which hold
        op ``peak``: one per axis of the value that the last of them makes."""
        made = [n for op in self.graph.ops[first:end] for n in op.writes if self._leaves(n, end)]
        if not made:
            return []
        found: dict[frozenset[str], Region] = {}
        for axis in self._axes(made[-1]):
            for grain in GRAINS:
                region = self._region(first, end, made[-1], axis, grain)
                if region is not None and self.graph.ops[peak].name in region.ops:
                    key = frozenset((*region.ops, f"axis {region.results[made[-1]]}"))
                    found.setdefault(key, region)
                    break
        return list(found.values())

    def _leaves(self, name: str, end: int) -> bool:
        """A value is read after op ``end``, or handed out."""
        return name in self.graph.outputs or any(i >= end for i in self.graph.readers.get(name, ()))

    def _axes(self, name: str) -> list[int]:
        """Axes of a value that are worth a try, the longest first."""
        shape = self.graph.tensors[name].shape or ()
        axes = [axis for axis, size in enumerate(shape) if size > 1]
        return sorted(axes, key=lambda axis: (-shape[axis], axis))

    def _region(self, first: int, end: int, main: str, axis: int, grain: int) -> Region | None:
        """The largest region of these ops whose result ``main`` is split along an axis; what is
        needed whole is left out, with all that it is made of."""
        inside = list(self.graph.ops[first:end])
        while inside:
            try:
                results = self._walk(inside, main, axis, grain)
            except _LeftOutError as wrong:
                inside = self._without(inside, wrong.op)
                if not any(main in op.writes for op in inside):
                    return None
                continue
            grains = self._grains(results, main, grain)
            return Region(tuple(op.name for op in inside), results, (1, 1), grains)
        return None

    def _walk(self, inside: Sequence[Op], main: str, axis: int, grain: int) -> dict[str, int]:
        """Axes of all results, found backwards.

        Raises:
            _LeftOutError: an op that has to be computed as a whole, before the region.
        """
        names = {op.name for op in inside}
        made = {name for op in inside for name in op.writes}
        wanted: dict[str, Span] = {}
        results: dict[str, int] = {}
        for op in reversed(inside):
            for name in op.writes:
                if self._is_result(name, names):
                    results[name] = self._join(op, name, main, axis, grain, wanted)
            spans = [wanted[name] for name in op.writes if name in wanted]
            if not spans or any(span.axis != spans[0].axis for span in spans):
                raise _LeftOutError(op)
            span = Span(spans[0].axis, min(s.first for s in spans), max(s.end for s in spans))
            try:
                piece = piece_of(op, self.facts, span)
            except CannotSplitError:
                raise _LeftOutError(op) from None
            for name, read in zip(op.inputs, piece.reads, strict=True):
                if name in made:
                    if read is None or (name in wanted and wanted[name].axis != read.axis):
                        raise _LeftOutError(self.graph.ops[self.graph.producer[name]])
                    wanted[name] = wanted[name].hull(read) if name in wanted else read
        return results

    def _is_result(self, name: str, names: set[str]) -> bool:
        readers = self.graph.readers.get(name, ())
        outside = any(self.graph.ops[i].name not in names for i in readers)
        return name in self.graph.outputs or outside

    def _join(
        self, op: Op, name: str, main: str, axis: int, grain: int, wanted: dict[str, Span]
    ) -> int:
        """The axis along which a result is joined: that in which it is read inside, else that of
        the main one."""
        if name in wanted:
            return wanted[name].axis
        shape, leading = self.facts.shape(name), self.facts.shape(main)
        if name != main and (axis >= len(shape) or shape[axis] < 2):
            raise _LeftOutError(op)
        length = shape[axis] * grain // leading[axis]
        if length < 1 or 2 * length > shape[axis]:
            raise _LeftOutError(op)
        wanted[name] = Span(axis, length, 2 * length)
        return axis

    def _grains(self, results: dict[str, int], main: str, grain: int) -> dict[str, int]:
        whole = self.facts.shape(main)[results[main]]
        sizes = {name: self.facts.shape(name)[axis] for name, axis in results.items()}
        return {name: max(1, size * grain // whole) for name, size in sizes.items()}

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
            parts = rows_of(self.graph, self.facts, region)
        except CannotSplitError:
            return []
        computed = [sum(p.pieces[n].made.size for p in parts if n in p.pieces) for n in region.ops]
        ops = [self.graph.ops[self.place[name]] for name in region.ops]
        axes = [
            parts[0].pieces[op.name].made.axis if op.name in parts[0].pieces else 0 for op in ops
        ]
        whole = [self.facts.shape(op.writes[0])[axis] for op, axis in zip(ops, axes, strict=True)]
        if all(some <= all_ for some, all_ in zip(computed, whole, strict=True)):
            return [frozenset()]
        costly = frozenset(_values(op for op in ops if op.op_type in CONVOLUTIONS))
        return list(dict.fromkeys((frozenset(), costly, frozenset(_values(ops)))))

    def length(self, region: Region) -> int:
        """The most parts that every result can be made in."""
        return min(
            self.facts.shape(name)[axis] // region.grain[name]
            for name, axis in region.results.items()
        )


class _LeftOutError(Exception):
    """An op has to be computed as a whole."""

    def __init__(self, op: Op) -> None:
        super().__init__(op.name)
        self.op = op


def _values(ops: Iterable[Op]) -> Iterable[str]:
    return (name for op in ops for name in op.writes)
