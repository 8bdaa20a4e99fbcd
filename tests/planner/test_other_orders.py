"""An order of first runs that is proven optimal in itself is left for a better one."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import models
import onnxremat
from onnxremat.cost.analytic import analytic_costs
from onnxremat.pipeline.limits import limit_of
from onnxremat.pipeline.prepare import prepare
from onnxremat.planner import incumbent, ladder, other_orders
from onnxremat.planner.any_order import AnyOrder
from onnxremat.planner.incumbent import Incumbent
from onnxremat.planner.lazy_cuts import LazyCuts
from onnxremat.planner.on_devices import Devices, on_devices
from onnxremat.planner.options import Method, PlanOptions
from onnxremat.planner.portfolio import Portfolio
from onnxremat.planner.problem import Problem
from onnxremat.planner.problem_lists import reordered
from onnxremat.planner.schedule import Schedule
from onnxremat.planner.semantics import peak, seconds
from onnxremat.planner.solution import Status
from onnxremat.units import parse_budget
from tests.planner.graphs import ones, small_transformer

WORK = PlanOptions(work=3000, threads=1)


@pytest.fixture(scope="module")
def step() -> tuple[Problem, int]:
    """A training step of a transformer's layer, and a budget that its base order keeps with 4.8 %
    more time at least."""
    train = onnxremat.Training()
    settings = onnxremat.Settings(
        train=train, target="portable", costs=analytic_costs, measure=False
    )
    with pytest.warns(onnxremat.errors.TrainingWarning):
        prepared = prepare(models.build("bert", layers=1), settings)
    limit = limit_of(prepared, parse_budget("0.6x"))
    assert limit is not None
    return prepared.reduced.problem, limit.planned


def test_a_quicker_order_is_proven_of_all(step: tuple[Problem, int], warm: None) -> None:
    problem, budget = step
    base = ladder.solve(problem, budget, replace(WORK, fixed_order=True))
    found = ladder.solve(problem, budget, WORK)
    assert base.status is found.status is Status.OPTIMAL
    assert found.time < base.time - 0.02 * problem.reference
    assert found.certificate.any_order


def test_so_it_is_where_values_can_be_swapped(step: tuple[Problem, int], warm: None) -> None:
    problem, budget = step
    nowhere = np.full(problem.ops, np.inf)
    copying = 0.02 * problem.reference * problem.size[0] / problem.size.max()
    link = np.broadcast_to(copying, (2, 2, problem.values))
    swapping = on_devices(problem, Devices(np.asarray([nowhere, problem.cost[0]]), link))
    budgets = [np.inf, budget]
    base = ladder.solve(swapping, budgets, replace(WORK, fixed_order=True))
    found = ladder.solve(swapping, budgets, WORK)
    assert base.status is found.status is Status.OPTIMAL
    assert found.time < base.time - 0.02 * problem.reference


def test_a_quicker_order_is_found_and_proven(
    step: tuple[Problem, int], warm: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where cuts that hold for every order come to nothing."""
    monkeypatch.setattr(AnyOrder, "_run", lambda *_, **__: None)
    problem, budget = step
    base = ladder.solve(problem, budget, replace(WORK, fixed_order=True))
    found = ladder.solve(problem, budget, WORK)
    assert base.status is found.status is Status.OPTIMAL
    assert found.time < base.time - 0.02 * problem.reference
    assert not found.certificate.any_order
    order = list(found.schedule.first_runs)
    same = ladder.solve(reordered(problem, order), budget, replace(WORK, fixed_order=True))
    assert same.status is Status.OPTIMAL
    assert same.time == pytest.approx(found.time, rel=WORK.gap)
    assert found.certificate.bound <= same.time


