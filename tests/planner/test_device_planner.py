"""Several devices: what callers rely on."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from math import inf

import numpy as np
import pytest

from onnxremat.errors import UsageError
from onnxremat.planner import peak
from onnxremat.planner.formulations.extract import without_unread
from onnxremat.planner.ladder import solve
from onnxremat.planner.makespan import makespan
from onnxremat.planner.on_devices import Devices, on_devices
from onnxremat.planner.options import Method
from onnxremat.planner.problem import OneDevice, Problem, Rows
from onnxremat.planner.problem_lists import ProblemLists
from onnxremat.planner.retime import retimed
from onnxremat.planner.schedule import Schedule, Step
from onnxremat.planner.search import warm_up
from onnxremat.planner.search.lists import Lists
from onnxremat.planner.search.session import Search
from onnxremat.planner.semantics import occupancy, peaks
from onnxremat.planner.solution import Status
from tests.limits import LONG, Planned, work
from tests.planner.asking import asked
from tests.planner.device_oracle import random_device_problem, random_schedule
from tests.planner.graphs import ones, skip_chain, small_transformer


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    warm_up(2)


def two_devices(problem: Problem, seed: int = 0) -> Problem:
    draw = np.random.default_rng(seed)
    factor = np.where(draw.random(problem.ops) < 0.3, 0.7, 2.5)
    copy = np.broadcast_to(0.01 * problem.size * problem.cost.mean(), (2, 2, problem.values))
    return on_devices(problem, Devices(np.concatenate([problem.cost, problem.cost * factor]), copy))


def with_host(problem: Problem, link: float) -> Problem:
    copy = np.broadcast_to(link * problem.size, (2, 2, problem.values))
    cost = np.stack([problem.cost[0], np.full(problem.ops, inf)])
    return on_devices(problem, Devices(cost, copy, names=("gpu", "host")))


def share(problem: Problem, part: float) -> int:
    return int(part * peak(problem, problem.store_all()))


@pytest.mark.parametrize("part", [0.8, 0.7])
def test_training_graphs_on_two_devices_are_proven(part: float) -> None:
    base = small_transformer(6)
    problem, budget = two_devices(base), share(base, part)
    found = solve(problem, [budget] * 2, asked(time_limit=5 * LONG, gap=1e-5))
    assert found.status is Status.OPTIMAL
    assert found.gap <= 1e-5
    assert found.schedule is not None
    assert max(found.peaks) <= budget
    assert found.peaks == tuple(peaks(problem, found.schedule))
    assert found.time < problem.reference  # the second device earns its copies


@pytest.mark.parametrize(("link", "swaps"), [(0.002, True), (50.0, False)])
def test_the_cheaper_of_swapping_and_recomputing_is_chosen(link: float, swaps: bool) -> None:
    base = small_transformer(3)
    problem = with_host(base, link)
    found = solve(problem, [share(base, 0.6), inf], asked(time_limit=LONG))
    assert found.status is Status.OPTIMAL
    assert found.schedule is not None
    copies = sum(not step.runs for step in found.schedule.steps)
    runs = len(found.schedule.steps) - copies
    assert (copies > 0) == swaps
    assert (runs > problem.ops) == (not swaps)


def test_swapping_and_recomputing_mix_when_each_is_cheaper_somewhere() -> None:
    """Two values must leave the middle: one dear to make and small, one cheap and large."""
    size = [4, 20, 1, 24, 1, 1]
    base = OneDevice(
        cost=np.asarray([50.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
        work=np.zeros(6, np.int64),
        reads=Rows.of([[], [], [0, 1], [2], [3], [0, 1, 4]]),
        writes=Rows.of([[op] for op in range(6)]),
        size=np.asarray(size, np.int64),
        keep=np.zeros(6, np.bool_),
        inplace=Rows.of([[] for _ in range(6)]),
        recompute=np.ones(6, np.bool_),
    ).problem()
    found = solve(with_host(base, 1.0), [26, inf], asked(time_limit=LONG))
    assert found.status is Status.OPTIMAL
    assert found.schedule is not None
    moved = {step.item for step in found.schedule.steps if not step.runs}
    again = [step.item for step in found.schedule.steps if step.runs]
    assert moved == {0}
    assert again.count(1) == 2
    assert found.time == pytest.approx(55 + 8 + 1)


def test_pins_groups_goals_and_weights_are_kept() -> None:
    base = small_transformer(2)
    keep = np.zeros(base.values, np.bool_)
    keep[-1] = True
    base = replace(base, keep=keep)
    allowed = np.ones((2, base.ops), np.bool_)
    allowed[0, 5] = allowed[1, 7] = False
    group, goal = [-1] * base.ops, [-1] * base.values
    group[8] = group[20] = 3
    goal[-1] = 1
    cost = np.concatenate([base.cost, base.cost * 1.5])
    copy = np.broadcast_to(0.05 * base.size, (2, 2, base.values))
    uses = Rows.of([[0] if op in (9, 10) else [] for op in range(base.ops)])
    problem = on_devices(
        base,
        Devices(cost, copy, allowed=allowed, group=group, required=goal, uses=uses, weight=[500]),
    )
    budgets = [share(base, 0.8), share(base, 0.8) + 500]
    found = solve(problem, budgets, asked(time_limit=LONG))
    assert found.schedule is not None
    where: dict[int, set[int]] = {}
    for step in found.schedule.steps:
        if step.runs:
            where.setdefault(step.item, set()).add(step.device)
    assert where[5] == {1}
    assert where[7] == {0}
    assert where[8] == where[20]
    assert len(where[8]) == 1
    assert where[9] == where[10] == {1}  # their weight fits nowhere else
    assert found.schedule.placement[-1] == 1
    assert (peaks(problem, found.schedule) <= budgets).all()


def test_budgets_that_fit_nothing_are_proven_with_a_reason() -> None:
    problem = two_devices(skip_chain(20, 3))
    found = solve(problem, [10, 12], asked())
    assert found.status is Status.INFEASIBLE
    assert found.certificate.bound == inf
    assert "device1" in found.notes[0]


def test_a_second_device_makes_an_infeasible_budget_feasible() -> None:
    base = small_transformer(4)
    need = max(
        sum(int(base.size[0, v]) for v in {*reads, *writes})
        for reads, writes in zip(base.reads.lists(), base.writes.lists(), strict=True)
    )
    seen = Planned()
    options = asked(time_limit=LONG, progress=seen.progress, stop=seen.stop)
    found = solve(with_host(base, 0.01), [need + 8, inf], options)
    assert found.schedule is not None
    assert found.peaks[0] <= need + 8


def test_stop_and_time_limit_end_the_run_with_the_best_so_far() -> None:
    base = small_transformer(25)
    problem, budget = two_devices(base), share(base, 0.25)
    seen, begin = Planned(), time.monotonic()
    found = solve(
        problem, [budget] * 2, asked(time_limit=LONG, progress=seen.progress, stop=seen.stop)
    )
    assert time.monotonic() - begin < LONG / 2
    assert found.schedule is not None
    assert found.status is Status.FEASIBLE
    assert found.certificate.bound <= found.time
    with work(8.0):
        solve(problem, [budget] * 2, asked(time_limit=1.0))


def test_progress_tells_every_move_and_the_gap_never_grows() -> None:
    base = small_transformer(6)
    seen: list[tuple[float, float]] = []
    found = solve(
        two_devices(base),
        [share(base, 0.7)] * 2,
        asked(time_limit=LONG, progress=lambda best, bound, _: seen.append((best, bound))),
    )
    gaps = [best - bound for best, bound in seen]
    assert all(later <= gap for gap, later in itertools.pairwise(gaps))
    assert [entry[1:] for entry in found.trace] == seen
    assert found.status is Status.OPTIMAL


def test_warm_start_is_taken_or_ignored() -> None:
    base = skip_chain(24, 1, 0.2)
    problem = two_devices(base)
    on_first = Schedule(tuple(Step(op, 0) for op in range(base.ops)), (-1,) * base.values)
    late = lambda: True  # noqa: E731
    budget = share(base, 1.0)
    taken = solve(problem, [budget] * 2, asked(stop=late), warm=on_first)
    assert taken.planner == "warm start"
    assert taken.schedule == on_first
    ignored = solve(problem, [budget - 1] * 2, asked(stop=late), warm=on_first)
    assert ignored.schedule is None


def test_two_threads_agree_with_one() -> None:
    base = small_transformer(5)
    problem, budgets = two_devices(base), [share(base, 0.6)] * 2
    one = solve(problem, budgets, asked(time_limit=LONG))
    both = solve(problem, budgets, asked(time_limit=LONG, threads=2))
    assert one.status is both.status is Status.OPTIMAL
    assert one.time == pytest.approx(both.time, rel=1e-4)


def test_makespan_objective_uses_both_devices_at_once() -> None:
    """Two independent chains: one after the other in time, side by side in makespan."""
    base = ones([[op - 1] if op % 4 else [] for op in range(8)])
    problem = on_devices(base, Devices(np.ones((2, 8)), np.full((2, 2, 8), 5.0)))
    found = solve(problem, [10, 10], asked(objective="makespan", time_limit=LONG))
    assert found.status is Status.OPTIMAL
    assert found.makespan == pytest.approx(4)
    assert found.time == pytest.approx(8)


def test_thousands_of_ops_are_spread_over_two_devices_in_seconds() -> None:
    base = small_transformer(130)
    assert base.ops > 2000
    copy = np.broadcast_to(0.005 * base.size * base.cost.mean(), (2, 2, base.values))
    problem = on_devices(base, Devices(np.concatenate([base.cost] * 2), copy, copy_busy=0.3 * copy))
    budgets = [share(base, 0.8)] * 2
    seen = Planned(0.8 * problem.reference)
    with work(6.0):
        found = solve(
            problem,
            budgets,
            asked(objective="makespan", time_limit=LONG, progress=seen.progress, stop=seen.stop),
        )
    assert found.schedule is not None
    assert found.makespan <= 0.8 * problem.reference
    assert found.peaks == tuple(peaks(problem, found.schedule))
    assert max(found.peaks) <= budgets[0]
    assert 0.5 * problem.reference * (1 - 1e-6) <= found.certificate.bound <= found.makespan


def test_a_makespan_run_that_is_stopped_at_once_has_a_plan() -> None:
    base = small_transformer(12)
    seen, begin = Planned(), time.monotonic()
    found = solve(
        two_devices(base),
        [share(base, 0.9)] * 2,
        asked(objective="makespan", time_limit=LONG, progress=seen.progress, stop=seen.stop),
    )
    assert time.monotonic() - begin < LONG / 2
    assert found.schedule is not None
    assert found.value == min(seen.told)


@pytest.mark.parametrize("seed", range(20))
def test_list_scheduling_is_valid_and_says_what_is_within_budgets(seed: int) -> None:
    problem = random_device_problem(seed, 25, devices=2 + seed % 2, kept=0.05)
    schedule = random_schedule(problem, seed)
    if schedule is None:
        return
    layout, fixed = ProblemLists(problem), seed % 4 == 0
    budgets = [int(0.9 * b) + 1 for b in peaks(problem, schedule)]
    lists = Lists(Search(layout, budgets, free_order=not fixed, seed=seed), fixed)
    within: list[Schedule] = []
    lists.run(0.1, lambda: False, within.append)
    spans = [makespan(problem, found, budgets) for found in within]
    assert all((peaks(problem, found) <= budgets).all() for found in within)
    assert all((peaks(problem, found) > budgets).any() for found in lists.over())
    if fixed:
        for found in (*within, *lists.over()):
            assert found.first_runs == tuple(range(problem.ops))
    if spans:
        assert spans[-1] <= spans[0] * 1.01


def test_list_scheduling_finds_the_best_of_two_chains() -> None:
    """Two chains with one value between them that is dear to move."""
    base = ones([[], [], [0], [1], [2], [3], [4], [5], [6, 7]])
    problem = on_devices(base, Devices(np.ones((2, 9)), np.full((2, 2, 9), 1.5)))
    within: list[Schedule] = []
    best = pytest.approx(4 + 1.5 + 1)
    Lists(Search(ProblemLists(problem), [9, 9], free_order=True), fixed_order=False).run(
        LONG, lambda: bool(within) and makespan(problem, within[-1], [9, 9]) == best, within.append
    )
    assert makespan(problem, within[-1], [9, 9]) == best


def test_unknown_options_are_refused() -> None:
    problem = two_devices(skip_chain(10, 1))
    with pytest.raises(UsageError, match="unknown solver"):
        solve(problem, [9, 9], asked(solver="cplex"))
    with pytest.raises(UsageError, match="unknown objective"):
        solve(problem, [9, 9], asked(objective="energy"))
    with pytest.raises(ValueError, match="1 budgets for 2 devices"):
        solve(problem, [9], asked())


@pytest.mark.parametrize("seed", range(20))
def test_search_stays_valid_and_within_budgets(seed: int) -> None:
    problem = random_device_problem(seed, 25, devices=2 + seed % 2, kept=0.05)
    schedule = random_schedule(problem, seed)
    if schedule is None:
        return
    layout = ProblemLists(problem)
    start = without_unread(layout, schedule)
    budgets = [int(0.85 * b) + 1 for b in peaks(problem, start)]
    search = Search(layout, budgets, free_order=bool(seed % 2), seed=seed)
    kept: list[Schedule] = []
    fitted = search.fit(start, time.monotonic() + 1, lambda: False, 2, 1.0)
    if fitted is not None:
        kept.append(fitted)
    for parallel in (False, True):
        search.anneal(fitted or start, 0.05, lambda: False, kept.append, parallel=parallel)
    for found in kept:
        assert (occupancy(problem, found).max(axis=1) <= budgets).all()


def test_annealing_leaves_an_infeasible_start() -> None:
    base = small_transformer(3)
    problem = with_host(base, 0.01)
    start = Schedule(tuple(Step(op, 0) for op in range(base.ops)), (-1,) * base.values)
    search = Search(ProblemLists(problem), [share(base, 0.7), 10**9])
    kept: list[Schedule] = []
    search.anneal(start, LONG, lambda: bool(kept), kept.append)
    assert kept
    assert peaks(problem, kept[0])[0] <= share(base, 0.7)


def test_copies_move_to_where_they_do_not_break_the_budget() -> None:
    base = skip_chain(12, 2)
    problem = with_host(base, 0.1)
    ops = [Step(op, 0) for op in range(base.ops)]
    late = [*ops[:9], Step(0, 1, 0), Step(0, 0, 1), *ops[9:]]  # swapped out just before it returns
    schedule = Schedule(tuple(late), (-1,) * base.values)
    budget = int(peaks(problem, schedule)[0]) - 1
    moved = retimed(problem, schedule, [budget, 10**9])
    over = np.maximum(occupancy(problem, schedule)[0] - budget, 0).sum()
    assert np.maximum(occupancy(problem, moved)[0] - budget, 0).sum() < over
    assert sorted(moved.steps) == sorted(schedule.steps)


@pytest.mark.parametrize("planner", ["auto", "search"])
@pytest.mark.parametrize("budget", [1e30, 2.0**63 - 2048])
def test_budgets_may_be_any_number(budget: float, planner: str) -> None:
    """Beyond what 64 bits hold as well; at half of that, sums overflowed in compiled code."""
    problem = random_device_problem(1, 6, plain=True)
    asked_for = asked(time_limit=0.3, method=Method(planner))
    assert solve(problem, [budget] * 2, asked_for).schedule is not None
