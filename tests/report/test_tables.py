"""Tables contain the numbers they are given, and nothing where there is none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from onnxremat.cost.table import CostTable
from onnxremat.pipeline.bench import Timing
from onnxremat.report.pages.recomputed import recomputed_ops
from onnxremat.report.tables import as_text, before_after, bench_table, recomputed, sweep_table
from onnxremat.schedule.plan import Plan
from tests.report.conftest import AGAIN, ROWS, Case
from tests.toolbox import graph_of

FACTS: dict[str, Any] = {
    "model": "net[bold].onnx",
    "status": "feasible",
    "planner": "lazy-cuts",
    "plan_seconds": 3.25,
    "rounds": 2,
    "cost_source": "measured",
    "baseline_peak_bytes": 200 << 20,
    "store_all_peak_bytes": 160 << 20,
    "budget_bytes": 125 << 20,
    "limit_bytes": 100 << 20,
    "beside_bytes": 25 << 20,
    "state_bytes": 2 << 20,
    "session_bytes": 22 << 20,
    "not_counted": [],
    "peak_predicted_bytes": 99 << 20,
    "peak_measured_bytes": 98 << 20,
    "peak_default_options_bytes": 123 << 20,
    "arena_bytes": 130 << 20,
    "arena_default_options_bytes": 310 << 20,
    "weight_bytes": 7 << 20,
    "input_bytes": 3 << 20,
    "overhead_planned": 0.1234,
    "overhead_measured": 0.1311,
    "overhead_spread": 0.004,
    "original_time_ratio": 1.05,
    "step_seconds": 0.0815,
    "bound": 0.12,
    "bound_kind": "cuts",
    "bound_any_order": True,
    "gap": 0.0034,
    "ops": 353,
    "recomputed_ops": 41,
    "added_ops": 17,
    "order_kept": True,
    "order_kept_default_options": False,
    "bit_equal": True,
    "difference_to_original": 2.5e-6,
}


def line(text: str, label: str) -> str:
    """The one line that begins with a label."""
    found = [row for row in text.splitlines() if row.strip().startswith(label)]
    assert len(found) == 1, text
    return found[0].split(label, 1)[1]


def test_before_after_compares() -> None:
    text = as_text(before_after(FACTS))
    assert line(text, "peak memory").split() == [
        "200", "MiB", "160", "MiB", "99.0", "MiB", "98.0", "MiB",
    ]  # fmt: skip
    assert line(text, "of the original's").split() == ["100.0%", "80.0%", "49.5%", "49.0%"]
    assert line(text, "of the budget").split() == ["180.0%", "148.0%", "99.2%", "98.4%"]
    more = FACTS | {"baseline_beside_bytes": 10 << 20, "store_all_beside_bytes": 20 << 20}
    text = as_text(before_after(more))
    assert line(text, "of the budget").split() == ["168.0%", "144.0%", "99.2%", "98.4%"]
    assert line(text, "the process takes").split()[::2] == ["210", "180", "124", "123"]
    assert line(text, "step time").split() == [
        "+5.00%", "reference", "+12.34%", "+13.11%", "+/-", "0.4%",
    ]  # fmt: skip
    assert line(text, "to the original's").split() == [
        "reference", "-4.76%", "+6.99%", "+7.72%",
    ]  # fmt: skip
    assert line(text, "nodes").split() == ["353", str(353 + 41 + 17)]
    assert line(text, "recomputed").split() == ["41"]
    assert line(text, "gates and pins").split() == ["17"]


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"overhead_spread": 0.2}, "+12.34% +/- 20.0%"),
        ({"overhead_measured": 16.06, "overhead_spread": 17.04}, "too noisy"),
        ({"overhead_measured": 0.0, "overhead_spread": 0.01}, "+0.00% +/- 1.0%"),
    ],
)
def test_noise_is_no_figure(facts: dict[str, float], said: str) -> None:
    """Neither a change that is smaller than what rounds differ by, nor rounds that differ much."""
    text = as_text(before_after(FACTS | facts), width=200)
    assert " ".join(line(text, "step time").split()).endswith(said)
    noisy = said == "too noisy"
    assert ("very different times" in text) == noisy
    narrow = as_text(before_after(FACTS | facts), width=80)
    assert "  to the original's" in narrow
    for ratio, wide in ((1.05, 0.5), (0.5, 0.13), (2.0, 0.52)):  # more than a quarter of a time
        told = {"original_time_ratio": ratio, "original_spread": wide}
        shown = as_text(before_after(FACTS | told), width=200)
        assert line(shown, "to the original's").count("too noisy") == 3
    calm = as_text(before_after(FACTS | {"original_time_ratio": 2.0, "original_spread": 0.4}))
    assert "too noisy" not in calm


def test_before_after_states_the_rest() -> None:
    text = as_text(before_after(FACTS), width=200)
    assert "net[bold].onnx" in text
    assert "feasible, lazy-cuts, planned in 3.25 s, 2 rounds" in line(text, "plan ")
    assert line(text, "one run").strip() == "81.5 ms, median"
    assert "+12.00% in any order (cuts), gap 0.340%" in line(text, "proven")
    assert "+1.02%" in line(text, "prediction")
    said = line(text, "default options")
    assert "123 MiB, 118.4% of the budget: only the planned options keep it" in said
    less = as_text(before_after(FACTS | {"peak_default_options_bytes": 100 << 20}), width=200)
    assert line(less, "default options").strip() == "peak 100 MiB, 100.0% of the budget"
    assert "130 MiB" in line(text, "arena")
    assert "310 MiB under default options" in line(text, "arena")
    assert "7.00 MiB" in line(text, "weights")
    assert "125 MiB: 100 MiB for weights and values and 25.0 MiB beside them" in line(
        text, "budget "
    )
    beside = "2.00 MiB parameters and state, 1.00 MiB inputs, 22.0 MiB the session's structures"
    assert beside in line(text, "beside these")
    left = as_text(before_after(FACTS | {"not_counted": ["inputs"]}), width=200)
    assert line(left, "beside these").endswith("structures, not counted: inputs")
    assert "updates" not in text  # 2 of 99 MiB
    large = FACTS | {"state_bytes": 20 << 20}
    words = line(as_text(before_after(large), width=200), "updates")
    assert words.strip().startswith(
        "20.0 MiB of the values are new parameters and state: a Trainer"
    )
    assert "updates  " not in as_text(before_after(large | {"not_counted": ["updates"]}), width=200)
    assert "bit-equal to the graph that stores everything, within 2.5e-06" in line(text, "outputs")
    assert "as planned, NOT as planned under default options" in line(text, "order")


@pytest.mark.parametrize("name", sorted(FACTS))
def test_every_fact_may_be_missing(name: str) -> None:
    for value in ({}, {name: None}):
        facts = {key: fact for key, fact in FACTS.items() if key != name} | value
        assert "None" not in as_text(before_after(facts))


def test_nothing_known_says_nothing() -> None:
    text = as_text(before_after({}))
    assert not any(character.isdigit() for character in text)


def test_gates_and_pins_may_be_told_apart() -> None:
    facts = {key: fact for key, fact in FACTS.items() if key != "added_ops"}
    text = as_text(before_after(facts | {"gates": 6, "pins": 5}))
    assert line(text, "gates and pins").split() == ["11"]


def test_no_negative_zero() -> None:
    text = as_text(before_after(FACTS | {"overhead_planned": -2e-16, "bound": -0.0}))
    assert "-0.00%" not in text
    assert "+0.00%" in line(text, "step time")


def test_bench_table() -> None:
    rows = [Timing("base", 0.1, 1.0, 0.0, 12), Timing("a[/]b", 0.125, 1.25, 0.0121, 12)]
    text = as_text(bench_table(rows))
    assert "paired timing, medians of 12 rounds\n" in text
    assert line(text, "base").split() == ["100", "ms", "1.000"]
    assert line(text, "a[/]b").split() == ["125", "ms", "1.250", "+/-", "1.0%"]


def test_sweep_table() -> None:
    text = as_text(sweep_table(ROWS, 100 << 20))
    assert line(text, "60.0 MiB").split() == [
        "0.600x", "59.0", "MiB", "59.0", "MiB", "+20.00%", "+15.00%", "5.00%", "2", "s", "feasible",
    ]  # fmt: skip
    assert line(text, "50.0 MiB").split() == [
        "0.500x", "-", "-", "-", "-", "-", "-", "none", "found",
    ]  # fmt: skip
    assert line(text, "30.0 MiB").split()[-1] == "infeasible"
    assert "infeasible (at least 40.0 MiB)" in text
    order = [text.index(f"{size} MiB  ") for size in ("100", "80.0", "60.0", "50.0", "30.0")]
    assert order == sorted(order)


def test_what_is_proven_of_one_order_is_told_apart() -> None:
    """That nothing takes less than storing everything holds in every order."""
    free, bound = ROWS[0], replace(ROWS[1], any_order=False)
    assert free.bound == 0.0
    assert "*" not in as_text(sweep_table([replace(free, any_order=False), ROWS[2]], 100 << 20))
    text = as_text(sweep_table([free, bound], 100 << 20))
    assert "+15.00% *" in line(text, "60.0 MiB")
    assert "one order of first runs alone" in line(text, "* proven")


def test_recomputed_ops_and_what_they_free(case: Case) -> None:
    rows = recomputed_ops(case.plan, case.graph, case.seconds)
    assert sorted(row.op_type for row in rows) == ["MatMul", "MatMul", "Tanh", "Tanh"]
    assert sum(row.times for row in rows) == case.plan.recomputations == AGAIN
    assert {row.bytes for row in rows} == {64 * 32 * 4}
    assert all(row.seconds == case.seconds[row.op] for row in rows)


def test_recomputed_frees_only_what_is_given_back() -> None:
    graph = graph_of("""g (float[64] x) => (float[64] d) {
        a = Sin(x)  b = Cos(a)  c = Neg(b)  d = Add(c, a) }""")
    sin, cos, neg, add = (op.name for op in graph.ops)
    freed = recomputed_ops(Plan.of(graph, [sin, cos, neg, sin, add]), graph, {sin: 0.5})
    assert [(r.op, r.times, r.bytes, r.seconds) for r in freed] == [(sin, 1, 256, 0.5)]
    kept = recomputed_ops(Plan.of(graph, [sin, sin, sin, cos, neg, sin, add]), graph, {sin: 0.5})
    assert [(r.times, r.bytes, r.seconds) for r in kept] == [(3, 256, 1.5)]


def test_recomputed_table(case: Case) -> None:
    costs = CostTable(case.seconds, {}, "measured")
    text = as_text(recomputed(case.plan, case.graph, costs.seconds, top=2))
    assert "4 recomputations: 2 MatMul, 2 Tanh" in text
    assert line(text, f"all {AGAIN} ops").split()[0] == str(AGAIN)
    listed = [row for row in text.splitlines() if "8.00 KiB" in row]
    assert len(listed) == 2
    nothing = Plan.of(case.graph, [op.name for op in case.graph.ops])
    assert "nothing is recomputed" in as_text(recomputed(nothing, case.graph, costs.seconds))
