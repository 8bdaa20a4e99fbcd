"""Few ops in a row: what onnxruntime fuses, what rewrites look for, values that are read twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.fuzz_nodes.draw import Array, Draw, of_nodes

Shape = tuple[int, ...]
OPSET = 18


class Chain:
    """A model that grows at its end."""

    def __init__(self, d: Draw, shape: Shape) -> None:
        self.d, self.nodes = d, list[onnx.NodeProto]()
        self.constants: list[onnx.TensorProto] = []
        self.inputs, self.feeds = list[onnx.ValueInfoProto](), list[Array]()
        self.values: list[tuple[str, Shape]] = [(self.weight(*shape, fed=True), shape)]

    @property
    def last(self) -> tuple[str, Shape]:
        """Name and shape of the newest value."""
        return self.values[-1]

    def weight(self, *shape: int, fed: bool = False, positive: bool = False) -> str:
        """Numbers that are fed, or stored."""
        name = f"w{len(self.inputs) + len(self.constants)}"
        array = self.d.positive(*shape) if positive else self.d.normal(*shape)
        if fed or self.d.chance(0.6):
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
            self.feeds.append(array)
        else:
            self.constants.append(numpy_helper.from_array(array, name))
        return name

    def known(self, values: Any, kind: type = np.int64) -> str:
        """A constant."""
        name = f"c{len(self.constants)}_{len(self.inputs)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values, kind), name))
        return name

    def add(self, op: str, inputs: Sequence[str], shape: Shape, **attributes: Any) -> str:
        """One more op."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=f"n_{name}", **attributes))
        self.values.append((name, shape))
        return name

    def model(self) -> tuple[onnx.ModelProto, list[Array]]:
        """It, the newest value and perhaps another one its outputs."""
        made = [self.last[0]]
        if self.d.chance(0.2) and len(self.values) > 2:
            made.append(self.values[self.d.whole(1, len(self.values) - 2)][0])
        outputs = [onnx.ValueInfoProto(name=name) for name in made]
        return of_nodes(self.nodes, self.inputs, outputs, self.constants, OPSET), self.feeds


Step = Callable[[Chain], None]


def _element(c: Chain) -> None:
    x, shape = c.last
    kind = c.d.word("Relu Sigmoid Tanh Neg Exp Softplus HardSwish Erf LeakyRelu Abs Clip")
    more = [c.known(-0.5, np.float32), c.known(0.8, np.float32)] if kind == "Clip" else []
    c.add(kind, [x, *more], shape)


def _number(c: Chain) -> None:
    x, shape = c.last
    other = c.weight(*c.d.broadcastable(shape))
    c.add(c.d.word("Add Mul Sub"), c.d.of(([x, other], [other, x])), shape)


def _earlier(c: Chain) -> None:
    x, shape = c.last
    like = [name for name, each in c.values if each == shape]
    c.add(c.d.word("Add Mul Sub Max"), [x, c.d.of(like)], shape)


def _gelu(c: Chain) -> None:
    x, shape = c.last
    scaled = c.add("Div", [x, c.known(np.sqrt(2), np.float32)], shape)
    one = c.add("Add", [c.add("Erf", [scaled], shape), c.known(1, np.float32)], shape)
    half = c.add("Mul", [x, one], shape)
    c.add("Mul", [half, c.known(0.5, np.float32)], shape)


def _swish(c: Chain) -> None:
    x, shape = c.last
    c.add("Mul", [x, c.add("Sigmoid", [x], shape)], shape)


def _turn(c: Chain) -> None:
    x, shape = c.last
    order = c.d.random.sample(range(len(shape)), len(shape))
    c.add("Transpose", [x], tuple(shape[k] for k in order), perm=order)


def _flat(c: Chain) -> None:
    x, shape = c.last
    if len(shape) > 2:
        cut = c.d.whole(1, len(shape) - 1)
        made = (int(np.prod(shape[:cut])), int(np.prod(shape[cut:])))
    else:
        made = (1, *shape) if c.d.chance(0.5) else (*shape, 1)
    c.add("Reshape", [x, c.known(made)], made)


def _slice(c: Chain) -> None:
    x, shape = c.last
    axis = c.d.whole(0, len(shape) - 1)
    start = c.d.whole(0, shape[axis] - 1)
    rest = list(shape)
    rest[axis] -= start
    c.add("Slice", [x, c.known([start]), c.known([99]), c.known([axis])], tuple(rest))


