"""Files with blocked convolutions say for which processor they are, and stop on another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import onnxremat
from onnxremat.errors import ModelError
from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import to_model
from onnxremat.ort import blocks
from onnxremat.ort.infer import build_graph
from onnxremat.ort.offline import optimised_for

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[1,3,16,16] x) => (float[1,64,16,16] y)
<float[64,3,3,3] w0, float[64,64,3,3] w1>
{ a = Conv <kernel_shape=[3,3], pads=[1,1,1,1]> (x, w0)
  b = Relu (a)
  y = Conv <kernel_shape=[3,3], pads=[1,1,1,1]> (b, w1) }
"""
FEEDS = {"x": np.random.default_rng(0).standard_normal((1, 3, 16, 16)).astype(np.float32)}


@pytest.fixture
def model() -> onnx.ModelProto:
    """Two convolutions that onnxruntime lays out in blocks where the processor has them."""
    made = onnx.parser.parse_model(TEXT)
    rng = np.random.default_rng(1)
    del made.graph.initializer[:]
    for name, shape in (("w0", (64, 3, 3, 3)), ("w1", (64, 64, 3, 3))):
        values = rng.standard_normal(shape).astype(np.float32) * 0.1
        made.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    return made


def blocked(model: onnx.ModelProto) -> Graph:
    """The graph as onnxruntime runs it on this machine."""
    graph = build_graph(optimised_for(model, "host", None).model, None)
    if not any(op.domain == blocks.DOMAIN for op in graph.ops):
        pytest.skip("this processor has no blocked convolutions")
    return graph


def run(model: onnx.ModelProto | Path, *, fused: bool) -> np.ndarray:
    """The result, with onnxruntime's own options or with no optimisation."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if not fused:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    return session.run(None, FEEDS)[0]


@pytest.mark.parametrize("fused", [True, False])
def test_a_guard_lets_pass_here_and_stops_elsewhere(model: onnx.ModelProto, fused: bool) -> None:
    graph = blocked(model)
    here = to_model(blocks.add_guard(graph))
    assert np.array_equal(run(here, fused=fused), run(to_model(graph), fused=fused))
    block = blocks.block_size()
    elsewhere = to_model(blocks.add_guard(graph, 8 if block == 16 else 16))
    with pytest.raises(Exception, match=r"made_for_processors_with_this_block|out of data bounds"):
        run(elsewhere, fused=fused)


def test_a_graph_without_blocks_needs_no_guard(model: onnx.ModelProto) -> None:
    graph = build_graph(model, None)
    assert blocks.add_guard(graph) is graph


def test_a_file_for_this_processor_is_marked_and_guarded(
    model: onnx.ModelProto, tmp_path: Path
) -> None:
    blocked(model)
    path = tmp_path / "out.onnx"
    settings = onnxremat.Settings(target="host")
    onnxremat.optimize(model, budget="1.2x", settings=settings).save(path)
    written = onnx.load(path)
    marks = {entry.key: entry.value for entry in written.metadata_props}
    assert marks[blocks.KEY] == str(blocks.block_size())
    assert sum(node.name.startswith(blocks.GUARD) for node in written.graph.node) == 6
    assert np.allclose(run(path, fused=True), run(model, fused=True), atol=1e-5)
    again = onnxremat.optimize(path, budget="1.2x", settings=settings)  # one guard, not two
    again.save(tmp_path / "again.onnx")
    names = [node.name for node in onnx.load(tmp_path / "again.onnx").graph.node]
    assert sum(name.startswith(blocks.GUARD) for name in names) == 6

    foreign = 8 if blocks.block_size() == 16 else 16
    for entry in written.metadata_props:
        if entry.key == blocks.KEY:
            entry.value = str(foreign)
    onnx.save(written, path)
    for attempt in (onnxremat.load, lambda file: onnxremat.optimize(file, budget="1.2x")):
        with pytest.raises(ModelError, match="another kind of processor"):
            attempt(path)
