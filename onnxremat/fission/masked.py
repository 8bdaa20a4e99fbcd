"""Keys that a causal mask hides from all queries of a part are not looked at.

Attention is softmax(scores masked) values. A score that is masked (replaced by, or lowered by, at
least 1e8) has an exact zero after the softmax, as every row has a score that is not. So for queries
[a, b) whose rows of the mask hide all columns from c on, scores of the first c keys, and the first
c values, give the same: sums miss only zeros.

A Where writes two copies of all scores beside its result. Where a mask is the same for many heads,
a part instead makes a summand of it (0, or what no finite product comes up from) and adds that:
what is seen is the same bit for bit, what is hidden an exact zero after the softmax, too. That is
so of scores that are products, with numbers at most: another mask, which is given as the model
runs, may lower all that a row sees as far.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from onnxremat.graph.dtypes import tensor_bytes
from onnxremat.graph.external import read_in
from onnxremat.graph.ir import Graph, Op, Tensor
from onnxremat.graph.spans import Span

HIDDEN = -1e8  # what masked scores are at most, or are lowered by
WORTH = 0.95  # share of the keys that is left from which nothing is cut
PRODUCTS = ("MatMul", "FusedMatMul")

MOST = 1 << 28  # bytes of a mask that is read
FLOAT, BOOL = onnx.TensorProto.FLOAT, onnx.TensorProto.BOOL
LOWEST = float(np.finfo(np.float32).min)
SHARED = 4  # rows of scores, at least, for one of their mask, where it is made a summand

Read = Callable[[str], np.ndarray | None]  # the values of a weight, None for what is none
Reach = Mapping[str, np.ndarray]  # per op that masks: how many columns each row of scores sees


def reach_of(graph: Graph, folder: Path | None) -> dict[str, np.ndarray]:
    """How far rows of masked scores see, for the ops that mask scores with a constant.

    Args:
        folder: of the graph's external weights.
    """
    stored = {tensor.name: tensor for tensor in graph.model.graph.initializer}

    @cache
    def read(name: str) -> np.ndarray | None:
        tensor = stored.get(name)
        known = tensor is not None and tensor.data_type in (FLOAT, BOOL)
        if tensor is None or not known or 4 * math.prod(tensor.dims) > MOST:
            return None
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            if folder is None:
                return None
            copy = onnx.TensorProto()
            copy.CopyFrom(tensor)
            read_in(copy, folder)
            tensor = copy
        return numpy_helper.to_array(tensor)

    found = {}
    for index, op in enumerate(graph.ops):
        if op.op_type in ("Where", "Add") and _softmax(graph, index) is not None:
            seen = _seen(graph, op, read)
            if seen is not None:
                found[op.name] = seen
    return found


def _softmax(graph: Graph, index: int) -> int | None:
    """The softmax over the last axis that alone reads an op."""
    name = graph.ops[index].outputs[0]
    readers = graph.readers.get(name, ())
    if len(readers) != 1 or name in graph.outputs:
        return None
    op, shape = graph.ops[readers[0]], graph.tensors[name].shape
    if op.op_type != "Softmax" or shape is None or len(shape) < 2:
        return None
    axis = next((a.i for a in op.node.attribute if a.name == "axis"), -1)
    return readers[0] if axis in (-1, len(shape) - 1) else None


def _seen(graph: Graph, op: Op, read: Read) -> np.ndarray | None:
    shape = graph.tensors[op.outputs[0]].shape
    if shape is None:
        return None
    if op.op_type == "Where":
        mask, hidden = read(op.inputs[0]), [read(name) for name in op.inputs[1:]]
        low = [v is not None and v.size > 0 and float(v.max()) <= HIDDEN for v in hidden]
        if mask is None or low[0] == low[1]:
            return None
        visible = mask if low[1] else ~mask
    else:
        masks = [m for m in map(read, op.inputs) if m is not None]
        if len(masks) != 1:
            return None
        visible = masks[0] > HIDDEN
    if visible.ndim < 2 or visible.shape[-2:] != shape[-2:]:
        return None
    each = np.asarray(visible).reshape(-1, *shape[-2:])
    seen = shape[-1] - np.flip(np.any(each, axis=0), axis=1).argmax(axis=1)
    return seen if each.any(axis=2).all() and seen.min() < shape[-1] else None


Cut = Callable[[str, int, int], Op]  # the first entries of a tensor along an axis, as an op
Make = Callable[[str, Sequence[str], str], Op]  # an op of a kind that makes an output of inputs
Number = Callable[[float, int], str]  # a number of a type, as a tensor


class Narrowed:
    """Ops in parts, with keys that a part does not see left out.

    Args:
        ops, tensors: of a graph in parts; ``tensors`` is changed.
        reach: as :func:`reach_of` finds it in the whole.
        cut, make, number: of the writer of the graph.

    Attributes:
        shares: of its keys that an op still works on.
        added: bytes of scores that ops move, which add a mask in place of choosing by it.
    """

    def __init__(
        self,
        ops: list[Op],
        tensors: MutableMapping[str, Tensor],
        reach: Reach,
        cut: Cut,
        make: Make,
        number: Number,
    ) -> None:
        self.ops, self.tensors, self.reach = ops, tensors, reach
        self.cut, self.make, self.number = cut, make, number
        self.shares: dict[str, float] = {}
        self.added: dict[str, int] = {}
        self.producer = {name: index for index, op in enumerate(ops) for name in op.writes}
        self.readers: dict[str, list[int]] = {}
        for index, op in enumerate(ops):
            for name in op.reads:
                self.readers.setdefault(name, []).append(index)
        self.before: dict[int, list[Op]] = {}  # ops to be put before one

    def written(self, pieces: Mapping[str, tuple[str, Span]]) -> list[Op]:
        """The ops.

        Args:
            pieces: of which op of the whole an op computes what.
        """
        for index, op in enumerate(self.ops):
            of, span = pieces.get(op.name, ("", None))
            if span is not None and of in self.reach:
                self._narrow(index, self.reach[of], span)
                self._add(index)
        return [
            each for index, op in enumerate(self.ops) for each in (*self.before.get(index, ()), op)
        ]

    def _narrow(self, index: int, reach: np.ndarray, span: Span) -> None:
        op = self.ops[index]
        shape = self._shape(op.outputs[0])
        if span.axis != len(shape) - 2:
            return
        keys, left = shape[-1], int(reach[span.first : span.end].max())
        softmax = self._reader(op.outputs[0], "Softmax")
        chain = self._chain(op)
        if left > WORTH * keys or softmax is None or not chain:
            return
        mixed = self._reader(self.ops[softmax].outputs[0], *PRODUCTS)
        if mixed is None or self.ops[mixed].inputs[0] != self.ops[softmax].outputs[0]:
            return
        if any(_attribute(self.ops[i], "transBatchB") for i in (chain[-1], mixed)):
            return
        if _attribute(self.ops[mixed], "transA"):
            return
        self._cut_factor(chain[-1], 1, left, inner=False)
        self._cut_factor(mixed, 1, left, inner=True)
        for position, name in enumerate(op.inputs):
            made = self.producer.get(name)
            if made != chain[0] and self._shape(name)[-1:] == (keys,):
                self._cut(index, position, len(self._shape(name)) - 1, left)
        for each in (*chain, index, softmax):
            name = self.ops[each].outputs[0]
            tensor = self.tensors[name]
            assert tensor.shape is not None
            new = (*tensor.shape[:-1], left)
            self.tensors[name] = replace(tensor, shape=new, bytes=tensor_bytes(tensor.dtype, new))
        for each in (*chain, index, softmax, mixed):
            self.shares[self.ops[each].name] = left / keys

    def _add(self, index: int) -> None:
        """A mask that is the same for many heads added to scores, not chosen by."""
        op = self.ops[index]
        if op.op_type != "Where" or not self._chain(op):
            return  # what is added at run time may lower all that a row sees to what is hidden
        mask, chosen, other = op.inputs
        shape, held = self._shape(op.outputs[0]), self._shape(mask)
        scores = next((name for name in (chosen, other) if self._shape(name) == shape), "")
        known = self.tensors.get(scores)
        if known is None or known.dtype != FLOAT or self._shape(chosen) == self._shape(other):
            return
        if math.prod(held) * SHARED > math.prod(shape):
            return
        summand = f"{op.outputs[0]}/summand"
        bounds = [self.number(value, FLOAT) for value in (0.0, LOWEST)]
        chooses = self.make(
            "Where", [mask, *(bounds if scores == chosen else bounds[::-1])], summand
        )
        self.tensors[summand] = replace(
            known, name=summand, shape=held, bytes=tensor_bytes(FLOAT, held)
        )
        added = self.make("Add", [scores, summand], op.outputs[0])
        self.before.setdefault(index, []).append(chooses)
        self.ops[index] = replace(added, origin=op.origin)
        self.shares.pop(op.name, None)
        self.added |= {added.name: known.bytes, chooses.name: tensor_bytes(FLOAT, held)}

    def _shape(self, name: str) -> tuple[int, ...]:
        tensor = self.tensors.get(name)
        return (tensor.shape if tensor else None) or ()

    def _reader(self, name: str, *kinds: str) -> int | None:
        """The op that alone reads a value, of one of these kinds."""
        found = self.readers.get(name, [])
        return found[0] if len(found) == 1 and self.ops[found[0]].op_type in kinds else None

    def _chain(self, op: Op) -> list[int]:
        """From the op before a mask back to the product that makes the scores; empty for other
        sources. Between lie products and quotients with a number."""
        for name in op.inputs:
            chain: list[int] = []
            while name in self.producer and len(self.readers[name]) == 1:
                index = self.producer[name]
                made = self.ops[index]
                chain.append(index)
                if made.op_type in PRODUCTS:
                    return chain
                if made.op_type not in ("Mul", "Div") or self._shape(made.inputs[1]) not in (
                    (),
                    (1,),
                ):
                    break
                name = made.inputs[0]
        return []

    def _cut_factor(self, index: int, position: int, left: int, *, inner: bool) -> None:
        """Fewer columns of the second factor of a product, or with ``inner`` fewer rows."""
        op = self.ops[index]
        rank = len(self._shape(op.inputs[position]))
        rows = inner != bool(_attribute(op, "transB"))
        self._cut(index, position, rank - (2 if rows else 1), left)

    def _cut(self, index: int, position: int, axis: int, left: int) -> None:
        op = self.ops[index]
        cut = self.cut(op.inputs[position], axis, left)
        self.before.setdefault(index, []).append(cut)
        inputs = list(op.inputs)
        inputs[position] = cut.outputs[0]
        self.ops[index] = replace(op, inputs=tuple(inputs))


def _attribute(op: Op, name: str) -> int:
    return next((a.i for a in op.node.attribute if a.name == name), 0)
