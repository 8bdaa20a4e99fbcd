"""What a model needs, judged against the simulator and the planner's own bounds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest

import models
from onnxremat.grad import differentiate
from onnxremat.graph.onnx_io import to_model
from onnxremat.ort.infer import build_graph
from onnxremat.pipeline.in_session import carried
from onnxremat.pipeline.phases import Phases
from onnxremat.pipeline.prepare import prepare
from onnxremat.pipeline.prepared import Prepared
from onnxremat.pipeline.settings import Settings
from onnxremat.planner import peak, solve
from onnxremat.planner.options import PlanOptions
from onnxremat.report import demand
from onnxremat.report.demand import Subject, Way
from onnxremat.report.explanation import Explanation, limit
from onnxremat.report.pages.composition import totals
from onnxremat.report.pages.holders import Holders
from onnxremat.schedule.plan import Plan
from onnxremat.schedule.simulate import Rules, simulate
from tests.fission.drawn import Drawn
from tests.toolbox import graph_of, parse, random_dag, training_chain


def prepared(model: onnx.ModelProto) -> Prepared:
    return prepare(model, Settings(measure=False, target="none"))


@pytest.fixture(scope="module")
def chain() -> Subject:
    """A training step in which recomputation pays."""
    return Subject(prepared(to_model(training_chain(4, 32, 256))))


def test_holders_are_what_is_held() -> None:
    """At every step of random graphs: as many bytes, and made before, and read from then on."""
    for seed in range(20):
        graph = build_graph(random_dag(seed))
        for rules in (Rules(), Rules(reuse=True)):
            line = simulate(graph, rules)
            holders = Holders.of(graph, line, rules)
            place = {op.name: step for step, op in enumerate(graph.ops)}
            for step in range(len(line.ops)):
                held = holders.at(step, len(graph.tensors))
                assert sum(one.bytes for one in held) == line.live[step]
                sizes = [one.bytes for one in held]
                assert sizes == sorted(sizes, reverse=True)
                for one in held:
                    maker = graph.ops[graph.producer[one.tensor]]
                    assert one.producer == maker.name
                    assert place[one.producer] <= step
                    assert all(place[reader] >= step for reader in one.readers)


def test_a_value_worked_in_place_is_the_one_in_memory() -> None:
    graph = graph_of("""g (float[64] x) => (float[64] c) {
        a = Sin(x)  b = Tanh(a)  c = Cos(b) }""")
    holders = Holders.of(graph, simulate(graph))
    assert [one.tensor for one in holders.at(0, 9)] == ["a"]
    assert [one.tensor for one in holders.at(1, 9)] == ["b"]  # Tanh works in the memory of a
    assert holders.at(1, 9)[0].readers == (graph.ops[2].name,)


def test_the_worst_moment_is_the_simulators(chain: Subject) -> None:
    worst, line = demand.worst_moment(chain), chain.default
    assert worst.bytes == int(totals(line).max()) == line.peak
    assert worst.bytes == worst.weights + worst.live + worst.scratch
    assert (worst.op, worst.before) == (line.ops[worst.step], line.ops[worst.step - 1])
    assert worst.holders[0].bytes == max(one.bytes for one in worst.holders)


def test_constants_that_are_computed_at_load_stay_in_memory() -> None:
    """The peak under default options is the measured one, whichever graph is planned."""
    model = parse("""g (float[512] x) => (float[512] y) {
        n = Constant <value_ints = [512, 512]> ()  z = ConstantOfShape (n)
        a = Sin(x)  b = Add(z, a)  c = Cos(b)  d = ReduceSum <keepdims = 0> (c)  y = Add(d, x) }""")
    ran = prepare(model, Settings(target="host"))
    for target in ("host", "portable", "none"):
        worst = demand.worst_moment(Subject(prepare(model, Settings(measure=False, target=target))))
        assert worst.bytes == ran.baseline_peak
        assert worst.kept == 512 * 512 * 4


def test_what_ways_keep_is_true_and_what_is_proven_holds(chain: Subject) -> None:
    found = {way.name: way for way in demand.ways(chain)}
    problem = chain.problem
    assert found["another order"].bytes == peak(problem, chain.order.order)
    recomputing = found["recomputing"]
    assert recomputing.bytes < found["another order"].bytes
    assert recomputing.overhead > 0
    within = solve(problem, recomputing.bytes, PlanOptions(work=100, threads=1))
    assert within.schedule is not None
    below = solve(problem, recomputing.lower - 1, PlanOptions(work=100, threads=1))
    assert below.schedule is None
    assert all(way.lower <= way.bytes for way in found.values())
    assert "batch in 2 parts" not in found  # its gradients are sums over the rows


def test_the_search_finds_no_more_than_rules_of_a_moment(chain: Subject) -> None:
    rules = demand.recomputing(chain)
    search = demand.recomputing(Subject(chain.prepared, 0.5))
    assert search.lower <= search.bytes <= rules.bytes


def test_a_batch_goes_in_parts_where_every_result_has_its_rows() -> None:
    text = "g (float[8, 64] x) => (float[{result}] y) {{ a = Sin(x) {more} y = {last} }}"
    more = "b = Cos(x) c = Tan(x) d = Add(a, b)"
    rows = Subject(prepared(parse(text.format(result="8, 64", more=more, last="Add(c, d)"))))
    few = Subject(prepared(parse(text.format(result="8, 64", more="", last="Add(a, x)"))))
    whole = Subject(
        prepared(parse(text.format(result="", more="", last="ReduceSum <keepdims = 0> (a)")))
    )
    assert demand.rows(rows) == 8
    assert demand.rows(whole) == 0
    found = {way.name: way for way in demand.ways(rows)}
    assert {"batch in 2 parts", "batch in 8 parts"} <= found.keys()
    joined = found["batch in 8 parts"]
    assert joined.bytes == joined.lower == 2 * 8 * 64 * 4  # the result beside its parts
    assert not any(way.name.startswith("batch") for way in demand.ways(few))  # it gains nothing


def test_budgets_are_judged(chain: Subject) -> None:
    worst, found = demand.worst_moment(chain).bytes, demand.ways(chain)
    order, again = found[1].bytes, found[2].bytes

    def keeps(budget: int) -> bool | None:
        return demand.judge(chain, worst, found, budget, share=True).keeps

    assert keeps(worst)
    assert keeps(order)
    assert keeps(again)
    assert keeps(chain.need.bytes - 1) is None
    assert "in parts" in demand.judge(chain, worst, found, chain.need.bytes - 1).words
    assert keeps(chain.floor) is not False
    assert keeps(chain.floor - 1) is False
    found_by_search = replace(found[2], bytes=again - 64, overhead=9.0)
    searched = [*found[:2], found_by_search]
    assert demand.judge(chain, worst, searched, again - 64, share=True).keeps
    if again > chain.need.bytes:
        assert keeps(chain.need.bytes) is None


def test_only_a_budget_below_the_results_is_refused() -> None:
    """Ops, and the batch, may be computed in parts."""
    subject = Subject(
        prepared(
            parse("""g (float[8, 64] x) => (float[] y) {
        a = Sin(x) b = Cos(x) c = Mul(a, b) y = ReduceSum <keepdims = 0> (c) }""")
        )
    )
    worst, found = demand.worst_moment(subject).bytes, demand.ways(subject)
    assert subject.floor < subject.need.bytes
    between = demand.judge(subject, worst, found, subject.need.bytes - 1)
    assert between.keeps is None
    assert "parts" in between.words
    assert demand.judge(subject, worst, found, subject.floor - 1).keeps is False
    apart = demand.judge(subject, worst, found, 1, in_parts=subject.floor)  # less beside them
    assert apart.keeps is None


def test_a_training_step_of_ours_is_refused_below_what_its_ops_need() -> None:
    """Its ops are not computed in parts."""
    net = parse("g (float[16, 8] x) => (float[16, 4] y) { y = MatMul(x, w) }")
    weight = np.ones((8, 4), np.float32)
    net.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    subject = Subject(prepared(differentiate(net)))
    worst, found = demand.worst_moment(subject).bytes, demand.ways(subject)
    assert demand.judge(subject, worst, found, subject.need.bytes - 1).keeps is False


def test_a_model_without_ops_and_one_that_is_all_weights() -> None:
    subject = Subject(prepared(parse("g (float[4] x) => (float[4] y) { y = Identity(x) }")))
    assert demand.worst_moment(subject).steps == 1
    assert all(way.bytes >= way.lower for way in demand.ways(subject))


def test_regions_in_parts_are_a_way() -> None:
    """Two products with a wide value between them: rows of it are enough."""
    g = Drawn(0)
    g.shapes["x"] = (64, 8)
    y = g.op("Sin", [g.op("MatMul", ["x", g.weight(8, 128)], (64, 128))], (64, 128))
    subject = Subject(prepared(g.model("x", [g.op("MatMul", [y, g.weight(128, 8)], (64, 8))])))
    (way,) = [way for way in demand.ways(subject) if way.name == "regions in parts"]
    whole, wide = subject.prepared.store_all_peak, 64 * 128 * 4
    assert way.bytes < whole - wide
    assert way.bytes >= way.lower == subject.floor
    assert "parts along axis 0" in way.note


def test_a_way_that_takes_more_for_its_nodes_is_asked_for_by_a_share(chain: Subject) -> None:
    """In bytes of the process no budget tells it from the ways before it."""
    made = Explanation.of(chain.prepared, "in.onnx")
    peak = made.worst.bytes
    ways = [Way("another order", peak // 2, "found", 0, ""),
            Way("recomputing", peak // 4, "found", 0, "", nodes=1 << 20)]  # fmt: skip
    said = [command for command, _ in replace(made, ways=ways).commands()]
    assert f"--budget {limit(made.process(ways[0]))}" in said[0]
    assert "--budget 0.25" in said[1]
    assert said[1].split()[-1].endswith("x")


def test_a_budget_in_bytes_counts_the_nodes_of_recomputations(chain: Subject) -> None:
    """The same bytes for weights and values: a share is kept, bytes of the process are not."""
    ways = [Way("recomputing", chain.need.bytes, "found", 0, "", overhead=0.1, nodes=1 << 20)]
    budget, worst = chain.need.bytes, 1 << 40
    assert demand.judge(chain, worst, ways, budget, share=True).keeps
    assert not demand.judge(chain, worst, ways, budget).keeps
    room = chain.prepared.bytes_of_nodes(1 << 20) + demand.PINS
    assert demand.judge(chain, worst, ways, budget + room).keeps


def test_budgets_without_recomputing_count_what_makes_an_order_onnxruntimes_own() -> None:
    """Pins, gates, nodes that find shapes as they run: what is made keeps such a budget."""
    step = differentiate(models.build("lenet", batch=2), optimizer="sgd")
    made = Explanation.of(Subject(prepare(step, Settings(measure=False))).prepared, "in.onnx")
    subject = made.subject
    orders = {
        "planned, same order": range(subject.problem.ops),
        "another order": subject.order.order,
    }
    for way in made.ways:
        if way.name in orders:
            names = subject.prepared.reduced.lift([int(op) for op in orders[way.name]])
            plan = Plan.of(subject.prepared.graph, names)
            session = carried(subject.prepared, plan, Phases())
            assert len(session.graph.ops) > len(names)
            taken = session.timeline.peak + session.beside
            assert taken <= made.process(way) <= 1.01 * taken
