"""Which rows of every value each part of a region computes, found backwards from its results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from onnxremat.fission.region import Region
from onnxremat.fission.twice import is_either
from onnxremat.graph.axes import partial_of, piece_of
from onnxremat.graph.ir import Graph, Op
from onnxremat.graph.spans import CannotSplitError, Facts, Piece, Span


class WholeNeededError(CannotSplitError):
    """A part reads all of a value, or two axes of it: it cannot be made inside the region."""

    def __init__(self, value: str) -> None:
        super().__init__(f"a part reads all of '{value}'")
        self.value = value


@dataclass
class Rows:
    """What one part computes.

    Attributes:
        wanted: rows of each value of the region that the part reads or hands out; of a sum, those
            of what is summed.
        pieces: how each op computes its rows, where it has any to compute.
        new: those rows; what a piece makes beside them is not right at its borders.
    """

    wanted: dict[str, Span] = field(default_factory=dict)
    pieces: dict[str, Piece] = field(default_factory=dict)
    new: dict[str, Span] = field(default_factory=dict)


def rows_of(graph: Graph, facts: Facts, region: Region) -> list[Rows]:
    """Rows of every part.

    Raises:
        WholeNeededError: a value made in the region is needed whole.
        CannotSplitError: an op cannot be split along the axis that is asked of it.
    """
    names = set(region.ops)
    inside = [op for op in graph.ops if op.name in names]
    made = {name for op in inside for name in op.writes}
    bounds = bounds_of(graph, facts, region)
    done: dict[str, Span] = {}
    parts = []
    for index in range(len(region.parts)):
        asked = {name: spans[index] for name, spans in bounds.items() if spans[index].size}
        before = {n: done[n] for n in region.kept if n in done}
        rows = _part(inside, facts, made, asked, before, region)
        parts.append(rows)
        for op in inside:
            if op.name in rows.new:
                new = rows.new[op.name]
                for name in op.writes:
                    if name not in rows.wanted:
                        continue  # nobody keeps it of this part
                    old = done.get(name)
                    joins = old is not None and old.first <= new.first <= old.end
                    done[name] = Span(new.axis, old.first, new.end) if old and joins else new
    return parts


def bounds_of(graph: Graph, facts: Facts, region: Region) -> dict[str, list[Span]]:
    """What every part makes of each result that is read, and sums of what is summed."""
    if not region.until:
        return {n: region.spans(n, length_of(graph, facts, region, n)) for n in region.axes}
    return {
        name: [
            replace(span, end=max(span.first, min(span.end, region.until.get(name, span.end))))
            for span in region.spans(name, length_of(graph, facts, region, name))
        ]
        for name in region.axes
    }


def length_of(graph: Graph, facts: Facts, region: Region, name: str) -> int:
    """Of the axis of a result, or of what is summed, that is in parts.

    Raises:
        CannotSplitError: there is no such axis, as of a region that was moved to another layer.
    """
    if name not in graph.producer:
        raise CannotSplitError(f"nothing makes '{name}'")
    if name in region.sums:
        name, axis = graph.ops[graph.producer[name]].inputs[0], region.sums[name]
    else:
        axis = region.results[name]
    shape = facts.shape(name)
    if not 0 <= axis < len(shape):
        raise CannotSplitError(f"'{name}' has no axis {axis}")
    return shape[axis]


def _part(
    inside: list[Op],
    facts: Facts,
    made: set[str],
    asked: Mapping[str, Span],
    done: Mapping[str, Span],
    region: Region,
) -> Rows:
    """Rows of one part.

    Args:
        asked: what the results need of it.
        done: rows of kept values that parts before it have made.
        region: that it is a part of.
    """
    rows = Rows(dict(asked))
    for op in reversed(inside):
        span = _hull(rows.wanted, op)
        if span is None:
            continue
        new = _new(span, [name for name in op.writes if name in rows.wanted], done)
        if new is None:
            continue
        if is_either(op):
            piece = either_of(op, new, region.again)
        else:
            piece = (partial_of if op.writes[0] in region.sums else piece_of)(op, facts, new)
        rows.pieces[op.name], rows.new[op.name] = piece, new
        for name, read in piece.taken(op.inputs):
            if name not in made:
                continue
            if read is None or (name in rows.wanted and rows.wanted[name].axis != read.axis):
                raise WholeNeededError(name)
            rows.wanted[name] = rows.wanted[name].hull(read) if name in rows.wanted else read
    return rows


def either_of(op: Op, span: Span, again: Mapping[str, int]) -> Piece:
    """Rows that are held, which come first, or made again.

    Args:
        again: the row from which on they are made again, per value; held where it is not there.
    """
    row = again.get(op.outputs[0], span.end)
    held = Span(span.axis, span.first, min(span.end, row))
    made = Span(span.axis, max(span.first, row), span.end)
    unread = tuple(at for at, each in enumerate((held, made)) if each.size <= 0)
    return Piece((held, made), span, unread=unread)


def _hull(wanted: Mapping[str, Span], op: Op) -> Span | None:
    """Rows of an op's outputs that are needed, None for none."""
    spans = [wanted[name] for name in op.writes if name in wanted]
    if not spans:
        return None
    span = spans[0]
    for other in spans[1:]:
        if other.axis != span.axis:
            raise WholeNeededError(op.writes[0])
        span = span.hull(other)
    return span


def _new(span: Span, names: Sequence[str], done: Mapping[str, Span]) -> Span | None:
    """The rows of these that are not there yet of every output that is wanted, None for none."""
    there = [done[name] for name in names if name in done]
    if len(there) < len(names):
        return span
    first, end = max(each.first for each in there), min(each.end for each in there)
    if span.first < first or span.first > end:
        return span  # rows before the kept ones, or beyond them: all anew
    return None if span.end <= end else Span(span.axis, end, span.end)
