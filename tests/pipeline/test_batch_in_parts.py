"""The batch of an inference computed in parts: same results, less memory, refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from onnxremat import api
from onnxremat.cost.analytic import analytic_costs
from onnxremat.cost.table import CostTable
from onnxremat.errors import (
    InfeasibleError,
    NoPlanError,
    OverBudgetError,
    UnsupportedError,
    UsageError,
)
from onnxremat.grad import Settings as Training
from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import to_model
from onnxremat.ort.feeds import seeded_feeds
from onnxremat.ort.infer import build_graph
from onnxremat.ort.profile import run_session
from onnxremat.ort.session import TUNED, Options, open_session, session_options
from onnxremat.pipeline.devices.device_ways import shares
from onnxremat.pipeline.in_parts import batch_split
from onnxremat.pipeline.in_parts.batch_slices import in_parts
from onnxremat.pipeline.in_parts.batch_split import plan_best
from onnxremat.pipeline.in_parts.divided import prepare_split
from onnxremat.pipeline.in_parts.step_ways import StepInParts
from onnxremat.pipeline.limits import limit_of
from onnxremat.pipeline.phases import Phases
from onnxremat.pipeline.prepare import prepare
from onnxremat.pipeline.prepared import Prepared
from onnxremat.pipeline.settings import Settings
from onnxremat.planner.options import PlanOptions
from onnxremat.planner.search import warm_up
from onnxremat.rewrite.split_batch import rows_of_parts, split_batch
from onnxremat.session.process import PARTS
from onnxremat.units import parse_budget
from tests.devices.plans import BESIDE, optimized, processors
from tests.limits import LONG
from tests.toolbox import ONE, graph_of, parse, wide_chain

# The batch is in two shapes, in a tensor made of nothing, and in the body of an If.
SHAPED = """g (float[6, 4] x, bool c) => (float[6, 4] y, float[6, 2] z) {
    w = Constant<value_ints: ints = [12, 2]>()
    a = Reshape(x, w)
    b = Sin(a)
    s = Constant<value_ints: ints = [6, 1]>()
    made = ConstantOfShape<value: tensor = float[1] {1.5}>(s)
    t = Constant<value_ints: ints = [6, 4]>()
    d = Reshape(b, t)
    e = Add(d, made)
    y = If(c) <
        then_branch = yes () => (float[6, 4] p) { p = Cos(e) },
        else_branch = no () => (float[6, 4] q) { q = Neg(e) }
    >
    from = Constant<value_ints: ints = [0]>()
    to = Constant<value_ints: ints = [2]>()
    along = Constant<value_ints: ints = [1]>()
    z = Slice(y, from, to, along)
}"""
MEAN = """g (float[4, 4] x) => (float[4, 4] y) {
    m = ReduceMean<axes: ints = [0], keepdims: int = 1>(x)
    y = Sub(x, m)
}"""

# Budgets of weights and values alone; no regions in parts, only the batch.
PLANNED = Settings(threads=1, not_counted=PARTS, fission=())


def outputs(graph: Graph, seed: int = 0) -> list[np.ndarray]:
    session = open_session(to_model(graph), session_options(ONE), None)
    return run_session(session, seeded_feeds(graph, seed))


@pytest.mark.parametrize("split", [(2,), (6,), (5, 1), (1, 2, 3)])
def test_parts_give_what_the_whole_does(split: tuple[int, ...]) -> None:
    graph = graph_of(SHAPED)
    made = build_graph(split_batch(graph, split))
    for seed in range(3):
        for found, wanted in zip(outputs(made, seed), outputs(graph, seed), strict=True):
            np.testing.assert_array_equal(found, wanted)


# What a body makes has the rows of a part, not those that the file states; of what a Loop gives
# onnxruntime knows no sizes that would tell it so.
STATED = """g (float[6, 4] x, float[6, 4] w, bool c) => (float[6, 4] y)
    <int64 n = {1}, bool on = {1}> {
    e = Loop(n, on, x) <body = once (int64 i, bool go, float[6, 4] v) => (bool g, float[6, 4] o) {
        g = Identity(go) o = Sin(v)
    }>
    d = If(c) <
        then_branch = yes () => (float[6, 4] p) <float[6, 4] m> { m = Cos(e) p = Mul(m, e) },
        else_branch = no () => (float[6, 4] q) { q = Mul(e, e) }
    >
    a = Add(d, w)
    t = Constant<value_ints: ints = [6, 4]>()
    y = Reshape(a, t)
}"""


def test_bodies_state_no_sizes_of_the_whole_batch() -> None:
    graph = graph_of(STATED)
    made = build_graph(split_batch(graph, (2,)))
    for options in (ONE, Options(threads=1), TUNED):
        session = open_session(to_model(made), session_options(options), None)
        found = run_session(session, seeded_feeds(made))
        np.testing.assert_array_equal(found[0], outputs(graph)[0])


IF = """
    y = If(c) <
        then_branch = yes () => (float[6, 4] p) { p = Sin(x) },
        else_branch = no () => (float[6, 4] q) { q = Cos(x) }
    >
}"""
NESTED = """g (float[6, 4] x) => (float[6, 4] y) <int64 n = {2}, bool on = {1}, float z = {-1000}> {
    y = Loop(n, on, x) <body = again (int64 i, bool go, float[6, 4] v) => (bool g, float[6, 4] o) {
        g = Identity(go)
        s = ReduceSum<keepdims: int = 0>(v) c = Greater(s, z)
        o = If(c) <
            then_branch = yes () => (float[6, 4] p) { p = Sin(v) },
            else_branch = no () => (float[6, 4] q) { q = Cos(v) }
        >
    }>
}"""
WHILE = """g (float[6, 4] x) => (float[6, 4] y) <int64 n = {3}, bool on = {1}, float z = {-1000}> {
    y = Loop(n, on, x) <body = again (int64 i, bool go, float[6, 4] v) => (bool g, float[6, 4] o) {
        s = ReduceSum<keepdims: int = 0>(v) g = Greater(s, z) o = Sin(v)
    }>
}"""
TRIPS = """g (float[6, 4] x) => (float[6, 4] y) <bool on = {1}, float z = {-1000}, int64 t = {2}> {
    s = ReduceSum<keepdims: int = 0>(x) b = Greater(s, z) k = Cast<to: int = 7>(b) n = Mul(k, t)
    y = Loop(n, on, x) <body = again (int64 i, bool go, float[6, 4] v) => (bool g, float[6, 4] o) {
        g = Identity(go) o = Sin(v)
    }>
}"""
ALL = "s = ReduceSum<keepdims: int = 0>(x) c = Greater(s, z)"


@pytest.mark.parametrize(
    "text",
    [
        "g (float[6, 4] x) => (float[6, 4] y) <float z = {-1000}> { " + ALL + IF,
        NESTED, WHILE, TRIPS,
    ],
)  # fmt: skip
def test_what_runs_may_depend_on_all_rows(text: str) -> None:
    """On the rows that it is tried with each part runs what the whole does."""
    with pytest.raises(UnsupportedError, match="depends on all rows"):
        in_parts(graph_of(text), (2,), seeded_feeds(graph_of(text)), None)


def test_a_loop_that_counts_goes_in_parts() -> None:
    text = TRIPS.replace("b = Greater(s, z)", "b = Greater(z, z)").replace("Mul(k, t)", "Add(k, t)")
    shaped = "w = Constant<value_ints: ints = [6, 4]>() y = Reshape(l, w) }"
    text = text.replace("y = Loop", "l = Loop").removesuffix("}") + shaped
    graph = graph_of(text)
    made = in_parts(graph, (2,), seeded_feeds(graph), None)
    np.testing.assert_array_equal(outputs(made, 1)[0], outputs(graph, 1)[0])


def test_a_batch_in_parts_goes_in_parts_again() -> None:
    whole = graph_of("g (float[8, 4] x) => (float[8, 4] y) { a = Sin(x) y = Cos(a) }")
    made = split_batch(build_graph(split_batch(whole, (2,))), (4,))
    names = [tensor.name for tensor in made.graph.initializer]
    assert len(names) == len(set(names))
    np.testing.assert_array_equal(outputs(build_graph(made))[0], outputs(whole)[0])


def test_a_constant_that_is_repeated_for_the_batch() -> None:
    """A class token, expanded to the batch and folded into a constant."""
    graph = graph_of("""g (float[2, 1, 3] x) => (float[2, 2, 3] y)
        <float[2, 1, 3] token = {1, 2, 3, 1, 2, 3}> {
        y = Concat<axis: int = 1>(token, x)
    }""")
    made = build_graph(split_batch(graph, (2,)))
    np.testing.assert_array_equal(outputs(made)[0], outputs(graph)[0])


@pytest.mark.parametrize(
    "body",
    [
        # A mask that is made of no input, and used by every row.
        """g (float[4, 1, 3] x) => (float[4, 2, 3] y) <int64[3] s = {4, 2, 3}, float[4, 1, 1] r> {
            from = Constant<value_float: float = 0.0>()
            to = Constant<value_float: float = 4.0>()
            step = Constant<value_float: float = 1.0>()
            n = Range(from, to, step)
            t = Constant<value_ints: ints = [4, 1, 1]>()
            r = Reshape(n, t)
            mask = Expand(r, s)
            y = Add(x, mask)
        }""",
        # As many channels as rows: what is made for them has nothing to do with the batch.
        """g (float[4, 2, 3, 3] x) => (float[4, 4, 3, 3] y)
            <int64[1] four = {4}, float[4, 2, 1, 1] w = {1, 2, 3, 4, 5, 6, 7, 8}> {
            b = ConstantOfShape(four)
            y = Conv(x, w, b)
        }""",
        # As many rows as the weights of a layer have: only the mask has those of the batch.
        """g (float[3, 3] x) => (float[3, 2] y)
            <float[3, 2] w = {1, 2, 3, 4, 5, 6}, float[3, 3] mask = {1, 0, 0, 1, 1, 0, 1, 1, 1}> {
            m = Mul(x, mask)
            y = MatMul(m, w)
        }""",
    ],
    ids=["mask", "as-many-channels", "as-many-weights"],
)
def test_what_only_looks_like_a_batch_and_what_is_one(body: str) -> None:
    graph = graph_of(body)
    made = in_parts(graph, (2,), seeded_feeds(graph), None)
    np.testing.assert_array_equal(outputs(made)[0], outputs(graph)[0])


def test_the_state_that_a_recurrence_begins_with() -> None:
    """[directions, batch, hidden], folded into a constant."""
    graph = graph_of("""g (float[4, 3, 2] x) => (float[4, 3, 2] y)
        <float[1, 2, 2] w = {1, 2, 3, 4}, float[1, 2, 2] r = {1, 0, 0, 1},
         float[1, 4, 2] h = {1, 2, 1, 2, 1, 2, 1, 2}, int64[1] axis = {1}> {
        t = Transpose<perm = [1, 0, 2]>(x)
        o, last = RNN<hidden_size = 2>(t, w, r, , , h)
        f = Squeeze(o, axis)
        y = Transpose<perm = [1, 0, 2]>(f)
    }""")
    made = in_parts(graph, (2,), seeded_feeds(graph), None)
    np.testing.assert_array_equal(outputs(made)[0], outputs(graph)[0])


def test_parts_of_old_opsets() -> None:
    graph = graph_of("g (float[4, 3] x) => (float[4, 3] y) { y = Relu(x) }", opset=9, ir=4)
    made = build_graph(split_batch(graph, (3, 1)))
    np.testing.assert_array_equal(outputs(made)[0], outputs(graph)[0])


def test_rows_of_parts() -> None:
    assert rows_of_parts(7, (3,)) == (3, 2, 2)
    assert rows_of_parts(7, (5, 2)) == (5, 2)
    for wrong in ((8,), (5, 1), (7, 0), (0,)):
        with pytest.raises(UsageError):
            rows_of_parts(7, wrong)


def test_more_parts_than_a_graph_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number of a few digits makes millions of nodes."""
    graph = build_graph(wide_chain(4))
    count = len(graph.ops)
    monkeypatch.setattr("onnxremat.rewrite.split_batch.NODES", 4 * count)
    with pytest.raises(UsageError, match="too many nodes with the batch in 5 parts") as told:
        split_batch(graph, (5,))
    assert told.value.hint == "fewer parts"
    assert split_batch(graph, (3,)).graph.node


