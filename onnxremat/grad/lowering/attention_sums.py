"""Less work on the scores of attention, [S, S], where rows of values, [S, d], are shorter.

With P = softmax(scores), O = P V and dO, the gradient of a softmax has the sum of dP P over each
row, and dP = dO V.T: that sum is the one of dO O (Dao et al. 2022, FlashAttention, appendix B). One
pass over scores, a sum of them and a temporary tensor of their size are not needed then. O is taken
as the heads are put together, which is kept for the gradient of the weights behind it; so nothing
is kept for longer.

A number that scores are multiplied by is left to the products that read them, whose results
onnxruntime multiplies as it makes them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import onnx
from onnx import helper, numpy_helper

from onnxremat.grad.assembly import makers_and_readers
from onnxremat.grad.constants import Constants
from onnxremat.grad.roles import inherit, is_backward
from onnxremat.grad.tape import Shape, Tape
from onnxremat.graph.ir import Op


def with_short_sums(
    t: Tape, ops: Sequence[Op], outputs: Collection[str], constants: Constants
) -> list[Op]:
    """The ops of a step with sums over rows of dO O in place of dP P, and scaled products in place
    of scaled scores.

    Args:
        ops: in a topological order.
        outputs: tensors that the step returns.
        constants: values of the model that are known and not trained.
    """
    return _scaled_later(t, _summed_before(t, ops, outputs), outputs, constants)


# ---- sums ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Sum:
    """A sum over rows of scores that can be made of shorter rows.

    Attributes:
        product, total: dP P, and the op that sums its rows.
        turn: makes dO, heads apart, of rows with heads together.
        kept: the result of attention, heads together, in whichever shape it is kept.
    """

    product: Op
    total: Op
    turn: Op
    kept: str


def _summed_before(t: Tape, ops: Sequence[Op], outputs: Collection[str]) -> list[Op]:
    known = _Known(t, ops, outputs)
    found = [each for op in ops if (each := _sum_at(known, op)) is not None]
    left_out = {op.name for each in found for op in (each.product, each.total)}
    made: list[Op] = []
    for op in ops:
        for each in found:
            if each.turn.name == op.name:
                made += _short(t, each)
        if op.name not in left_out:
            made.append(op)
    return made


def _short(t: Tape, each: _Sum) -> list[Op]:
    """Ops that make the sums as soon as dO is there."""
    start, (rows,) = len(t.ops), each.turn.inputs
    with t.scope(f"{each.total.name}/short", "backward"):
        moved = t.mul(rows, t.reshape(each.kept, t.shape(rows)))
        sums = t.sum(moved, [t.rank(rows) - 1], keep=True)
        sums = t.transpose(sums, _perm(each.turn))
        shape = t.shape(each.total.outputs[0])
        made = t.op("Reshape", sums, t.integers(*shape), shape=shape)
    emitted, t.ops[start:] = t.ops[start:], []
    inherit(emitted, each.total)
    return [op.renamed(op.name, {made: each.total.outputs[0]}, op.origin) for op in emitted]


def _sum_at(known: _Known, total: Op) -> _Sum | None:
    """What a ReduceSum of the backward pass sums, if it is that."""
    t = known.t
    product = known.alone(total.inputs[0]) if known.sums_rows(total) else None
    if product is None or product.op_type != "Mul" or len(product.reads) != 2:
        return None
    for slope, share in (product.inputs, product.inputs[::-1]):
        outer = known.maker.get(known.root(slope))
        if outer is None or outer.op_type != "MatMul" or t.shape(slope) != t.shape(share):
            continue
        values = known.swapped(outer.inputs[1])
        turn = known.maker.get(known.root(outer.inputs[0]))
        if not values or turn is None or not _keeps_last(turn):
            continue
        for made in known.products(share, values):
            kept = known.kept(made, turn)
            if kept and t.size(made) < t.size(share):
                return _Sum(product, total, turn, kept)
    return None


# ---- scales --------------------------------------------------------------------------------------


def _scaled_later(
    t: Tape, ops: Sequence[Op], outputs: Collection[str], constants: Constants
) -> list[Op]:
    known = _Known(t, ops, outputs)
    renames, numbers = dict[str, str](), dict[str, str]()  # scaled scores; products and numbers
    for op in ops:
        found = _scale_at(known, op, constants)
        if found is None or not numbers.keys().isdisjoint(found[2]):
            continue
        source, number, products = found
        renames[op.outputs[0]] = source
        numbers.update(dict.fromkeys(products, number))
    made: list[Op] = []
    for op in ops:
        if op.outputs[0] in renames:
            continue
        if not renames.keys().isdisjoint(op.inputs):
            op = replace(op, inputs=tuple(renames.get(name, name) for name in op.inputs))
        made += _scaled(t, op, numbers[op.name]) if op.name in numbers else [op]
    return made


def _scaled(t: Tape, product: Op, number: str) -> list[Op]:
    """A product, and the number times it under its name."""
    result, start = product.outputs[0], len(t.ops)
    plain = t.declare(t.fresh(f"{result}/plain"), t.dtype(result), t.shape(result))
    with t.scope(f"{product.name}/scaled", "backward"):
        made = t.op("Mul", plain, number)
    emitted, t.ops[start:] = t.ops[start:], []
    inherit(emitted, product)
    renamed = product.renamed(product.name, {result: plain}, product.origin)
    return [renamed, *(op.renamed(op.name, {made: result}, op.origin) for op in emitted)]


def _scale_at(known: _Known, op: Op, constants: Constants) -> tuple[str, str, list[str]] | None:
    """What an op of the backward pass multiplies by a number, the number, and the names of the
    products that alone read the result, which are no larger together."""
    t, result = known.t, op.outputs[0]
    if not _is(op, "Mul") or not is_backward(op) or len(op.reads) != 2:
        return None
    source, number = op.inputs if t.size(op.inputs[1]) == 1 else op.inputs[::-1]
    if t.dtype(number) != onnx.TensorProto.FLOAT or t.shape(source) != t.shape(result):
        return None
    if t.size(number) != 1 or (number not in known.constants and constants(number) is None):
        return None
    products = known.only_products(result)
    if not products or sum(t.size(each.outputs[0]) for each in products) > t.size(result):
        return None
    return source, number, [each.name for each in products]


# ---- what is read and made -----------------------------------------------------------------------


class _Known:
    """Who makes and reads the tensors of a step."""

    def __init__(self, t: Tape, ops: Sequence[Op], outputs: Collection[str]) -> None:
        self.t, self.outputs = t, outputs
        self.maker, self.readers = makers_and_readers(ops)
        self.constants = {each.name: each for each in t.initializers}

    def root(self, name: str) -> str:
        """The tensor that one is another shape of."""
        while name in self.maker and _is(self.maker[name], "Reshape"):
            name = self.maker[name].inputs[0]
        return name

    def views(self, name: str) -> Iterator[str]:
        """A tensor, and it in the other shapes that it is read in."""
        yield name
        for op in self.readers.get(name, []):
            if _is(op, "Reshape") and op.inputs[0] == name:
                yield from self.views(op.outputs[0])

    def sums_rows(self, op: Op) -> bool:
        """Whether an op of the backward pass sums the last axis of float32."""
        if not is_backward(op) or not _is(op, "ReduceSum") or len(op.inputs) != 2:
            return False
        axes, last = self.constants.get(op.inputs[1]), self.t.rank(op.inputs[0]) - 1
        found = axes is not None and list(numpy_helper.to_array(axes)) in ([-1], [last])
        return found and self.t.dtype(op.inputs[0]) == onnx.TensorProto.FLOAT

    def alone(self, name: str) -> Op | None:
        """The op that makes what is read once."""
        once = len(self.readers.get(name, [])) == 1 and name not in self.outputs
        return self.maker.get(name) if once else None

    def swapped(self, name: str) -> str:
        """What a matrix is the transpose of, "" if of nothing."""
        op = self.maker.get(name)
        if op is None or not _is(op, "Transpose"):
            return ""
        last = len(_perm(op)) - 1
        ends = (*range(last - 1), last, last - 1)
        return self.root(op.inputs[0]) if _perm(op) == ends else ""

    def products(self, share: str, values: str) -> Iterator[str]:
        """Results of shares times values."""
        for name in self.views(self.root(share)):
            for op in self.readers.get(name, []):
                first = _is(op, "MatMul") and op.inputs[0] == name and not is_backward(op)
                if first and self.root(op.inputs[1]) == values:
                    yield op.outputs[0]

    def kept(self, made: str, turn: Op) -> str:
        """The shape of ``made``, axes moved as they are before ``turn``, in which the backward pass
        reads it; "" if in none."""
        back = tuple(_perm(turn).index(axis) for axis in range(len(_perm(turn))))
        for op in self.readers.get(made, []):
            if not _is(op, "Transpose") or _perm(op) != back or is_backward(op):
                continue
            if self.t.shape(op.outputs[0]) != self.t.shape(turn.inputs[0]):
                continue
            for name in self.views(op.outputs[0]):
                if any(is_backward(reader) for reader in self.readers.get(name, [])):
                    return name
        return ""

    def only_products(self, name: str) -> list[Op] | None:
        """The products of the last two axes that read a tensor, in other shapes or transposed;
        None where anything else does."""
        found: list[Op] = []
        if name in self.outputs:
            return None
        for op in self.readers.get(name, []):
            if _is(op, "MatMul") and len(op.reads) == 2 and min(map(self.t.rank, op.inputs)) > 2:
                found.append(op)
                continue
            moved = _is(op, "Reshape") or self.swapped(op.outputs[0])
            further = self.only_products(op.outputs[0]) if moved else None
            if further is None:
                return None
            found += further
        return found


def _is(op: Op, kind: str) -> bool:
    return op.op_type == kind and op.standard


def _perm(op: Op) -> Shape:
    """The axes of a Transpose; none of one that does not say them."""
    given = next((a for a in op.node.attribute if a.name == "perm"), None)
    return () if given is None else tuple(helper.get_attribute_value(given))


def _keeps_last(op: Op) -> bool:
    """Whether a Transpose moves whole rows."""
    return _is(op, "Transpose") and bool(_perm(op)) and _perm(op)[-1] == len(_perm(op)) - 1
