"""Every byte of the timeline has one kind."""

from __future__ import annotations

import numpy as np

import models
from onnxremat.grad import differentiate
from onnxremat.ort.infer import build_graph
from onnxremat.report.pages.composition import Kind, compose, largest, recomputed_tensors, totals
from onnxremat.schedule.simulate import simulate
from tests.report.conftest import LAYERS, Case
from tests.toolbox import graph_of, random_dag


def test_kinds_add_up_to_the_timeline(case: Case) -> None:
    parts = compose(case.rewritten.graph, case.predicted)
    assert np.array_equal(sum(parts.values()), totals(case.predicted))
    assert int(totals(case.predicted).max()) == case.predicted.peak
    assert (parts[Kind.WEIGHTS] == case.predicted.weight_bytes).all()


def test_kinds_add_up_on_random_graphs() -> None:
    for seed in range(20):
        graph = build_graph(random_dag(seed))
        scratch = {op.name: 512 * (seed % 3) for op in graph.ops}
        timeline = simulate(graph, scratch=scratch)
        parts = compose(graph, timeline)
        assert np.array_equal(sum(parts.values()), totals(timeline))
        assert parts[Kind.SCRATCH].tolist() == list(timeline.scratch)
        assert not parts[Kind.RECOMPUTED].any()


def test_recomputed_values_are_told_apart(case: Case) -> None:
    graph = case.rewritten.graph
    again = recomputed_tensors(graph)
    assert again == {"p1__r1", "h1__r1", "p3__r1", "h3__r1"}
    parts = compose(graph, case.predicted)
    spans = [(first, last) for name, first, last, _ in case.predicted.buffers if name in again]
    assert len(spans) == 2  # Tanh works in place
    for step, size in enumerate(parts[Kind.RECOMPUTED]):
        assert (size > 0) == any(first <= step <= last for first, last in spans)


def test_outputs_stay_to_the_end(case: Case) -> None:
    outputs = compose(case.rewritten.graph, case.predicted)[Kind.OUTPUTS]
    assert (np.diff(outputs) >= 0).all()
    assert outputs[-1] == LAYERS * 32 * 32 * 4


def test_largest_buffers_first() -> None:
    graph = graph_of("""g (float[64] x, float[256] y) => (float[64] c, float[256] d) {
        a = Sin(x)  b = Cos(y)  c = Neg(a)  d = Neg(b) }""")
    timeline = simulate(graph)
    held = largest(graph, timeline, timeline.peak_step, 2)
    assert [h.bytes for h in held] == [1024, 1024]
    assert {h.tensor for h in held} == {"b", "d"}
    assert {h.kind for h in held} == {Kind.PASSING, Kind.OUTPUTS}
    assert held[0].shape == (256,)


def test_gradients_are_what_the_backward_pass_makes() -> None:
    graph = build_graph(differentiate(models.build("mlp", batch=2, width=16)))
    timeline = simulate(graph)
    gradients = compose(graph, timeline)[Kind.GRADIENTS]
    begin = next(k for k, name in enumerate(timeline.ops) if name.startswith("grad/"))
    assert not gradients[:begin].any()
    assert gradients[begin:].any()
    forward = graph_of("g (float[2] x) => (float[2] y) { a = Sin(x) y = Cos(a) }")
    assert not compose(forward, simulate(forward))[Kind.GRADIENTS].any()