def _join(c: Chain) -> None:
    x, shape = c.last
    like = [name for name, each in c.values if each == shape]
    axis = c.d.whole(0, len(shape) - 1)
    wide = list(shape)
    wide[axis] *= 2
    c.add("Concat", c.d.of(([x, c.d.of(like)], [c.d.of(like), x])), tuple(wide), axis=axis)


def _reduce(c: Chain) -> None:
    x, shape = c.last
    axis = c.d.whole(0, len(shape) - 1)
    made = tuple(1 if k == axis else size for k, size in enumerate(shape))
    kind = c.d.word("ReduceSum ReduceMean ReduceMax ReduceL2")
    c.add(kind, [x, c.known([axis])], made, keepdims=1)


def _product(c: Chain) -> None:
    x, shape = c.last
    if len(shape) < 2:
        return
    made = (*shape[:-1], c.d.whole(1, 4))
    value = c.add("MatMul", [x, c.weight(shape[-1], made[-1])], made)
    if c.d.chance(0.6):
        c.add("Add", [value, c.weight(made[-1])], made)


def _rows(c: Chain) -> None:
    x, shape = c.last
    width = c.weight(shape[-1]), c.weight(shape[-1])
    c.add("LayerNormalization", [x, *width], shape, axis=-1)


def _softmax(c: Chain) -> None:
    x, shape = c.last
    c.add(c.d.word("Softmax LogSoftmax"), [x], shape, axis=c.d.whole(0, len(shape) - 1))


def _image(c: Chain) -> None:
    """A convolution and what comes behind it in nets."""
    x, shape = c.last
    if len(shape) != 4:
        return
    made, side = c.d.whole(1, 4), c.d.of((1, 3))
    image = (shape[0], made, *shape[2:])
    inputs = [x, c.weight(made, shape[1], side, side)]
    inputs += [c.weight(made)] if c.d.chance(0.5) else []
    value = c.add("Conv", inputs, image, pads=[side // 2] * 4)
    if c.d.chance(0.4):
        norm = [c.weight(made), c.weight(made), c.weight(made), c.weight(made, positive=True)]
        value = c.add("BatchNormalization", [value, *norm], image)
    if c.d.chance(0.5):
        c.add("Relu", [value], image)


def _pooled(c: Chain) -> None:
    x, shape = c.last
    if len(shape) != 4 or min(shape[2:]) < 2:
        return
    half = (*shape[:2], *(size // 2 for size in shape[2:]))
    kind = c.d.word("MaxPool AveragePool")
    c.add(kind, [x], half, kernel_shape=[2, 2], strides=[2, 2])


def _chosen(c: Chain) -> None:
    """Rows that data choose, how many of them too: worked on, and put back or added."""
    x, shape = c.last
    rows = shape[0]
    score = f"w{len(c.inputs) + len(c.constants)}"
    c.inputs.append(helper.make_tensor_value_info(score, onnx.TensorProto.INT64, (rows,)))
    c.feeds.append(np.array([c.d.whole(-2, 2) for _ in range(rows)], np.int64))
    mask = c.add("Greater", [score, c.known(c.d.of((-9, 0, 0, 9)))], (rows,))
    places = c.add("Transpose", [c.add("NonZero", [mask], ())], (), perm=[1, 0])
    taken = c.add("GatherND", [x, places], ())
    width = shape[-1] if len(shape) > 1 else 1
    if len(shape) > 1 and c.d.chance(0.5):
        taken = c.add("MatMul", [taken, c.weight(width, width)], ())
    worked = c.add(c.d.word("Tanh Sigmoid Neg"), [taken], ())
    del c.values[c.values.index((x, shape)) + 1 :]  # their shapes are not known
    reduction = {"reduction": "add"} if c.d.chance(0.5) else {}
    c.add("ScatterND", [x, places, worked], shape, **reduction)


STEPS: tuple[Step, ...] = (
    _element, _element, _number, _number, _earlier, _earlier, _gelu, _swish, _turn, _flat, _slice,
    _join, _reduce, _product, _product, _rows, _softmax, _image, _image, _pooled, _chosen,
)  # fmt: skip


def chain(d: Draw) -> tuple[onnx.ModelProto, list[Array]]:
    """A model of two to six steps."""
    image = d.chance(0.5)
    shape = (d.whole(1, 2), d.whole(1, 4), d.whole(2, 6), d.whole(2, 6)) if image else d.shape(2, 4)
    made = Chain(d, shape)
    for _ in range(d.whole(2, 6)):
        d.of(STEPS)(made)
    if not made.nodes:
        _element(made)
    return made.model()
