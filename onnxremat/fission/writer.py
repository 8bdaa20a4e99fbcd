"""Ops that take stretches out of values and put them together, as parts of regions need them."""

from __future__ import annotations

import math
from bisect import bisect
from collections import ChainMap
from collections.abc import Mapping, MutableMapping, Sequence
from itertools import islice
from typing import NamedTuple, TypeAlias

import numpy as np
import onnx
from onnx import numpy_helper

from onnxremat.fission.masked import Narrowed, Reach
from onnxremat.fission.paper import Paper
from onnxremat.graph.dtypes import tensor_bytes
from onnxremat.graph.ir import Op, Role, Tensor
from onnxremat.graph.spans import CannotSplitError, Span

STATED = 10  # opset from which Slice reads its bounds as inputs
CONSTANT = "fission/"  # begins the names of constants that are made here
BLANK = onnx.NodeProto()  # of ops that are only simulated

Stretch: TypeAlias = tuple[str, Span]  # a tensor, and which rows of a value it holds


class Again(NamedTuple):
    """Ops that are there once more, under other names, where ops are only simulated.

    Attributes:
        at: so many ops are written before.
        ops: places of the ops in the list of those that are written.
        before: ops that were there again before these.
        names: of tensors that others read or make to those in their places; what else the ops make
            has names of its own.
    """

    at: int
    ops: range
    before: int
    names: Mapping[str, str]


