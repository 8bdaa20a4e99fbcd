"""Graphs for tests: parsed from text, drawn at random, and shaped like a training step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import to_model
from onnxremat.graph.traits import may_recompute
from onnxremat.ort.feeds import seeded_feeds
from onnxremat.ort.infer import build_graph
from onnxremat.ort.profile import Profile, profile
from onnxremat.ort.session import TUNED, Options

# Every option set that keeps ops as they are: the listed order or the depth-first one, buffers
# held for equal shapes or not. One thread, so that scratch is that of one thread.
ONE = replace(TUNED, threads=1)
PLAIN = Options(level="disable", threads=1)


def seeds(all_of_them: int, quick: int) -> list[object]:
    """Seeds to test with: the first ``quick`` in every run, the others with the slow tests."""
    late = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(quick, all_of_them)]
    return [*range(quick), *late]


def parse(body: str, opset: int = 18, ir: int = 9) -> onnx.ModelProto:
    """A model from ``g (float[2] x) => (float[2] y) { y = Relu(x) }``."""
    return onnx.parser.parse_model(f'<ir_version: {ir}, opset_import: ["" : {opset}]>\n{body}')


def graph_of(body: str, opset: int = 18, ir: int = 9) -> Graph:
    """The graph of :func:`parse`'s model."""
    return build_graph(parse(body, opset, ir))


def run(graph: Graph, options: Options = ONE, seed: int = 0) -> Profile:
    """Run a graph on seeded inputs with the profiler on."""
    return profile(to_model(graph), seeded_feeds(graph, seed), options)


def names(found: Profile) -> list[str]:
    """Executed kernels."""
    return [kernel.name for kernel in found.kernels]


def shuffled(graph: Graph, draw: Random) -> Graph:
    """The graph listed in a random topological order."""
    before = graph.predecessors()
    order: list[int] = []
    while len(order) < len(before):
        done = set(order)
        ready = [i for i in range(len(before)) if i not in done and done.issuperset(before[i])]
        order.append(draw.choice(ready))
    return graph.with_ops([graph.ops[index] for index in order])


def random_sequence(graph: Graph, draw: Random, share: float = 0.5) -> list[str]:
    """A random order of first runs with recomputations in between (``share`` per first run)."""
    order = shuffled(graph, draw)
    sequence: list[str] = []
    for op in order.ops:
        again = [name for name in dict.fromkeys(sequence) if _again(graph, name)]
        while again and draw.random() < share:
            sequence.append(draw.choice(again))
        sequence.append(op.name)
    return sequence


def _again(graph: Graph, name: str) -> bool:
    op = next(op for op in graph.ops if op.name == name)
    return may_recompute(op) and any(graph.tensors[i].dtype for i in op.inputs if i)


# Operators that never fuse with each other or fold, by how they use memory.
_PLAIN = ("Sin", "Cos", "Atan", "Exp", "Neg", "Abs")
_INPLACE = ("Relu", "Tanh", "Softsign", "Sigmoid")
_BINARY = ("Max", "Min", "Add", "Sub")


