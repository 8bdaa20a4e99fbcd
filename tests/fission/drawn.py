"""Graphs drawn at random: images through windows, tokens through attention."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Drawn:
    """A graph under construction; shapes are kept, so that every draw fits."""

    def __init__(self, seed: int) -> None:
        self.draw, self.numbers = Random(seed), np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.shapes: dict[str, tuple[int, ...]] = {}

    def constant(self, values: object, dtype: str = "f4") -> str:
        """An initializer."""
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def weight(self, *shape: int) -> str:
        """Numbers of a size that keeps values near one."""
        return self.constant(self.numbers.normal(size=shape) / np.sqrt(np.prod(shape[1:])))

    def op(self, kind: str, inputs: list[str], shape: tuple[int, ...], **attributes: object) -> str:
        """A node with one output."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name, **attributes))
        self.shapes[name] = shape
        return name

    def model(self, source: str, outputs: list[str]) -> onnx.ModelProto:
        """The graph, the values that nobody reads among its outputs."""
        read = {name for node in self.nodes for name in node.input}
        ends = dict.fromkeys(outputs)
        ends |= dict.fromkeys(node.output[0] for node in self.nodes if node.output[0] not in read)
        made = [
            helper.make_tensor_value_info(n, TensorProto.FLOAT, self.shapes[n])
            for n in (source, *ends)
        ]
        graph = helper.make_graph(self.nodes, "drawn", made[:1], made[1:], self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


Step = Callable[[Drawn, str, list[str]], str]  # makes one more value of one of these


def image_net(seed: int, steps: int = 9) -> onnx.ModelProto:
    """Convolutions, pooling, resizing, sums and joins of a small image."""
    return _of_image(seed, steps, [_image_op])


def _of_image(seed: int, steps: int, kinds: list[Step]) -> onnx.ModelProto:
    """A small image, and values that are each made of one of the last three."""
    g = Drawn(seed)
    g.shapes["x"] = (1, 3, g.draw.randint(9, 24), g.draw.randint(4, 7))
    values = ["x"]
    for _ in range(steps):
        x = g.draw.choice(values[-3:])
        # Nothing is drawn of one kind, so that the nets of a seed stay what they were.
        step = g.draw.choice(kinds) if len(kinds) > 1 else kinds[0]
        values.append(step(g, x, values))
    return g.model("x", values[-1:])


def _image_op(g: Drawn, x: str, values: list[str]) -> str:
    n, c, h, w = g.shapes[x]
    kind = g.draw.choice(["conv", "conv", "down", "pool", "relu", "add", "join", "up", "grow"])
    if kind == "add":
        same = [v for v in values if g.shapes[v] == g.shapes[x]]
        return g.op("Add", [x, g.draw.choice(same)], g.shapes[x])
    if kind == "join":
        y = g.draw.choice([v for v in values if g.shapes[v][2:] == (h, w)])
        return g.op("Concat", [x, y], (n, c + g.shapes[y][1], h, w), axis=1)
    if kind == "down" and min(h, w) > 3:
        shape = (n, 4, (h - 1) // 2 + 1, (w - 1) // 2 + 1)
        return g.op("Conv", [x, g.weight(4, c, 3, 3)], shape, strides=[2, 2], pads=[1] * 4)
    if kind == "pool" and min(h, w) > 3:
        return g.op("MaxPool", [x], (n, c, h // 2, w // 2), kernel_shape=[2, 2], strides=[2, 2])
    if kind == "up" and h < 30:
        scales = g.constant([1, 1, 2, 2])
        mode = g.draw.choice(["nearest", "linear"])
        return g.op("Resize", [x, "", scales], (n, c, 2 * h, 2 * w), mode=mode)
    if kind == "grow" and h < 30:
        shape = (n, 4, 2 * h, 2 * w)
        return g.op("ConvTranspose", [x, g.weight(c, 4, 2, 2)], shape, strides=[2, 2])
    if kind == "relu":
        return g.op("Relu", [x], g.shapes[x])
    d = g.draw.choice([1, 1, 2])
    weight = g.weight(4, c, 3, 3)
    return g.op("Conv", [x, weight], (n, 4, h, w), dilations=[d, d], pads=[d] * 4)


def moving_net(seed: int, steps: int = 9) -> onnx.ModelProto:
    """Such an image, and rows of it taken out, added, joined and shifted."""
    kinds = [_image_op, _image_op, _taken, _filled, _joined, _shifted]
    return _of_image(seed, steps, kinds)


def _rows(g: Drawn, x: str, first: int, end: int, step: int = 1) -> str:
    n, c, _, w = g.shapes[x]
    bounds = [g.constant([value], "i8") for value in (first, end, 2, step)]
    return g.op("Slice", [x, *bounds], (n, c, -(-(end - first) // step), w))


def _taken(g: Drawn, x: str, values: list[str]) -> str:
    h = g.shapes[x][2]
    if h < 7:
        return _image_op(g, x, values)
    return _rows(g, x, g.draw.randint(0, 3), h - g.draw.randint(0, 2), g.draw.choice([1, 1, 2]))


def _filled(g: Drawn, x: str, values: list[str]) -> str:
    n, c, h, w = g.shapes[x]
    if not 4 < h < 30:
        return _image_op(g, x, values)
    above, below = g.draw.randint(0, 3), g.draw.randint(0, 3)
    pads, mode = [0, 0, above, 0, 0, 0, below, 0], g.draw.choice(["constant", "edge", "reflect"])
    return g.op("Pad", [x, g.constant(pads, "i8")], (n, c, h + above + below, w), mode=mode)


def _joined(g: Drawn, x: str, values: list[str]) -> str:
    n, c, h, w = g.shapes[x]
    like = [v for v in values if (g.shapes[v][1], g.shapes[v][3]) == (c, w) and g.shapes[v][2] < 20]
    if h >= 20:
        return _image_op(g, x, values)
    y = g.draw.choice(like)
    return g.op("Concat", [x, y], (n, c, h + g.shapes[y][2], w), axis=2)


def _shifted(g: Drawn, x: str, values: list[str]) -> str:
    h = g.shapes[x][2]
    if h < 4:
        return _image_op(g, x, values)
    by = g.draw.randint(1, h - 1)
    return g.op("Concat", [_rows(g, x, by, h), _rows(g, x, 0, by)], g.shapes[x], axis=2)


def token_net(seed: int, steps: int = 3) -> onnx.ModelProto:
    """Attention and products over tokens, with residuals."""
    g = Drawn(seed)
    tokens, width = g.draw.randint(5, 20), 8
    g.shapes["x"] = (1, tokens, width)
    x = "x"
    for _ in range(steps):
        block = g.draw.choice([_attention, _attention, _products])
        normal = g.op("LayerNormalization", [x, g.constant(np.ones(width))], g.shapes[x], axis=-1)
        x = g.op("Add", [x, block(g, normal, tokens, width)], g.shapes[x])
    if g.draw.random() < 0.5:
        x = g.op("ReduceMean", [x, g.constant([1], "i8")], (1, width), keepdims=0)
    return g.model("x", [x])


def _attention(g: Drawn, x: str, tokens: int, width: int) -> str:
    heads = g.draw.choice([1, 2, 4])
    each = width // heads
    apart = g.constant([1, tokens, heads, each], "i8")
    split = []
    for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]):
        made = g.op("MatMul", [x, g.weight(width, width)], (1, tokens, width))
        made = g.op("Reshape", [made, apart], (1, tokens, heads, each))
        shape = (1, *(((tokens, heads, each))[p - 1] for p in perm[1:]))
        split.append(g.op("Transpose", [made], shape, perm=perm))
    scores = g.op("MatMul", split[:2], (1, heads, tokens, tokens))
    scores = g.op("Softmax", [scores], (1, heads, tokens, tokens), axis=-1)
    made = g.op("MatMul", [scores, split[2]], (1, heads, tokens, each))
    made = g.op("Transpose", [made], (1, tokens, heads, each), perm=[0, 2, 1, 3])
    made = g.op("Reshape", [made, g.constant([1, tokens, width], "i8")], (1, tokens, width))
    return g.op("MatMul", [made, g.weight(width, width)], (1, tokens, width))


def _products(g: Drawn, x: str, tokens: int, width: int) -> str:
    made = g.op("MatMul", [x, g.weight(width, 4 * width)], (1, tokens, 4 * width))
    made = g.op("Tanh", [made], (1, tokens, 4 * width))
    return g.op("MatMul", [made, g.weight(4 * width, width)], (1, tokens, width))
