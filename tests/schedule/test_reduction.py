"""The planner's numbers mean what the graph does: same bytes, and the way back loses nothing."""

from __future__ import annotations

from pathlib import Path
from random import Random

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import models
from onnxremat.cost.analytic import analytic_costs
from onnxremat.cost.table import CostTable
from onnxremat.graph.ir import Graph, Op, Role, Tensor
from onnxremat.graph.order import without_dead_ops
from onnxremat.graph.traits import is_alias
from onnxremat.graph.unforeseen import ZERO, unforeseen
from onnxremat.ort.infer import bind, build_graph
from onnxremat.planner import seconds
from onnxremat.planner.reduce import Reduced, reduce
from onnxremat.planner.semantics import occupancy
from onnxremat.schedule.expand import expand
from onnxremat.schedule.simulate import simulate
from tests.planner.oracle import random_sequence
from tests.toolbox import graph_of, random_dag, training_chain

OFTEN = settings(max_examples=150)
SEEDS = st.integers(0, 10**6)


def random_costs(graph: Graph, seed: int) -> CostTable:
    """Any cost and any scratch will do."""
    draw = Random(seed)
    return CostTable(
        {op.name: draw.random() for op in graph.ops},
        {op.name: draw.choice([0, 0, 100, 5000]) for op in graph.ops if not is_alias(op)},
        "random",
    )


def read_at_once(graph: Graph) -> Graph:
    """The graph with a free reader right after every value that nobody reads, as a pin is: such
    a value would stay to the end, and planners count on its pin."""
    ops, tensors = [], dict(graph.tensors)
    for op in graph.ops:
        ops.append(op)
        for name in op.writes:
            if name not in graph.readers and name not in graph.outputs:
                seen = f"seen {name}"
                node = onnx.helper.make_node("Size", [name], [seen])
                ops.append(Op(seen, "Size", "", (name,), (seen,), (), node))
                tensors[seen] = Tensor(seen, 7, (), 0, Role.ACTIVATION)
    return graph.with_ops(ops, tensors)


def assert_agrees(graph: Graph, costs: CostTable, reduced: Reduced, sequence: list[int]) -> None:
    """Per op that both know: same bytes; in all: same peak and seconds."""
    lifted = reduced.lift(sequence)
    assert reduced.project(lifted) == list(sequence)
    written = read_at_once(expand(graph, lifted))
    paper = simulate(written, scratch=costs.scratch)
    use = occupancy(reduced.problem, sequence)[0]
    contracted = {graph.ops[index].name for index in reduced.view}
    shown = [
        paper.weight_bytes + live + scratch
        for op, live, scratch in zip(written.ops, paper.live, paper.scratch, strict=True)
        if (op.origin or op.name) not in contracted and not op.name.startswith("seen ")
    ]
    assert shown == use.tolist()
    assert paper.peak == max(use)


@OFTEN
@given(SEEDS, SEEDS, st.booleans())
def test_random_graphs(dag: int, which: int, fixed_order: bool) -> None:
    graph = without_dead_ops(build_graph(random_dag(dag)))
    costs = random_costs(graph, which)
    reduced = reduce(graph, costs)
    assert_agrees(graph, costs, reduced, reduced.problem.store_all())
    sequence = random_sequence(reduced.problem, which, fixed_order=fixed_order)
    assert_agrees(graph, costs, reduced, without_second_outputs(reduced, sequence))


def without_second_outputs(reduced: Reduced, sequence: list[int]) -> list[int]:
    """The sequence without second runs of ops that make a graph output among other values: the
    second copy of the output takes memory in the graph and none in the problem."""
    writes, keep = reduced.problem.writes.lists(), reduced.problem.keep
    seen: set[int] = set()
    kept = []
    for op in sequence:
        if op not in seen or not any(keep[value] for value in writes[op]):
            kept.append(op)
        seen.add(op)
    return kept


MODELS = {
    "resnet18": {"size": 32, "width": 8},
    "bert": {"sequence": 16, "hidden": 32, "layers": 2, "heads": 4, "vocab": 50},
    "shufflenet": {"size": 64},
    "densenet121": {"size": 64, "growth": 8},
}


@pytest.mark.parametrize("name", MODELS)
def test_real_models(name: str) -> None:
    graph = without_dead_ops(build_graph(bind(models.build(name, **MODELS[name]))))
    costs = analytic_costs(graph)
    reduced = reduce(graph, costs)
    for seed in range(3):
        sequence = random_sequence(reduced.problem, seed, fixed_order=bool(seed % 2))
        assert_agrees(graph, costs, reduced, sequence)


@pytest.mark.shared
@pytest.mark.parametrize("name", ["gpt2_train", "convnext_train"])
def test_training_graphs(name: str, shared_models: Path) -> None:
    model = onnx.load(shared_models / f"{name}.onnx")
    graph = without_dead_ops(build_graph(bind(model)))
    costs = analytic_costs(graph)
    reduced = reduce(graph, costs)
    assert_agrees(graph, costs, reduced, reduced.problem.store_all())
    assert_agrees(graph, costs, reduced, random_sequence(reduced.problem, 1, fixed_order=True))


