"""The planner: a ladder of methods, each adding a sequence, a bound, or both.

1. store everything in the base order, or in the order with the least peak; trivial bounds; the
   checkpoint rules that take milliseconds, so that there is a plan at once where one of them fits;
2. one cut at the peak, solved as a small MILP, and its solution read as a sequence;
3. greedy insertion of recomputations with polish (compiled);
4. lazy cuts one at a time, each repaired by the search, annealing between;
5. annealing with what time is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from onnxremat.planner import search
from onnxremat.planner.baselines.checkpoints import (
    articulation,
    chen_sqrt,
    every_block,
    recompute_all,
)
from onnxremat.planner.bounds import largest_need, least_time
from onnxremat.planner.options import PlanOptions
from onnxremat.planner.order import Order, best_order
from onnxremat.planner.problem import Problem, Solution
from onnxremat.planner.record import Record
from onnxremat.planner.wiring import Wiring

RULES = (articulation, chen_sqrt, every_block, recompute_all)  # mostly from fast and large to lean
RULED = 600  # ops beyond which remaking everything takes more than a moment to write down


def solve(
    problem: Problem,
    budget: int,
    options: PlanOptions | None = None,
    warm: Sequence[int] | None = None,
) -> Solution:
    """The fastest sequence within a budget, with a proven lower bound of its time.

    Args:
        budget: bytes, everything :func:`~onnxremat.planner.problem.occupancy` counts included.
        options: limits and hooks; of its method the rung that is to work alone.
        warm: a sequence to start from; ignored when it is invalid or over budget.
    """
    options = options or PlanOptions()
    record = Record(
        problem, int(budget), options.seconds, options.gap, options.progress, options.stop,
        options.fixed_order, clock=options.clock(),
    )  # fmt: skip
    record.order = tuple(range(problem.ops))
    wiring = Wiring(problem)
    if _trivial(record, wiring, options):
        return record.solution()
    in_order = warm is not None and tuple(dict.fromkeys(warm)) == record.order
    if warm is not None and (in_order or not options.fixed_order):
        record.offer(warm, "warm start")
    only = options.method.rung
    if not only:
        _rules(record)
    starts = _starts(record, wiring, options)
    if not record.closed and only != "order":
        _climb(record, starts, options)
    return record.solution()


def _trivial(record: Record, wiring: Wiring, options: PlanOptions) -> bool:
    """Store everything, or prove that no sequence fits; True when that settles it."""
    need = largest_need(wiring, fixed_order=options.fixed_order)
    if need.bytes > record.budget:
        record.notes.append(need.why)
        record.raise_bound(inf, "largest op", any_order=not options.fixed_order)
        return True
    record.raise_bound(least_time(wiring), "store-all", any_order=True)
    record.offer(record.problem.store_all(), "store-all")
    return record.closed


def _rules(record: Record) -> None:
    """Offer the first checkpoint rule that fits: a plan at once, however little time there is."""
    for rule in RULES:
        if record.sequence is not None:
            return
        if rule is recompute_all and record.problem.ops > RULED:
            continue
        found = rule(record.problem, record.budget)
        if found.sequence is not None:
            record.offer(found.sequence, found.planner)


def _starts(record: Record, wiring: Wiring, options: PlanOptions) -> list[Order]:
    """Orders to plan in: the base order, and a better one where there is one."""
    base = Order(record.problem.store_all(), 0, 0)
    if options.fixed_order:
        return [base]
    seconds = min(2.0, 0.05 * record.limit, max(0.0, record.left))
    found = best_order(
        wiring, seconds, enough=record.budget, stop=record.stopped, clock=record.clock
    )
    record.offer(found.order, "best order")
    if found.order == base.order:
        return [base]
    return [base, found]


def _climb(record: Record, starts: list[Order], options: PlanOptions) -> None:
    """Greedy where there is a choice of orders, then lazy cuts and annealing on the best one."""
    begin = record.clock.now()
    search.warm_up()
    record.begin += record.clock.now() - begin  # compiling is no part of planning
    from onnxremat.planner.climb import Climb

    climbs = [Climb.of(record, start.order, options) for start in starts]
    best = climbs[0]
    if len(climbs) > 1:
        for climb in climbs:
            climb.greedy()
        best = max(climbs, key=lambda climb: climb.merit)
    record.order, record.order_bound = tuple(best.named), record.total
    if not record.closed:
        {"cuts": best.cut, "search": best.walk}.get(options.method.rung, best.run)()
