"""Rows of features that stay in onnxruntime's blocked layout from one product to the next.

A layer of a transformer widens its rows, bends them and narrows them again. On Intel's processors
onnxruntime's blocked 1x1 convolution takes the time of MKL's product, where its own product takes
1.15 times as much, and 1.3 to 1.6 times for a weight's gradient; a bias is added on the way. What
that gains is lost again where wide rows have to be copied into blocks and out of them. So where
every op that touches such rows can do so in blocks (products, elementwise ops, sums over rows),
they lie in blocks throughout: [rows, N] as the N channels of an image with ``rows`` places. Only
the narrow rows on either side are copied.

A weight's gradient is a sum over rows: these are its channels. Blocks of N channels with rows in
between are how the filters of N outputs lie that have a channel per row, so that the wide factor
is taken as it is. Channels fill whole blocks: where rows do not (197 tokens of an image), rows of
zeros are added as narrow ones are copied. What these become, forward, is multiplied by their
gradient, which is 0; so no op that may make a number infinite is in blocks then.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxremat.device.host import made_by_intel
from onnxremat.grad.roles import inherit
from onnxremat.grad.tape import Shape, Tape
from onnxremat.graph.ir import Op
from onnxremat.ort.blocks import DOMAIN

# Rows and features from which that was measured to gain, and the fewest of a product over rows.
ROWS, WIDE, NARROW = 1024, 768, 192
# A factor wider than so many times the other is not copied: gradients of a language model's logits.
TIMES = 4
_ALONE = frozenset({
    "Abs", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Log", "Mish",
    "Neg", "Reciprocal", "Relu", "Selu", "Sigmoid", "Sign", "Softplus", "Sqrt", "Tanh",
})  # fmt: skip
_PAIRS = frozenset({"Add", "Div", "Max", "Min", "Mul", "Sub"})
_OPEN = frozenset({"Div", "Log", "Reciprocal", "Sqrt"})  # may be infinite or no number


def with_rows_in_blocks(t: Tape, ops: Sequence[Op], outputs: Collection[str]) -> list[Op]:
    """The ops, with rows in blocks where that gains on this processor.

    Args:
        ops: of a training step, in a topological order.
        outputs: tensors that the step returns: these stay as they are.
    """
    if not t.block or not made_by_intel():
        return list(ops)
    search = _Search(t, ops, outputs)
    return _InBlocks(t, ops, outputs, search.found()).made()


def one_product(t: Tape, a: str, b: str) -> bool:
    """Whether a.T @ b of two matrices is left as one Gemm, to be made in blocks: also where both
    have to be copied."""
    if not t.block or t.dtype(a) != onnx.TensorProto.FLOAT:
        return False
    narrow, wide = sorted((t.shape(a)[1], t.shape(b)[1]))
    blocks = not narrow % t.block and not wide % t.block
    enough = t.shape(a)[0] >= ROWS and narrow >= NARROW and wide >= WIDE
    return blocks and enough and wide <= TIMES * narrow and made_by_intel()


class _Ops:
    """Ops, who makes and reads their tensors, and which of these are wide."""

    def __init__(self, t: Tape, ops: Sequence[Op], outputs: Collection[str]) -> None:
        self.t, self.ops, self.outputs = t, ops, outputs
        self.axes = {each.name: each for each in t.initializers if len(each.dims) == 1}
        self.maker = {name: op for op in ops for name in op.writes}
        self.readers: dict[str, list[Op]] = {}
        for op in ops:
            for name in op.reads:
                self.readers.setdefault(name, []).append(op)

    def matrix(self, name: str) -> Shape:
        """[rows, features] of a tensor; nothing of one without axes."""
        shape = self.t.shape(name)
        return (math.prod(shape[:-1]), shape[-1]) if shape else ()

    def biased(self, op: Op, wide: Collection[str]) -> tuple[Op, str] | None:
        """The product to whose every row an Add adds a bias, and the bias; None for another op, or
        where the product has other readers."""
        if op.op_type != "Add" or len(op.reads) != 2:
            return None
        rows = [name for name in op.inputs if name in wide]
        bias = next((name for name in op.inputs if name not in wide), "")
        product = self.maker.get(rows[0]) if len(rows) == 1 else None
        if product is None or not _is_product(product) or len(self.readers[rows[0]]) > 1:
            return None
        width = self.t.shape(rows[0])[-1]
        return (product, bias) if self.matrix(bias) == (1, width) else None

    def row_sum(self, op: Op) -> Op | None:
        """The op that ends a sum over all rows, in one step or two; None where it is none."""
        axes, rank = self._summed(op), self.t.rank(op.inputs[0])
        if axes == set(range(rank - 1)):
            return op
        after = self.readers.get(op.outputs[0], [])
        if (rank, axes) != (3, {1}) or self.t.rank(op.outputs[0]) != 2 or len(after) != 1:
            return None
        if op.outputs[0] in self.outputs:
            return None
        return after[0] if self._summed(after[0]) == {0} else None

    def _summed(self, op: Op) -> set[int]:
        """Axes of a ReduceSum that the backward pass emitted; none of any other op."""
        if op.op_type != "ReduceSum" or len(op.inputs) < 2 or op.inputs[1] not in self.axes:
            return set()
        rank = self.t.rank(op.inputs[0])
        return {int(axis) % rank for axis in numpy_helper.to_array(self.axes[op.inputs[1]])}


# ---- which rows ----------------------------------------------------------------------------------


@dataclass
class _Stretch:
    """Wide tensors that elementwise ops lead to one another."""

    names: set[str]
    whole: bool  # every op that touches them can do so in blocks
    products: int = 0


class _Search(_Ops):
    """Finds the tensors that are to lie in blocks."""

    def __init__(self, t: Tape, ops: Sequence[Op], outputs: Collection[str]) -> None:
        super().__init__(t, ops, outputs)
        self.stretches = {
            name: _Stretch({name}, name not in outputs) for name in self.maker if self._fits(name)
        }

    def found(self) -> set[str]:
        """Those of stretches that are whole and worth it: with a product at both ends."""
        for op in self.ops:
            touched = [name for name in (*op.reads, *op.writes) if name in self.stretches]
            if not touched:
                continue
            alike = self._alike(op)
            for first, second in pairwise(alike or ()):
                self._join(first, second)
            for name in touched:
                self.stretches[name].whole &= alike is not None
                self.stretches[name].products += _is_product(op)
        return {n for n, each in self.stretches.items() if each.whole and each.products > 1}

    def _fits(self, name: str) -> bool:
        if self.t.tensors[name].shape is None or self.t.dtype(name) != onnx.TensorProto.FLOAT:
            return False
        rows, columns = self.matrix(name) or (0, 0)
        return rows >= ROWS and columns >= WIDE and not columns % self.t.block

    def _join(self, a: str, b: str) -> None:
        first, second = self.stretches[a], self.stretches[b]
        if first is not second:
            first.names |= second.names
            first.whole &= second.whole
            first.products += second.products
            self.stretches.update(dict.fromkeys(second.names, first))

    def _alike(self, op: Op) -> list[str] | None:
        """The wide tensors that an op leads to one another; None where it knows no blocks."""
        t, wide, result = self.t, self.stretches, op.outputs[0]
        if not op.standard or len(op.outputs) != 1 or op.captures:
            return None
        same = [name for name in (*op.inputs, result) if name in wide]
        filled = any(self.matrix(name)[0] % t.block for name in same)
        if filled and (op.op_type in _OPEN or (op.op_type == "Size" and not _updates(op))):
            return None
        if _is_product(op):
            return [] if self._product_fits(op) else None
        if op.op_type == "Size":  # an update waits for it
            return []
        if op.op_type == "ReduceSum":
            return [] if self.row_sum(op) is not None else None
        made = op.inputs[0] in wide and result in wide  # else an input of the step, say
        if op.op_type == "Reshape":
            return same if made and self.matrix(op.inputs[0]) == self.matrix(result) else None
        if self.biased(op, wide) or (op.op_type in _ALONE and made):
            return same
        numbers = [name for name in op.inputs if name not in wide]
        pair = op.op_type in _PAIRS and all(t.size(n) == 1 and t.rank(n) < 5 for n in numbers)
        one = {t.shape(name) for name in same}
        return same if pair and len(one) == 1 and result in wide else None

    def _product_fits(self, op: Op) -> bool:
        """Rows times a matrix; or two matrices over their rows, of which one is wide."""
        t, (a, b), wide = self.t, op.inputs[:2], self.stretches
        if _attribute(op, "transA", 0):
            alone = (a in wide) != (b in wide) and op.outputs[0] not in wide
            return alone and _over_rows_alone(op)
        if len(op.inputs) > 2 or t.rank(b) != 2 or _attribute(op, "alpha", 1.0) != 1.0:
            return False
        columns, inner = t.shape(op.outputs[0])[-1], t.shape(a)[-1]
        return b not in wide and not columns % t.block and not inner % t.block


def _updates(op: Op) -> bool:
    return op.name.startswith("update/")


def _is_product(op: Op) -> bool:
    return op.op_type in ("MatMul", "Gemm") and op.standard


def _over_rows_alone(op: Op) -> bool:
    """a.T @ b, and nothing more."""
    if op.op_type != "Gemm" or not op.standard or len(op.inputs) != 2:
        return False
    turned = _attribute(op, "transA", 0) and not _attribute(op, "transB", 0)
    return bool(turned) and _attribute(op, "alpha", 1.0) == 1.0


def _attribute(op: Op, name: str, default: float) -> float:
    found = next((a for a in op.node.attribute if a.name == name), None)
    return default if found is None else float(helper.get_attribute_value(found))


# ---- the ops in blocks ---------------------------------------------------------------------------


class _InBlocks(_Ops):
    """Emits ops on tensors in blocks in place of those on rows."""

    def __init__(
        self, t: Tape, ops: Sequence[Op], outputs: Collection[str], wide: set[str]
    ) -> None:
        super().__init__(t, ops, outputs)
        self.wide = wide
        self.blocks: dict[str, str] = {}  # of wide tensors
        self.ended: set[str] = set()  # made already

    def made(self) -> list[Op]:
        """All ops."""
        result: list[Op] = []
        for op in self.ops:
            if op.outputs[0] in self.ended:
                continue
            touched = not self.wide.isdisjoint((*op.reads, *op.writes))
            result += self._replaced(op) if touched or self._copied(op) else [op]
        return result

    def _copied(self, op: Op) -> bool:
        """Whether it is a product over rows whose factors are both copied."""
        return _over_rows_alone(op) and one_product(self.t, *op.inputs)

    def _replaced(self, op: Op) -> list[Op]:
        t, start = self.t, len(self.t.ops)
        phase = "backward" if op.name.startswith("grad/") else "forward"
        with t.scope(f"{op.name}/blocked", phase):
            renames = self._emit(op)
        emitted, t.ops[start:] = t.ops[start:], []
        inherit(emitted, op)
        return [each.renamed(each.name, renames, each.origin) for each in emitted]

    def _emit(self, op: Op) -> dict[str, str]:
        """Emit what stands for an op; a result that is not in blocks gets its name."""
        t, result = self.t, op.outputs[0]
        biased = self.biased(op, self.wide)
        if biased:
            product, bias = biased
            self.blocks[result] = self._convolved(product, t.reshape(bias, (t.size(bias),)))
        elif _is_product(op):
            return self._product(op)
        elif op.op_type == "Reshape":
            self.blocks[result] = self.blocks[op.inputs[0]]
        elif op.op_type == "ReduceSum":
            return self._sum(op)
        elif op.op_type == "Size":
            size = t.op("Size", self.blocks[op.inputs[0]], shape=(), dtype=onnx.TensorProto.INT64)
            return {size: result}
        else:
            inputs = [self.blocks.get(name, name) for name in op.inputs]
            how = {a.name: helper.get_attribute_value(a) for a in op.node.attribute}
            self.blocks[result] = t.op(op.op_type, *inputs, shape=self._shape(result), **how)
        return {}

    def _filled(self, rows: int) -> int:
        """Rows of so many whole blocks."""
        return -(-rows // self.t.block) * self.t.block

    def _shape(self, name: str) -> Shape:
        rows, columns = self.matrix(name)
        return (1, columns, 1, self._filled(rows))

    def _with_zeros(self, name: str) -> str:
        """Narrow rows, [whole blocks of rows, features]."""
        rows, columns = self.matrix(name)
        if rows == self._filled(rows):
            return name
        flat = self.t.reshape(name, (rows, columns))
        return self.t.pad(flat, (0, 0), (self._filled(rows) - rows, 0))

    def _product(self, op: Op) -> dict[str, str]:
        t, result = self.t, op.outputs[0]
        if _attribute(op, "transA", 0):
            return {self._over_rows(op): result}
        if result not in self.wide:
            made = self._convolved(op)
            rows, columns = self.matrix(result)
            filled = self._filled(rows)
            made = t.op(
                "ReorderOutput", made, shape=(1, 1, filled, columns), domain=DOMAIN,
                channels=columns, channels_last=1,
            )  # fmt: skip
            made = t.slice(t.reshape(made, (filled, columns)), [0], [0], [rows])
            return {t.reshape(made, t.shape(result)): result}
        readers = self.readers.get(result, [])
        if len(readers) != 1 or not self.biased(readers[0], self.wide):  # else made with the bias
            self.blocks[result] = self._convolved(op)
        return {}

    def _convolved(self, op: Op, *bias: str) -> str:
        """Rows times a matrix, as blocks."""
        t, (a, b) = self.t, op.inputs[:2]
        rows, columns = self.matrix(op.outputs[0])
        data = self.blocks[a] if a in self.wide else self._last(self._with_zeros(a))
        turned = bool(_attribute(op, "transB", 0))
        filters = self._first(b) if turned else self._last(b)
        filters = t.reshape(filters, (columns, t.shape(a)[-1], 1, 1))
        return t.op(
            "Conv", data, filters, *bias, shape=(1, columns, 1, self._filled(rows)), domain=DOMAIN,
            kernel_shape=[1, 1],
        )  # fmt: skip

    def _over_rows(self, op: Op) -> str:
        """a.T @ b: columns of the factor in blocks (or b) are filters, the other's the places of an
        image."""
        t, (a, b) = self.t, op.inputs[:2]
        wide, other = (a, b) if a in self.wide else (b, a)
        places, count = self.matrix(other)[1], self.matrix(wide)[1]
        data = self._first(self._with_zeros(other))
        made = t.op(
            "Conv", data, self._filters(wide), shape=(1, count, 1, places), domain=DOMAIN,
            kernel_shape=[1, 1],
        )  # fmt: skip
        last = wide == b  # [places, count] is asked for
        shape = (1, 1, places, count) if last else (1, count, 1, places)
        made = t.op(
            "ReorderOutput", made, shape=shape, domain=DOMAIN, channels=count,
            channels_last=int(last),
        )  # fmt: skip
        return t.reshape(made, t.shape(op.outputs[0]))

    def _filters(self, name: str) -> str:
        """Rows as filters: one for each of their features, with a channel for each of them."""
        rows, count = self.matrix(name)
        blocks = self.blocks[name] if name in self.wide else self._last(self._with_zeros(name))
        return self.t.reshape(blocks, (count, self._filled(rows), 1, 1))

    def _sum(self, op: Op) -> dict[str, str]:
        """A sum over rows; as a product with ones, and zeros, where rows were filled up."""
        t, wide, ending = self.t, op.inputs[0], self.row_sum(op) or op
        rows, columns = self.matrix(wide)
        filled, result = self._filled(rows), ending.outputs[0]
        if rows == filled:
            apart = t.reshape(self.blocks[wide], (columns // t.block, rows, t.block))
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
        """[rows, N] copied into blocks of its columns."""
        rows, columns = self.matrix(name)
        view, shape = (1, 1, rows, columns), (1, columns, 1, rows)
        return self._laid(name, view, shape, channels_last=1)

    def _first(self, name: str) -> str:
        """[N, places] copied into blocks of its rows."""
        rows, columns = self.matrix(name)
        return self._laid(name, (1, rows, 1, columns), (1, rows, 1, columns))

    def _laid(self, name: str, view: Shape, shape: Shape, **how: int) -> str:
        t = self.t
        return t.op("ReorderInput", t.reshape(name, view), shape=shape, domain=DOMAIN, **how)
