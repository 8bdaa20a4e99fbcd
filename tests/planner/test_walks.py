"""Where runs of annealing begin, and what placing cuts leaves to them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest

from onnxremat.planner import Problem, peak
from onnxremat.planner.cut_places import CutPlaces
from onnxremat.planner.incumbent import Incumbent
from onnxremat.planner.lazy_cuts import LazyCuts
from onnxremat.planner.options import PlanOptions
from onnxremat.planner.portfolio import Portfolio
from onnxremat.planner.problem_lists import ProblemLists
from onnxremat.planner.relaxed import Relaxed
from onnxremat.planner.schedule import Schedule
from onnxremat.planner.search.session import Search
from onnxremat.planner.semantics import ledger
from onnxremat.planner.walks import TUNING, Walks
from tests.limits import LONG
from tests.planner.asking import asked
from tests.planner.graphs import late_weights, small_transformer


def placing(problem: Problem, share: float) -> LazyCuts:
    """Lazy cuts that have not placed any yet, at a share of the peak."""
    budget = int(share * peak(problem, problem.store_all()))
    incumbent = Incumbent(problem, (budget,), LONG, 1e-6)

    def offer(schedule: Schedule, planner: str) -> None:
        incumbent.offer(schedule, planner)

    cuts = [problem.ops // 3, problem.ops // 2]
    places = CutPlaces(ProblemLists(problem), np.asarray([budget]), cuts=cuts)
    return LazyCuts(
        places, incumbent, asked(), offer, lambda *_: None, lambda _: None, placing=True,
        most=problem.ops,
    )  # fmt: skip


def test_rounded_solutions_are_schedules_and_differ() -> None:
    problem = small_transformer(4)
    lazy, random, found = placing(problem, 0.3), np.random.default_rng(0), set[Any]()
    assert lazy.rounded(random) is None
    lazy._place()
    assert 1 <= len(lazy.points) <= lazy.tuning.read
    assert all(made.model.rows == 0 for made, _ in lazy.points)
    for _ in range(40):
        schedule = lazy.rounded(random)
        assert schedule is not None
        ledger(problem, schedule)  # refuses what cannot be carried out
        assert {step.item for step in schedule.steps} == set(range(problem.ops))
        found.add(schedule.steps)
    assert len(found) > 3, len(found)


def test_cuts_are_thinned_where_more_take_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the relaxation with more cuts fails, those before are thinned all the same."""
    lazy = placing(small_transformer(4), 0.3)
    solved: list[tuple[list[int], Relaxed]] = []
    thinned: list[tuple[list[int], Relaxed]] = []
    relax = lazy._relax

    def fails_late(made: Any, seconds: float = LONG) -> Relaxed | None:
        if len(solved) == 2:
            return None
        relaxed = relax(made, seconds)
        assert relaxed is not None
        solved.append((list(lazy.places.cuts), relaxed))
        return relaxed

    def thin(relaxed: Relaxed, least: float) -> Relaxed:
        thinned.append((list(lazy.places.cuts), relaxed))
        return relaxed

    monkeypatch.setattr(lazy, "_relax", fails_late)
    monkeypatch.setattr(lazy, "_thin", thin)
    monkeypatch.setattr(lazy, "_swap", lambda *_: None)
    lazy._place()
    assert len(solved) == 2
    assert len(solved[1][0]) > len(solved[0][0])
    assert thinned == [solved[1]]


class Recorded:
    """A portfolio that notes where runs begin, and finds nothing."""

    def __init__(self, lazy: LazyCuts) -> None:
        self.lazy, self.incumbent, self.options = lazy, lazy.incumbent, lazy.options
        self.runs: list[tuple[Schedule | None, float | None]] = []

    def best(self) -> Schedule | None:
        return None

    def anneal(
        self, search: Search, seconds: float, done: Callable[[], bool], heat: float | None,
        start: Schedule | None,
    ) -> None:  # fmt: skip
        assert seconds > 0
        self.runs.append((start, heat))


def test_runs_begin_at_rounded_solutions_once_there_are_some() -> None:
    problem = small_transformer(4)
    lazy = placing(problem, 0.3)
    portfolio = Recorded(lazy)
    walks = Walks(portfolio, Search(lazy.lists, lazy.incumbent.budgets, free_order=True), bool)
    runs = walks.each()
    next(runs)
    assert portfolio.runs == [(None, None)]
    lazy._place()
    for _ in islice(runs, 2 * TUNING.crossed + TUNING.rounded):
        pass
    begun = [(start, heat) for start, heat in portfolio.runs[1:] if start is not None]
    assert len(begun) >= TUNING.rounded
    assert {heat for _, heat in begun} == set(TUNING.warm)


def test_walks_end_when_they_are_told_to() -> None:
    lazy = placing(small_transformer(2), 0.3)
    told: list[bool] = []
    walks = Walks(Recorded(lazy), Search(lazy.lists, lazy.incumbent.budgets), lambda: len(told) > 3)
    for _ in walks.each():
        told.append(True)
    assert 3 < len(told) <= 4 + 2 * TUNING.crossed


@pytest.mark.parametrize("seed", range(3))
def test_first_runs_move_to_where_others_need_the_same(seed: int, warm: None) -> None:
    """Gradients of weights that a file has at its end need no second runs, beside the others."""
    problem = late_weights(80)
    options = PlanOptions(work=400, threads=1, seed=seed)
    budget = int(0.55 * peak(problem, problem.store_all()))
    incumbent = Incumbent.of(problem, budget, options)
    portfolio = Portfolio.of(incumbent, list(range(problem.ops)), options)
    portfolio.greedy()
    assert incumbent.value > 1.2 * problem.reference
    portfolio.walk(bool)
    assert incumbent.value == pytest.approx(problem.reference)
