"""Sizes that depend on data are those of one run: plans go by them, onnxruntime is not told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnx import numpy_helper

import onnxremat
from onnxremat.cost.analytic import analytic_costs
from onnxremat.fission.region import Region
from onnxremat.ort.feeds import seeded_feeds
from onnxremat.pipeline.in_parts.in_regions import in_regions
from onnxremat.pipeline.original.sizes import size_notes
from onnxremat.pipeline.prepare import prepare
from onnxremat.pipeline.verify import verify
from onnxremat.session.process import PARTS
from tests.toolbox import parse

# What is not 0 is counted by its shape; is taken apart in a sequence; is so much that regions of
# it are worth computing in parts.
COUNTED = """g (float[8, 4] x) => (float[4] y) {
    r = Relu(x) n = NonZero(r) s = Shape(n) f = Cast<to: int = 1>(s)
    k = ReduceSum<keepdims: int = 0>(f) e = ReduceSum<keepdims: int = 0>(x, axis) a = Sin(e)
    y = Mul(a, k) }"""
APART = """g (float[8, 4] x) => (float[4] y) {
    r = Relu(x) n = NonZero(r) q = SplitToSequence<axis: int = 0, keepdims: int = 0>(n, ones)
    a = SequenceAt(q, zero) b = SequenceAt(q, one) d = Add(a, b) w = Cast<to: int = 1>(d)
    c = Sin(w) h = Cos(c) v = ReduceSum<keepdims: int = 0>(h)
    e = ReduceSum<keepdims: int = 0>(x, axis)
    y = Mul(e, v) }"""
GATHERED = """g (float[64, 32] x) => (float[32] y) {
    r = Relu(x) n = NonZero(r) q = Gather<axis: int = 0>(n, zero) f = Gather(x, q) a = Sin(f)
    b = Cos(f) c = Add(a, b) d = Tanh(c) h = Mul(d, a) s = Softmax<axis: int = -1>(h) i = Add(s, b)
    y = ReduceMax<keepdims: int = 0>(i, axis) }"""
CONSTANTS = {"axis": [0], "ones": [1, 1], "zero": 0, "one": 1}


@pytest.mark.parametrize(
    ("text", "budget", "target"),
    [
        (COUNTED, "1.2x", "auto"),
        (COUNTED, "1.2x", "none"),
        (APART, "1.2x", "portable"),
        (GATHERED, "min", "host"),
    ],
)
def test_other_data_is_computed_as_well(
    text: str, budget: str, target: str, tmp_path: Path
) -> None:
    model = parse(text)
    model.graph.initializer.extend(
        numpy_helper.from_array(np.array(value), name) for name, value in CONSTANTS.items()
    )
    settings = onnxremat.Settings(target=target, threads=1, not_counted=PARTS)
    options = onnxremat.PlanOptions(work=100, threads=1)
    result = onnxremat.optimize(
        model, budget=budget, settings=settings, options=options, bench_seconds=0
    )
    assert any("depend on data" in note for note in result.plan.provenance.notes)
    path = tmp_path / "out.onnx"
    result.save(path)
    assert verify(model, path, budget=str(1 << 30)).ok
    quiet = ort.SessionOptions()
    quiet.log_severity_level = 4
    plain = ort.InferenceSession(model.SerializeToString(), quiet)
    (given,) = model.graph.input
    shape = [each.dim_value for each in given.type.tensor_type.shape.dim]
    for session in (onnxremat.load(path), ort.InferenceSession(str(path), quiet)):
        for more in (-1.0, 0.5, 3.0):  # so that other numbers of them are positive
            drawn = np.random.default_rng(5).standard_normal(shape) + more
            drawn[:, ::2] += np.linspace(0, 3, len(drawn))[:, None]
            x = drawn.astype(np.float32)
            (mine,), (theirs,) = session.run(None, {"x": x}), plain.run(None, {"x": x})
            assert np.allclose(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("turned", ["<perm: ints = [1, 0]>", ""])
@pytest.mark.parametrize("axis", [0, 1, -2, -1])
def test_a_count_that_the_file_has_as_a_number_is_said(
    axis: int, turned: str, tmp_path: Path
) -> None:
    """A loop over what is found, written out: other data ends a run. The coordinates of what is
    found are as many as the tensor has axes, whatever the data."""
    model = parse(
        f"""g (float[2, 2] x) => (float[2] y) {{
        v = Greater(x, half) n = NonZero(v) t = Transpose{turned}(n)
        a, b = Split<axis: int = {axis}>(t, ones) h = ReduceSum<keepdims: int = 0>(a)
        i = Cast<to: int = 1>(h) e = ReduceMean<keepdims: int = 0>(x, rows) y = Mul(i, e) }}"""
    )
    constants = {"ones": [1, 1], "rows": [0], "half": np.float32(0.5)}
    model.graph.initializer.extend(
        numpy_helper.from_array(np.array(value), name) for name, value in constants.items()
    )
    data = tmp_path / "data.npz"
    np.savez(data, x=np.array([[1, 0], [0, 1]], np.float32))
    settings = onnxremat.Settings(threads=1, not_counted=PARTS, target="none", data=data)
    said = [note for note in prepare(model, settings).notes if "has to find 2" in note]
    assert len(said) == (axis in (0, -2))


def test_sizes_of_a_run_are_known_with_regions_in_parts() -> None:
    """They counted nothing there, and were said to be no tensors."""
    graph = prepare(
        parse("""g (float[64, 32] x) => (float[64, 32] c, int64[2, k] n) {
            r = Relu(x) n = NonZero(r) a = Sin(x) b = Cos(a) c = Tanh(b) }"""),
        onnxremat.Settings(target="none", threads=1, costs=analytic_costs),
    ).graph
    region = Region(("Sin_2", "Cos_3"), {"b": 0}, (32, 32), {"b": 1})
    made = in_regions(graph, [region], seeded_feeds(graph), None)
    assert len(made.ops) > len(graph.ops)
    assert made.tensors["n"] == graph.tensors["n"]
    assert made.tensors["n"].bytes > 0
    assert not any("no tensors" in note for note in size_notes(made, ran=True))