def test_rows_that_depend_on_each_other_are_refused() -> None:
    graph = graph_of(MEAN, opset=13)
    with pytest.raises(UnsupportedError, match="depend on each other"):
        in_parts(graph, (2,), seeded_feeds(graph), None)


def test_outputs_without_a_batch_are_refused() -> None:
    graph = graph_of("g (float[4, 3] x) => (float[3, 4] y) { y = Transpose(x) }")
    with pytest.raises(UnsupportedError, match="leading dimension"):
        split_batch(graph, (2,))


def test_a_training_step_is_refused() -> None:
    model = parse("""g (float[4, 3] x) => (float[4, 2] y)
        <float[3, 2] w = {1, 2, 3, 4, 5, 6}> { y = MatMul(x, w) }""")
    with pytest.raises(UsageError, match="training step"):
        prepare(model, Settings(threads=1, train=Training(), split_batch=(2,)))


def test_without_a_run_nothing_is_split() -> None:
    with pytest.raises(UsageError, match="checked by running"):
        prepare(wide_chain(), Settings(measure=False, split_batch=(2,)))


def test_parts_need_less_and_a_plan_is_applied_again() -> None:
    """The whole cannot keep half of its peak: unless it is asked for, the batch is split."""
    settings, options = PLANNED, PlanOptions(time_limit=5.0, threads=1)
    prepared = prepare(wide_chain(), settings)
    parts = prepare_split(prepared, (4,))
    assert parts.store_all_peak < 0.5 * prepared.store_all_peak
    assert parts.baseline_peak == prepared.baseline_peak
    budget = int(0.5 * prepared.store_all_peak)
    whole = replace(settings, split_batch=())
    with pytest.raises(InfeasibleError):
        api.optimize(wide_chain(), budget=budget, settings=whole, options=options, bench_seconds=0)
    result = api.optimize(
        wide_chain(), budget=budget, settings=settings, options=options, bench_seconds=0
    )
    facts = result.facts()
    assert facts["peak_measured_bytes"] <= budget
    assert facts["recomputed_ops"] == 0
    assert any("4 parts (whole: does not fit" in note for note in facts["notes"])
    bare = replace(result.plan, provenance=replace(result.plan.provenance, budget=0))
    again = api.apply(wide_chain(), bare, settings=settings)  # its budget is what it takes
    assert again.plan.steps == result.plan.steps
    assert again.facts()["budget_bytes"] == facts["peak_measured_bytes"]


