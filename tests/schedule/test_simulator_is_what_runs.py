"""The simulator's bytes are the runtime's bytes: on random graphs, on plans, on real models."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import models
from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import to_model
from onnxremat.graph.order import without_dead_ops
from onnxremat.ort.feeds import seeded_feeds
from onnxremat.ort.infer import bind, build_graph
from onnxremat.ort.offline import optimise
from onnxremat.ort.profile import Profile, profile
from onnxremat.ort.session import Options
from onnxremat.rewrite.emit import rewrite
from onnxremat.rewrite.pins import is_added
from onnxremat.schedule.plan import Plan
from onnxremat.schedule.simulate import Rules, Timeline, simulate
from onnxremat.session.measure import Running, measure, predict
from tests.toolbox import ONE, PLAIN, graph_of, names, random_dag, random_sequence, run

OFTEN = settings(max_examples=40)
SEEDS = st.integers(0, 10**6)


def assert_same_bytes(paper: Timeline, found: Profile) -> None:
    """Executed order as on paper, and the same live bytes while each kernel runs, exactly."""
    assert names(found) == list(paper.ops)
    assert [kernel.live for kernel in found.kernels] == list(paper.live)


@OFTEN
@given(SEEDS, SEEDS, st.sampled_from([ONE, PLAIN]))
def test_plans_run_as_written(dag: int, which: int, options: Options) -> None:
    graph = build_graph(random_dag(dag))
    sequence = random_sequence(graph, Random(which))
    made = rewrite(graph, Plan.of(graph, sequence))
    found = run(made.graph, options)
    planned = [op.name for op in made.graph.ops if not is_added(op.name)]
    assert [op.origin or op.name for op in made.graph.ops if not is_added(op.name)] == sequence
    assert [name for name in names(found) if not is_added(name)] == planned
    assert_same_bytes(predict(made.graph, options), found)
    wanted = run(graph, PLAIN).outputs
    assert list(found.outputs) == list(wanted)
    for name, value in wanted.items():
        assert found.outputs[name].tobytes() == value.tobytes()


@OFTEN
@given(SEEDS, SEEDS)
def test_plans_survive_fusion_under_default_options(dag: int, which: int) -> None:
    graph = build_graph(random_dag(dag))
    made = rewrite(graph, Plan.of(graph, random_sequence(graph, Random(which))))
    found = run(made.graph, Options(threads=1))
    planned = [op.name for op in made.graph.ops if not is_added(op.name)]
    assert [name for name in names(found) if not is_added(name)] == planned
    for name, value in run(graph, PLAIN).outputs.items():
        assert found.outputs[name].tobytes() == value.tobytes()


@OFTEN
@given(SEEDS)
def test_listed_order_and_depth_first_order(dag: int) -> None:
    graph = build_graph(random_dag(dag, 20))
    for options in (ONE, PLAIN):
        assert_same_bytes(predict(graph, options), run(graph, options))


# Real models, as onnxruntime would fuse them for the target: predicted peak within 2 %.

SMALL = {
    "mlp": {"width": 256, "features": 64, "batch": 64},
    "resnet18": {"size": 64, "width": 16, "batch": 2},
    "mobilenetv2": {"size": 64},
    "unet": {"size": 64, "width": 8},
    "squeezenet": {"size": 64, "batch": 2},
    "bert": {"sequence": 32, "hidden": 64, "layers": 2, "heads": 4, "vocab": 200, "batch": 2},
    "light_shufflenet": {},
    "light_squeezenet": {},
}
LIMIT = 0.02


def _prepared(model: onnx.ModelProto, target: str) -> Graph:
    graph = without_dead_ops(build_graph(bind(model), None))
    return without_dead_ops(build_graph(optimise(to_model(graph), target, None), None))


def _error(graph: Graph, options: Options) -> float:
    """Predicted over measured live peak, minus one; scratch is taken from another run."""
    feeds = seeded_feeds(graph)
    scratch = {k.name: k.scratch for k in profile(to_model(graph), feeds, options).kernels}
    found = measure(Running(graph, scratch), to_model(graph), feeds, options)
    assert names(found.profile) == list(found.predicted.ops)
    return found.predicted.live_peak / found.profile.live_peak - 1


@pytest.mark.parametrize("target", ["portable", "host"])
@pytest.mark.parametrize("name", SMALL)
def test_real_models_tuned(name: str, target: str) -> None:
    graph = _prepared(models.build(name, **SMALL[name]), target)
    assert abs(_error(graph, ONE)) < LIMIT


@pytest.mark.parametrize("name", SMALL)
def test_real_models_with_default_order_and_reuse(name: str) -> None:
    graph = _prepared(models.build(name, **SMALL[name]), "portable")
    assert abs(_error(graph, PLAIN)) < LIMIT


@pytest.mark.shared
@pytest.mark.parametrize(
    "name", ["bert_train", pytest.param("mobilenetv2_train", marks=pytest.mark.slow)]
)
def test_training_graphs_tuned(name: str, shared_models: Path) -> None:
    graph = _prepared(onnx.load(shared_models / f"{name}.onnx"), "portable")
    assert abs(_error(graph, ONE)) < LIMIT


# The rules, by hand


def test_simulator_counts_by_the_rules() -> None:
    graph = graph_of(
        """g (float[64] x) => (float[64] y) <int64[2] s = {8, 8}> {
        a = Sin(x)  b = Reshape(a, s)  c = Relu(b)  d = Exp(c)  e = Flatten<axis = 0>(d)
        f = Add(e, e)  g = Reshape(f, t)  y = Sin(g) }""".replace(
            "<int64[2] s = {8, 8}>", "<int64[2] s = {8, 8}, int64[1] t = {64}>"
        )
    )
    paper = simulate(graph)
    # a, its view and Relu in place: one buffer; d and its view: one; f and its view; y.
    assert [size for *_, size in paper.buffers] == [256] * 4
    assert paper.live == (256, 256, 256, 512, 256, 512, 256, 512)
    assert paper.weight_bytes == 24
    assert paper.peak == 512 + 24
    assert paper.live[paper.peak_step] == 512


def test_scratch_and_seconds_of_a_recomputation_are_its_origins() -> None:
    graph = graph_of("g (float[64] x) => (float[64] y) { a = Sin(x) b = Cos(a) y = Add(a, b) }")
    first, second, third = (op.name for op in graph.ops)
    made = rewrite(graph, Plan.of(graph, [first, second, first, third]))
    paper = simulate(made.graph, scratch={first: 1000}, seconds={first: 2.0, second: 1.0})
    again = paper.ops.index(f"{first}__r1")
    assert paper.scratch[again] == 1000
    assert paper.total_seconds == 5.0
    assert paper.live_peak == max(np.add(paper.live, paper.scratch))


def test_an_empty_graph_has_no_peak() -> None:
    graph = graph_of("g (float[64] x) => (float[64] y) { y = Sin(x) }").with_ops([])
    assert simulate(graph).peak == 0
    assert simulate(graph, Rules(reuse=True)).peak_step == 0
