"""What callers of the planner rely on: speed, certificates, interruption, options, files."""

from __future__ import annotations

import json
import time
from math import inf
from pathlib import Path

import numpy as np
import pytest

from onnxremat.errors import UsageError
from onnxremat.planner import Problem, Rows, Status, ladder, peak, smallest_budget, solve
from onnxremat.planner.baselines import BASELINES
from onnxremat.planner.graph_files import GraphFileError, read_graph
from onnxremat.planner.lazy_cuts import LazyCuts
from onnxremat.planner.order import best_order
from onnxremat.planner.problem import OneDevice
from onnxremat.planner.problem_lists import ProblemLists, reordered
from onnxremat.planner.search import warm_up
from tests.limits import LONG, after, work
from tests.planner.asking import asked
from tests.planner.graphs import skip_chain, small_transformer
from tests.planner.oracle import random_problem


def share(problem: Problem, part: float) -> int:
    return int(part * peak(problem, problem.store_all()))


def test_budget_of_the_store_all_peak_costs_nothing_and_no_time() -> None:
    problem = small_transformer(40)
    with work(1.0):
        found = solve(problem, share(problem, 1.0), asked(time_limit=0.0))
    assert found.status is Status.OPTIMAL
    assert found.sequence == tuple(range(problem.ops))
    assert found.certificate.any_order


@pytest.mark.parametrize("part", [0.9, 0.7, 0.5])
def test_training_graphs_are_proven_in_seconds(part: float, warm: None) -> None:
    problem = small_transformer(12)
    with work(15.0):
        found = solve(problem, share(problem, part), asked(time_limit=LONG, gap=1e-4))
    assert found.status is Status.OPTIMAL
    assert found.gap <= 1e-4


def test_impossible_budget_is_proven_with_a_reason() -> None:
    problem = skip_chain(30, 3)
    found = solve(problem, 10, asked())
    assert found.status is Status.INFEASIBLE
    assert found.certificate.bound == inf
    assert "B at once" in found.notes[0]


def test_stop_ends_the_run_with_the_best_so_far() -> None:
    problem = small_transformer(30)
    begin = time.monotonic()
    found = solve(problem, share(problem, 0.2), asked(time_limit=LONG, stop=after(20)))
    assert time.monotonic() - begin < LONG / 2
    assert found.certificate.bound <= found.time
    assert found.status in (Status.FEASIBLE, Status.OPTIMAL, Status.UNKNOWN)


@pytest.mark.parametrize("fixed_order", [True, False])
@pytest.mark.parametrize("rule", ["articulation", "chen-sqrt", "every-block", "recompute-all"])
def test_a_rule_that_fits_is_a_plan_at_once(rule: str, fixed_order: bool) -> None:
    """With no time at all: where a checkpoint rule fits, there is a plan."""
    for problem in (small_transformer(4), small_transformer(9)):
        ruled = BASELINES[rule](problem, share(problem, 0.8))
        assert ruled.sequence is not None
        found = solve(
            problem, ruled.peak, asked(time_limit=0.0, fixed_order=fixed_order, stop=lambda: True)
        )
        assert found.sequence is not None
        assert peak(problem, found.sequence) <= ruled.peak


def test_time_limit_is_kept(warm: None) -> None:
    problem = small_transformer(30)
    with work(2 * 5.0):  # of two threads
        solve(problem, share(problem, 0.2), asked(time_limit=2, threads=2))


def test_progress_is_monotone_and_ends_at_the_answer() -> None:
    problem = skip_chain(60, 2, skip=0.3)
    seen: list[tuple[float, float]] = []
    found = solve(
        problem,
        share(problem, 0.6),
        asked(time_limit=LONG, progress=lambda t, b, _: seen.append((t, b))),
    )
    times = [t for t, _ in seen]
    assert times == sorted(times, reverse=True)
    assert times[-1] == found.time
    assert [t for _, t, _ in found.trace] == times


