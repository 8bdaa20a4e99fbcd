"""Small models that mutations begin with: one for each thing that a file can hold."""

from __future__ import annotations

import json
from random import Random

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxremat.graph.onnx_io import to_model
from tests.toolbox import parse, random_dag, training_chain, wide_chain

CONTROL = """g (float[4, 8] x, bool c) => (float[4, 8] y, float[4] z)
    <int64 n = {3}, bool on = {1}> {
    a = If(c) <then_branch = t () => (float[4, 8] p) { p = Sin(x) },
               else_branch = e () => (float[4, 8] q) { q = Cos(x) }>
    b = Loop(n, on, a) <body = l (int64 i, bool s, float[4, 8] v)
        => (bool o, float[4, 8] w) { o = Identity(s) w = Tanh(v) }>
    y = Add(a, b)
    z = ReduceSum<keepdims: int = 0>(y, axes)
}"""
SEQUENCES = """g (float[4, 8] x) => (float[4, 8] y) <int64 k = {1}> {
    s = SplitToSequence<axis: int = 0>(x, parts)
    e = SequenceAt(s, k)
    t = SequenceInsert(s, e)
    j = ConcatFromSequence<axis: int = 0>(t)
    y = Slice(j, b, f, r)
}"""


def convolutions() -> onnx.ModelProto:
    """Convolution, normalisation, pooling and a matrix product, with weights in the file."""
    draw = np.random.default_rng(0)
    made = parse(
        """g (float[batch, 3, 8, 8] x) => (float[batch, 5] y) {
        a = Conv<pads: ints = [1, 1, 1, 1]>(x, w, bias)
        b = BatchNormalization(a, scale, shift, mean, variance)
        c = Relu(b)
        d = MaxPool<kernel_shape: ints = [2, 2], strides: ints = [2, 2]>(c)
        e = GlobalAveragePool(d)
        f = Flatten(e)
        y = Gemm<transB: int = 1>(f, v, u)
        }"""
    )
    shapes = {
        "w": (4, 3, 3, 3), "bias": (4,), "scale": (4,), "shift": (4,), "mean": (4,),
        "variance": (4,), "v": (5, 4), "u": (5,),
    }  # fmt: skip
    for name, shape in shapes.items():
        array = draw.random(shape, np.float32) + 0.1
        made.graph.initializer.append(numpy_helper.from_array(array, name))
    return made


def control_flow() -> onnx.ModelProto:
    """If, Loop and an axis as a constant."""
    made = parse(CONTROL)
    made.graph.initializer.append(numpy_helper.from_array(np.array([1]), "axes"))
    return made


def sequences() -> onnx.ModelProto:
    """Sequences whose length is known, and slices."""
    made = parse(SEQUENCES)
    rows = {"parts": [1, 1, 2], "b": [0, 0], "f": [4, 8], "r": [0, 1]}
    for name, values in rows.items():
        made.graph.initializer.append(numpy_helper.from_array(np.array(values), name))
    return made


def functions() -> onnx.ModelProto:
    """A function in a function, and a sparse weight."""
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("my", 1)]
    made = parse("g (float[4, 8] x) => (float[4, 8] y) { a = MatMul(x, s) b = Sin(a) }")
    del made.opset_import[:]
    made.opset_import.extend(opsets)
    made.graph.node.append(helper.make_node("Outer", ["b"], ["y"], domain="my"))
    inner = [helper.make_node("Sin", ["a"], ["h"]), helper.make_node("Add", ["h", "a"], ["b"])]
    outer = [
        helper.make_node("Inner", ["a"], ["h"], domain="my"),
        helper.make_node("Inner", ["h"], ["b"], domain="my"),
    ]
    for name, body in (("Inner", inner), ("Outer", outer)):
        made.functions.append(helper.make_function("my", name, ["a"], ["b"], body, opsets))
    weight = made.graph.sparse_initializer.add(dims=[8, 8])
    weight.values.CopyFrom(numpy_helper.from_array(np.ones(3, np.float32), "s"))
    weight.indices.CopyFrom(numpy_helper.from_array(np.array([0, 9, 18]), "s_at"))
    return made


