"""Which ops of a step are to work on rows in blocks: those that a least cut says.

Every op works on rows as they are or, where it can, on blocks. A product gains by blocks, and a
bias that it can add on the way; where a tensor is made in one layout and read in the other, it is
copied, once for all who read it so. Nothing else matters, so the best choice for all ops together
is a least cut: an op on the near side works on blocks.

What a product gains and what a copy takes was measured on an Intel processor (blocked_rows.py).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Sequence

import onnx
from onnx import helper, numpy_helper

from onnxremat.grad.assembly import makers_and_readers
from onnxremat.grad.roles import is_backward
from onnxremat.grad.tape import Shape, Tape
from onnxremat.graph.ir import Op
from onnxremat.graph.least_cut import ENDLESS, Network

# Rows and features from which that was measured to gain.
ROWS, FEATURES = 1024, 192
# A tensor more than so many times as wide as what a product makes of it, or makes it of, is not
# copied: a language model's logits, the largest tensor of its step.
TIMES = 4
# Picoseconds that blocks save: per product of two numbers, of rows with a weight and over rows; and
# per element that a bias is added to.
GAIN, GAIN_OVER_ROWS, GAIN_BIAS = 1.5, 5.0, 450.0
# Of each element that is copied into blocks and, which onnxruntime does with one thread, to rows.
COPY, COPY_BACK = 550.0, 650.0
CALL = 20e6  # of the kernels around each product
_ALONE = frozenset({
    "Abs", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Log", "Mish",
    "Neg", "Reciprocal", "Relu", "Selu", "Sigmoid", "Sign", "Softplus", "Sqrt", "Tanh",
})  # fmt: skip
_PAIRS = frozenset({"Add", "Div", "Max", "Min", "Mul", "Sub"})
_OPEN = frozenset({"Div", "Log", "Reciprocal", "Sqrt"})  # may be infinite or no number


class Rows:
    """Ops, who makes and reads their tensors, and which of these are rows that fit into blocks."""

    def __init__(self, t: Tape, ops: Sequence[Op], outputs: Collection[str]) -> None:
        self.t, self.ops, self.outputs = t, ops, outputs
        self.axes = {each.name: each for each in t.initializers if len(each.dims) == 1}
        self.maker, self.readers = makers_and_readers(ops)
        self.fitting = {name for name in (*self.maker, *self.readers) if fits(t, name)}

    def matrix(self, name: str) -> Shape:
        """[rows, features] of a tensor; nothing of one without axes."""
        return _matrix(self.t, name)

    def root(self, name: str, apart: Collection[str] = ()) -> str:
        """The rows that some are another shape of; not beyond ops that are named."""
        maker = self.maker.get(name)
        while maker is not None and self.same_rows(maker) and maker.name not in apart:
            name = maker.inputs[0]
            maker = self.maker.get(name)
        return name

    def same_rows(self, op: Op) -> bool:
        """Whether an op is a Reshape that leaves rows as they are."""
        if op.op_type != "Reshape" or not op.standard or not self.fitting.issuperset(op.outputs):
            return False
        read = op.inputs[0]
        return read in self.fitting and self.matrix(read) == self.matrix(op.outputs[0])

    def only_waits(self, op: Op) -> bool:
        """Whether it is all one to an op how the rows are laid out that it reads: an update counts
        the elements of what must be made before it; so may others, where none are added."""
        if op.op_type != "Size":
            return False
        return op.name.startswith("update/") or not self.matrix(op.inputs[0])[0] % self.t.block

    def reads(self, op: Op, name: str, names: Collection[str]) -> str:
        """How an op wants a tensor: as "rows", in "either" layout (its own), or not at all: "none".

        Args:
            names: of the ops that work on blocks, or may.
        """
        if op.name not in names:
            return "none" if self.only_waits(op) else "rows"
        if not is_product(op):
            return "either"
        factors = self.over_rows(op)
        return "either" if name == (factors[0] if factors else op.inputs[0]) else "rows"

    def filled(self, rows: int) -> int:
        """Rows of so many whole blocks."""
        return -(-rows // self.t.block) * self.t.block

    def biased(self, op: Op) -> tuple[Op, str] | None:
        """The product to whose every row an Add adds a bias, and the bias; None for another op, or
        where the product has other readers."""
        if op.op_type != "Add" or len(op.reads) != 2 or not op.standard:
            return None
        rows = [name for name in op.inputs if name in self.fitting]
        bias = next((name for name in op.inputs if name not in self.fitting), "")
        product = self.maker.get(rows[0]) if len(rows) == 1 else None
        if product is None or not is_product(product) or len(product.inputs) > 2:
            return None
        if attribute(product, "transA", 0):
            return None
        if len(self.readers[rows[0]]) > 1 or rows[0] in self.outputs:
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

    def over_rows(self, op: Op) -> tuple[str, str] | None:
        """The factors of a.T @ b, that whose features are taken as filters first: the wider one,
        and of two as wide the one made later (the gradient), which other products read, too."""
        if not over_rows_alone(op):
            return None
        first, second = op.inputs
        widths = self.t.shape(first)[1], self.t.shape(second)[1]
        return (first, second) if widths[0] > widths[1] else (second, first)

    def _summed(self, op: Op) -> set[int]:
        """Axes of a ReduceSum that the backward pass emitted; none of any other op."""
        if op.op_type != "ReduceSum" or len(op.inputs) < 2 or op.inputs[1] not in self.axes:
            return set()
        rank = self.t.rank(op.inputs[0])
        return {int(axis) % rank for axis in numpy_helper.to_array(self.axes[op.inputs[1]])}


def fits(t: Tape, name: str) -> bool:
    """Whether a tensor is rows enough, of features that fill whole blocks."""
    if t.tensors[name].shape is None or t.dtype(name) != onnx.TensorProto.FLOAT:
        return False
    rows, columns = _matrix(t, name) or (0, 0)
    return rows >= ROWS and columns >= FEATURES and not columns % t.block


def _matrix(t: Tape, name: str) -> Shape:
    shape = t.shape(name)
    return (math.prod(shape[:-1]), shape[-1]) if shape else ()


def is_product(op: Op) -> bool:
    """MatMul or Gemm."""
    return op.op_type in ("MatMul", "Gemm") and op.standard


def over_rows_alone(op: Op) -> bool:
    """a.T @ b, and nothing more."""
    if op.op_type != "Gemm" or not op.standard or len(op.inputs) != 2:
        return False
    turned = attribute(op, "transA", 0) and not attribute(op, "transB", 0)
    return bool(turned) and attribute(op, "alpha", 1.0) == 1.0


def is_sum(op: Op) -> bool:
    """Whether an op sums over rows, so that it makes none."""
    return op.op_type == "ReduceSum" or (is_product(op) and bool(attribute(op, "transA", 0)))


def attribute(op: Op, name: str, default: float) -> float:
    """A number among the attributes of an op."""
    found = next((a for a in op.node.attribute if a.name == name), None)
    return default if found is None else float(helper.get_attribute_value(found))


def chosen(rows: Rows) -> set[str]:
    """Names of the ops that work on rows in blocks at the least time."""
    return _Choice(rows).made()


class _Choice:
    """The network whose least cut it is. Vertices are names of ops, and tuples for tensors."""

    def __init__(self, rows: Rows) -> None:
        self.rows, self.t, self.net = rows, rows.t, Network()
        self.able = {op.name for op in rows.ops if self._able(op)}
        self.widest = self._widest()

    def made(self) -> set[str]:
        """The ops on the near side."""
        for op in self.rows.ops:
            if op.name in self.able:
                self._prices(op)
        for name in self.rows.fitting:
            self._apart(name)
        return {name for name in self.net.near_side() if isinstance(name, str)}

    def _prices(self, op: Op) -> None:
        """What an op gains, or loses, by blocks."""
        biased = self.rows.biased(op)
        if biased:
            self.net.arc(self.net.near, op.name, int(GAIN_BIAS * self.t.size(op.outputs[0])))
            self.net.arc(op.name, biased[0].name, ENDLESS)
        added = self._added(op)
        if added is not None:  # gained where both are in blocks
            both = ("added", op.name)
            self.net.arc(self.net.near, both, int(GAIN_BIAS * self.t.size(op.outputs[0])))
            self.net.arc(both, op.name, ENDLESS)
            self.net.arc(both, added.name, ENDLESS)
        if not is_product(op):
            return
        a, b = op.inputs[:2]
        over = bool(attribute(op, "transA", 0))
        count, inner = self.rows.matrix(a)
        columns = self.t.shape(op.outputs[0])[-1]
        gained = (GAIN_OVER_ROWS if over else GAIN) * count * inner * columns
        gained -= CALL + COPY * self.t.size(op.outputs[0] if over else b)
        gained += GAIN_BIAS * self.t.size(op.outputs[0]) if any(op.inputs[2:]) else 0
        self.net.arc(self.net.near, op.name, int(gained))
        self.net.arc(op.name, self.net.far, int(-gained))

    def _added(self, op: Op) -> Op | None:
        """The product, or the bias added to one, that an Add of two rows reads alone."""
        if op.op_type != "Add" or len(self.rows.fitting.intersection(op.reads)) != 2:
            return None
        for name in op.inputs:
            maker = self.rows.maker.get(self.rows.root(name))
            if maker is None or maker.name not in self.able or is_sum(maker):
                continue
            alone = [each for each in self.rows.readers[name] if not self.rows.only_waits(each)]
            if len(alone) == 1 and (is_product(maker) or self.rows.biased(maker)):
                return maker
        return None

    def _apart(self, name: str) -> None:
        """What is paid for a tensor that is made in one layout and read in another."""
        net, maker, price = self.net, self._maker(name), self._price(name, COPY)
        always, root = name in self.rows.outputs, self.rows.root(name)
        for op in self.rows.readers.get(name, []):
            how = self.rows.reads(op, name, self.able)
            always |= how == "rows"
            if how == "either":
                copy = ("in", root, is_backward(op))  # not held from pass to pass
                if copy not in net.room:
                    net.arc(copy, self._maker(root), price)
                net.arc(op.name, copy, ENDLESS)
                net.arc(("out", name), op.name, ENDLESS)
            elif how == "rows" and op.name in self.able and self.rows.over_rows(op):
                self._first(op, name, price)
        back = self._price(name, COPY_BACK)
        net.arc(maker, net.far if always else ("out", name), back)

    def _first(self, op: Op, name: str, price: int) -> None:
        """A factor of a product over rows that is copied, once for all products."""
        copy = ("first", self.rows.root(name), is_backward(op))
        if copy not in self.net.room:
            self.net.arc(copy, self.net.far, price)
        self.net.arc(op.name, copy, ENDLESS)

    def _maker(self, name: str) -> Hashable:
        """The op that makes a tensor in one layout or the other; else the far side."""
        maker = self.rows.maker.get(name)
        able = maker is not None and maker.name in self.able and not is_sum(maker)
        return maker.name if maker is not None and able else self.net.far

    def _price(self, name: str, each: float) -> int:
        """Picoseconds that a copy takes; rows that fill no whole blocks are copied twice."""
        if self.t.shape(name)[-1] >= self.widest:
            return ENDLESS
        whole = self.rows.matrix(name)[0] % self.t.block == 0
        return int(each * self.t.size(name)) * (1 if whole else 2)

    def _widest(self) -> float:
        """Features from which rows are not copied."""
        found = math.inf
        for op in self.rows.ops:
            if op.name in self.able and is_product(op):
                rows = self.rows.over_rows(op) or (op.inputs[0], op.outputs[0])
                narrow, wide = sorted(self.t.shape(name)[-1] for name in rows)
                found = min(found, wide if wide > TIMES * narrow else math.inf)
        return found

    # ---- what can be done in blocks ------------------------------------------------------

    def _able(self, op: Op) -> bool:
        """Whether an op can work on blocks, or makes rows of them."""
        t, fitting, result = self.t, self.rows.fitting, op.outputs[0]
        if not op.standard or len(op.outputs) != 1 or op.captures:
            return False
        same = [name for name in (*op.inputs, result) if name in fitting]
        if not same or op.op_type == "Size":
            return False
        filled = any(self.rows.matrix(name)[0] % t.block for name in same)
        if filled and op.op_type in _OPEN:
            return False
        if is_product(op):
            return self._product_able(op)
        if op.op_type == "ReduceSum":
            return op.inputs[0] in fitting and self.rows.row_sum(op) is not None
        read = op.inputs[0] in fitting and result in fitting
        if op.op_type == "Reshape":
            return self.rows.same_rows(op)
        biased = self.rows.biased(op)
        if biased:  # it is added as the product is made
            return self._able(biased[0])
        if op.op_type in _ALONE and read:
            return True
        numbers = [name for name in op.inputs if name not in fitting]
        pair = op.op_type in _PAIRS and all(t.size(n) == 1 and t.rank(n) < 5 for n in numbers)
        return pair and len({t.shape(name) for name in same}) == 1 and result in fitting

    def _product_able(self, op: Op) -> bool:
        """Rows times a matrix; or two matrices over their rows."""
        t, fitting, (a, b) = self.t, self.rows.fitting, op.inputs[:2]
        if attribute(op, "transA", 0):
            return over_rows_alone(op) and a in fitting and b in fitting and a != b
        if t.rank(b) != 2 or attribute(op, "alpha", 1.0) != 1.0:
            return False
        bias, width = op.inputs[2:], t.shape(op.outputs[0])[-1]
        if any(self.rows.matrix(c) != (1, width) for c in bias if c):
            return False
        if bias and attribute(op, "beta", 1.0) != 1.0:
            return False
        return a in fitting and op.outputs[0] in fitting and a != b