def test_nobody_leaves_an_order_that_was_asked_for_or_a_method_of_its_own(
    step: tuple[Problem, int], warm: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, budget = step
    tied = list[bool]()
    real = LazyCuts._tie

    def tie(self: LazyCuts) -> None:
        real(self)
        tied.append(self.incumbent.tied)

    monkeypatch.setattr(LazyCuts, "_tie", tie)
    cuts = replace(WORK, work=300, method=Method("cuts"))
    for options in (replace(WORK, work=300, fixed_order=True), cuts):
        ladder.solve(problem, budget, options)
    assert tied
    assert not any(tied)


def test_a_bound_of_one_order_is_beaten_by_a_schedule_of_another() -> None:
    problem = ones([[], [0], [0]])
    made = Incumbent.of(problem, 1 << 40, PlanOptions())
    made.order = (0, 2, 1)  # not that of store-all
    made.offer(problem.store_all(), "store-all")
    made.raise_bound(2.0 * problem.reference, "cuts", any_order=False)
    assert not made.beaten
    assert not made.elsewhere
    made.tied = True
    assert made.beaten
    assert made.elsewhere
    assert made.over()
    made.follow(range(3))
    assert not made.tied
    assert not made.elsewhere
    assert made.kept is not None


@pytest.mark.parametrize("parallel", [False, True])
def test_bounds_of_the_makespan_are_of_no_order(parallel: bool) -> None:
    problem = ones([[], [0], [0]])
    made = Incumbent.of(problem, 1 << 40, PlanOptions())
    cuts: Any = SimpleNamespace(
        incumbent=made, problem=problem, options=PlanOptions(), parallel=parallel,
        places=SimpleNamespace(free=False),
    )  # fmt: skip
    LazyCuts._tie(cuts)
    assert made.tied is not parallel


@pytest.mark.parametrize("first", [[0, 2, 0, 1, 0, 3], [0, 1, 0, 2, 0, 3]])
def test_what_is_found_in_the_same_order_ends_nothing(
    first: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither proven optimal there nor beaten by what another order has: it goes on in time."""
    problem = ones([[], [0], [0], [0]])
    made = Incumbent.of(problem, 1 << 40, PlanOptions())
    made.offer(first, "annealing")
    made.tied = True
    better = Schedule.of(problem, [0, 1, 0, 2, 3])
    monkeypatch.setattr(other_orders, "_loosened", lambda *_: better)
    ran = list[float]()

    def run() -> None:
        ran.append(made.value)
        made.limit = 0.0

    portfolio: Any = SimpleNamespace(incumbent=made, run=run)
    anyhow: Any = SimpleNamespace(go_on=lambda: None)
    other_orders.in_other_orders(portfolio, [], PlanOptions(), anyhow)
    assert len(ran) == 1
    assert made.kept is not None


def test_a_plan_for_less_keeps_the_order_that_was_proven_of(
    step: tuple[Problem, int], warm: None
) -> None:
    problem, budget = step
    first = ladder.solve(problem, budget, WORK)
    order = first.schedule.first_runs
    assert order != tuple(range(problem.ops))
    less = first.peak - 1
    again = ladder.solve_in_order(problem, less, WORK, order, first.sequence)
    assert again.schedule.first_runs == order
    assert first.proves_of(again.schedule)
    assert peak(problem, again.schedule) <= less
    assert seconds(problem, again.schedule) == pytest.approx(again.time)
    assert again.time >= first.certificate.bound
    nothing = ladder.solve_in_order(problem, 1, WORK, order)
    assert nothing.schedule is None


def test_an_order_that_was_put_back_is_taken_where_it_is_quicker(warm: None) -> None:
    """Two large values, each read once: one order makes the first again, one never holds both."""
    problem = Problem.plain(
        [4, 4, 1, 1, 1], [1.0] * 5, [[], [], [0], [1], [2, 3]]
    )  # fmt: skip
    wide, narrow = [0, 1, 2, 3, 4], [0, 2, 1, 3, 4]
    made = Incumbent.of(problem, 7, WORK)
    portfolio, other = (Portfolio.of(made, order, WORK) for order in (wide, narrow))
    portfolio.run("cuts")
    made.tied = True
    assert made.closed
    assert made.value == 7.0
    better = other_orders._listed(portfolio, other)
    assert better is not portfolio
    assert better.incumbent is better.lazy.incumbent is made
    assert (made.value, made.order, made.tied) == (5.0, tuple(narrow), True)
    # And back it is not left.
    back = Portfolio.of(made, wide, WORK)
    assert other_orders._listed(better, back) is better
    assert (made.value, made.order) == (5.0, tuple(narrow))
    assert made.ordered.seconds == pytest.approx(5.0)


def test_nothing_is_refused_because_others_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until something is found seconds are those of the processor, to four times the limit."""
    now = [100.0, 10.0]
    clock: Any = SimpleNamespace(counted=False, now=lambda: now[0])
    monkeypatch.setattr(incumbent, "process_time", lambda: now[1])
    problem = ones([[], [0], [0]])
    made = Incumbent(problem, (1 << 40,), 8.0, 0.0, clock=clock, used=10.0)
    now[:] = 112.0, 13.0
    assert made.left == pytest.approx(8 - 3)  # 12 s passed, of which it had 3
    now[:] = 120.0, 13.0
    assert made.left == pytest.approx(8 - 5)  # a quarter counts at least
    now[:] = 120.0, 50.0
    assert made.left == pytest.approx(8 - 20)  # and no more than all, whatever threads did
    now[:] = 112.0, 13.0
    made.offer(problem.store_all(), "store-all")
    assert made.left == pytest.approx(8 - 12)
    assert made.stopped()


def test_greedy_repair_has_the_time_that_others_did_not_take(
    monkeypatch: pytest.MonkeyPatch, warm: None
) -> None:
    """On a wall clock that moves by a fiftieth of the limit at each look, while the processor does
    next to nothing for this."""
    problem = small_transformer(12)
    budget = int(0.6 * peak(problem, problem.store_all()))
    looks = count()
    clock: Any = SimpleNamespace(counted=False, now=lambda: 0.02 * next(looks), spend=abs)
    monkeypatch.setattr(incumbent, "process_time", lambda: 0.0)
    made = Incumbent(problem, (budget,), 1.0, 0.0, clock=clock, used=0.0)
    Portfolio.of(made, problem.store_all(), PlanOptions(threads=1)).begin()
    assert made.best is not None
