"""Weights of which a session would hold a second copy are there once where a budget asks for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxremat import api
from onnxremat.ort.offline import HOST, PORTABLE, optimised_for
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
    onnx.save(model, tmp_path / "in.onnx")
    found = api.verify(tmp_path / "in.onnx", tmp_path / "out.onnx")
    assert found.ok, found
    plan = result.candidate.plan  # it fits the model again
    assert api.apply(model, plan, settings=settings).candidate.plan.sequence == plan.sequence


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
