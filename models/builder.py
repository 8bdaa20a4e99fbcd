"""Builds an ONNX graph layer by layer, with exporter-like names and seeded weights.

Node and tensor names follow the custom of PyTorch's exporter: a convolution in the scope
``layer1``, ``0``, ``conv1`` is the node ``/layer1/0/conv1/Conv``, its result is
``/layer1/0/conv1/Conv_output_0`` and its parameter is ``layer1.0.conv1.weight``. Names of
constants that are no parameters begin with ``/``.

Shapes are tracked with the batch as a plain number. With ``symbolic_batch`` only what is
written to the model differs: leading dimensions of inputs and outputs become ``batch``, and
Reshape targets begin with -1.
"""

import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

OPSET = 18
GELU_OPSET = 20  # the first with a Gelu operator
IR_VERSION = 9
BATCH_DIM = "batch"
BATCH_PROPERTY = "default_batch"
WEIGHT_DOC = "weight"
GELU_KINDS = ("erf", "tanh", "op")

FloatArray = NDArray[np.float32]
Shape = tuple[int, ...]
Filler = Callable[[np.random.Generator, Shape], FloatArray]


class Value(NamedTuple):
    """A tensor of the graph. A leading batch dimension holds the batch size asked for."""

    name: str
    shape: Shape


def normal(std: float, mean: float = 0.0) -> Filler:
    """Fills with float32 draws from N(mean, std^2)."""

    def fill(rng: np.random.Generator, shape: Shape) -> FloatArray:
        return rng.standard_normal(shape, dtype=np.float32) * np.float32(std) + np.float32(mean)

    return fill


def variance(noise: float) -> Filler:
    """Fills with 1 plus non-negative noise, for running variances."""

    def fill(rng: np.random.Generator, shape: Shape) -> FloatArray:
        return np.abs(rng.standard_normal(shape, dtype=np.float32)) * np.float32(noise) + 1

    return fill


