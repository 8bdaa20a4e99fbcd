"""Rows of features that stay in onnxruntime's blocked layout from one product to the next.

On Intel's processors onnxruntime's blocked 1x1 convolution takes the time of MKL's product, where
its own product takes 1.15 times as much, and 1.3 to 1.6 times for a weight's gradient; a bias is
added on the way. What that gains may be lost again where rows have to be copied into blocks and out
of them. Which ops work on blocks is said by :mod:`onnxremat.grad.host.block_choice`: [rows, N] are
then the N channels of an image with ``rows`` places. Wide rows between two products, as a layer of
a transformer has them, are never copied so; narrow ones once for all products that read them.

A weight's gradient is a sum over rows: these are its channels. Blocks of N channels with rows in
between are how the filters of N outputs lie that have a channel per row, so that one factor is
taken as it is. Channels fill whole blocks: where rows do not (197 tokens of an image), rows of
zeros are added as rows are copied. What these become, forward, is multiplied by their gradient,
which is 0; so no op that may make a number infinite is in blocks then.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import onnx
from onnx import helper

from onnxremat.device.host import made_by_intel
from onnxremat.grad.host.block_choice import (
    TIMES,
    Rows,
    attribute,
    chosen,
    fits,
    is_product,
    is_sum,
)
from onnxremat.grad.host.block_gelu import Slope, slopes
from onnxremat.grad.roles import inherit, is_backward
from onnxremat.grad.tape import Shape, Tape
from onnxremat.graph.ir import Op
from onnxremat.ort.blocks import DOMAIN


def with_rows_in_blocks(t: Tape, ops: Sequence[Op], outputs: Collection[str]) -> list[Op]:
    """The ops, with rows in blocks where that gains on this processor.

    Args:
        ops: of a training step, in a topological order.
        outputs: tensors that the step returns: these stay as they are.
    """
    if not t.block or not made_by_intel():
        return list(ops)
    rows = Rows(t, ops, outputs)
    return _InBlocks(rows, chosen(rows)).made()


def one_product(t: Tape, a: str, b: str) -> bool:
    """Whether a.T @ b of two matrices is left as one Gemm, which may be made in blocks."""
    if not t.block:
        return False
    narrow, wide = sorted((t.shape(a)[1], t.shape(b)[1]))
    return fits(t, a) and fits(t, b) and wide <= TIMES * narrow and made_by_intel()


class _InBlocks:
    """Emits ops on tensors in blocks in place of those on rows.

    Args:
        names: of the ops that work on blocks.
    """

    def __init__(self, rows: Rows, names: Collection[str]) -> None:
        self.rows, self.t, self.names = rows, rows.t, names
        self.blocks: dict[str, str] = {}  # of rows that are made in blocks
        self.copies: dict[tuple[str, bool, bool], str] = {}  # of others: first or last axis; when
        self.shared = set[str]()  # what makes these
        self.ended = set[str]()  # made already
        self.place = {op.name: k for k, op in enumerate(rows.ops)}
        # Products, and what they have as a bias, that are made as they are added to others.
        self.waiting: dict[str, tuple[Op, list[str]]] = {}
        self.backward = False  # what is being emitted
        self.slopes = self._fitting_slopes()

    def made(self) -> list[Op]:
        """All ops."""
        result: list[Op] = []
        for op in self.rows.ops:
            if op.outputs[0] in self.ended:
                continue
            there = op.op_type == "Size" and op.inputs[0] in self.blocks
            result += self._replaced(op) if op.name in self.names or there else [op]
        return result

    def _replaced(self, op: Op) -> list[Op]:
        t, start = self.t, len(self.t.ops)
        self.backward = is_backward(op)
        with t.scope(f"{op.name}/blocked", "backward" if self.backward else "forward"):
            renames = self._emit(op)
        emitted, t.ops[start:] = t.ops[start:], []
        # Copies for several ops are for whom they are read by.
        inherit((each for each in emitted if each.name not in self.shared), op)
        return [each.renamed(each.name, renames, each.origin) for each in emitted]

    def _emit(self, op: Op) -> dict[str, str]:
        """Emit what stands for an op; results that are rows get their names."""
        t, result = self.t, op.outputs[0]
        biased = self.rows.biased(op)
        if op.op_type == "Size":
            size = t.op("Size", self.blocks[op.inputs[0]], shape=(), dtype=onnx.TensorProto.INT64)
            return {size: result}
        if biased:
            product, bias = biased
            flat = t.reshape(bias, (t.size(bias),))
            if self._is_added(op):
                self.waiting[result] = (product, [flat])
                return {}
            made = self._convolved(product, flat)
        elif is_product(op) and attribute(op, "transA", 0):
            return {self._over_rows(op): result}
        elif op.op_type == "ReduceSum":
            return self._sum(op)
        elif is_product(op):
            if self._with_bias(op):
                return {}
            if self._is_added(op):
                self.waiting[result] = (op, self._bias(op))
                return {}
            made = self._convolved(op, *self._bias(op))
        elif op.op_type == "Reshape":
            if op.inputs[0] in self.waiting:
                self.waiting[result] = self.waiting.pop(op.inputs[0])
                return {}
            made = self._last(op.inputs[0])
        elif op.op_type == "Add" and not self.waiting.keys().isdisjoint(op.inputs):
            made = self._added(*op.inputs)
        elif op.name in self.slopes:
            made = self._slope(op)
        else:
            fitting = self.rows.fitting
            inputs = [self._last(name) if name in fitting else name for name in op.inputs]
            how = {a.name: helper.get_attribute_value(a) for a in op.node.attribute}
            made = t.op(op.op_type, *inputs, shape=self._shape(result), **how)
        return self._kept(result, made)

    def _kept(self, result: str, made: str) -> dict[str, str]:
        """Keep blocks for those who read them; copied to rows for those who read these."""
        t, rows = self.t, self.rows
        self.blocks[result] = made
        ways = (rows.reads(op, result, self.names) for op in rows.readers.get(result, []))
        if result not in rows.outputs and "rows" not in ways:
            return {}
        count, columns = rows.matrix(result)
        filled = rows.filled(count)
        made = t.op(
            "ReorderOutput", made, shape=(1, 1, filled, columns), domain=DOMAIN,
            channels=columns, channels_last=1,
        )  # fmt: skip
        made = t.slice(t.reshape(made, (filled, columns)), [0], [0], [count])
        return {t.reshape(made, t.shape(result)): result}

    def _with_bias(self, op: Op) -> bool:
        """Whether a product is made as the bias is added to it."""
        readers = self.rows.readers.get(op.outputs[0], [])
        return (
            len(readers) == 1
            and readers[0].name in self.names
            and bool(self.rows.biased(readers[0]))
        )

    def _is_added(self, op: Op) -> bool:
        """Whether a product is only read to be added to other rows, or as what a slope is
        multiplied with."""
        reader = self._read_at(op)
        if reader is None:
            return False
        added = reader.op_type == "Add" and len(self.rows.fitting.intersection(reader.reads)) == 2
        slope = self.slopes.get(reader.name)
        return added or (slope is not None and slope.product == reader.name)

    def _read_at(self, op: Op) -> Op | None:
        """The op that alone reads what an op makes, perhaps in another shape, and before anything
        that waits for it."""
        result, waiting = op.outputs[0], list[Op]()
        while True:
            waiting += filter(self.rows.only_waits, self.rows.readers.get(result, []))
            reader = self._only_reader(result)
            if reader is None or not self.rows.same_rows(reader):
                break
            result = reader.outputs[0]
        late = reader and all(self.place[op.name] > self.place[reader.name] for op in waiting)
        return reader if late else None

    def _fitting_slopes(self) -> dict[str, Slope]:
        """Slopes whose other factor weights make, and nothing else reads; by names of their ops."""
        found = {each.product: each for each in slopes(self.rows, self.names)}
        made = [
            self._read_at(op)
            for op in self.rows.ops
            if op.name in self.names and is_product(op) and not is_sum(op) and len(op.inputs) == 2
        ]
        fit = [found[reader.name] for reader in made if reader and reader.name in found]
        return {name: each for each in fit for name in each.ops}

    def _slope(self, op: Op) -> str:
        """One of the ops of a slope of Gelu; see block_gelu.py."""
        t, slope, inputs = self.t, self.slopes[op.name], op.inputs
        if op.name in (slope.exponent, slope.half):
            return self._last(inputs[1] if op.name == slope.exponent else inputs[0])
        if op.name == slope.product:
            other = inputs[0] if inputs[1] == slope.dy else inputs[1]
            return t.op("Mul", self._waited(slope.dy, halved=True), self._last(other))
        shape = self._shape(op.outputs[0])
        if op.name == slope.density:
            return t.op("Div", *map(self._last, inputs), shape=shape)
        count = shape[1]
        numbers = [np.full((count, 1, 1, 1), slope.factor), np.ones(count)]
        error, density = map(self._last, inputs)
        return t.op(
            "Conv", density, *(t.constant(n, t.dtype(density)) for n in numbers), error,
            shape=shape, domain=DOMAIN, kernel_shape=[1, 1], group=count,
        )  # fmt: skip

    def _added(self, first: str, second: str) -> str:
        """A product and what the convolution adds to it."""
        if second not in self.waiting:
            first, second = second, first
        other = self._last(first) if first not in self.waiting else self._waited(first)
        return self._waited(second, other)

    def _waited(self, name: str, *other: str, halved: bool = False) -> str:
        product, bias = self.waiting.pop(name)
        made = self._convolved(product, *(bias or [""] * len(other)), *other, halved=halved)
        at = product.outputs[0]
        self.blocks[at] = made  # for who waits for the product
        while at != name:
            reader = self._only_reader(at)
            assert reader is not None
            at = reader.outputs[0]
            self.blocks[at] = made
        return made

    def _only_reader(self, name: str) -> Op | None:
        """The op that reads a tensor in blocks, and nothing else does."""
        readers = [op for op in self.rows.readers.get(name, []) if not self.rows.only_waits(op)]
        if len(readers) != 1 or name in self.rows.outputs or readers[0].name not in self.names:
            return None
        return readers[0]

    def _bias(self, op: Op) -> list[str]:
        """That of a Gemm."""
        return [self.t.reshape(c, (self.t.size(c),)) for c in op.inputs[2:] if c]

    # ---- layouts -------------------------------------------------------------------------

    def _shape(self, name: str) -> Shape:
        count, columns = self.rows.matrix(name)
        return (1, columns, 1, self.rows.filled(count))

    def _convolved(self, op: Op, *more: str, halved: bool = False) -> str:
        """Rows times a matrix, as blocks; with a bias and what it is added to, if any."""
        t, (a, b) = self.t, op.inputs[:2]
        b = t.mul(b, 0.5) if halved else b
        columns = self.rows.matrix(op.outputs[0])[1]
        turned = bool(attribute(op, "transB", 0))
        filters = _first(t, b) if turned else _last(t, b)
        filters = t.reshape(filters, (columns, t.shape(a)[-1], 1, 1))
        return t.op(
            "Conv", self._last(a), filters, *more, shape=self._shape(op.outputs[0]),
            domain=DOMAIN, kernel_shape=[1, 1],
        )  # fmt: skip

    def _over_rows(self, op: Op) -> str:
        """a.T @ b: columns of one factor are filters, the other's the places of an image."""
        t, factors = self.t, self.rows.over_rows(op)
        assert factors is not None
        wide, other = factors
        places, count = self.rows.matrix(other)[1], self.rows.matrix(wide)[1]
        made = t.op(
            "Conv", self._copied(other, first=True), self._filters(wide),
            shape=(1, count, 1, places), domain=DOMAIN, kernel_shape=[1, 1],
        )  # fmt: skip
        last = wide == op.inputs[1]  # [places, count] is asked for
        shape = (1, 1, places, count) if last else (1, count, 1, places)
        made = t.op(
            "ReorderOutput", made, shape=shape, domain=DOMAIN, channels=count,
            channels_last=int(last),
        )  # fmt: skip
        return t.reshape(made, t.shape(op.outputs[0]))

    def _filters(self, name: str) -> str:
        """Rows as filters: one for each of their features, with a channel for each of them."""
        rows, count = self.rows.matrix(name)
        return self.t.reshape(self._last(name), (count, self.rows.filled(rows), 1, 1))

    def _sum(self, op: Op) -> dict[str, str]:
        """A sum over rows; as a product with ones, and zeros, where rows were filled up."""
        t, wide, ending = self.t, op.inputs[0], self.rows.row_sum(op) or op
        rows, columns = self.rows.matrix(wide)
        filled, result = self.rows.filled(rows), ending.outputs[0]
        if rows == filled:
            apart = t.reshape(self._last(wide), (columns // t.block, rows, t.block))
            made = t.reduce("Sum", apart, [1])
        else:
            there = (np.arange(filled) < rows).reshape(1, filled, 1, 1)
            made = t.op(
                "Conv", t.constant(there, t.dtype(wide)), self._filters(wide),
                shape=(1, columns, 1, 1), domain=DOMAIN, kernel_shape=[1, 1],
            )  # fmt: skip
        self.ended.add(result)
        return {t.reshape(made, t.shape(result)): result}

    def _last(self, name: str) -> str:
        """Rows in blocks of their features."""
        root = self.rows.root(name, self.names)
        return self.blocks.get(name) or self.blocks.get(root) or self._copied(name, first=False)

    def _copied(self, name: str, *, first: bool) -> str:
        """Rows copied into blocks of their features, or of rows; once for all of a pass."""
        t, start, name = self.t, len(self.t.ops), self.rows.root(name, self.names)
        key = (name, first, self.backward)
        if key not in self.copies:
            rows, columns = self.rows.matrix(name)
            flat = t.reshape(name, (rows, columns))
            flat = t.pad(flat, (0, 0), (self.rows.filled(rows) - rows, 0))
            self.copies[key] = _first(t, flat) if first else _last(t, flat)
            self.shared.update(each.name for each in t.ops[start:])
        return self.copies[key]


def _last(t: Tape, name: str) -> str:
    """[rows, N] copied into blocks of its columns."""
    rows, columns = t.shape(name)
    return _laid(t, name, (1, 1, rows, columns), (1, columns, 1, rows), channels_last=1)


def _first(t: Tape, name: str) -> str:
    """[N, places] copied into blocks of its rows."""
    rows, columns = t.shape(name)
    return _laid(t, name, (1, rows, 1, columns), (1, rows, 1, columns))


def _laid(t: Tape, name: str, view: Shape, shape: Shape, **how: int) -> str:
    return t.op("ReorderInput", t.reshape(name, view), shape=shape, domain=DOMAIN, **how)
