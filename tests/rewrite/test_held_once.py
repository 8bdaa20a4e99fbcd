"""Weights of which a session would hold a second copy are there once where a budget asks for it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from onnxremat import api
from onnxremat.graph.equal_weights import equal_weights, transposed_weights
from onnxremat.graph.onnx_io import to_model
from onnxremat.graph.subgraph import subgraph
from onnxremat.ort.infer import build_graph
from onnxremat.ort.offline import HOST, PORTABLE, optimised_for, resident_weights
from onnxremat.ort.weights import held_by
from onnxremat.planner.options import PlanOptions
from onnxremat.rewrite.held_once import held_once
from tests.toolbox import parse

WORDS, WIDE = 3000, 128
ONCE = "are there once"
COPY = 4 * WORDS * WIDE
SHORT = PlanOptions(work=500, threads=1)
PRODUCTS = {
    "as exported": "t = Transpose<perm = [1, 0]>(w) y = MatMul(h, t)",
    "by default": "t = Transpose(w) y = MatMul(h, t)",
    "with a bias": "t = Transpose(w) y = Gemm(g, t, b)",
    "turned already": "y = Gemm<transB = 1>(g, w, b)",
    "of rows": "t = Transpose(w) y = MatMul(g, t)",
}


def tied(product: str) -> onnx.ModelProto:
    """A table of words that is the last layer, too."""
    rank = "4," if "(g" in product else "1,4,"
    made = parse(
        f"g (int64[1,4] x) => (float[{rank}{WORDS}] y) "
        f"{{ e = Gather(w, x) h = Tanh(e) g = Reshape(h, s) {product} }}"
    )
    drawn = np.random.default_rng(0)
    for name, shape in (("w", (WORDS, WIDE)), ("b", (WORDS,))):
        made.graph.initializer.append(
            numpy_helper.from_array(drawn.standard_normal(shape, np.float32), name)
        )
    made.graph.initializer.append(numpy_helper.from_array(np.array([4, WIDE]), "s"))
    return made


@pytest.mark.parametrize(
    ("kind", "target"),
    [*((kind, HOST) for kind in PRODUCTS), ("as exported", PORTABLE), ("of rows", PORTABLE)],
)
def test_the_table_is_there_once(tmp_path: Path, kind: str, target: str) -> None:
    model = tied(PRODUCTS[kind])
    settings = api.Settings(threads=1, target=target)
    result = api.optimize(model, budget="min", settings=settings, options=SHORT)
    whole = api.optimize(model, budget="1.0x", settings=settings, options=SHORT)
    spared = whole.prepared.weights - result.prepared.weights
    if (kind, target) == ("as exported", PORTABLE):  # of three axes: no standard product
        assert spared == 0
        return
    assert spared >= COPY
    assert any(ONCE in note for note in result.candidate.plan.provenance.notes)
    assert not any(ONCE in note for note in whole.candidate.plan.provenance.notes)
    result.save(tmp_path / "out.onnx")
    if target == PORTABLE:
        written = onnx.load(tmp_path / "out.onnx")
        assert [entry.domain for entry in written.opset_import] == [""]
    onnx.save(model, tmp_path / "in.onnx")
    found = api.verify(tmp_path / "in.onnx", tmp_path / "out.onnx")
    assert found.ok, found
    plan = result.candidate.plan  # it fits the model again
    assert api.apply(model, plan, settings=settings).candidate.plan.sequence == plan.sequence


@pytest.mark.parametrize("opset", [7, 10])
def test_a_gemm_of_old_versions_needs_what_it_adds(opset: int) -> None:
    model = tied("t = Transpose<perm = [1, 0]>(w) y = MatMul(g, t)")
    model.opset_import[0].version = opset
    made = optimised_for(model, HOST, None)
    assert held_once(made.graph, made.folder, standard=True) is None
    found = held_once(made.graph, made.folder, standard=False)
    assert found is not None
    assert held_by(made.graph) - held_by(found) >= COPY
    alone = subgraph(found, found.ops, found.outputs)  # as a partition of it
    assert alone.inputs == found.inputs
    assert held_by(alone) == held_by(found)
    feeds = {"x": np.arange(4)[None]}
    want, have = (
        ort.InferenceSession(to_model(graph).SerializeToString()).run(None, feeds)[0]
        for graph in (made.graph, found)
    )
    assert np.allclose(want, have, atol=1e-4)


def test_a_heavy_model_with_default_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which the structure alone is optimised, with weights as inputs that have to be given."""
    made = optimised_for(tied(PRODUCTS["turned already"]), HOST, None)
    found = held_once(made.graph, made.folder, standard=False)
    assert found is not None
    monkeypatch.setattr("onnxremat.ort.offline.HEAVY", 0)
    assert resident_weights(to_model(made.graph), "all", made.folder) >= 2 * COPY
    assert resident_weights(to_model(found), "all", made.folder) < 1.1 * COPY


