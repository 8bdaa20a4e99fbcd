"""The graph with regions computed part by part.

Fission as in MAGIS (ASPLOS'24, section 4.2), extended to windows, to rows that are kept from part
to part, and to results that stay in parts: what one region makes in parts and only others read part
by part is never joined.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import onnx
from onnx import numpy_helper

from onnxremat.fission.masked import Narrowed, Reach
from onnxremat.fission.region import Region
from onnxremat.fission.rows import Rows, bounds_of, rows_of
from onnxremat.graph.axes import blocked_values, total_of
from onnxremat.graph.axis_sums import MEAN
from onnxremat.graph.dtypes import tensor_bytes
from onnxremat.graph.ir import Graph, Op, Role, Tensor
from onnxremat.graph.spans import CannotSplitError, Facts, Piece, Span

STATED = 10  # opset from which Slice reads its bounds as inputs


@dataclass(frozen=True)
class Split:
    """A graph in parts.

    Attributes:
        graph: with sizes.
        shares: op of it to the op that it is a piece of, and the share of it that it computes.
        copied: bytes that the ops which only copy write.
    """

    graph: Graph
    shares: Mapping[str, tuple[str, float]]
    copied: Mapping[str, int]


def split(graph: Graph, regions: Sequence[Region], block: int, reach: Reach | None = None) -> Split:
    """The graph with its regions in parts, listed part by part.

    Args:
        block: channels per block of convolutions that are laid out in blocks.
        reach: how far rows of masked scores see; keys that a part does not see are left out.

    Raises:
        CannotSplitError: an op of a region cannot be split so, or what a region reads depends on
            what it makes, or others read more of it than its results.
    """
    return _Writer(graph, regions, block, reach or {}).written()


Stretch: TypeAlias = tuple[str, Span]  # a tensor, and which rows of a value it holds


class _Writer:
    def __init__(self, graph: Graph, regions: Sequence[Region], block: int, reach: Reach) -> None:
        self.graph, self.block, self.reach = graph, block, reach
        self.facts = Facts(graph)
        self.regions = regions
        self.rows = [rows_of(graph, self.facts, region) for region in regions]
        self.of = {name: index for index, region in enumerate(regions) for name in region.ops}
        self.blocked = blocked_values(graph)
        self.ops: list[Op] = []
        self.tensors = dict(graph.tensors)
        self.constants: dict[str, onnx.TensorProto] = {}
        self.shares: dict[str, tuple[str, float]] = {}
        self.pieces: dict[str, tuple[str, Span]] = {}
        self.copied: dict[str, int] = {}
        self.tiles: dict[str, list[Stretch]] = {}  # results that are not joined yet
        self.count = 0

    def written(self) -> Split:
        """Every op, as soon as it is due."""
        done: set[int] = set()
        for index in range(len(self.graph.ops)):
            self._due(index, done)
        for name in self.graph.outputs:
            self._whole(name)
        self._check_order()
        if self.reach:
            self._leave_out_hidden()
        used = {name for op in self.ops for name in op.reads}
        frame = onnx.ModelProto()
        frame.CopyFrom(self.graph.model)
        frame.graph.initializer.extend(self.constants[n] for n in self.constants if n in used)
        made = used.union(self.graph.outputs, *(op.writes for op in self.ops), self.graph.inputs)
        known = {t.name for t in frame.graph.initializer}
        tensors = {n: t for n, t in self.tensors.items() if n in made or n in known}
        graph = replace(self.graph, ops=tuple(self.ops), tensors=tensors, model=frame)
        return Split(graph, self.shares, self.copied)

    def _leave_out_hidden(self) -> None:
        narrowed = Narrowed(self.ops, self.tensors, self.reach, self._first)
        self.ops = narrowed.written(self.pieces)
        for name, share in narrowed.shares.items():
            if name in self.shares:
                of, before = self.shares[name]
                self.shares[name] = of, before * share

    def _first(self, tensor: str, axis: int, end: int) -> Op:
        """An op that takes the first entries of a tensor along an axis."""
        known = self.tensors[tensor]
        assert known.shape is not None
        shape = (*known.shape[:axis], end, *known.shape[axis + 1 :])
        op = self._slice(tensor, self.fresh(tensor, "first"), axis, 0, end)
        size = tensor_bytes(known.dtype, shape)
        self.copied[op.name] = size
        name = op.outputs[0]
        self.tensors[name] = Tensor(name, known.dtype, shape, size, Role.ACTIVATION)
        return op

    def _due(self, index: int, done: set[int]) -> None:
        """Write an op, or the region that it is of, once all they read is there."""
        if index in done:
            return
        op = self.graph.ops[index]
        region = self.of.get(op.name)
        if region is None:
            for other in self._before([op]):
                self._due(other, done)
            done.add(index)
            for name in op.reads:
                self._whole(name)
            self.ops.append(op)
            return
        names = set(self.regions[region].ops)
        members = [i for i, each in enumerate(self.graph.ops) if each.name in names]
        done.update(members)
        ops = [self.graph.ops[i] for i in members]
        written = {name for rows in self.rows[region] for name in rows.pieces}
        for other in self._before([op for op in ops if op.name in written]):
            self._due(other, done)
        self._region(region, ops)

    def _check_order(self) -> None:
        """Everything is made before it is read: nothing between the ops of a region needs it and
        is needed by it, and all that others read of a region is among its results."""
        made = {n for n, t in self.tensors.items() if t.role in (Role.INPUT, Role.WEIGHT)}
        for op in self.ops:
            missing = [name for name in op.reads if name not in made]
            if missing:
                raise CannotSplitError(f"{op.name} reads {missing[0]}, which is not there whole")
            made.update(op.writes)

    def _before(self, ops: Sequence[Op]) -> list[int]:
        producer = self.graph.producer
        own = {name for op in ops for name in op.writes}
        reads = {n for op in ops for n in op.reads if n in producer and n not in own}
        return sorted({producer[name] for name in reads})

    def _region(self, index: int, ops: list[Op]) -> None:
        """All parts of a region, one after the other."""
        region, parts = self.regions[index], self.rows[index]
        held: dict[str, list[Stretch]] = {}
        bounds = bounds_of(self.graph, self.facts, region)
        totals = {
            name: _Sum(self, name, sum(span.size > 0 for span in bounds[name]))
            for name in region.sums
        }
        for number, rows in enumerate(parts):
            asked = {name: spans[number] for name, spans in bounds.items() if spans[number].size}
            later = _later(parts[number + 1 :], region.kept)
            _Part(self, f"/r{index}p{number}", ops, rows, asked, later, held, totals).write()

    # What is read.

    def _whole(self, name: str) -> str:
        """A value joined, where it is there in parts."""
        if name in self.tiles:
            self.join(name, self.tiles.pop(name), name)
        return name

    def outside(self, name: str, span: Span | None) -> str:
        """Rows of a value that is made outside of the region at hand."""
        if name in self.tiles and (span is None or self.tiles[name][0][1].axis != span.axis):
            self._whole(name)
        if span is None:
            return name
        whole = Span(span.axis, 0, self.facts.shape(name)[span.axis])
        return self.gather(name, self.tiles.get(name, [(name, whole)]), span)

    def gather(self, name: str, stretches: Sequence[Stretch], span: Span) -> str:
        """Rows of a value that is there in stretches."""
        found = [
            (self.cut(tensor, name, held, both), both)
            for tensor, held in stretches
            if (both := held.overlap(span)).size > 0
        ]
        assert sum(part.size for _, part in found) == span.size, (name, span, stretches)
        return found[0][0] if len(found) == 1 else self.join(name, found)

    # What is written.

    def _copy(self, op: Op, name: str, shape: Sequence[int]) -> str:
        """An op that copies rows of a value."""
        self.copied[op.name] = tensor_bytes(self.graph.tensors[name].dtype, tuple(shape))
        return self._add(op, name, shape)

    def _add(self, op: Op, name: str, shape: Sequence[int]) -> str:
        """An op whose output is like a value, but for its shape."""
        self.ops.append(op)
        self.tensor(op.outputs[0], name, shape)
        return op.outputs[0]

    def small(self, op: Op, name: str) -> str:
        """An op of two values like one, counted as a copy."""
        return self._copy(op, name, self.facts.shape(name))

    def tensor(self, output: str, like: str, shape: Sequence[int]) -> None:
        if output not in self.graph.tensors:
            dtype = self.graph.tensors[like].dtype
            size = tensor_bytes(dtype, tuple(shape))
            self.tensors[output] = Tensor(output, dtype, tuple(shape), size, Role.ACTIVATION)

    def fresh(self, name: str, what: str) -> str:
        """A name that nothing has."""
        self.count += 1
        return f"{name}/{what}{self.count}"

    def cut(self, tensor: str, name: str, held: Span, span: Span) -> str:
        """Rows of a tensor that holds the rows ``held`` of the value ``name``."""
        if held == span:
            return tensor
        first, end = span.first - held.first, span.end - held.first
        shape, output = self.shape(name, span), self.fresh(name, "rows")
        if name not in self.blocked or span.axis == 0:
            op = self._slice(tensor, output, span.axis, first, end)
            return self._copy(op, name, shape)
        seen, flat = self._seen(tensor, name, held), self._flat(name, span)
        piece = self._copy(self._slice(seen, f"{output}/flat", 1, first, end), name, flat)
        return self._add(self._reshape(piece, output, shape), name, shape)

    def join(self, name: str, stretches: Sequence[Stretch], output: str = "") -> str:
        """Rows of a value put together, in order."""
        output = output or self.fresh(name, "joined")
        (_, first), (_, last) = stretches[0], stretches[-1]
        span = Span(first.axis, first.first, last.end)
        shape = self.shape(name, span)
        if name not in self.blocked or span.axis == 0:
            return self._copy(_concat([t for t, _ in stretches], output, span.axis), name, shape)
        seen = [self._seen(tensor, name, held) for tensor, held in stretches]
        flat = self._copy(_concat(seen, f"{output}/flat", 1), name, self._flat(name, span))
        return self._add(self._reshape(flat, output, shape), name, shape)

    def shape(self, name: str, span: Span) -> tuple[int, ...]:
        """Dimensions of a stretch of a value."""
        shape = list(self.facts.shape(name))
        shape[span.axis] = span.size
        return tuple(shape)

    def _flat(self, name: str, span: Span) -> tuple[int, int, int]:
        """A value in blocks, as it really lies: blocks and axes before the span's, the span, the
        axes after it and the channels of a block."""
        batch, channels, *rest = self.shape(name, span)
        blocks, at = -(-channels // self.block), span.axis - 2
        outer = batch * blocks * math.prod(rest[:at])
        return outer, span.size, math.prod(rest[at + 1 :]) * self.block

    def _seen(self, tensor: str, name: str, span: Span) -> str:
        """A value in blocks under its real shape; no copy."""
        output, shape = self.fresh(name, "seen"), self._flat(name, span)
        return self._add(self._reshape(tensor, output, shape), name, shape)

    def _reshape(self, tensor: str, output: str, shape: Sequence[int]) -> Op:
        node = onnx.helper.make_node(
            "Reshape", [tensor, self.constant(shape)], [output], name=output
        )
        return _op(node)

    def _slice(self, tensor: str, output: str, axis: int, first: int, end: int) -> Op:
        if self.facts.opset < STATED:
            node = onnx.helper.make_node(
                "Slice", [tensor], [output], name=output, axes=[axis], starts=[first], ends=[end]
            )
        else:
            bounds = [self.constant((value,)) for value in (first, end, axis)]
            node = onnx.helper.make_node("Slice", [tensor, *bounds], [output], name=output)
        return _op(node)

    def constant(self, values: Sequence[int]) -> str:
        """A list of integers as a tensor."""
        name = "fission/" + "x".join(str(value) for value in values)
        return self._stored(name, np.asarray(values, np.int64), onnx.TensorProto.INT64)

    def number(self, value: float, dtype: int) -> str:
        """A number of a type as a tensor."""
        array = np.asarray(value, onnx.helper.tensor_dtype_to_np_dtype(dtype))
        return self._stored(f"fission/{value!r}/{dtype}", array, dtype)

    def _stored(self, name: str, array: np.ndarray, dtype: int) -> str:
        if name not in self.constants:
            self.constants[name] = numpy_helper.from_array(array, name)
            self.tensors[name] = Tensor(name, dtype, array.shape, array.nbytes, Role.WEIGHT)
        return name


class _Sum:
    """A value that is put together from what every part gives, as soon as it is there.

    Raises:
        CannotSplitError: there is one part alone.
    """

    def __init__(self, writer: _Writer, name: str, parts: int) -> None:
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
        op = _op(onnx.helper.make_node(kind, inputs, [output], name=f"{output}/{kind}"))
        return self.writer.small(op, self.name)


@dataclass
class _Part:
    """One part of a region, as it is written.

    Attributes:
        end: of the names of what it makes.
        asked: rows of the results that it hands out.
        later: the first row of each kept value that a part after it reads.
        held: rows of kept values, from the parts before it.
        totals: values that are sums over all parts.
        have: rows that are there, per value of the region.
        read: stretches that were taken already.
    """

    writer: _Writer
    end: str
    ops: list[Op]
    rows: Rows
    asked: Mapping[str, Span]
    later: Mapping[str, int]
    held: dict[str, list[Stretch]]
    totals: Mapping[str, _Sum]
    have: dict[str, list[Stretch]] = field(default_factory=dict)
    read: dict[tuple[str, Span | None], str] = field(default_factory=dict)

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
            if piece is not None:
                self._write_op(op, piece, inside)
            for name in op.writes:
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
        ]
        outputs = {name: f"{name}{self.end}" for name in op.writes}
        node = _with_attributes(op.node, piece.attributes) if piece.attributes else op.node
        copy = replace(op.renamed(op.name + self.end, outputs), inputs=tuple(inputs), node=node)
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

    def _made(self, name: str, piece: Piece | None, new: Span | None) -> None:
        """What is there of a value: new rows, and those of parts before that are kept."""
        if name not in self.rows.wanted or name in self.totals:
            return
        there = self.held.get(name, [])
        if piece is not None and new is not None:
            tensor = self.writer.cut(f"{name}{self.end}", name, piece.made, new)
            before = [
                (self.writer.cut(t, name, span, left), left)
                for t, span in there
                if (left := Span(span.axis, span.first, min(span.end, new.first))).size > 0
            ]
            there = [*before, (tensor, new)]
        self.have[name] = there
        if name in self.asked:
            part = self.writer.gather(name, there, self.asked[name])
            self.writer.tiles.setdefault(name, []).append((part, self.asked[name]))

    def _taken(self, name: str, span: Span | None, inside: bool) -> str:
        """The tensor of a stretch that is read."""
        if name and (name, span) not in self.read:
            if inside:
                assert span is not None
                found = self.writer.gather(name, self.have[name], span)
            else:
                found = self.writer.outside(name, span)
            self.read[name, span] = found
        return self.read.get((name, span), "")

    def _hold(self, name: str) -> None:
        """Keep the rows of a value that later parts read again, and no others."""
        first = self.later.get(name)
        if name not in self.have:
            return
        self.held[name] = [] if first is None else [
            (self.writer.cut(tensor, name, span, kept), kept)
            for tensor, span in self.have[name]
            if (kept := Span(span.axis, max(first, span.first), span.end)).size > 0
        ]  # fmt: skip


def _later(parts: Sequence[Rows], kept: frozenset[str]) -> dict[str, int]:
    """The first row of each kept value that any of these parts reads."""
    found: dict[str, int] = {}
    for rows in parts:
        for name in kept & rows.wanted.keys():
            found[name] = min(found.get(name, rows.wanted[name].first), rows.wanted[name].first)
    return found


def _with_attributes(node: onnx.NodeProto, changes: Mapping[str, object]) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    kept = [a for a in copy.attribute if a.name not in changes]
    made = [
        onnx.helper.make_attribute(n, value) for n, value in changes.items() if value is not None
    ]
    del copy.attribute[:]
    copy.attribute.extend([*kept, *made])
    return copy


def _concat(pieces: Sequence[str], output: str, axis: int) -> Op:
    return _op(
        onnx.helper.make_node("Concat", list(pieces), [output], name=f"{output}/concat", axis=axis)
    )


def _op(node: onnx.NodeProto) -> Op:
    return Op(node.name, node.op_type, node.domain, tuple(node.input), tuple(node.output), (), node)
