"""Nothing the planner claims contradicts the exact optimum of small problems."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import inf

import numpy as np
import pytest

from onnxremat.planner import Status, peak, seconds, smallest_budget, solve
from onnxremat.planner.bounds import largest_need
from onnxremat.planner.cut_places import CutPlaces
from onnxremat.planner.formulations.cut_model import NEVER, CutModel
from onnxremat.planner.formulations.cuts import build
from onnxremat.planner.formulations.extract import late_schedule, without_unread
from onnxremat.planner.formulations.holds import Holds
from onnxremat.planner.formulations.paths import add_paths, violated
from onnxremat.planner.formulations.project import project
from onnxremat.planner.formulations.spans import (
    Spans,
    Split,
    fixed_spans,
    free_spans,
    with_splits,
)
from onnxremat.planner.incumbent import Incumbent
from onnxremat.planner.lazy_cuts import LazyCuts
from onnxremat.planner.problem import Problem
from onnxremat.planner.problem_lists import ProblemLists
from onnxremat.planner.relaxed import tighten
from onnxremat.planner.schedule import Schedule
from onnxremat.planner.solvers import Limits, Outcome, minimise
from tests.limits import LONG
from tests.planner.asking import asked
from tests.planner.graphs import ones
from tests.planner.oracle import optimum, random_problem, random_sequence
from tests.toolbox import seeds

EPS = 1e-6


def budgets(problem: Problem) -> list[int]:
    """Below, at and between the least need and the store-all peak."""
    low, high = largest_need(ProblemLists(problem)).bytes, peak(problem, problem.store_all())
    return sorted({low - 1, low, (2 * low + high) // 3, (low + 2 * high) // 3, high})


def both_spans(
    lists: ProblemLists, cuts: list[int], splits: list[Split] | None = None
) -> list[Spans]:
    """The cuts for the base order, and for any order where they allow that."""
    free = free_spans(lists, cuts)
    both = [fixed_spans(lists.problem.ops, cuts), *([] if free is None else [free])]
    return [with_splits(spans, splits or []) for spans in both]


def drawn_splits(ops: int, cuts: list[int], seed: int, many: int) -> list[Split]:
    """Random intervals split at random ops, some of them again."""
    rng, order, splits = np.random.default_rng(seed), [-1, *sorted(set(cuts)), -1], list[Split]()
    for _ in range(many):
        at = int(rng.integers(1, len(order)))
        op = int(rng.integers(0, ops // 2))
        if op not in (order[at - 1], order[at]):
            splits.append(Split(order[at - 1], order[at], op))
            order.insert(at, ops + len(splits) - 1)
    return splits


def just_enough(
    lists: ProblemLists, span: Spans, many: int
) -> Iterator[tuple[CutModel, list[int]]]:
    """Random sequences, each with the model whose budget is its own peak."""
    for which in range(many):
        sequence = random_sequence(lists.problem, which, fixed_order=not span.any_order)
        whole = without_unread(lists, Schedule.of(lists.problem, sequence))
        made = build(lists, span, [peak(lists.problem, whole)])
        yield made, list(whole.sequence)


@pytest.mark.parametrize("fixed_order", [True, False])
@pytest.mark.parametrize("seed", seeds(60, 24))
def test_solve_against_exact_optimum(seed: int, fixed_order: bool) -> None:
    problem = random_problem(seed, 4 + seed % 3)
    for budget in budgets(problem):
        exact = optimum(problem, budget, fixed_order=fixed_order)
        found = solve(problem, budget, asked(time_limit=0.15, fixed_order=fixed_order, seed=seed))
        certificate = found.certificate
        if certificate.any_order:
            assert certificate.bound <= optimum(problem, budget, fixed_order=False) + EPS
        elif fixed_order:
            assert certificate.bound <= exact + EPS
        if found.sequence is None:
            assert (found.status is Status.INFEASIBLE) == (certificate.bound == inf)
            assert found.status is not Status.INFEASIBLE or exact == inf
            continue
        assert peak(problem, found.sequence) == found.peak <= budget
        assert seconds(problem, found.sequence) == pytest.approx(found.time)
        assert found.time >= exact - EPS
        if fixed_order:
            assert list(dict.fromkeys(found.sequence)) == list(range(problem.ops))
            if found.status is Status.OPTIMAL:
                assert found.time == pytest.approx(exact, abs=1e-4)
        for op in range(problem.ops):
            assert problem.recompute[op] or found.sequence.count(op) == 1


@pytest.mark.parametrize("seed", seeds(120, 36))
def test_every_sequence_is_a_point_of_the_relaxation(seed: int) -> None:
    problem = random_problem(seed, 9)
    lists = ProblemLists(problem)
    for k in range(1, 4):
        cuts = sorted({(seed * 7 + 3 * i) % problem.ops for i in range(k)})
        sequence = random_sequence(problem, seed)
        made = build(lists, fixed_spans(problem.ops, cuts), [peak(problem, sequence)])
        point = project(made, sequence)
        assert made.model.violation(point) < EPS
        assert made.seconds(made.model.objective(point)) <= seconds(problem, sequence) + EPS
        spans = free_spans(lists, cuts)
        if spans is None:
            continue
        loose = random_sequence(problem, seed + 1, fixed_order=False)
        made = build(lists, spans, [peak(problem, loose)])
        point = project(made, loose)
        assert made.model.violation(point) < EPS
        assert made.seconds(made.model.objective(point)) <= seconds(problem, loose) + EPS


@pytest.mark.parametrize("seed", range(40))
def test_cut_optimum_is_a_lower_bound(seed: int) -> None:
    problem = random_problem(seed, 6)
    lists = ProblemLists(problem)
    for budget in budgets(problem)[:3]:
        for fixed_order in (True, False):
            exact = optimum(problem, budget, fixed_order=fixed_order)
            for cuts in ([2], [1, 3], [3, 4], [1, 2, 3, 4, 5]):
                spans = fixed_spans(problem.ops, cuts) if fixed_order else free_spans(lists, cuts)
                if spans is None:
                    continue
                spans = with_splits(spans, drawn_splits(problem.ops, cuts, seed, 4))
                made = build(lists, spans, [budget])
                result, _ = minimise(made.model, Limits(seconds=LONG))
                if result.outcome is Outcome.INFEASIBLE:
                    assert exact == inf
                else:
                    assert made.seconds(result.bound) <= exact + EPS


@pytest.mark.parametrize("seed", range(25))
def test_smallest_budget_brackets_the_truth(seed: int) -> None:
    problem = random_problem(seed, 5)
    for fixed_order in (True, False):
        bytes_, sequence, bound, why = smallest_budget(
            problem, asked(time_limit=0.4, fixed_order=fixed_order)
        )
        assert peak(problem, sequence) <= bytes_
        assert optimum(problem, bytes_, fixed_order=fixed_order) < inf
        assert optimum(problem, bound - 1, fixed_order=fixed_order) == inf
        assert why


@pytest.mark.parametrize("seed", seeds(60, 12))
def test_cuts_at_second_runs_hold_for_every_sequence(seed: int) -> None:
    """Splits learnt at one budget or drawn hold for all, whatever their order and repeats."""
    problem = random_problem(seed, 12, kept=0.08, frozen=0.1)
    top, low = peak(problem, problem.store_all()), largest_need(ProblemLists(problem)).bytes
    lazy = lazy_cuts(problem, (top + 2 * low) // 3, free=bool(seed % 2))
    places = lazy.places
    for _ in range(12):
        if not lazy.round():
            break
    again = 0
    for splits in (places.splits, drawn_splits(problem.ops, places.cuts, seed, 9)):
        for span in both_spans(lazy.lists, places.cuts, splits):
            for made, sequence in just_enough(lazy.lists, span, 25):
                point = project(made, sequence)
                assert made.model.violation(point) < EPS
                assert made.seconds(made.model.objective(point)) <= seconds(problem, sequence) + EPS
                parts = zip(span.cuts, pairwise([-1, *span.ends(sequence)]), strict=True)
                again += sum(span.split(cut) is not None and a < b for cut, (a, b) in parts)
    assert again > 0  # ops ran where intervals are split


@pytest.mark.parametrize("seed", seeds(60, 18))
def test_path_rows_hold_for_every_sequence(seed: int) -> None:
    """Rows that some random point breaks: no sequence breaks them."""
    problem = random_problem(seed, 12, kept=0.08, frozen=0.1)
    lists, rng = ProblemLists(problem), np.random.default_rng(seed)
    cuts = sorted(rng.choice(problem.ops - 1, size=4, replace=False).tolist())
    broken = 0
    for span in both_spans(lists, cuts, drawn_splits(problem.ops, cuts, seed, seed % 3)):
        made = build(lists, span, [peak(problem, problem.store_all())])
        points = rng.random((20, made.model.columns)) ** 3
        paths = [path for point in points for _, path in violated(made, point, 0.1)]
        broken += len(paths)
        for made, sequence in just_enough(lists, span, 25):
            assert set(add_paths(made, paths)) <= set(paths)
            assert made.model.violation(project(made, sequence)) < EPS
    assert broken > 0


@pytest.mark.parametrize("seed", seeds(60, 12))
def test_hold_rows_hold_for_every_sequence(seed: int) -> None:
    """Rows that some random point breaks: no sequence breaks them."""
    problem = random_problem(seed, 12, kept=0.08, frozen=0.1)
    lists, rng = ProblemLists(problem), np.random.default_rng(seed)
    cuts = sorted(rng.choice(problem.ops - 1, size=4, replace=False).tolist())
    broken = 0
    for span in both_spans(lists, cuts, drawn_splits(problem.ops, cuts, seed, seed % 3)):
        made = build(lists, span, [largest_need(lists).bytes // 3])
        points = rng.random((20, made.model.columns)) ** 3
        rows = Holds(made)
        holds = [hold for point in points for _, hold in rows.violated(point, 0.01, 4)]
        broken += len(holds)
        for made, sequence in just_enough(lists, span, 40):
            assert set(Holds(made).add(holds)) <= set(holds)
            assert made.model.violation(project(made, sequence)) < EPS
    assert broken > 0


def test_hold_rows_of_a_budget_of_nothing() -> None:
    """A device that is not to be used: shares of its budget warned on stderr."""
    lists = ProblemLists(random_problem(0, 12, kept=0.08, frozen=0.1))
    made = build(lists, fixed_spans(12, [3, 6, 9]), [0])
    with np.errstate(divide="raise"):
        assert Holds(made).violated(np.ones(made.model.columns), 0.01, 4)


@pytest.mark.parametrize("fixed_order", [True, False])
@pytest.mark.parametrize("seed", range(40))
def test_tightened_relaxation_is_a_lower_bound(seed: int, fixed_order: bool) -> None:
    problem = random_problem(seed, 6, plain=bool(seed % 2))
    lists = ProblemLists(problem)
    for budget in budgets(problem)[1:4]:
        exact = optimum(problem, budget, fixed_order=fixed_order)
        cuts = [1, 2, 3, 4]
        spans = fixed_spans(problem.ops, cuts) if fixed_order else free_spans(lists, cuts)
        if spans is None:
            continue
        made = build(lists, spans, [budget])
        relaxed = tighten(made, [], Limits(seconds=LONG))
        if relaxed is not None:
            assert made.seconds(relaxed.bound) <= exact + EPS
            again = build(lists, spans, [budget])  # the rows that are left give what they gave
            more = tighten(again, relaxed.rows, Limits(seconds=LONG))
            assert more is not None
            assert made.seconds(relaxed.bound) - EPS <= made.seconds(more.bound) <= exact + EPS


@pytest.mark.parametrize("seed", range(40))
def test_a_solution_read_strictly_runs_ops_where_the_solution_does(seed: int) -> None:
    """Else a watch on a breach of the sequence would not cut off the solution it came from."""
    problem = random_problem(seed, 12, plain=True)
    cuts = [4, 6, 7, 9]
    top, low = peak(problem, problem.store_all()), largest_need(ProblemLists(problem)).bytes
    made = build(ProblemLists(problem), fixed_spans(problem.ops, cuts), [(top + 2 * low) // 3])
    result, _ = minimise(made.model, Limits(seconds=LONG))
    assert result.point is not None
    point = result.point
    schedule = late_schedule(made, point, within=True)
    assert schedule is not None
    interval, seen = 0, set[int]()
    for op in schedule.sequence:
        column = made.run[interval][0][op]
        assert column != NEVER
        assert column < 0 or point[column] > 0.5
        if op not in seen and interval < len(cuts) and op == cuts[interval]:
            interval += 1
        seen.add(op)


def test_cuts_by_the_dozen_keep_the_bound_for_any_order() -> None:
    """A cut on a side branch holds for one order only: it is added where nothing else is left."""
    problem = branched(60)
    places = CutPlaces(ProblemLists(problem), np.asarray([1]), cuts=[30])
    beside = 45  # amid a branch as long as all that are tried
    assert places.near(beside, placing=True) is None
    assert places.near(20, placing=True) == 20
    assert places.spans().any_order
    near = places.near(beside, placing=False)
    assert near == beside
    places.cuts.append(near)
    assert not places.spans().any_order


def lazy_cuts(problem: Problem, budget: int, *, free: bool = True) -> LazyCuts:
    """Lazy cuts by themselves: nothing repairs what they find over budget."""
    incumbent = Incumbent(problem, (budget,), LONG, 1e-6)

    def best(in_order: bool) -> Schedule | None:
        found = incumbent.kept if in_order else incumbent.best
        return None if found is None else found.schedule

    def offer(schedule: Schedule, planner: str) -> None:
        incumbent.offer(schedule, planner)

    places = CutPlaces(ProblemLists(problem), np.asarray([budget]), free)
    return LazyCuts(places, incumbent, asked(), offer, lambda *_: None, best)


def branched(ops: int) -> Problem:
    """A chain in which ops 40 to 49 read op 30 and only op 59 reads them, beside the chain."""
    reads = [[op - 1] if op else [] for op in range(ops)]
    reads[40], reads[50], reads[59] = [30], [39], [49, 58]
    return ones(reads)