@pytest.mark.parametrize("target", ["none", HOST])
def test_equal_weights_that_could_be_given(tmp_path: Path, target: str) -> None:
    """In a planned file inputs with a value are constants: of two that are equal one may go."""
    model = parse("""g (float[8,512] x, float[512,512] a, float[512,512] b) => (float[8,512] y) {
        h = MatMul(x, a) i = Tanh(h) y = MatMul(i, b) }""")
    weight = np.random.default_rng(0).standard_normal((512, 512), np.float32) / 16
    model.graph.initializer.extend(numpy_helper.from_array(weight, name) for name in "ab")
    onnx.save(model, tmp_path / "in.onnx")
    settings = api.Settings(threads=1, target=target)
    made = api.optimize(model, budget="min", settings=settings, options=SHORT)
    made.save(tmp_path / "out.onnx")
    written = onnx.load(tmp_path / "out.onnx")
    assert "b" not in {value.name for value in written.graph.input}
    assert api.verify(tmp_path / "in.onnx", tmp_path / "out.onnx").ok


def test_files_are_not_held_open(tmp_path: Path) -> None:
    """Of as many weights as a process may have open, and more."""
    resource = pytest.importorskip("resource")
    drawn, many, file = np.random.default_rng(0), 40, tmp_path / "in.onnx"
    sums = " ".join(f"y{k + 1} = MatMul(y{k}, w{k})" for k in range(many))
    model = parse(f"g (float[2,40] y0) => (float[2,40] y{many}) {{ {sums} }}")
    model.graph.initializer.extend(
        numpy_helper.from_array(drawn.standard_normal((40, 40), np.float32), f"w{k}")
        for k in range(many)
    )
    onnx.save(model, file, save_as_external_data=True, location="w.data", size_threshold=0)
    graph = build_graph(onnx.load(file, load_external_data=False), tmp_path)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open(file, os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + many // 2, before[1]))
    try:
        assert not equal_weights(graph, tmp_path, 1)
        assert not transposed_weights(graph, tmp_path, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_copy_that_others_read_stays() -> None:
    model = tied(
        "t = Transpose(w) u = MatMul(h, t) v = Mul(t, k) "
        "r = ReduceSum<keepdims = 0>(v) y = Add(u, r) k = ReduceMax<keepdims = 0>(e)"
    )
    made = optimised_for(model, HOST, None)
    found = held_once(made.graph, made.folder, standard=False)
    kept = found or made.graph
    assert any(op.op_type == "MatMul" for op in kept.ops)
    assert held_by(kept) >= 2 * COPY


@pytest.mark.parametrize("beside", [False, True], ids=["in the file", "beside it"])
@pytest.mark.parametrize("kind", ["transposed", "equal", "nearly"])
def test_copies_that_the_file_holds(tmp_path: Path, kind: str, beside: bool) -> None:
    """As older exporters write them."""
    made = tied("y = MatMul(h, t)" if kind == "transposed" else "y = Gemm<transB = 1>(g, t, b)")
    table = numpy_helper.to_array(made.graph.initializer[0])
    copy = table.T.copy() if kind == "transposed" else table.copy()
    copy[-1, -1] += np.float32(kind == "nearly")
    made.graph.initializer.append(numpy_helper.from_array(copy, "t"))
    file = tmp_path / "in.onnx"
    onnx.save(made, file, save_as_external_data=beside, location="w.data", size_threshold=0)
    graph = optimised_for(onnx.load(file, load_external_data=False), HOST, tmp_path)
    found = held_once(graph.graph, graph.folder, standard=False)
    if kind == "nearly":
        assert found is None
        return
    assert found is not None
    assert held_by(graph.graph) - held_by(found) >= COPY
    result = api.optimize(file, budget="min", settings=api.Settings(threads=1), options=SHORT)
    result.save(tmp_path / "out.onnx")
    assert api.verify(file, tmp_path / "out.onnx").ok