def dear(graph: Graph) -> CostTable:
    """Seconds by the bytes that an op writes, ten times as many for Erf."""
    seconds = {
        op.name: (10.0 if op.op_type == "Erf" else 1.0)
        * sum(graph.tensors[name].bytes for name in op.writes) / (1 << 30)
        for op in graph.ops
    }  # fmt: skip
    return CostTable(seconds, {}, "given")


def test_parts_beat_recomputation() -> None:
    """Each dear op is needed early and late: what does not fit is run twice, or in parts."""
    body = "\n".join(f"a{i} = Erf(x{i})\nx{i + 1} = Sin(a{i})" for i in range(4))
    ends = "\n".join(f"s{i + 1} = Add(s{i}, a{3 - i})" for i in range(4))
    model = parse(f"""g (float[8, 32768] x0) => (float[8, 32768] s4) {{
        {body}
        s0 = Cos(x4)
        {ends}
    }}""")
    settings, options = replace(PLANNED, costs=dear), PlanOptions(time_limit=LONG, threads=1)
    peak = prepare(model, settings).store_all_peak
    results = [
        api.optimize(
            model, budget=int(0.7 * peak), settings=replace(settings, split_batch=split),
            options=options, bench_seconds=0,
        )
        for split in ((), None)
    ]  # fmt: skip
    assert [result.facts()["recomputed_ops"] > 0 for result in results] == [True, False]
    assert results[1].prepared.settings.split_batch == (2,)