def test_warm_start_is_used_and_a_bad_one_ignored() -> None:
    problem = skip_chain(40, 5)
    budget = share(problem, 0.7)
    first = solve(problem, budget, asked(time_limit=LONG))
    assert first.sequence is not None
    again = solve(problem, budget, asked(time_limit=0.0), warm=first.sequence)
    assert again.sequence == first.sequence
    ignored = solve(problem, budget, asked(time_limit=LONG), warm=[3, 2, 1])
    assert ignored.time <= first.time * 1.2


@pytest.mark.parametrize("solver", ["highs", "scip", "gurobi"])
def test_every_solver_reaches_the_same_optimum(solver: str) -> None:
    problem = small_transformer(3)
    reference = solve(problem, share(problem, 0.6), asked(time_limit=LONG))
    found = solve(problem, share(problem, 0.6), asked(time_limit=LONG, solver=solver))
    assert reference.status is found.status is Status.OPTIMAL
    assert found.time == pytest.approx(reference.time, rel=1e-5)


def test_unknown_solver_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match="unknown solver"):
        solve(skip_chain(10, 1), 100, asked(solver="cplex"))


def test_fixed_order_is_kept_and_free_order_is_no_worse() -> None:
    for seed in range(6):
        problem = random_problem(seed, 24, plain=True)
        budget = share(problem, 0.85)
        fixed = solve(problem, budget, asked(time_limit=LONG, fixed_order=True))
        free = solve(problem, budget, asked(time_limit=LONG))
        if fixed.sequence is not None:
            assert list(dict.fromkeys(fixed.sequence)) == list(range(problem.ops))
            assert free.time <= fixed.time + 1e-9


@pytest.mark.parametrize("seed", range(8))
def test_least_peak_order_is_exact_on_small_graphs(seed: int) -> None:
    from itertools import permutations

    problem = random_problem(seed, 6)
    found = best_order(ProblemLists(problem), LONG)
    assert found.proven
    assert peak(problem, found.order) == found.peak
    best = min(
        peak(problem, order)
        for order in permutations(range(problem.ops))
        if _runs(problem, list(order))
    )
    assert found.peak == best


def _runs(problem: Problem, order: list[int]) -> bool:
    try:
        reordered(problem, order)
    except ValueError:
        return False
    return True


def test_smallest_budget_is_found_and_explained() -> None:
    problem = skip_chain(40, 7)
    bytes_, sequence, bound, why = smallest_budget(problem, asked(time_limit=LONG, stop=after(100)))
    assert bound <= peak(problem, sequence) <= bytes_ < share(problem, 0.6)
    assert str(bound) in why


def test_sequences_of_kept_values_and_one_run_ops() -> None:
    """A random op and a graph output in the middle of a chain are respected."""
    problem = OneDevice(
        cost=np.asarray([1.0, 1.0, 1.0, 1.0, 1.0]),
        work=np.asarray([0, 4, 0, 0, 0]),
        reads=Rows.of([[], [0], [1], [2], [3, 0]]),
        writes=Rows.of([[0], [1], [2], [3], [4]]),
        size=np.asarray([10, 10, 10, 10, 1]),
        keep=np.asarray([False, False, True, False, True]),
        inplace=Rows.of([[], [0], [], [], []]),
        recompute=np.asarray([False, True, True, True, True]),
        fixed=3,
    ).problem()
    assert solve(problem, 33, asked(time_limit=LONG)).status is Status.INFEASIBLE
    assert solve(problem, 34, asked(time_limit=LONG)).sequence == (0, 1, 2, 3, 4)