def test_seconds_of_views_go_to_the_value_they_show() -> None:
    graph = graph_of(
        """g (float[64] x) => (float[64] y) <int64[2] s = {8, 8}> {
        a = Sin(x)  b = Reshape(a, s)  c = Cos(b)  y = Flatten<axis = 0>(c) }""".replace(
            "float[64] y", "float[1, 64] y"
        )
    )
    costs = CostTable({op.name: 2.0**i for i, op in enumerate(graph.ops)}, {}, "hand")
    reduced = reduce(graph, costs)
    assert reduced.problem.ops == 3  # the Flatten is a graph output: a copy, no view
    assert reduced.problem.cost[0].tolist() == [1.0 + 2.0, 4.0, 8.0]
    assert seconds(reduced.problem, reduced.problem.store_all()) == costs.total


def shaped_as_it_runs(plain: Graph) -> Graph:
    """The graph with Reshapes for Flattens, to shapes that are computed."""
    ops, tensors = [], dict(plain.tensors)
    for op in plain.ops:
        if op.op_type == "Flatten" and op.outputs[0] not in plain.outputs:
            shape = tensors[op.outputs[0]].shape
            to = f"to {shape}"
            tensors[to] = Tensor(to, 7, (2,), 16, Role.WEIGHT)
            inputs = (op.inputs[0], to)
            node = onnx.helper.make_node("Reshape", list(inputs), list(op.outputs), op.name)
            op = Op(op.name, "Reshape", "", inputs, op.outputs, (), node)
        ops.append(op)
    return unforeseen(plain.with_ops(ops, tensors), {n for n in tensors if n.startswith("to ")})


def test_views_of_computed_shapes_share_what_they_show() -> None:
    plain = graph_of(
        """g (float[4, 16] x) => (float[4, 16] y) {
        a = Sin(x)  b = Flatten<axis = 0>(a)  c = Cos(b)  d = Mul(b, c)  e = Sin(a)
        f = Flatten<axis = 0>(e)  g = Mul(d, f)  h = Add(e, e)  i = Mul(g, f)  j = ReduceMax(i)
        y = Add(h, j) }"""
    )
    graph, costs = shaped_as_it_runs(plain), analytic_costs(plain)
    reduced, before = reduce(graph, costs, 0), reduce(plain, costs, 0)
    made = [graph.ops[i].outputs[0] for i in reduced.index]
    assert "b" not in made
    assert "f" not in made
    use, wanted = (occupancy(r.problem, r.problem.store_all())[0] for r in (reduced, before))
    assert use[-len(wanted) :].tolist() == wanted.tolist()  # as where the shapes are known
    name = {op.outputs[0]: op.name for op in graph.ops}
    lifted = reduced.lift(reduced.problem.store_all())
    assert lifted.index(name["b"]) + 1 == lifted.index(name["c"])
    apart = reduce(graph, costs, computed=False)
    assert {"b", "f"} < {graph.ops[i].outputs[0] for i in apart.index}


@OFTEN
@given(SEEDS, SEEDS, st.booleans())
def test_computed_shapes_of_random_graphs(dag: int, which: int, fixed_order: bool) -> None:
    """A sequence takes what the problem says, and at most the bytes of all shapes beside."""
    plain = without_dead_ops(build_graph(random_dag(dag)))
    graph = shaped_as_it_runs(plain)
    costs = random_costs(graph, which)
    reduced = reduce(graph, costs)
    shapes = sum(t.bytes for n, t in graph.tensors.items() if n.startswith(f"{ZERO}/"))
    sequence = random_sequence(reduced.problem, which, fixed_order=fixed_order)
    for each in (reduced.problem.store_all(), without_second_outputs(reduced, sequence)):
        paper = simulate(read_at_once(expand(graph, reduced.lift(each))), scratch=costs.scratch)
        assert 0 <= paper.peak - occupancy(reduced.problem, each)[0].max() <= shapes


def test_weights_are_what_is_told() -> None:
    graph = training_chain(2)
    costs = analytic_costs(graph)
    assert reduce(graph, costs).problem.fixed == graph.weight_bytes
    assert reduce(graph, costs, weight_bytes=123).problem.fixed == 123


def test_random_and_control_flow_ops_run_once() -> None:
    graph = graph_of(
        """g (float[8] x, bool c) => (float[8] y) {
        a = RandomNormalLike(x)  b = Dropout(x, r, t)
        d = If(c)<then_branch = t1 () => (p) { p = Identity(a) },
                  else_branch = e1 () => (q) { q = Identity(b) }>
        e = Sin(d)  y = Sum(a, b, e) }""".replace(
            "{\n        a = Random", "<float r = {0.5}, bool t = {1}> {\n        a = Random", 1
        )
    )
    reduced = reduce(graph, analytic_costs(graph))
    again = {graph.ops[i].op_type: bool(reduced.problem.recompute[s])
             for s, i in enumerate(reduced.index)}  # fmt: skip
    assert again == {
        "RandomNormalLike": False, "Dropout": False, "If": False, "Sin": True, "Sum": True,
    }  # fmt: skip
    assert reduced.problem.size[0].tolist() == [32, 32, 32, 32, 32]  # 8 floats each, exactly