def test_the_least_memory_counts_parts() -> None:
    """min is below what the whole batch can do, and what a refusal says works does."""
    settings, options = PLANNED, PlanOptions(time_limit=4.0, threads=1)
    whole = replace(settings, split_batch=())
    least = [
        api.optimize(wide_chain(), budget="min", settings=each, options=options, bench_seconds=0)
        for each in (settings, whole)
    ]
    peaks = [result.facts()["peak_measured_bytes"] for result in least]
    assert peaks[0] < 0.3 * peaks[1]
    notes = least[0].facts()["notes"]
    assert any("in 8 parts" in note for note in notes)
    assert any("with the batch whole or in 2, 4, 8 parts" in note for note in notes)
    with pytest.raises((InfeasibleError, NoPlanError)) as refused:
        api.optimize(
            wide_chain(), budget=peaks[0] // 2, settings=settings, options=options, bench_seconds=0
        )
    works = refused.value.smallest
    assert works is not None
    assert works <= 1.01 * peaks[0]
    assert "the batch in 8 parts" in refused.value.hint
    kept = api.optimize(
        wide_chain(), budget=works, settings=settings, options=options, bench_seconds=0
    )
    assert kept.facts()["peak_measured_bytes"] <= works


def test_what_is_proven_holds_for_all_parts_that_were_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """More and more parts are looked at while they need less; others may be there already."""
    prepared = prepare(parse(MEAN, opset=13), Settings(measure=False))
    needs = {1: 100, 2: 60, 4: 60, 8: 30}
    monkeypatch.setattr(batch_split._Parts, "_need", lambda _, parts: (needs[parts], ""))
    monkeypatch.setattr(
        batch_split._Parts, "split", lambda self, parts: self.splits.setdefault(parts, prepared)
    )
    parts = batch_split._Parts(prepared, parse_budget("1MiB"), 8, PlanOptions(), Phases())
    parts.split(8)
    assert min(need for need, _ in parts._needs().values()) == 30


