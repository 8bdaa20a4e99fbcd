"""A region written out, part after part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from onnxremat.fission.alike import FEWEST, Alike
from onnxremat.fission.nodes import with_attributes
from onnxremat.fission.region import Region
from onnxremat.fission.rows import Rows, bounds_of
from onnxremat.fission.twice import is_either
from onnxremat.fission.writer import Stretch, Writer
from onnxremat.graph.axes import total_of
from onnxremat.graph.axis_sums import MEAN
from onnxremat.graph.ir import Op
from onnxremat.graph.spans import CannotSplitError, Piece, Span


def write_region(writer: Writer, region: Region, tag: str, *, alike: bool = False) -> None:
    """All parts of a region, one after the other.

    Args:
        tag: in the names of what its parts make.
        alike: ops are only simulated: parts that are like one before are noted as that one again.

    Raises:
        CannotSplitError: an op cannot be split so.
    """
    paper = writer.paper
    if len(region.parts) == 1 and not region.sums:
        for place in paper.members(region):
            write_whole(writer, place)
        return
    parts = paper.rows(region)
    ops = [writer.graph.ops[place] for place in paper.members(region)]
    held: dict[str, tuple[Stretch, ...]] = {}
    bounds = bounds_of(writer.graph, writer.facts, region)
    totals = {
        name: _Sum(writer, name, sum(span.size > 0 for span in bounds[name]))
        for name in region.sums
    }
    later = _later(parts, region.kept)
    known = Alike(writer) if alike and len(parts) >= FEWEST else None
    for number, rows in enumerate(parts):
        asked = {name: spans[number] for name, spans in bounds.items() if spans[number].size}
        end = f"/{tag}p{number}"
        part = Part(writer, end, ops, rows, asked, later[number], held, totals, region.again)
        if known is None:
            part.write()
        else:
            known.write(part)


def write_whole(writer: Writer, place: int) -> None:
    """An op that is outside of regions; what it reads is joined before."""
    op = writer.graph.ops[place]
    if is_either(op):  # what is held is all of it
        writer.whole(op.inputs[0])
        writer.ops.append(writer.op("Identity", op.inputs[:1], op.outputs[0]))
        return
    for name in op.reads:
        writer.whole(name)
    writer.ops.append(op)


class _Sum:
    """A value that is put together from what every part gives, as soon as it is there.

    Raises:
        CannotSplitError: there is one part alone.
    """

    def __init__(self, writer: Writer, name: str, parts: int) -> None:
        total = total_of(writer.graph.ops[writer.graph.producer[name]])
        if total is None or parts < 2:
            raise CannotSplitError(f"'{name}' is no sum of several parts")
        self.writer, self.name, self.left = writer, name, parts
        self.mean = total.joins == MEAN
        self.joins = "Add" if self.mean else total.joins
        self.sum = ""

    def add(self, tensor: str, share: float) -> None:
        """One part more.

        Args:
            share: of the axis that is summed.
        """
        if self.mean:
            weight = self.writer.number(share, self.writer.graph.tensors[self.name].dtype)
            tensor = self._op("Mul", [tensor, weight], self.writer.fresh(self.name, "share"))
        self.left -= 1
        name = self.name if not self.left else self.writer.fresh(self.name, "sum")
        self.sum = self._op(self.joins, [self.sum, tensor], name) if self.sum else tensor

    def _op(self, kind: str, inputs: list[str], output: str) -> str:
        op, writer = self.writer.op(kind, inputs, output), self.writer
        return writer.copy(op, self.name, writer.facts.shape(self.name))


@dataclass
class Part:
    """One part of a region, as it is written.

    Attributes:
        end: of the names of what it makes.
        asked: rows of the results that it hands out.
        later: the first row of each kept value that a part after it reads.
        held: rows of kept values, from the parts before it.
        totals: values that are sums over all parts.
        again: as of the region.
        have: rows that are there, per value of the region.
        read: stretches that were taken already.
    """

    writer: Writer
    end: str
    ops: list[Op]
    rows: Rows
    asked: Mapping[str, Span]
    later: Mapping[str, int]
    held: dict[str, tuple[Stretch, ...]]
    totals: Mapping[str, _Sum]
    again: Mapping[str, int]
    have: dict[str, tuple[Stretch, ...]] = field(default_factory=dict)
    read: dict[tuple[str, Span | None], str] = field(default_factory=dict)

    def first(self, name: str) -> int:
        """The first row that is wanted of a value of the region."""
        return self.rows.wanted[name].first

    def write(self) -> None:
        """Its ops; rows that later parts read again are taken out as soon as a value is used up."""
        inside = {name for op in self.ops for name in op.writes}
        pieces = self.rows.pieces
        last = {
            name: op.name
            for op in self.ops
            if op.name in pieces
            for name, _ in pieces[op.name].taken(op.inputs)
        }
        for op in self.ops:
            piece = self.rows.pieces.get(op.name)
            if piece is not None and is_either(op):
                self._either(op, piece, inside)
            elif piece is not None:
                self._write_op(op, piece, inside)
            for name in () if is_either(op) else op.writes:
                self._made(name, piece, self.rows.new.get(op.name))
            used = [n for n in op.reads if n in inside and last.get(n) == op.name]
            for name in (*used, *(n for n in op.writes if n not in last)):
                self._hold(name)

    def _write_op(self, op: Op, piece: Piece, inside: set[str]) -> None:
        """A piece of an op."""
        writer = self.writer
        inputs = [
            writer.constant(piece.constants[position])
            if position in piece.constants
            else self._taken(name, span, name in inside)
            for position, (name, span) in enumerate(zip(op.inputs, piece.reads, strict=True))
            if position not in piece.unread
        ]
        outputs = {name: f"{name}{self.end}" for name in op.writes}
        changed = writer.model and piece.attributes
        node = with_attributes(op.node, piece.attributes) if changed else op.node
        writes = tuple(outputs.get(name, "") for name in op.outputs)
        copy = Op(
            op.name + self.end, op.op_type, op.domain, tuple(inputs), writes, (), node, op.origin
        )  # fmt: skip
        writer.ops.append(copy)
        made = piece.made
        total = self.totals.get(op.writes[0])
        whole = writer.facts.shape(op.inputs[0] if total else op.writes[0])[made.axis]
        writer.shares[copy.name] = (op.name, made.size / whole)
        writer.pieces[copy.name] = (op.name, made)
        for name, tensor in outputs.items():
            shape = writer.facts.shape(name) if total else writer.shape(name, made)
            writer.tensor(tensor, name, shape)
            if total:
                total.add(tensor, made.size / whole)

    def _either(self, op: Op, piece: Piece, inside: set[str]) -> None:
        """Rows that are held, and those that were made again: no op of its own."""
        writer, name, found = self.writer, op.outputs[0], list[Stretch]()
        row = self.again.get(name)
        for read, span in piece.taken(op.inputs):
            assert span is not None
            first, end = span.first if found else 0, row if read == op.inputs[0] else None
            there = self.have[read] if read in inside else writer.stretches(read, span.axis)
            for tensor, held in there:
                both = held.overlap(span)
                if both.size <= 0:
                    continue
                if held.first < first or (end is not None and held.end > end):
                    found.append((writer.cut(tensor, read, held, both), both))
                else:
                    found.append((tensor, held))
        self.have[name] = tuple(found)

    def _made(self, name: str, piece: Piece | None, new: Span | None) -> None:
        """What is there of a value: new rows, and those of parts before that are kept."""
        if name not in self.rows.wanted or name in self.totals:
            return
        there = self.held.get(name, ())
        if piece is not None and new is not None:
            tensor = self.writer.cut(f"{name}{self.end}", name, piece.made, new)
            kept = (
                (self.writer.cut(t, name, span, left), left)
                for t, span in there
                if (left := Span(span.axis, span.first, min(span.end, new.first))).size > 0
            )
            there = (*kept, (tensor, new))
        self.have[name] = there
        if name in self.asked:
            part = self.writer.gather(name, there, self.asked[name])
            before = self.writer.tiles.get(name, ())
            self.writer.tiles[name] = (*before, (part, self.asked[name]))

    def _taken(self, name: str, span: Span | None, inside: bool) -> str:
        """The tensor of a stretch that is read."""
        if not name:
            return ""
        found = self.read.get((name, span))
        if found is None:
            if inside:
                assert span is not None
                found = self.writer.gather(name, self.have[name], span)
            else:
                found = self.writer.outside(name, span)
            self.read[name, span] = found
        return found

    def _hold(self, name: str) -> None:
        """Keep the rows of a value that later parts read again, and no others."""
        first = self.later.get(name)
        if name not in self.have:
            return
        self.held[name] = () if first is None else tuple(
            (self.writer.cut(tensor, name, span, kept), kept)
            for tensor, span in self.have[name]
            if (kept := Span(span.axis, max(first, span.first), span.end)).size > 0
        )  # fmt: skip


def _later(parts: Sequence[Rows], kept: frozenset[str]) -> list[Mapping[str, int]]:
    """Per part, the first row of each kept value that any part after it reads."""
    found: list[Mapping[str, int]] = [{}]
    for rows in reversed(parts[1:]):
        first = dict(found[-1])
        for name in kept & rows.wanted.keys():
            first[name] = min(first.get(name, rows.wanted[name].first), rows.wanted[name].first)
        found.append(first)
    return found[::-1]
