"""Normalisations over an image written out: sums over the image, which parts add up to, and one
product and sum per element, which parts take.

With m the mean of a group and q the mean of (x - m)^2 over it, a = scale / sqrt(q + epsilon) and
b = bias - m a per channel, the normalised image is x a + b. Both come from the mean r and the
sum of (x - r)^2 of each row of each channel (Chan, Golub and LeVeque 1983): (x - m)^2 sums up to
(x - r)^2 and (r - m)^2. So one pass over the image is enough, beside that which makes the result,
rows may be made part by part, and no digits are lost to a large mean. Of a line, as of sound, some
numbers each are a row.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import numpy_helper

from onnxremat.graph.dtypes import tensor_bytes
from onnxremat.graph.ir import Graph, Op, Role, Tensor
from onnxremat.graph.spans import Call, CannotSplitError, Facts
from onnxremat.graph.traits import is_alias

LISTED = 18  # opset from which reductions read their axes as an input
BANDWIDTH = 1e10  # bytes per second, read or written, where nothing was measured
ELEMENTWISE = ("Add", "Sub", "Mul")  # ops that are as quick as what they move
LARGE = 1 << 20  # bytes that such an op moves, at least, to tell how quick
PADDED = 11  # opset from which Pad reads what it adds as an input
ROW = 32  # numbers of a line that are looked at as a row
END = "/opened"  # of the names of what a normalisation is written out as


@dataclass(frozen=True)
class Norm:
    """A normalisation of images, as it lies in a graph.

    Attributes:
        name: of its op.
        ops: indices of the ops that it consists of.
        source, result: images of one shape, batch and channels first.
        groups: of channels that share their mean.
        scale, bias: per channel.
    """

    name: str
    ops: tuple[int, ...]
    source: str
    result: str
    groups: int
    epsilon: float
    scale: np.ndarray
    bias: np.ndarray


def norms_of(graph: Graph) -> list[Norm]:
    """Those that can be written out."""
    facts, found = Facts(graph), []
    for index, op in enumerate(graph.ops):
        if not op.standard or op.op_type not in ("InstanceNormalization", "GroupNormalization"):
            continue
        try:
            norm = _norm(graph, facts, index)
        except CannotSplitError:
            continue
        if norm is not None:
            found.append(norm)
    return found


def _norm(graph: Graph, facts: Facts, index: int) -> Norm | None:
    op = graph.ops[index]
    call = Call(op, facts)
    scale, bias = (facts.constant(name) for name in op.inputs[1:3])
    if scale is None or bias is None:
        return None
    epsilon = float(call.attributes.get("epsilon", 1e-5))
    source, result = op.inputs[0], op.outputs[0]
    ops: tuple[int, ...] = (index,)
    channels = facts.shape(source)[1]
    groups = int(call.attributes.get("num_groups", channels))
    if op.op_type == "InstanceNormalization" and len(facts.shape(source)) == 3:
        around = _around(graph, facts, index)
        if around is not None:
            source, result, ops = around
            channels = facts.shape(source)[1]
    shape = facts.shape(source)
    if not math.prod(shape) or (len(shape) == 3 and graph.opsets.get("", 1) < PADDED):
        return None
    if len(shape) < 3 or channels % groups or graph.tensors[source].dtype not in (1, 11):
        return None
    each = channels // scale.size
    scale, bias = (np.repeat(np.ravel(values), each) for values in (scale, bias))
    return Norm(op.name, ops, source, result, groups, epsilon, scale, bias)


def _around(graph: Graph, facts: Facts, index: int) -> tuple[str, str, tuple[int, ...]] | None:
    """The image that is reshaped to groups, normalised and reshaped back; and the three ops."""
    op = graph.ops[index]
    before = graph.producer.get(op.inputs[0])
    readers = graph.readers.get(op.outputs[0], ())
    if before is None or len(readers) != 1 or op.outputs[0] in graph.outputs:
        return None
    first, last = graph.ops[before], graph.ops[readers[0]]
    if {first.op_type, last.op_type} != {"Reshape"}:
        return None
    image, groups = facts.shape(first.inputs[0]), facts.shape(op.inputs[0])
    back = facts.shape(last.outputs[0])
    if image != back or image[0] != groups[0] or image[1] % groups[1]:
        return None
    return first.inputs[0], last.outputs[0], (index, readers[0])


def opened(graph: Graph, which: Collection[str]) -> Graph:
    """The graph with some normalisations written out.

    Args:
        which: names of their ops.
    """
    norms = [norm for norm in norms_of(graph) if norm.name in which]
    if not norms:
        return graph
    writer = _Writer(graph)
    gone = {index for norm in norms for index in norm.ops}
    at = {norm.ops[-1]: norm for norm in norms}
    ops: list[Op] = []
    for index, op in enumerate(graph.ops):
        if index in at:
            ops += writer.written(at[index])
        elif index not in gone:
            ops.append(op)
    read = {name for op in ops for name in op.reads}.union(graph.outputs)
    ops = [op for op in ops if read.intersection(op.writes)]
    made = read.union(graph.inputs, *(op.writes for op in ops))
    tensors = {name: t for name, t in writer.tensors.items() if name in made}
    return graph.with_ops(ops, tensors).with_weights(writer.constants)


def opened_for(graph: Graph, names: Collection[str]) -> Graph:
    """The graph with those normalisations written out that some of these ops belong to."""
    starts = {name.partition(END + "/")[0] for name in names if END + "/" in name}
    return opened(graph, starts) if starts else graph


def seconds_of(graph: Graph, known: Mapping[str, float]) -> dict[str, float]:
    """Of every op: what is known, or for one that is written out by what it moves, at the rate of
    the products and sums that are known."""
    found = dict(known)
    rate = rate_of(graph, known) or BANDWIDTH
    for op in graph.ops:
        if op.name not in known and not is_alias(op):
            found[op.name] = _moved(graph, op) / rate
    return found


def rate_of(graph: Graph, known: Mapping[str, float]) -> float:
    """Bytes per second, read or written, of products and sums of large values; 0 where there are
    none."""
    seconds = size = 0.0
    for op in graph.ops:
        if op.standard and op.op_type in ELEMENTWISE and known.get(op.name):
            moved = _moved(graph, op)
            if moved >= LARGE:
                seconds, size = seconds + known[op.name], size + moved
    return size / seconds if seconds else 0.0


def _moved(graph: Graph, op: Op) -> int:
    return sum(graph.tensors[name].bytes for name in (*op.reads, *op.writes))


class _Writer:
    def __init__(self, graph: Graph) -> None:
        self.tensors = dict(graph.tensors)
        self.listed = graph.opsets.get("", 1) >= LISTED
        self.constants: list[onnx.TensorProto] = []
        self.ops: list[Op] = []
        self.name = ""

    def written(self, norm: Norm) -> list[Op]:
        """The ops of one normalisation."""
        self.ops, self.name = [], norm.name + END
        x, shape = norm.source, self.tensors[norm.source].shape
        assert shape is not None
        wide = (shape[0], shape[1], *(1 for _ in shape[2:]))

        def channels(values: np.ndarray, what: str) -> str:
            return self._number(values.reshape((1, *wide[1:])), x, what)

        if len(shape) == 3:
            mean, square = self._of_line(x, shape, norm.groups)
        else:
            mean, square = self._of_rows(x, shape, norm.groups)
        epsilon = self._number(norm.epsilon, x, "epsilon")
        square = self._op("Add", [square, epsilon], wide)
        inverse = self._op("Reciprocal", [self._op("Sqrt", [square], wide)], wide)
        a = self._op("Mul", [inverse, channels(norm.scale, "scale")], wide)
        shift = self._op("Mul", [mean, a], wide)
        b = self._op("Sub", [channels(norm.bias, "bias"), shift], wide)
        self._op("Add", [self._op("Mul", [x, a], shape), b], shape, norm.result)
        return self.ops

    def _of_rows(self, x: str, shape: tuple[int, ...], groups: int) -> tuple[str, str]:
        """Mean and variance of each group of channels, for each of its channels, by those of
        rows."""
        wide, rows = (*shape[:2], *(1 for _ in shape[2:])), (*shape[:3], *(1 for _ in shape[3:]))
        across, down = tuple(range(3, len(shape))), (2,)
        row = self._reduce("ReduceMean", x, across, rows)
        spread = self._reduce("ReduceSumSquare", self._op("Sub", [x, row], shape), across, rows)
        mean = self._group(self._reduce("ReduceMean", row, down, wide), wide, groups, "mean")
        apart = self._op("Mul", [(off := self._op("Sub", [row, mean], rows)), off], rows)
        square = self._op("Add", [self._shared(spread, math.prod(shape[3:]), rows), apart], rows)
        square = self._reduce("ReduceMean", square, down, wide)
        return mean, self._group(square, wide, groups, "square")

    def _of_line(self, x: str, shape: tuple[int, ...], groups: int) -> tuple[str, str]:
        """The same of a line, as of sound: with some of its numbers as a row, the last filled up
        with zeros, which are not counted."""
        batch, channels, length = shape
        count = -(-length // ROW)
        numbers = np.full((1, 1, count, 1), ROW)
        numbers[..., -1, :] = length - (count - 1) * ROW
        square, rows = (batch, channels, count, ROW), (batch, channels, count, 1)
        wide, filled = (batch, channels, 1, 1), (batch, channels, count * ROW)
        if filled != shape:
            ends = self._shape((0, 0, 0, 0, 0, filled[-1] - length), "filled")
            x = self._op("Pad", [x, ends], filled)
        x = self._op("Reshape", [x, self._shape(square, "rows")], square)
        part = self._reduce("ReduceMean", x, (3,), rows)
        row = self._op("Mul", [part, self._number(ROW / numbers, x, "row")], rows)
        off = self._op("Sub", [x, row], square)
        if filled != shape:
            there = np.arange(ROW) < numbers
            off = self._op("Mul", [off, self._number(there, x, "there")], square)
        spread = self._reduce("ReduceSumSquare", off, (3,), rows)
        mean = self._reduce("ReduceMean", part, (2,), wide)
        mean = self._op("Mul", [mean, self._number(count * ROW / length, x, "all")], wide)
        mean = self._group(mean, wide, groups, "mean")
        apart = self._op("Mul", [(off := self._op("Sub", [row, mean], rows)), off], rows)
        apart = self._op("Mul", [apart, self._number(numbers, x, "numbers")], rows)
        spread = self._op("Add", [spread, apart], rows)
        spread = self._reduce("ReduceMean", spread, (2,), wide)
        spread = self._op("Mul", [spread, self._number(count / length, x, "each")], wide)
        found = mean, self._group(spread, wide, groups, "square")
        flat = self._shape(wide[:3], "flat")
        mean, spread = (self._op("Reshape", [each, flat], wide[:3]) for each in found)
        return mean, spread

    def _number(self, values: object, like: str, what: str) -> str:
        """Constants of the type of a value."""
        number = onnx.helper.tensor_dtype_to_np_dtype(self.tensors[like].dtype)
        return self._constant(np.asarray(values, number), what)

    def _shared(self, total: str, count: int, shape: tuple[int, ...]) -> str:
        """A sum over so many."""
        return self._op("Div", [total, self._number(count, total, "count")], shape)

    def _group(self, values: str, wide: tuple[int, ...], groups: int, what: str) -> str:
        """The mean of each group of channels, for each of its channels."""
        batch, channels = wide[:2]
        if groups == channels:
            return values
        apart = (batch, groups, channels // groups)
        values = self._op("Reshape", [values, self._shape(apart, f"{what}/apart")], apart)
        values = self._reduce("ReduceMean", values, (2,), (batch, groups, 1))
        values = self._op("Expand", [values, self._shape(apart, f"{what}/wide")], apart)
        return self._op("Reshape", [values, self._shape(wide, f"{what}/back")], wide)

    def _shape(self, values: Sequence[int], what: str) -> str:
        return self._constant(np.asarray(values, np.int64), what)

    def _reduce(self, kind: str, x: str, axes: tuple[int, ...], shape: tuple[int, ...]) -> str:
        if self.listed:
            listed = self._shape(axes, f"axes{len(self.ops)}")
            return self._op(kind, [x, listed], shape, like=x)
        return self._op(kind, [x], shape, like=x, axes=list(axes))

    def _constant(self, array: np.ndarray, what: str) -> str:
        name = f"{self.name}/{what}"
        tensor = numpy_helper.from_array(np.ascontiguousarray(array), name)
        tensor.dims[:] = array.shape
        self.constants.append(tensor)
        self.tensors[name] = Tensor(
            name, tensor.data_type, array.shape, array.nbytes, Role.WEIGHT
        )  # fmt: skip
        return name

    def _op(
        self, kind: str, inputs: list[str], shape: tuple[int, ...], output: str = "",
        like: str = "", **attributes: object,
    ) -> str:  # fmt: skip
        """A node and its only output, of the type of its first input."""
        output = output or f"{self.name}/{kind}{len(self.ops)}"
        node = onnx.helper.make_node(kind, inputs, [output], name=output, **attributes)
        self.ops.append(Op(output, kind, "", tuple(inputs), (output,), (), node))
        if output not in self.tensors:
            dtype = self.tensors[like or inputs[0]].dtype
            size = tensor_bytes(dtype, shape)
            self.tensors[output] = Tensor(output, dtype, shape, size, Role.ACTIVATION)
        return output