def test_a_huge_batch_is_not_split_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """In no more parts than make a graph that can be planned; in none where weights and results
    alone are more than there may be."""
    body = "a = Sin(x)  b = Cos(a)  y = ReduceSum<keepdims: int = 0>(b, k)"
    text = f"g (float[1000000, 2] x) => (float[1000000] y) <int64[1] k = {{1}}> {{ {body} }}"
    settings = Settings(threads=1, costs=analytic_costs)
    prepared, tried = prepare(parse(text), settings), []

    def splitting(whole: Prepared, parts: tuple[int, ...], *rest: Any) -> Prepared:
        tried.extend(parts)
        return prepare_split(whole, parts, *rest)

    monkeypatch.setattr(batch_split, "prepare_split", splitting)
    monkeypatch.setattr(batch_split, "MOST_OPS", 8 * len(prepared.graph.ops))
    options = PlanOptions(work=100, threads=1)
    for share in (0.9, 1.01):
        with pytest.raises((InfeasibleError, NoPlanError)):
            plan_best(prepared, parse_budget(int(4_000_000 * share)), options)
        assert max(tried) <= 8
        tried.clear()


def test_why_a_batch_stays_whole_is_said() -> None:
    model = parse(MEAN.replace("[4, 4]", "[4, 4096]"), opset=13)
    settings, options = PLANNED, PlanOptions(time_limit=4.0, threads=1)
    found = api.optimize(model, budget="min", settings=settings, options=options, bench_seconds=0)
    said = "the batch stays whole: rows of the batch depend on each other: 'm' is of all of them"
    assert any(note.startswith(said) for note in found.facts()["notes"])
    with pytest.raises(InfeasibleError) as refused:
        api.optimize(model, budget=4096, settings=settings, options=options, bench_seconds=0)
    assert said in refused.value.hint


