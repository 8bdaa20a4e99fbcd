"""Other orders of first runs than the one that cuts prove something of: those in which greedy
repair did less well, and, as long as annealing finds a quicker schedule, the order of that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from onnxremat.planner.any_order import AnyOrder
from onnxremat.planner.options import PlanOptions
from onnxremat.planner.portfolio import Portfolio
from onnxremat.planner.schedule import Schedule


@dataclass(frozen=True)
class Tuning:
    """Constants of leaving an order.

    Attributes:
        share, most: of the time taken so far, and of the limit at most, for annealing in any order
            from the best schedule of one (a GPT-2 step at 50 %: 2.00 % is optimal in the base
            order, 1.74 % in one that a second of it finds).
        again: times both, once another order has been better (random_250/80%: 0.93 % without).
        late: share of the limit after which that is not begun any more.
        listed: times as long as until then the cuts of an order that was put back may take (a U-Net
            step at 40 %: 16.87 % is optimal in the one where greedy repair is over by less, 13.97 %
            are found in the other).
    """

    share: float = 0.5
    most: float = 0.1
    again: float = 2.5
    late: float = 0.5
    listed: float = 1.0


TUNING = Tuning()


def in_other_orders(
    portfolio: Portfolio, others: Sequence[Portfolio], options: PlanOptions, anyhow: AnyOrder
) -> None:
    """Go on from where one order ended.

    Args:
        portfolio: in that order, optimal in it or with a quicker schedule of another.
        others: in orders that were put back for that one.
        anyhow: cuts that hold for every order.
    """
    incumbent, pays, others, fresh = portfolio.incumbent, 1.0, list(others), True
    while incumbent.tied and incumbent.best is not None and not incumbent.stopped():
        if incumbent.little_left:
            anyhow.go_on()  # a moment of it
            return
        settled = incumbent.closed and not incumbent.elsewhere
        if settled and fresh:
            fresh = False
            anyhow.go_on()
            continue
        if settled and others:
            portfolio = _listed(portfolio, others.pop())
        elif settled and incumbent.elapsed > TUNING.late * incumbent.limit:
            return
        elif settled or incumbent.elsewhere:
            part = min(TUNING.share * incumbent.elapsed, TUNING.most * incumbent.limit)
            found = _loosened(portfolio, pays * part)
            if found is not None:
                incumbent.offer(found, "annealing")
            moved = incumbent.moved
            if moved is not None and incumbent.elsewhere:
                pays = TUNING.again
                incumbent.follow(moved.schedule.first_runs)
                portfolio = Portfolio.of(incumbent, list(incumbent.order), options)
                # Repair from store-all is of no use by now.
                portfolio.tried = len(portfolio.tuning.depths)
            elif incumbent.closed:
                return
        portfolio.run()  # in the same order, where what was found last is in that


def _listed(portfolio: Portfolio, other: Portfolio) -> Portfolio:
    """The one of two that goes on: the other where something quicker is found in its order."""
    incumbent = portfolio.incumbent
    limit = min(incumbent.limit, (1 + TUNING.listed) * incumbent.elapsed)
    part = incumbent.part(any_order=True, order=tuple(other.named), limit=limit)

    def settled() -> bool:
        quicker = part.kept is not None and part.kept.time < incumbent.target
        return quicker or (incumbent.stop is not None and incumbent.stop())

    part.stop, best = settled, incumbent.best
    assert best is not None
    part.offer(best.schedule, best.planner)  # what is not quicker is left out
    trial = replace(other, incumbent=part)
    trial.run()
    found = part.kept
    if found is None or found.time >= incumbent.target:
        return portfolio
    incumbent.follow(part.order)
    incumbent.offer(found.schedule, found.planner)
    incumbent.raise_bound(part.ordered.seconds, part.ordered.kind, any_order=False)
    incumbent.tied = True
    trial.work_for(incumbent)  # its cuts go on
    return trial


def _loosened(portfolio: Portfolio, patience: float) -> Schedule | None:
    """A schedule in any order, quicker than the best one by more than the gap: by walks from that,
    until they have found nothing for so many seconds."""
    incumbent = portfolio.incumbent
    part, best = incumbent.part(any_order=True), incumbent.best
    assert best is not None
    part.offer(best.schedule, best.planner)
    other, last = replace(portfolio, incumbent=part, start=None), [part.elapsed, part.value]

    def settled() -> bool:
        if part.value < last[1]:
            last[:] = part.elapsed, part.value
        return part.elapsed > last[0] + patience

    other.walk(settled)
    found = part.best
    return found.schedule if found is not None and found.time < incumbent.target else None