def random_dag(seed: int, count: int = 14, *, plain: bool = False) -> onnx.ModelProto:
    """A random model over two shapes.

    Unless ``plain`` it has in-place and alias ops, ops with two outputs (one of them perhaps
    unread), a type without rounding (int8), scalars and kept values read inside the graph.
    """
    draw = Random(seed)
    shapes = {"x": (4, 96), "z": (8, 24)}
    values = {"x": "x", "z": "z"}  # value -> which shape family it has
    nodes, read, made = [], set(), set()

    def pick(family: str | None = None) -> str:
        return draw.choice([v for v, f in values.items() if family in (None, f)])

    def add(op: str, inputs: list[str], outputs: list[tuple[str, str]], **attributes: object):
        if (op, *inputs) in made:
            return  # equal ops would be merged: duplicates are for the rewrite to make
        made.add((op, *inputs))
        read.update(inputs)
        nodes.append(helper.make_node(op, inputs, [o for o, _ in outputs], **attributes))
        values.update(outputs)

    for index in range(count):
        name, kind = f"v{index}", draw.random()
        source = pick()
        family = values[source]
        if family not in shapes:  # a scalar or half a value
            add("Neg", [source], [(name, family)])
        elif kind < 0.3 or (plain and kind < 0.6):
            add(draw.choice(_PLAIN), [source], [(name, family)])
        elif kind < 0.6 or plain:
            add(draw.choice(_BINARY), [source, pick(family)], [(name, family)])
        elif kind < 0.78:
            add(draw.choice(_INPLACE), [source], [(name, family)])
        elif kind < 0.88:
            add("Flatten", [source], [(name, family)], axis=1)
        elif kind < 0.94:
            halves = [(name, "half" + family), (f"{name}b", "half" + family)]
            add("Split", [source], halves, axis=0, num_outputs=2)
        else:
            add("ReduceMax", [source], [(name, "scalar")], keepdims=0)
    loose = [v for v in values if v not in read and v not in shapes]
    outputs = [v for v in loose if draw.random() < 0.8] or loose[-1:]
    inner = [v for v in values if v in read and v not in shapes]
    if inner and not plain and draw.random() < 0.5:
        outputs.append(draw.choice(inner))
    graph = helper.make_graph(
        nodes,
        "random",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def training_chain(layers: int = 6, width: int = 64, batch: int = 128, seed: int = 0) -> Graph:
    """Forward, loss gradient and weight gradients of a plain network, in training order.

    Every activation is read again in the backward half, so storing all of them costs
    ``layers`` activations and recomputing pays.
    """
    rng = np.random.default_rng(seed)
    weights = [
        numpy_helper.from_array(
            (rng.standard_normal((width, width)) / np.sqrt(width)).astype(np.float32), f"w{i}"
        )
        for i in range(layers)
    ]
    nodes = []
    for i in range(layers):
        source = f"h{i - 1}" if i else "x"
        nodes.append(helper.make_node("MatMul", [source, f"w{i}"], [f"p{i}"]))
        nodes.append(helper.make_node("Tanh", [f"p{i}"], [f"h{i}"]))
    nodes.append(helper.make_node("Sub", [f"h{layers - 1}", "t"], [f"g{layers}"]))
    for i in reversed(range(layers)):
        source = f"h{i - 1}" if i else "x"
        nodes += [
            helper.make_node("Mul", [f"h{i}", f"h{i}"], [f"s{i}"]),
            helper.make_node("Mul", [f"g{i + 1}", f"s{i}"], [f"d{i}"]),
            helper.make_node("Sub", [f"g{i + 1}", f"d{i}"], [f"q{i}"]),
            helper.make_node("Transpose", [source], [f"st{i}"], perm=[1, 0]),
            helper.make_node("MatMul", [f"st{i}", f"q{i}"], [f"dw{i}"]),
        ]
        if i:
            nodes.append(helper.make_node("Transpose", [f"w{i}"], [f"wt{i}"], perm=[1, 0]))
            nodes.append(helper.make_node("MatMul", [f"q{i}", f"wt{i}"], [f"g{i}"]))
    shape = (batch, width)
    made = helper.make_graph(
        nodes,
        "training",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in ("x", "t")],
        [
            helper.make_tensor_value_info(f"dw{i}", TensorProto.FLOAT, (width, width))
            for i in range(layers)
        ],
        weights,
    )
    opsets = [helper.make_opsetid("", 17)]
    return build_graph(helper.make_model(made, opset_imports=opsets, ir_version=9))


def wide_chain(layers: int = 6) -> onnx.ModelProto:
    """Activations of 1 MiB each for the whole batch, hardly any weights."""
    steps = "\n".join(f"h{i + 1} = {('Sin', 'Cos')[i % 2]}(h{i})" for i in range(layers))
    return parse(
        f"""g (float[8, 32768] x) => (float[8] y) {{
        h0 = Tanh(x)
        {steps}
        s = Add(h{layers}, h0)
        y = ReduceSum<keepdims: int = 0>(s, k)
    }}""".replace("=> (float[8] y) {", "=> (float[8] y) <int64[1] k = {1}> {")
    )


def shapes(graph: Graph, found: Sequence[str]) -> list[int]:
    """Bytes of some tensors."""
    return [graph.tensors[name].bytes for name in found]
