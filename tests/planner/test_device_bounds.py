"""Several devices: bounds are valid, schedules are optimal, on instances small enough to know."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from onnxremat.planner.bounds import (
    largest_need,
    least_budgets,
    makespan_bound,
    misfit,
    quick_makespan_bound,
)
from onnxremat.planner.formulations import xengine
from onnxremat.planner.formulations.cuts import build
from onnxremat.planner.formulations.extract import late_schedule, without_unread
from onnxremat.planner.formulations.holds import Hold, Holds
from onnxremat.planner.formulations.paths import add_paths, violated
from onnxremat.planner.formulations.project import project
from onnxremat.planner.formulations.spans import (
    Spans,
    Split,
    fixed_spans,
    free_spans,
    with_splits,
)
from onnxremat.planner.incumbent import NO_LIMIT
from onnxremat.planner.ladder import solve
from onnxremat.planner.makespan import makespan
from onnxremat.planner.on_devices import Devices, on_devices
from onnxremat.planner.problem import OneDevice, Problem, Rows
from onnxremat.planner.problem_lists import ProblemLists
from onnxremat.planner.schedule import Schedule, Step
from onnxremat.planner.search.session import Search
from onnxremat.planner.semantics import peaks, seconds
from onnxremat.planner.solution import Status
from onnxremat.planner.solvers import SOLVERS, Limits, Outcome
from tests.limits import LONG
from tests.planner.asking import asked
from tests.planner.device_oracle import optimum, random_device_problem, random_schedule
from tests.planner.oracle import random_problem
from tests.planner.test_bounds_are_valid import drawn_splits
from tests.toolbox import seeds

EPS = 1e-6
HIGHS = SOLVERS["highs"]


def budgets_of(problem: Problem, seed: int, low: float = 0.75) -> list[int] | None:
    schedule = random_schedule(problem, seed)
    if schedule is None:
        return None
    return [max(1, int((low + 0.15 * (seed % 4)) * b)) for b in peaks(problem, schedule)]


def spans_of(layout: ProblemLists, seed: int, *, fixed_order: bool) -> list[Spans]:
    """No cut, and 1, 2 and 4 of them, whole and with random intervals split."""
    ops = layout.problem.ops
    draw = np.random.default_rng(seed)
    found = [fixed_spans(ops, ())]
    for count in (1, 2, 4):
        cuts = draw.choice(ops, min(ops, count), replace=False).tolist()
        spans = fixed_spans(ops, cuts) if fixed_order else free_spans(layout, cuts)
        if spans is not None:
            found.append(spans)
            if ops > 3:
                found.append(with_splits(spans, drawn_splits(ops, cuts, seed, 1 + seed % 3)))
    return found


@pytest.mark.parametrize("seed", seeds(90, 24))
def test_every_schedule_satisfies_every_row(seed: int) -> None:
    """Random schedules, projected on the model for their own peaks, break no row."""
    problem = random_device_problem(seed, 2 + seed % 11, devices=2 + seed % 2, plain=seed % 7 == 0)
    layout = ProblemLists(problem)
    for which in range(4):
        schedule = random_schedule(problem, which, fixed_order=which % 2 == 0)
        if schedule is None:
            continue
        schedule = without_unread(layout, schedule)
        top = peaks(problem, schedule).tolist()
        assert misfit(layout, top) is None
        for spans in spans_of(layout, which, fixed_order=which % 2 == 0):
            for loads in (False, True):
                made = build(layout, spans, top, makespan=loads)
                point = project(made, schedule)
                assert made.model.violation(point) < EPS
                took = makespan(problem, schedule, top) if loads else seconds(problem, schedule)
                assert made.seconds(made.model.objective(point)) <= took + EPS


@pytest.mark.parametrize("seed", seeds(40, 9))
def test_path_and_hold_rows_hold_for_every_schedule(seed: int) -> None:
    """Rows that some random point breaks: no schedule on 2 or 3 devices breaks them."""
    problem = random_device_problem(seed, 10, devices=2 + seed % 2, plain=seed % 5 == 0)
    lists, rng = ProblemLists(problem), np.random.default_rng(seed)
    drawn = [random_schedule(problem, k, fixed_order=bool(k % 2)) for k in range(16)]
    schedules = [without_unread(lists, schedule) for schedule in drawn if schedule is not None]
    broken = 0
    both = [spans for fixed in (True, False) for spans in spans_of(lists, seed, fixed_order=fixed)]
    for spans in both:
        made = build(lists, spans, [100] * problem.devices)
        points = rng.random((10, made.model.columns)) ** 3
        paths = [path for point in points for _, path in violated(made, point, 0.1)]
        held = Holds(made)
        holds = [hold for point in points for _, hold in held.violated(point, 0.01, 4)]
        broken += len(paths)
        for schedule in schedules:
            if spans.any_order or schedule.first_runs == tuple(range(problem.ops)):
                made = build(lists, spans, peaks(problem, schedule).tolist())
                add_paths(made, paths)
                Holds(made).add(holds)
                assert made.model.violation(project(made, schedule)) < EPS
    assert broken > 0


@pytest.mark.parametrize("seed", seeds(100, 24))
def test_cut_optimum_is_a_lower_bound(seed: int) -> None:
    problem = random_device_problem(seed, 4, plain=seed % 7 == 0)
    budgets = budgets_of(problem, seed)
    if budgets is None:
        return
    layout = ProblemLists(problem)
    for fixed_order in (True, False):
        exact = optimum(problem, budgets, fixed_order=fixed_order)
        if misfit(layout, budgets) is not None:
            assert exact == inf
        for spans in spans_of(layout, seed, fixed_order=fixed_order):
            made = build(layout, spans, budgets)
            result = HIGHS.solve(made.model, Limits(seconds=LONG))
            if result.outcome is Outcome.INFEASIBLE:
                assert exact == inf
            else:
                assert made.seconds(result.bound) <= exact + EPS


@pytest.mark.parametrize("seed", seeds(130, 48))
def test_planner_finds_the_optimum_and_proves_no_more(seed: int) -> None:
    problem = random_device_problem(seed, 4, plain=seed % 7 == 0, kept=0.1)
    budgets = budgets_of(problem, seed)
    if budgets is None:
        return
    fixed_order = bool(seed % 2)
    exact = optimum(problem, budgets, fixed_order=fixed_order)
    found: list[float] = []
    answer = solve(
        problem,
        budgets,
        asked(
            time_limit=LONG if exact < inf else 0.3,
            fixed_order=fixed_order,
            seed=seed,
            progress=lambda best, _bound, _stage: found.append(best),
            stop=lambda: bool(found) and found[-1] <= exact + EPS < inf,
        ),
    )
    if exact == inf:
        assert answer.schedule is None
        assert answer.status in (Status.INFEASIBLE, Status.UNKNOWN)
        return
    assert answer.schedule is not None
    assert answer.time == pytest.approx(exact, abs=EPS)
    assert (peaks(problem, answer.schedule) <= budgets).all()
    if fixed_order:
        assert answer.schedule.first_runs == tuple(range(problem.ops))
    if answer.certificate.any_order or fixed_order:
        assert answer.certificate.bound <= exact + EPS
    assert answer.makespan_bound <= answer.makespan <= answer.time + EPS


@pytest.mark.parametrize("seed", seeds(40, 12))
def test_solutions_of_the_relaxation_become_valid_schedules(seed: int) -> None:
    problem = random_device_problem(seed, 12, devices=2 + seed % 2, kept=0.08)
    budgets = budgets_of(problem, seed, 0.85)
    if budgets is None:
        return
    layout = ProblemLists(problem)
    for spans in spans_of(layout, seed, fixed_order=True):
        made = build(layout, spans, budgets)
        result = HIGHS.solve(made.model, Limits(seconds=LONG))
        if result.point is None:
            continue
        schedule = late_schedule(made, result.point)
        if schedule is not None:
            limits = [NO_LIMIT] * problem.devices
            assert Search(layout, limits, free_order=True).replay(schedule) is not None
            ordered = late_schedule(made, result.point, in_order=True)
            if ordered is not None:
                assert ordered.first_runs == tuple(range(problem.ops))
                assert Search(layout, limits).replay(ordered) is not None
            if (peaks(problem, schedule) <= budgets).all():
                assert seconds(problem, schedule) >= made.seconds(result.bound) - EPS


@pytest.mark.parametrize("seed", range(12))
def test_makespan_bound_and_search(seed: int) -> None:
    problem = random_device_problem(seed, 8, kept=0.1)
    layout = ProblemLists(problem)
    budgets = budgets_of(problem, 2)
    if budgets is None:
        return
    least, kind = makespan_bound(layout, Limits(seconds=LONG))
    assert kind in ("critical path", "load")
    quick, _ = quick_makespan_bound(problem)
    for which in range(5):
        schedule = random_schedule(problem, which, fixed_order=False)
        if schedule is not None:
            assert makespan(problem, schedule, [NO_LIMIT] * 2) >= max(least, quick) - EPS
    found = solve(problem, budgets, asked(objective="makespan", time_limit=0.5))
    if found.schedule is not None:
        assert found.value == makespan(problem, found.schedule, budgets)
        assert least - EPS <= found.certificate.bound <= found.value <= found.time + EPS


def test_a_second_run_elsewhere_takes_no_room_for_results() -> None:
    """Op 0 makes a kept value of 100 bytes on one device; the other has 2 and runs it again."""
    base = OneDevice(
        cost=[1.0] * 3, work=[0] * 3, reads=Rows.of([[], [1], [1]]),
        writes=Rows.of([[0, 1], [2], [3]]), size=[100, 1, 1, 1], keep=[True, False, False, False],
        inplace=Rows.of([[]] * 3), recompute=[True] * 3,
    ).problem()  # fmt: skip
    problem = on_devices(base, Devices(np.ones((2, 3)), np.full((2, 2, 4), inf)))
    schedule = Schedule((Step(0, 0), Step(1, 0), Step(0, 1), Step(2, 1)), (0, -1, -1, -1))
    top, whole = peaks(problem, schedule).tolist(), fixed_spans(3, [1, 2])
    assert top == [102, 2]
    for spans, holds in (
        (with_splits(whole, [Split(1, 2, 0)]), []),
        (whole, [Hold(1, 2, 1, 0, ())]),
    ):
        made = build(ProblemLists(problem), spans, top)
        assert Holds(made).add(holds) == holds
        assert made.model.violation(project(made, schedule)) < EPS


def test_a_result_is_copied_to_where_its_op_runs_again() -> None:
    """Op 0, free of cost, makes a kept value and another, which op 1 reads on the other device: by
    a second run, which does not make the first. A schedule was read that could not be carried out.
    """
    base = OneDevice(
        cost=[0.0, 1.0], work=[0, 0], reads=Rows.of([[], [0, 1]]), writes=Rows.of([[0, 1], [2]]),
        size=[1, 1, 1], keep=[True, False, False], inplace=Rows.of([[]] * 2), recompute=[True] * 2,
    ).problem()  # fmt: skip
    copy = np.full((2, 2, 3), 0.1)
    copy[0, 1, 1] = 5.0
    problem = on_devices(base, Devices([[0.0, inf], [0.0, 1.0]], copy, required=[0, -1, -1]))
    assert solve(problem, [9, 9], asked(time_limit=0.3)).schedule is not None


def test_quick_makespan_bound_weighs_devices_by_what_they_are_good_at() -> None:
    """Ten ops that take 1 and 3 seconds, and ten that take 3 and 1: 10 seconds of each."""
    base = random_problem(1, 20, plain=True)
    base = replace(base, reads=Rows.of([[] for _ in range(20)]))
    cost = np.asarray([[1.0] * 10 + [3.0] * 10, [3.0] * 10 + [1.0] * 10])
    copy = np.ones((2, 2, base.values))
    assert quick_makespan_bound(on_devices(base, Devices(cost, copy))) == (
        pytest.approx(10, abs=1e-6), "load",
    )  # fmt: skip
    slow = np.stack([cost[0], np.full(20, np.inf)])
    assert quick_makespan_bound(on_devices(base, Devices(slow, copy)))[0] == pytest.approx(
        40, abs=1e-6
    )
    twice = np.stack([np.ones(20), np.full(20, 3.0)])  # 15 on the first, 5 on the second
    found, _ = quick_makespan_bound(on_devices(base, Devices(twice, copy)))
    assert 14 < found <= 15


@pytest.mark.parametrize("seed", range(16))
def test_xengine_is_never_better_and_equal_where_memory_is_no_matter(seed: int) -> None:
    """XEngine's schedules are staged: each op at most once per stage, copies at fixed places."""
    base = random_problem(seed, 4 + seed % 2, plain=True)
    cost = np.concatenate(
        [base.cost, base.cost * np.random.default_rng(seed).uniform(0.5, 3, base.ops)]
    )
    copy = 0.2 * np.broadcast_to(base.size, (2, 2, base.values)) + 0.1
    problem = on_devices(base, Devices(cost, copy))
    lists = ProblemLists(base)
    low, high = largest_need(lists).bytes, 10**6
    for budget in (low + seed % 5, high):
        made = xengine.build(problem, [budget] * 2, linear=True)
        staged = HIGHS.solve(made.model, Limits(seconds=LONG))
        exact = optimum(problem, [budget] * 2, fixed_order=True)
        answer = solve(problem, [budget] * 2, asked(time_limit=LONG, fixed_order=True))
        assert answer.certificate.bound <= exact + EPS
        if staged.outcome is Outcome.INFEASIBLE:
            continue
        best = made.seconds(staged.objective)
        assert exact <= best + 1e-3
        assert answer.time <= best + 1e-3
        if budget == high:
            assert exact == pytest.approx(best, abs=1e-3)