def test_values_that_cannot_be_remade_count_in_the_smallest_budget() -> None:
    """A long chain that must hold the output of a random op for its last step."""
    count = 6
    problem = OneDevice(
        cost=np.ones(count),
        work=np.zeros(count, np.int64),
        reads=Rows.of([[], [0], [1], [2], [3], [4, 0]]),
        writes=Rows.of([[op] for op in range(count)]),
        size=np.full(count, 10),
        keep=np.zeros(count, np.bool_),
        inplace=Rows.of([[] for _ in range(count)]),
        recompute=np.asarray([False, True, True, True, True, True]),
    ).problem()
    bytes_, _, bound, why = smallest_budget(problem, asked(time_limit=LONG))
    assert bytes_ == bound == 30
    assert "cannot be remade" in why


def test_warm_up_is_quick_once_compiled() -> None:
    warm_up()
    with work(2.0):
        warm_up()


def test_graph_files(tmp_path: Path) -> None:
    nodes = [{"id": k, "cost_cpu": k + 1, "cost_ram": 10 * (k + 1)} for k in range(3)]
    links = [{"source": 0, "target": 2}, {"source": 1, "target": 2}]
    path = tmp_path / "graph.json"
    path.write_text(json.dumps({"graph": {}, "nodes": nodes, "links": links}))
    problem = read_graph(path)
    assert problem.cost[0].tolist() == [1, 2, 3]
    assert problem.size[0].tolist() == [10, 20, 30]
    assert problem.reads.lists() == [[], [], [0, 1]]
    path.write_text(json.dumps({"graph": {}, "nodes": nodes[::-1], "links": links}))
    assert read_graph(path).size[0].tolist() == [20, 10, 30]
    for text, message in (
        ("{", "Expecting"),
        ("[]", "no list of nodes"),
        (json.dumps({"nodes": nodes, "links": [{"a": 1}]}), "no source"),
        (json.dumps({"nodes": [{"id": 0}], "links": []}), "none of"),
        (json.dumps({"nodes": nodes, "links": [*links, {"source": 2, "target": 0}]}), "cycle"),
        (json.dumps({"nodes": nodes, "links": [{"source": 0, "target": 7}]}), "node 7"),
        (json.dumps({"nodes": [*nodes, nodes[0]], "links": links}), "two nodes have the id 0"),
        *(
            (json.dumps({"nodes": [nodes[0] | wrong], "links": []}), message)
            for wrong, message in (
                ({"cost_cpu": -1}, "no number of seconds"),
                ({"cost_cpu": "nan"}, "no number of seconds"),
                ({"cost_ram": 1 << 61}, "all sizes together"),
            )
        ),
    ):
        path.write_text(text)
        with pytest.raises(GraphFileError, match=message):
            read_graph(path)


def test_a_plan_that_is_nearly_within_the_budget_is_repaired_first(
    monkeypatch: pytest.MonkeyPatch, warm: None
) -> None:
    """However little time there is for anything else."""
    problem = small_transformer(12)
    first = solve(problem, share(problem, 0.5), asked(work=2000))
    assert first.sequence is not None
    monkeypatch.setattr(ladder, "_rules", lambda *_: None)
    monkeypatch.setattr(ladder, "_other_orders", lambda *_: [])
    monkeypatch.setattr(ladder, "_run_portfolios", lambda *_: None)
    less = first.peak - 1
    assert solve(problem, less, asked(work=2000)).sequence is None
    again = solve(problem, less, asked(work=2000), first.sequence)
    assert again.sequence is not None
    assert peak(problem, again.schedule) <= less
    assert again.time <= 1.1 * first.time


def test_a_large_problem_has_a_plan_before_a_round_of_cuts(
    monkeypatch: pytest.MonkeyPatch, warm: None
) -> None:
    problem = small_transformer(12)
    seen: list[bool] = []
    monkeypatch.setattr(ladder, "_rules", lambda *_: None)
    monkeypatch.setattr(ladder, "_other_orders", lambda *_: [])

    def cut(lazy: LazyCuts) -> bool:
        seen.append(lazy.incumbent.best is not None)
        return False

    monkeypatch.setattr(LazyCuts, "round", cut)
    solve(problem, share(problem, 0.7), asked(work=200))
    assert seen
    assert all(seen)