def test_a_batch_that_does_not_run_in_parts_is_said_in_plain_words() -> None:
    """Each row has a constant of its own."""
    at = "int64[8, 1, 1] at = {0, 1, 2, 3, 4, 5, 6, 7}"
    body = "e = GatherND<batch_dims = 1>(x, at)  m = Sin(e)  y = Add(x, m)"
    text = f"g (float[8, 256] x) => (float[8, 256] y) <{at}> {{ {body} }}"
    settings, options = PLANNED, PlanOptions(time_limit=4.0, threads=1)
    made = api.optimize(
        parse(text), budget="min", settings=settings, options=options, bench_seconds=0
    )
    (said,) = (note for note in made.facts()["notes"] if note.startswith("the batch stays whole"))
    assert "FAIL" not in said
    with pytest.raises(UnsupportedError) as refused:
        prepare(parse(text), replace(settings, split_batch=(2,)))
    assert said.endswith(f"in parts ({refused.value.why})")
    assert refused.value.where.startswith("onnxruntime: ")


def test_parts_of_one_row_say_nothing_of_fewer() -> None:
    """A Squeeze without axes leaves out a batch of one row, too; no budget below what the whole
    needs was said to be proven impossible then."""
    count = 6
    made = [f"s{i + 1} = Einsum<equation = 'bij,bkj->bik'>(t{i}, t{i}) t{i + 1} = Tanh(s{i + 1})"
            for i in range(count)]  # fmt: skip
    text = " ".join(made).replace("'", '"')
    sums = " ".join(f"u{i} = Add(u{i + 1}, t{i})" for i in range(count - 1, 0, -1))
    model = parse(
        "g (float[8, 1, 16, 16] x) => (float[8] y) <int64[2] a = {1, 2}> "
        f"{{ t0 = Squeeze(x) {text} u{count} = Neg(t{count}) {sums} "
        "y = ReduceSum<keepdims = 0>(u1, a) }"
    )
    prepared = prepare(model, replace(PLANNED, costs=analytic_costs))
    image, need = 8 * 16 * 16 * 4, prepared.reduced.need.bytes
    budget = parse_budget(int(1.7 * image) + prepared.weights + prepared.beside.total)
    assert need > budget.resolve(device_bytes=0, peak_bytes=0)
    found = plan_best(prepared, budget, PlanOptions(work=200, threads=1))
    assert "the batch is computed in 4 parts" in " ".join(found.plan.provenance.notes)


def test_shares_end_together() -> None:
    assert shares(8, [1.0, 1.0]) == [4, 4]
    assert shares(8, [1.0, 3.0]) == [6, 2]
    assert shares(1, [1.0, 1.0]) == [1]
    assert shares(8, [1.0, 100.0]) == [8]


def test_devices_take_parts_where_the_whole_does_not_fit() -> None:
    """Side by side a row of ops needs two activations of the whole batch on a device."""
    warm_up(2)
    machine = processors(2)
    prepared = prepare(wide_chain(), Settings(threads=1, target="none", not_counted=BESIDE))
    budget = str(int(1.7 * (1 << 20)))
    whole = replace(prepared, settings=replace(prepared.settings, split_batch=()))
    with pytest.raises((InfeasibleError, NoPlanError, OverBudgetError)):
        optimized(whole, machine, budget)
    result = optimized(prepared, machine, budget)
    facts = result.facts()
    assert facts["split_batch"] == [4, 4]
    assert any("does not fit" in note for note in facts["notes"])
    assert result.checks
    assert all(check.ok for check in result.checks)
    for row in facts["devices"]:
        assert row["peak_measured_bytes"] <= row["budget_bytes"]


