"""The planner: a ladder of methods, each adding a schedule, a bound, or both.

1. what fits nowhere, store everything, trivial bounds; on one device the order with the least peak
   and the checkpoint rules that take milliseconds, so that there is a plan at once where one of
   them fits; for the makespan list scheduling;
2. the first relaxation: one cut at the peak, or on several devices the best placement with copies,
   memory being no matter, in several orders; its solution read as a schedule; where a cut proves
   something of one order alone, cuts that hold for every order;
3. greedy insertion of recomputations and copies with polish (compiled);
4. lazy cuts one at a time, each repaired by moving copies, by smaller budgets and by the search,
   annealing between or beside;
5. annealing with what time is left;
6. where cuts prove something of one order of first runs alone, and a quicker schedule has another:
   lazy cuts in that order, as long as annealing finds one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

from onnxremat.planner import search
from onnxremat.planner.baselines.checkpoints import (
    articulation,
    chen_sqrt,
    every_block,
    recompute_all,
)
from onnxremat.planner.bounds import makespan_bound, misfit, quick_makespan_bound
from onnxremat.planner.incumbent import Incumbent
from onnxremat.planner.options import PlanOptions
from onnxremat.planner.order import best_order, late_order
from onnxremat.planner.problem import Problem
from onnxremat.planner.problem_lists import ProblemLists, reordered
from onnxremat.planner.schedule import Schedule
from onnxremat.planner.semantics import peak
from onnxremat.planner.solution import Solution
from onnxremat.planner.solvers import Limits

if TYPE_CHECKING:
    from onnxremat.planner.portfolio import Portfolio

RULES = (articulation, chen_sqrt, every_block, recompute_all)  # mostly from fast and large to lean


@dataclass(frozen=True)
class Tuning:
    """Constants of the ladder.

    Attributes:
        ruled: ops beyond which remaking everything takes more than a moment to write down.
        order_share, order_seconds: share of the limit, and seconds, for a better order at most.
        better: share of the base order's peak at which another order is worth a try on several
            devices (one device always tries both: greedy repair says which is better).
        pace: ops per second of the limit up to which a linear program of all ops can be solved.
        load_share: of the limit, for that.
    """

    ruled: int = 600
    order_share: float = 0.05
    order_seconds: float = 2.0
    better: float = 0.98
    pace: float = 150.0
    load_share: float = 0.1


TUNING = Tuning()


def solve(
    problem: Problem,
    budgets: int | Sequence[float],
    options: PlanOptions | None = None,
    warm: Schedule | Sequence[int] | None = None,
) -> Solution:
    """The fastest schedule within a budget per device, with a proven lower bound of its time.

    Args:
        budgets: bytes per device, everything :func:`~onnxremat.planner.semantics.occupancy` counts
            included; ``inf`` for a device without a limit. A number alone is that of an only
            device.
        options: limits and hooks, the gap being a share of the reference time; of its method the
            rung that is to work alone.
        warm: a schedule (or, on one device, ops in order) to start from; on one device one that is
            over budget is repaired first. Ignored when it is invalid.

    Raises:
        ValueError: not one budget per device.
    """
    options = options or PlanOptions()
    incumbent, lists = Incumbent.of(problem, budgets, options), ProblemLists(problem)
    if _trivial(incumbent, lists, options):
        return incumbent.solution()
    if warm is not None and not incumbent.offer(warm, "warm start"):
        _repair(incumbent, lists, options, warm)
    rung = options.method.rung
    if problem.devices == 1 and not rung:
        _rules(incumbent)
    if problem.devices == 1:
        orders = [problem.store_all(), *_other_orders(incumbent, lists)]
        if incumbent.closed or rung == "order":
            return incumbent.solution()
    else:
        orders = [problem.store_all()]
    _run_portfolios(incumbent, lists, options, orders)
    return incumbent.solution()


def solve_in_order(
    problem: Problem,
    budgets: int | Sequence[float],
    options: PlanOptions,
    order: Sequence[int],
    warm: Sequence[int] | None = None,
) -> Solution:
    """:func:`solve` with first runs in one order.

    Args:
        warm: ops to start from, in the caller's numbers and with first runs in this order.

    Raises:
        ValueError: not one budget per device, or no order of the ops.
    """
    from onnxremat.planner.portfolio import renamed

    names = list(order)
    fixed = replace(options, fixed_order=True)
    rank = {op: here for here, op in enumerate(names)}
    start = None if warm is None else [rank[op] for op in warm]
    found = solve(reordered(problem, names), budgets, fixed, start)
    if found.schedule is None:
        return found
    return replace(found, schedule=renamed(found.schedule, names))


def _repair(
    incumbent: Incumbent, lists: ProblemLists, options: PlanOptions, warm: Schedule | Sequence[int]
) -> None:
    """Make a plan fit that is over the budget: what was planned for a little more is at hand again
    in a moment then, however little time there is."""
    if incumbent.problem.devices > 1 or options.method.rung or incumbent.best is not None:
        return
    with incumbent.uncounted():
        search.warm_up(1)
    from onnxremat.planner.portfolio import Portfolio

    start = warm if isinstance(warm, Schedule) else Schedule.of(incumbent.problem, warm)
    Portfolio.of(incumbent, incumbent.problem.store_all(), options).refit(start)


def _trivial(incumbent: Incumbent, lists: ProblemLists, options: PlanOptions) -> bool:
    """What needs no search; True when that settles the question."""
    problem = incumbent.problem
    found = misfit(lists, incumbent.budgets, fixed_order=options.fixed_order)
    if found is not None:
        incumbent.notes.append(found.why)
        any_order = problem.devices > 1 or not options.fixed_order
        incumbent.raise_bound(inf, "largest op", any_order=any_order)
        return True
    if problem.devices == 1:
        incumbent.offer(problem.store_all(), "store-all")
        return incumbent.closed
    least, why = quick_makespan_bound(problem)
    incumbent.raise_bound(least, why, any_order=True, parallel=True)
    if not incumbent.parallel:
        _bound_makespan(incumbent, lists, options)
    return incumbent.closed


def _bound_makespan(incumbent: Incumbent, lists: ProblemLists, options: PlanOptions) -> None:
    """The bound of every makespan that takes a linear program, where that can be solved in time."""
    if incumbent.problem.ops < TUNING.pace * incumbent.limit and not incumbent.over():
        seconds = max(0.05, min(TUNING.load_share * incumbent.limit, incumbent.left))
        limits = Limits(seconds=seconds, stop=incumbent.stop, clock=incumbent.clock)
        least, why = makespan_bound(lists, limits, options.solver)
        incumbent.raise_bound(least, why, any_order=True, parallel=True)


def _rules(incumbent: Incumbent) -> None:
    """Offer the first checkpoint rule that fits: a plan at once, however little time there is."""
    for rule in RULES:
        if incumbent.best is not None:
            return
        if rule is recompute_all and incumbent.problem.ops > TUNING.ruled:
            continue
        found = rule(incumbent.problem, incumbent.budgets[0])
        if found.schedule is not None:
            incumbent.offer(found.schedule, found.planner)


def _other_orders(incumbent: Incumbent, lists: ProblemLists) -> list[list[int]]:
    """An order of the ops with less peak than the base order, where there is one."""
    if incumbent.fixed_order:
        return []
    most = min(TUNING.order_seconds, TUNING.order_share * incumbent.limit)
    skeleton = incumbent.problem.skeleton
    plain = lists if skeleton is incumbent.problem else ProblemLists(skeleton)
    found = best_order(
        plain, min(most, max(0.0, incumbent.left)), enough=min(incumbent.budgets),
        stop=incumbent.stopped, clock=incumbent.clock,
    )  # fmt: skip
    base = skeleton.store_all()
    if skeleton is incumbent.problem:
        incumbent.offer(found.order, "best order")
        return [] if found.order == base else [found.order]
    orders = [found.order] if found.peak <= TUNING.better * peak(skeleton, base) else []
    if not incumbent.parallel and skeleton.ops < TUNING.pace * incumbent.limit:
        orders.append(late_order(plain))
    return [order for order in orders if order != base]


def _placed(incumbent: Incumbent, portfolios: Sequence[Portfolio]) -> Portfolio:
    """The order on several devices in which the best placement can be made to fit at least cost."""
    best, least = portfolios[0], inf
    for portfolio in portfolios:
        if incumbent.over():
            break
        part = incumbent.part(any_order=True, order=tuple(portfolio.named))
        portfolio.work_for(part)
        portfolio.place()
        portfolio.work_for(incumbent)
        if part.best is not None:
            incumbent.offer(part.best.schedule, part.best.planner)
        if part.value < least:
            best, least = portfolio, part.value
    return best


def _run_portfolios(
    incumbent: Incumbent, lists: ProblemLists, options: PlanOptions, orders: list[list[int]]
) -> None:
    """Greedy repair where there is a choice of orders, then the whole portfolio on the best."""
    with incumbent.uncounted():
        search.warm_up(incumbent.problem.devices)
    from onnxremat.planner.any_order import AnyOrder
    from onnxremat.planner.other_orders import in_other_orders
    from onnxremat.planner.portfolio import Portfolio

    portfolios = [Portfolio.of(incumbent, order, options) for order in orders]
    several = incumbent.problem.devices > 1
    if incumbent.parallel and several:
        portfolios[0].listed()
        _bound_makespan(incumbent, lists, options)
    if several and not (incumbent.parallel and incumbent.best is not None):
        others = _other_orders(incumbent, lists)
        portfolios += [Portfolio.of(incumbent, order, options) for order in others]
    best = portfolios[0]
    if not (several or len(portfolios) > 1 or options.method.rung):
        best.begin()
    anyhow = None
    if not (incumbent.parallel or incumbent.fixed_order or options.method.rung):
        anyhow = AnyOrder(incumbent, options)
    if several and anyhow is not None:
        best = _placed(incumbent, portfolios)
    elif len(portfolios) > 1:
        for portfolio in portfolios:
            portfolio.greedy(quick=several)
        if incumbent.parallel and several:
            portfolios[1].listed()
        best = max(portfolios, key=lambda portfolio: portfolio.merit)
    incumbent.follow(best.named)
    if anyhow is not None and not incumbent.closed and best.lazy.tied_at_first:
        anyhow.begin(best.last if several else None)
    if not (incumbent.closed or (several and incumbent.elsewhere)):
        best.run(options.method.rung)
    if anyhow is not None:
        in_other_orders(
            best, [portfolio for portfolio in portfolios if portfolio is not best], options, anyhow
        )
