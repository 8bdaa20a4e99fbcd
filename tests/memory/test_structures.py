"""What onnxruntime keeps of a graph is about what budgets count of it."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxremat.graph.wire import read_light
from onnxremat.memory.taken import heap_bytes
from onnxremat.ort.infer import build_graph
from onnxremat.ort.session import TUNED, session_options
from onnxremat.rewrite.pins import PREFIX
from onnxremat.session.held import open_held, open_light
from onnxremat.session.structures import graph_bytes, node_bytes
from tests.toolbox import graph_of

SHAPE, NODES = [1, 16, 4, 4], 400
CONV = {
    "dilations": [1, 1], "group": 1, "kernel_shape": [1, 1], "pads": [0] * 4, "strides": [1, 1],
    "auto_pad": "NOTSET",
}  # fmt: skip


@pytest.fixture(autouse=True)
def heap() -> None:
    """The heap of another C library is not told."""
    before = heap_bytes()
    held = bytearray(1 << 20)
    if not len(held) <= heap_bytes() - before < len(held) + (64 << 10):
        pytest.skip("this system does not tell what is on the heap")


def chain(kind: str, nodes: int = NODES) -> onnx.ModelProto:
    """So many nodes of a kind in a row."""
    weights = {"w": np.full((16, 16, 1, 1), 0.01, np.float32), "shape": np.array(SHAPE)}
    more = {"Conv": ["w"], "Reshape": ["shape"], "Sum": ["x"] * 7}.get(kind, [])
    said = CONV if kind == "Conv" else {}
    values = ["x", *(f"a_value_{index}" for index in range(nodes))]
    listed = [
        helper.make_node(kind, [values[at], *more], [values[at + 1]], name=f"a_node_{at}", **said)
        for at in range(nodes)
    ]
    ends = [helper.make_tensor_value_info(name, 1, SHAPE) for name in (values[0], values[-1])]
    held = [numpy_helper.from_array(weights[name], name) for name in more if name in weights]
    graph = helper.make_graph(listed, "g", ends[:1], ends[1:], held[:1])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def kept(model: onnx.ModelProto) -> int:
    """Bytes that the heap gains by a session of the model."""
    content = model.SerializeToString()
    gc.collect()
    before = heap_bytes()
    session = open_held(content, session_options(TUNED), TUNED, kept=False)
    gc.collect()
    found = heap_bytes() - before
    del session
    return found


@pytest.mark.parametrize("kind", ["Sin", "Reshape", "Sum", "Conv"])
def test_what_is_counted_of_a_node_is_what_is_kept_of_it(kind: str) -> None:
    kept(chain(kind, 2))  # what comes once
    model = chain(kind)
    taken, counted = kept(model), graph_bytes(build_graph(model))
    # Nets are mixtures; of one kind alone kernels are smaller or larger than on average.
    assert 0.9 * taken < counted < 1.6 * taken


def test_attributes_inputs_and_bodies_count() -> None:
    each = {kind: node_bytes(build_graph(chain(kind, 10))) for kind in ("Sin", "Sum", "Conv")}
    assert each["Sin"] < each["Sum"] < each["Conv"]
    loop = """g (float[2] x, bool go) => (float[2] y) {{
      n = Constant<value = int64 {{3}}>() y = Loop (n, go, x) <body =
      b (int64 i, bool c, float[2] s) => (bool d, float[2] t) {{ d = Identity(c) {} }}> }}"""
    one = graph_bytes(graph_of(loop.format("t = Sin(s)")))
    two = graph_bytes(graph_of(loop.format("u = Cos(s) t = Sin(u)")))
    assert two - one > 3000


def test_what_exporters_say_of_nodes_is_not_kept(tmp_path: Path) -> None:
    model = chain("Sin")
    plain = kept(model)
    for node in model.graph.node:
        node.doc_string = "what it is for"
        node.metadata_props.add(key="stack_trace", value="File m.py, line 1, in forward\n" * 50)
    file = tmp_path / "m.onnx"
    onnx.save(model, file)
    assert kept(model) > plain + NODES * 1500
    content = read_light(file, PREFIX).content
    assert onnx.ModelProto.FromString(content) == chain("Sin")
    gc.collect()
    before = heap_bytes()
    session = open_light(file, content, session_options(TUNED), TUNED)
    assert heap_bytes() - before < plain + (100 << 10)
    y = session.run(None, {"x": np.ones(SHAPE, np.float32)})[0]
    assert np.isfinite(y).all()