def quantised() -> onnx.ModelProto:
    """QuantizeLinear and its reverse, and a Cast through float16."""
    made = parse(
        """g (float[4, 8] x) => (float[4, 8] y) <float scale = {0.1}, uint8 zero = {3}> {
        q = QuantizeLinear(x, scale, zero)
        d = DequantizeLinear(q, scale, zero)
        h = Cast<to: int = 10>(d)
        r = Relu(h)
        y = Cast<to: int = 1>(r)
        }"""
    )
    assert made.graph.initializer
    return made


def external(draw: Random) -> tuple[onnx.ModelProto, dict[str, bytes]]:
    """A model whose weights lie in a file beside it, and that file."""
    made = to_model(training_chain(2, 16, 32))
    data = b""
    for tensor in made.graph.initializer:
        entries = {"location": "w.bin", "offset": len(data), "length": len(tensor.raw_data)}
        data += tensor.raw_data
        tensor.ClearField("raw_data")
        for key, value in entries.items():
            tensor.external_data.add(key=key, value=str(value))
        tensor.data_location = TensorProto.EXTERNAL
    return made, {"w.bin": data}


def base(draw: Random) -> tuple[onnx.ModelProto, dict[str, bytes]]:
    """One of the models, and the files beside it."""
    others = (convolutions, control_flow, sequences, functions, quantised)
    made = draw.choice((*others, external, None))
    if made is external:
        return external(draw)
    return (random_dag(draw.randrange(100)) if made is None else made()), {}


CHOSEN = (
    "n = NonZero(r) m = Transpose(n) c0 = GatherND(x, m)",
    "c0 = Unique(r)",
    "p = Greater(x, zero) q = Reshape(p, all) c0 = Compress(x, q)",
)


def counted(draw: Random) -> onnx.ModelProto:
    """Values of which the data say how many there are, through ops of any kind."""
    body, last = [draw.choice(CHOSEN), "d0 = Tanh(x)"], draw.randint(2, 8)
    for k in range(1, last + 1):
        for name in "cd":
            op, before = draw.choice(("Sin", "Cos", "Tanh", "Mul", "Add")), f"{name}{k - 1}"
            other = f", {name}{draw.randrange(k)}" if op in ("Mul", "Add") else ""
            body.append(f"{name}{k} = {op}({before}{other})")
    sums = f"t = ReduceSum<keepdims: int = 0>(c{last}) v = Mul(d{last}, t)"
    counts = f"s = Shape(c{last}) f = Cast<to: int = 1>(s) y = Add(v, f)"
    signature = f"g (float[{draw.choice((4, 64, 512))}, 64] x) => (float y)"
    weights = "float zero = {0}, int64[1] all = {-1}"
    made = parse(f"{signature} <{weights}> {{ r = Relu(x) {' '.join(body)} {sums} {counts} }}")
    made.graph.output[0].type.CopyFrom(made.graph.input[0].type)
    return made


def valid(draw: Random) -> onnx.ModelProto:
    """A model in which there is something to plan."""
    kind = draw.randrange(5)
    if kind == 4:
        return counted(draw)
    if kind == 0:
        return to_model(training_chain(draw.randint(2, 5), 16, draw.choice((8, 64))))
    if kind == 1:
        return wide_chain(draw.randint(2, 6))
    return random_dag(draw.randrange(1 << 30), draw.randint(4, 24))


def study(draw: Random) -> str:
    """A graph file of a planner study."""
    count = draw.randint(2, 12)
    nodes = [
        {"id": i, "cost_ram": draw.randint(1, 100), "cost_cpu": draw.randint(1, 9)}
        for i in range(count)
    ]
    links = [
        {"source": i, "target": j} for j in range(count) for i in range(j) if draw.random() < 0.4
    ]
    return json.dumps({"nodes": nodes, "links": links, "graph": {"order": list(range(count))}})