def test_oracle_knows_a_case_by_hand() -> None:
    """Two ops of 3 bytes each on devices of 4: the second must read a copy, or run beside."""
    base = random_problem(0, 2, plain=True)
    base = replace(base, size=np.asarray([[3, 1]]))
    problem = on_devices(base, Devices([[1.0, 9.0], [5.0, 1.0]], np.full((2, 2, base.values), 0.5)))
    chained = bool(base.reads.lists()[1])
    expected = 1.0 + 1.0 + (0.5 if chained else 0.0)
    assert optimum(problem, [4, 4], fixed_order=True) == expected
    assert solve(problem, [4, 4], asked()).time == pytest.approx(expected)


def test_weights_of_ops_that_run_nowhere_else_are_there_throughout() -> None:
    """Each op alone fits; all of them together do not, and that is seen without a search."""
    free = random_device_problem(3, 6, devices=2, plain=True)
    ops = np.arange(free.ops)
    weight = np.full((free.devices, free.ops), 1000)
    own = replace(free, uses=Rows.of([[op] for op in ops]), weight=weight)
    bound = replace(own, cost=np.where([[True], [False]], own.cost, inf))
    least = least_budgets(bound)[0]
    assert least > 1000 * free.ops > max(least_budgets(own))
    assert misfit(ProblemLists(own), [least - 1, least - 1]) is None
    found = misfit(ProblemLists(bound), [least - 1, least - 1])
    assert found is not None
    assert "with the weights of all that runs there alone" in found.why
    assert misfit(ProblemLists(bound), [least, least]) is None