def window_count(size: int, kernel: int, stride: int, padding: int, ceil: bool = False) -> int:
    """Positions of a sliding window along one axis of ``size`` elements."""
    span = size + 2 * padding - kernel
    if span < 0:
        raise ValueError(f"size too small: a window of {kernel} does not fit in {size} elements")
    return (math.ceil(span / stride) if ceil else span // stride) + 1


class GraphBuilder:
    """Collects the nodes, initializers, inputs and outputs of one model.

    Every parameter is drawn from a generator keyed by the seed and the parameter's name, so
    its values do not depend on what else the model holds.
    """

    def __init__(
        self,
        name: str,
        *,
        batch: int,
        seed: int = 0,
        symbolic_batch: bool = False,
        weights: bool = True,
    ) -> None:
        self.name = name
        self.batch = batch
        self.opset = OPSET
        self._seed = seed
        self._symbolic_batch = symbolic_batch
        self._weights = weights
        self._scope: tuple[str, ...] = ()
        self._taken: dict[str, int] = {}
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: list[TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._weight_inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []

    # ---- names -------------------------------------------------------------------------

    @contextmanager
    def scope(self, *parts: str | int) -> Iterator[None]:
        """Nests the names of everything made inside."""
        outer = self._scope
        self._scope = (*outer, *(str(part) for part in parts))
        try:
            yield
        finally:
            self._scope = outer

    def _unique(self, label: str) -> str:
        """``/scope/label``, with ``_1``, ``_2``, ... from the second use on."""
        name = "/" + "/".join((*self._scope, label))
        uses = self._taken.get(name, 0)
        self._taken[name] = uses + 1
        return f"{name}_{uses}" if uses else name

    # ---- inputs, outputs, weights ------------------------------------------------------

    def _value_info(self, name: str, dtype: int, shape: Shape, doc: str) -> onnx.ValueInfoProto:
        dims: list[int | str] = list(shape)
        if self._symbolic_batch:
            dims[0] = BATCH_DIM
        return helper.make_tensor_value_info(name, dtype, dims, doc)

    def image_input(self, size: int, channels: int = 3) -> Value:
        """Float input ``input`` of shape [batch, channels, size, size]."""
        return self.float_input("input", (self.batch, channels, size, size))

    def float_input(self, name: str, shape: Shape) -> Value:
        """Float input that ``feeds`` fills from N(0, 1); the first dimension is the batch."""
        self._inputs.append(self._value_info(name, TensorProto.FLOAT, shape, ""))
        return Value(name, shape)

    def id_input(self, name: str, shape: Shape, stop: int) -> Value:
        """int64 input with values in [0, stop); the doc string tells ``feeds`` the range."""
        doc = f"integers, range [0, {stop})"
        self._inputs.append(self._value_info(name, TensorProto.INT64, shape, doc))
        return Value(name, shape)

    def output(self, value: Value, name: str) -> None:
        """Makes ``value`` a float output of the graph, renaming it wherever it occurs."""
        for node in self._nodes:
            for names in (node.input, node.output):
                for position, used in enumerate(names):
                    if used == value.name:
                        names[position] = name
        self._outputs.append(self._value_info(name, TensorProto.FLOAT, value.shape, ""))

    def weight(self, label: str, shape: Shape, fill: Filler) -> Value:
        """A parameter or running statistic ``scope.label``; without weights a graph input."""
        name = ".".join((*self._scope, label))
        if self._weights:
            rng = np.random.default_rng([self._seed, zlib.crc32(name.encode())])
            self._initializers.append(numpy_helper.from_array(fill(rng, shape), name))
        else:
            info = helper.make_tensor_value_info(name, TensorProto.FLOAT, shape, WEIGHT_DOC)
            self._weight_inputs.append(info)
        return Value(name, shape)

    def constant(self, array: NDArray[Any], label: str) -> Value:
        """An initializer that is no parameter: a shape, an index, a mask, a table."""
        name = self._unique(label)
        self._initializers.append(numpy_helper.from_array(array, name))
        return Value(name, array.shape)

    def scalar(self, number: float, label: str = "Constant") -> Value:
        """A float32 scalar constant."""
        return self.constant(np.array(number, dtype=np.float32), label)

    def integers(self, numbers: Sequence[int], label: str = "Constant") -> Value:
        """A one-dimensional int64 constant."""
        return self.constant(np.array(numbers, dtype=np.int64), label)

    # ---- nodes -------------------------------------------------------------------------

    def node(
        self, op_type: str, inputs: Sequence[Value], shapes: Sequence[Shape], **attributes: Any
    ) -> list[Value]:
        """Adds a node with one output per shape."""
        name = self._unique(op_type)
        outputs = [Value(f"{name}_output_{i}", shape) for i, shape in enumerate(shapes)]
        self._nodes.append(
            helper.make_node(
                op_type,
                [value.name for value in inputs],
                [value.name for value in outputs],
                name=name,
                **attributes,
            )
        )
        return outputs

    def op(
        self, op_type: str, *inputs: Value, shape: Shape | None = None, **attributes: Any
    ) -> Value:
        """Adds a node with one output; its shape is the inputs' broadcast shape by default."""
        if shape is None:
            shape = np.broadcast_shapes(*(value.shape for value in inputs))
        return self.node(op_type, inputs, [shape], **attributes)[0]

    # ---- layout ------------------------------------------------------------------------

    def reshape(self, x: Value, shape: Shape) -> Value:
        """Reshape; the batch must be a factor of the first dimension of ``shape``."""
        target = (-1, *shape[1:]) if self._symbolic_batch else shape
        return self.op("Reshape", x, self.integers(target, "Reshape_shape"), shape=shape)

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        """Transpose to the axis order ``perm``."""
        return self.op("Transpose", x, shape=tuple(x.shape[axis] for axis in perm), perm=perm)

    def flatten(self, x: Value) -> Value:
        """[N, ...] to [N, features]."""
        return self.op("Flatten", x, shape=(x.shape[0], math.prod(x.shape[1:])), axis=1)

    def concat(self, values: Sequence[Value], axis: int) -> Value:
        """Concat along ``axis``."""
        shape = list(values[0].shape)
        shape[axis] = sum(value.shape[axis] for value in values)
        return self.op("Concat", *values, shape=tuple(shape), axis=axis)

    def split(self, x: Value, parts: int, axis: int) -> list[Value]:
        """Split into equal ``parts`` along ``axis``."""
        shape = list(x.shape)
        shape[axis] //= parts
        sizes = self.integers([shape[axis]] * parts, "Split_sizes")
        return self.node("Split", [x, sizes], [tuple(shape)] * parts, axis=axis)

    def gather(self, data: Value, indices: Value, axis: int = 0) -> Value:
        """Gather of ``indices`` along ``axis``; int64 indices of any shape."""
        shape = (*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :])
        return self.op("Gather", data, indices, shape=shape, axis=axis)

    # ---- layers ------------------------------------------------------------------------

    def conv(
        self,
        x: Value,
        out_channels: int,
        kernel: int,
        *,
        name: str,
        stride: int = 1,
        padding: int | None = None,
        groups: int = 1,
        bias: bool = False,
        gain: float = 2.0,
    ) -> Value:
        """2-D convolution of [N, C, H, W]; padding keeps the size by default.

        Weights have variance ``gain / fan_in``: 2 (He) after a ReLU, 1 after a linear layer.
        """
        batch, channels, *image = x.shape
        pad = kernel // 2 if padding is None else padding
        fan_in = channels // groups
        with self.scope(name):
            std = math.sqrt(gain / (fan_in * kernel**2))
            filters = self.weight("weight", (out_channels, fan_in, kernel, kernel), normal(std))
            inputs = [x, filters]
            if bias:
                inputs.append(self.weight("bias", (out_channels,), normal(0.02)))
            return self.op(
                "Conv",
                *inputs,
                shape=(batch, out_channels, *(window_count(n, kernel, stride, pad) for n in image)),
                dilations=[1, 1],
                group=groups,
                kernel_shape=[kernel] * 2,
                pads=[pad] * 4,
                strides=[stride] * 2,
            )

    def conv_transpose(self, x: Value, out_channels: int, kernel: int, *, name: str) -> Value:
        """Transposed convolution with stride ``kernel``: [N, C, H, W] to [N, O, kH, kW]."""
        batch, channels, height, width = x.shape
        with self.scope(name):
            std = math.sqrt(1 / channels)  # windows do not overlap, and no ReLU follows
            filters = self.weight("weight", (channels, out_channels, kernel, kernel), normal(std))
            return self.op(
                "ConvTranspose",
                x,
                filters,
                self.weight("bias", (out_channels,), normal(0.02)),
                shape=(batch, out_channels, kernel * height, kernel * width),
                dilations=[1, 1],
                group=1,
                kernel_shape=[kernel] * 2,
                pads=[0] * 4,
                strides=[kernel] * 2,
            )

    def batch_norm(self, x: Value, *, name: str, gain: float = 1.0, epsilon: float = 1e-5) -> Value:
        """Inference BatchNormalization over the channels of [N, C, H, W]."""
        shape = (x.shape[1],)
        with self.scope(name):
            return self.op(
                "BatchNormalization",
                x,
                self.weight("weight", shape, normal(0.05 * gain, gain)),
                self.weight("bias", shape, normal(0.05)),
                self.weight("running_mean", shape, normal(0.05)),
                self.weight("running_var", shape, variance(0.05)),
                shape=x.shape,
                epsilon=epsilon,
                momentum=0.9,
                training_mode=0,
            )

    def layer_norm(self, x: Value, *, name: str, epsilon: float = 1e-5) -> Value:
        """LayerNormalization over the last axis."""
        shape = (x.shape[-1],)
        with self.scope(name):
            return self.op(
                "LayerNormalization",
                x,
                self.weight("weight", shape, normal(0.05, 1.0)),
                self.weight("bias", shape, normal(0.05)),
                shape=x.shape,
                axis=-1,
                epsilon=epsilon,
            )

    def linear(
        self, x: Value, out_features: int, *, name: str, bias: bool = True, gain: float = 1.0
    ) -> Value:
        """Linear layer on the last axis, as exporters write it.

        [N, K] gives a Gemm with a weight of [out, K]; higher ranks give MatMul with a weight
        of [K, out], and Add. Weights have variance ``gain / K``: 2 keeps the scale under ReLU.
        """
        features = x.shape[-1]
        fill = normal(math.sqrt(gain / features))
        with self.scope(name):
            if len(x.shape) == 2 and bias:
                return self.op(
                    "Gemm",
                    x,
                    self.weight("weight", (out_features, features), fill),
                    self.weight("bias", (out_features,), normal(0.02)),
                    shape=(x.shape[0], out_features),
                    alpha=1.0,
                    beta=1.0,
                    transB=1,
                )
            y = self.matmul(x, self.weight("weight", (features, out_features), fill))
            if bias:
                y = self.op("Add", self.weight("bias", (out_features,), normal(0.02)), y)
            return y

    def matmul(self, a: Value, b: Value) -> Value:
        """MatMul of [..., M, K] and [..., K, N], broadcast over the leading axes."""
        lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        return self.op("MatMul", a, b, shape=(*lead, a.shape[-2], b.shape[-1]))

    def relu(self, x: Value, name: str = "relu") -> Value:
        """Relu."""
        with self.scope(name):
            return self.op("Relu", x)

    def gelu(self, x: Value, kind: str) -> Value:
        """Gelu: "erf" and "tanh" decomposed as exporters do it, "op" the opset-20 operator."""
        if kind == "op":
            self.opset = GELU_OPSET
            return self.op("Gelu", x)
        if kind == "erf":
            erf = self.op("Erf", self.op("Div", x, self.scalar(math.sqrt(2))))
            return self.op(
                "Mul",
                self.op("Mul", x, self.op("Add", erf, self.scalar(1.0))),
                self.scalar(0.5),
            )
        if kind == "tanh":
            half = self.op("Mul", x, self.scalar(0.5))
            cube = self.op("Mul", self.op("Pow", x, self.scalar(3.0)), self.scalar(0.044715))
            inner = self.op("Mul", self.op("Add", x, cube), self.scalar(math.sqrt(2 / math.pi)))
            return self.op("Mul", half, self.op("Add", self.op("Tanh", inner), self.scalar(1.0)))
        raise ValueError(f"unknown gelu {kind!r}; one of {', '.join(GELU_KINDS)}")

    def _pool(
        self,
        op_type: str,
        x: Value,
        kernel: int,
        stride: int,
        padding: int,
        ceil: bool,
        **attributes: Any,
    ) -> Value:
        batch, channels, *image = x.shape
        counts = (window_count(n, kernel, stride, padding, ceil) for n in image)
        return self.op(
            op_type,
            x,
            shape=(batch, channels, *counts),
            ceil_mode=int(ceil),
            kernel_shape=[kernel] * 2,
            pads=[padding] * 4,
            strides=[stride] * 2,
            **attributes,
        )

    def max_pool(
        self,
        x: Value,
        kernel: int,
        *,
        stride: int,
        padding: int = 0,
        ceil: bool = False,
        name: str = "maxpool",
    ) -> Value:
        """MaxPool of [N, C, H, W]."""
        with self.scope(name):
            return self._pool("MaxPool", x, kernel, stride, padding, ceil)

    def average_pool(self, x: Value, kernel: int, *, stride: int, name: str = "avgpool") -> Value:
        """AveragePool of [N, C, H, W], without padding."""
        with self.scope(name):
            return self._pool("AveragePool", x, kernel, stride, 0, False, count_include_pad=1)

    def global_average_pool(self, x: Value, name: str = "avgpool") -> Value:
        """[N, C, H, W] to [N, C, 1, 1]."""
        with self.scope(name):
            return self.op("GlobalAveragePool", x, shape=(*x.shape[:2], 1, 1))

    # ---- the model ---------------------------------------------------------------------

    def build(self) -> onnx.ModelProto:
        """The finished model."""
        graph = helper.make_graph(
            self._nodes,
            self.name,
            self._inputs + self._weight_inputs,
            self._outputs,
            initializer=self._initializers,
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", self.opset)],
            ir_version=IR_VERSION,
            producer_name="onnxremat-models",
        )
        if self._symbolic_batch:
            helper.set_model_props(model, {BATCH_PROPERTY: str(self.batch)})
        return model
