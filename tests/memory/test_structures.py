"""What onnxruntime keeps of a graph is about what budgets count of it."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxremat.graph.wire import read_light
from onnxremat.memory.native import trim
from onnxremat.memory.taken import heap_bytes, status
from onnxremat.ort.infer import build_graph
from onnxremat.ort.profile import profile
from onnxremat.ort.session import TUNED, open_session, session_options
from onnxremat.rewrite.pins import PREFIX
from onnxremat.session.held import open_held, open_light
from onnxremat.session.process import further_bytes
from onnxremat.session.structures import graph_bytes, node_bytes, places_bytes
from tests.toolbox import graph_of, parse

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


@pytest.mark.parametrize("words", [False, True])
def test_long_lists_count_by_element(words: bool) -> None:
    """Those of trees, vectors and words: not what a list of two strides takes, times as many."""

    def encoder(count: int) -> onnx.ModelProto:
        made = [f"a longer word {index}" for index in range(count)] if words else [1.0] * count
        node = helper.make_node(
            "LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", keys_int64s=range(count),
            **{"values_strings" if words else "values_floats": made},
        )  # fmt: skip
        x, y = (
            helper.make_tensor_value_info(name, dtype, [8])
            for name, dtype in (("x", 7), ("y", 8 if words else 1))
        )
        sets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
        graph = helper.make_graph([node], "g", [x], [y])
        return helper.make_model(graph, opset_imports=sets, ir_version=9)

    kept(encoder(2))
    model = encoder(30_000)
    assert kept(model) < graph_bytes(build_graph(model)) < 3 * kept(model)


def test_places_that_a_kernel_lists_count() -> None:
    """They are in no profile, and no session's memory."""
    body = """g (float[64, 8192] x, int64[64, 8192] i) => (float[64, 8192] y)
        { y = ScatterElements(x, i, x) }"""
    graph, options = graph_of(body), replace(TUNED, arena=False)
    assert places_bytes(graph) == 4 << 20
    sampled = """g (float[2, 3, 8, 8] x, float[2, 40, 50, 2] i) => (float[2, 3, 40, 50] y)
        {{ y = GridSample<{}>(x, i) }}"""
    assert places_bytes(graph_of(sampled.format("align_corners = 0"))) == 56 * 40 * 50
    assert not places_bytes(graph_of(sampled.format('mode = "nearest"')))
    centred = (
        "g (float[2, 3, 8, 8] x) => (float[2, 3, 8, 8] y) { y = MeanVarianceNormalization(x) }"
    )
    assert places_bytes(graph_of(centred)) == 4 * 2 * 3 * 8 * 8
    best = """g (float[5, 4096] x) => (float[5, {0}] y, int64[5, {0}] z)
        <int64[1] k = {{{0}}}> {{ y, z = TopK(x, k) }}"""
    assert places_bytes(graph_of(best.format(2000))) == 2 * 8 * 4096
    assert not places_bytes(graph_of(best.format(100)))
    assert further_bytes(graph) > 4 << 20  # of a session over devices, too
    by_rows = "g (float[64, 8] x, int64[9, 3, 1] i) => (float[9, 3, 8] y) { y = GatherND(x, i) }"
    assert places_bytes(graph_of(by_rows)) == 8 * 9 * 3
    feeds = {"x": np.ones((64, 8192), np.float32), "i": np.zeros((64, 8192), np.int64)}
    small = open_session(parse(body.replace("8192", "8")), session_options(options))
    small.run(None, {name: array[:, :8] for name, array in feeds.items()})  # the code is loaded
    session = open_session(parse(body), session_options(options))
    trim()
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    session.run(None, feeds)
    rise = status("VmHWM") - before - graph.tensors["y"].bytes
    assert (3 << 20) < rise < (8 << 20)  # twice would be more, as pages of code come on top
    assert [k.scratch for k in profile(parse(body), feeds, options).kernels] == [0]


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