class Writer:
    """A list of ops under way.

    Args:
        paper: of the whole graph.
        block: channels per block of convolutions that are laid out in blocks.
        tag: ends the names that it makes; one of its own per writer of one graph.
        tensors: of other writers, which this one may read; None for a graph that is to be run.
            Otherwise ops are only to be simulated, and have neither attributes nor constants.

    Attributes:
        shares: op to the op that it is a piece of, and the share of it that it computes.
        pieces: op to the op that it is a piece of, and what it makes of its outputs.
        copied: bytes that ops write which only copy, or are as quick as a copy.
        tiles: results that are not joined yet.
        views: Reshapes that are not among ops which are only simulated.
        again: ops that are there once more, of ops which are only simulated.
        lists: integers that these and their like read, of ops which are only simulated.
    """

    def __init__(
        self,
        paper: Paper,
        block: int,
        tag: str = "",
        tensors: MutableMapping[str, Tensor] | None = None,
    ) -> None:
        self.paper, self.graph, self.facts = paper, paper.graph, paper.facts
        self.block, self.tag, self.model = block, tag, tensors is None
        self.ops: list[Op] = []
        self.made: dict[str, Tensor] = {}
        others = {} if tensors is None else tensors
        self.tensors = ChainMap(self.made, others, self.graph.tensors)  # type: ignore[arg-type]
        self.constants: dict[str, onnx.TensorProto] = {}
        self.shares: dict[str, tuple[str, float]] = {}
        self.pieces: dict[str, tuple[str, Span]] = {}
        self.copied: dict[str, int] = {}
        self.tiles: dict[str, tuple[Stretch, ...]] = {}
        self.flat: dict[str, str] = {}  # of values in blocks, those that are seen as they lie
        self.lying: dict[tuple[str, int], str] = {}  # what shows them so that an axis can be cut
        self.views = 0
        self.again: list[Again] = []
        self.lists = set[tuple[int, ...]]()
        self.count = 0

    # What is read.

    def whole(self, name: str) -> str:
        """A value joined, where it is there in parts."""
        if name in self.tiles:
            (*_, (_, last)) = tiles = self.tiles.pop(name)
            if last.end < self.facts.shape(name)[last.axis]:
                raise CannotSplitError(f"not all of '{name}' is there")
            self.join(name, tiles, name)
        return name

    def outside(self, name: str, span: Span | None) -> str:
        """Rows of a value that is made outside of the region at hand."""
        if span is None:
            return self.whole(name)
        return self.gather(name, self.stretches(name, span.axis), span)

    def stretches(self, name: str, axis: int) -> tuple[Stretch, ...]:
        """What there is of a value that is made outside of the region at hand, along an axis."""
        if name in self.tiles and self.tiles[name][0][1].axis != axis:
            self.whole(name)
        whole = Span(axis, 0, self.facts.shape(name)[axis])
        return self.tiles.get(name, ((name, whole),))

    def gather(self, name: str, stretches: Sequence[Stretch], span: Span) -> str:
        """Rows of a value that is there in stretches, from the first rows on."""
        found = []
        for tensor, held in islice(stretches, bisect(stretches, span.first, key=_end_of), None):
            if held.first >= span.end:
                break
            if held == span:
                return tensor
            both = held.overlap(span)
            if both.end > both.first:
                found.append((self.cut(tensor, name, held, both), both))
        there = sum([part.end - part.first for _, part in found])
        assert there == span.end - span.first, (name, span, stretches)
        return found[0][0] if len(found) == 1 else self.join(name, found)

    # What is written.

    def op(self, kind: str, inputs: Sequence[str], output: str, **attributes: object) -> Op:
        """An op of the default domain, not yet among those written."""
        name = f"{output}/{kind}"
        if not self.model:
            return Op(name, kind, "", tuple(inputs), (output,), (), BLANK)
        node = onnx.helper.make_node(kind, list(inputs), [output], name=name, **attributes)
        return Op(name, kind, "", tuple(inputs), (output,), (), node)

    def copy(self, op: Op, name: str, shape: Sequence[int]) -> str:
        """Write an op that copies rows of a value."""
        self.copied[op.name] = tensor_bytes(self.graph.tensors[name].dtype, tuple(shape))
        return self._add(op, name, shape)

    def _add(self, op: Op, name: str, shape: Sequence[int]) -> str:
        """Write an op whose output is like a value, but for its shape."""
        self.ops.append(op)
        self.tensor(op.outputs[0], name, shape)
        return op.outputs[0]

    def tensor(self, output: str, like: str, shape: Sequence[int]) -> None:
        """A tensor of the type of a value."""
        if output not in self.graph.tensors:
            dtype = self.graph.tensors[like].dtype
            size = tensor_bytes(dtype, tuple(shape))
            self.made[output] = Tensor(output, dtype, tuple(shape), size, Role.ACTIVATION)

    def fresh(self, name: str, what: str) -> str:
        """A name that nothing has."""
        while True:
            self.count += 1
            made = f"{name}/{what}{self.count}{self.tag}"
            if made not in self.graph.tensors:  # of parts that were made before
                return made

    def cut(self, tensor: str, name: str, held: Span, span: Span) -> str:
        """Rows of a tensor that holds the rows ``held`` of the value ``name``."""
        if held == span:
            return tensor
        first, end = span.first - held.first, span.end - held.first
        shape, output = self.shape(name, span), self.fresh(name, "rows")
        if self._plain(name, span, [tensor], output):
            op = self._slice(tensor, output, span.axis, first, end)
            return self.copy(op, name, shape)
        seen, flat = self._seen(tensor, name, held), self._flat(name, span)
        piece = self.copy(self._slice(seen, f"{output}/flat", 1, first, end), name, flat)
        return self._blocked(piece, output, name, shape, span.axis)

    def join(self, name: str, stretches: Sequence[Stretch], output: str = "") -> str:
        """Rows of a value put together, in order."""
        output = output or self.fresh(name, "joined")
        (_, first), (_, last) = stretches[0], stretches[-1]
        span = Span(first.axis, first.first, last.end)
        shape = self.shape(name, span)
        if self._plain(name, span, [t for t, _ in stretches], output):
            op = self.op("Concat", [t for t, _ in stretches], output, axis=span.axis)
            return self.copy(op, name, shape)
        seen = [self._seen(tensor, name, held) for tensor, held in stretches]
        op = self.op("Concat", seen, f"{output}/flat", axis=1)
        flat = self.copy(op, name, self._flat(name, span))
        return self._blocked(flat, output, name, shape, span.axis)

    def shape(self, name: str, span: Span) -> tuple[int, ...]:
        """Dimensions of a stretch of a value."""
        shape, axis = self.facts.shape(name), span.axis
        return (*shape[:axis], span.end - span.first, *shape[axis + 1 :])

    def _plain(self, name: str, span: Span, tensors: Sequence[str], output: str) -> bool:
        """Rows of a value lie as its shape says; or nobody looks, since ops are only simulated and
        another shape is no other memory: then the Reshapes are counted alone.

        Args:
            tensors, output: what is copied, to what.
        """
        if name not in self.paper.blocked or span.axis == 0:
            return True
        if not self.model:
            views = {output, *tensors}.difference(self.flat)
            self.views += len(views)
            self.flat.update(dict.fromkeys(views, ""))
            self.lists.update((self._flat(name, span), self.shape(name, span)))
        return not self.model

    def _flat(self, name: str, span: Span) -> tuple[int, int, int]:
        """A value in blocks, as it really lies: blocks and axes before the span's, the span, the
        axes after it and the channels of a block."""
        batch, channels, *rest = self.shape(name, span)
        blocks, at = -(-channels // self.block), span.axis - 2
        outer = batch * blocks * math.prod(rest[:at])
        return outer, span.size, math.prod(rest[at + 1 :]) * self.block

    def _seen(self, tensor: str, name: str, span: Span) -> str:
        """A value in blocks under its real shape; no copy, once per tensor and axis."""
        key = tensor, span.axis
        if key not in self.lying:
            output, shape = self.fresh(name, "seen"), self._flat(name, span)
            self.lying[key] = self._add(self._reshape(tensor, output, shape), name, shape)
        return self.lying[key]

    def _blocked(self, flat: str, output: str, name: str, shape: Sequence[int], axis: int) -> str:
        """The reverse."""
        self.lying[output, axis] = flat
        return self._add(self._reshape(flat, output, shape), name, shape)

    def _reshape(self, tensor: str, output: str, shape: Sequence[int]) -> Op:
        return self.op("Reshape", [tensor, self.constant(shape)], output)

    def _slice(self, tensor: str, output: str, axis: int, first: int, end: int) -> Op:
        if self.facts.opset < STATED:
            return self.op("Slice", [tensor], output, axes=[axis], starts=[first], ends=[end])
        bounds = [self.constant((value,)) for value in (first, end, axis)]
        return self.op("Slice", [tensor, *bounds], output)

    def constant(self, values: Sequence[int]) -> str:
        """A list of integers as a tensor; nothing where ops are only simulated."""
        if not self.model:
            self.lists.add(tuple(values))
            return ""
        name = CONSTANT + "x".join(str(value) for value in values)
        return self._stored(name, np.asarray(values, np.int64), onnx.TensorProto.INT64)

    def number(self, value: float, dtype: int) -> str:
        """A number of a type as a tensor; nothing where ops are only simulated."""
        if not self.model:
            return ""
        array = np.asarray(value, onnx.helper.tensor_dtype_to_np_dtype(dtype))
        return self._stored(f"{CONSTANT}{value!r}/{dtype}", array, dtype)

    def _stored(self, name: str, array: np.ndarray, dtype: int) -> str:
        if name not in self.constants:
            self.constants[name] = numpy_helper.from_array(array, name)
            self.made[name] = Tensor(name, dtype, array.shape, array.nbytes, Role.WEIGHT)
        return name

    # What is left out.

    def leave_out_hidden(self, reach: Reach) -> None:
        """Without the keys that a mask hides from all rows of a part.

        Args:
            reach: how far rows of masked scores see.
        """
        narrowed = Narrowed(self.ops, self.tensors, reach, self._first, self.op, self.number)
        self.ops = narrowed.written(self.pieces)
        self.copied |= narrowed.added
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
        self.made[name] = Tensor(name, known.dtype, shape, size, Role.ACTIVATION)
        return op


def _end_of(stretch: Stretch) -> int:
    return stretch[1].end