def test_places_that_a_kernel_lists_are_fewer_in_parts() -> None:
    """With the whole batch their list alone is over the budget, which proves nothing of parts."""
    body = """g (uint8[8, 65536] x, int64[8, 65536] i) => (float[8, 1] y) {
        u = Cast<to: int = 1>(x)
        s = ScatterElements<axis: int = 1>(u, i, u)
        y = ReduceSum<keepdims: int = 1>(s)
    }"""
    prepared = prepare(parse(body), Settings(measure=False))
    for size, kind in (("7MiB", NoPlanError), ("6MiB", InfeasibleError)):
        budget = parse_budget(size)
        limit = limit_of(prepared, budget)
        assert limit is not None
        assert limit.planned == 1  # of the whole
        parts = StepInParts(prepared, budget, PlanOptions(), Phases())
        assert type(parts.refusal(NoPlanError("none"), limit)) is kind


def test_a_share_is_refused_by_what_it_counts() -> None:
    """Parts have more nodes; a share of weights and values leaves these out. The least that is said
    to be needed is not more than what is said to work."""
    chain = " ".join(f"a{k + 1} = Sin(a{k})" for k in range(12))
    text = "g (float[4, 8192] a0) => (float[4, 1] y) { axes = Constant<value_ints: ints = [1]>() "
    model = parse(f"{text} {chain} y = ReduceSum(a12, axes) }}")
    prepared = prepare(model, Settings(threads=1))
    with pytest.raises((InfeasibleError, NoPlanError)) as refused:
        plan_best(prepared, parse_budget("0.01x"), PlanOptions(time_limit=LONG))
    said = refused.value.refusal
    assert said.lower <= said.works.fits + prepared.beside.total
    assert f"beside that {prepared.beside.words}" in said.why  # else the bytes do not add up


@pytest.mark.parametrize("mixed", [
    # What all rows decide, and no made-up input meets: a largest value above a bound.
    "m = ReduceMax<keepdims = 0>(x)  big = Greater(m, hundred)  y = Where(big, x, a)",
    # Entries that go by those before them.
    "s = CumSum(x, first)  big = Greater(s, hundred)  y = Where(big, x, a)",
    # A norm that is made less where it is too large.
    "n = ReduceL2<keepdims = 0>(a)  q = Div(hundred, n)  k = Min(q, one)  y = Mul(a, k)",
    # How many numbers of all rows are not zero.
    "z = NonZero(x)  n = Shape(z)  m = ReduceMax<keepdims = 0>(n)  f = Cast<to = 1>(m)  "
    "big = Greater(f, thousand)  y = Where(big, x, a)",
    # The first row alone.
    "r = Slice(x, begin, end)  big = Greater(r, hundred)  y = Where(big, x, a)",
    # One scale for all rows, which is that of each here.
    "h = Mul(x, thousand)  c = Clip(h, nil, one)  q, s, z = DynamicQuantizeLinear(c)  "
    "y = Cast<to = 1>(q)",
    # An operator without a rule that reads one number of all rows.
    "m = ReduceMax<keepdims = 0>(x)  k = Max(m, hundred)  y = Einsum<equation = \"bi,->bi\">(a, k)",
])  # fmt: skip
def test_rows_that_decide_together_stay_together(mixed: str) -> None:
    """A run on small numbers shows nothing of it: the parts gave the same there."""
    graph = graph_of(f"""g (float[8, 16] x) => (float[8, 16] y) <float hundred = {{100}},
        float thousand = {{1000}}, float one = {{1}}, float nil = {{0}},
        int64 first = {{0}}, int64[1] begin = {{0}}, int64[1] end = {{1}}>
        {{ a = Sin(x) {mixed} }}""")  # fmt: skip
    with pytest.raises(UnsupportedError, match=r"rows of the batch (may )?depend on each other"):
        in_parts(graph, (2,), seeded_feeds(graph), None)
