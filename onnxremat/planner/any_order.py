"""Planning in every order at once: lazy cuts on a chain of the dependency order.

Where many ops can run here or there, cuts at the peak of one order prove something of that alone,
and the best plan may have another. Cuts on a chain (``chain_cuts``) prove something of all, and
their solutions say where such ops run: where one fits the budget, nothing is quicker in any order.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property

from onnxremat.planner.incumbent import Incumbent
from onnxremat.planner.options import PlanOptions
from onnxremat.planner.portfolio import Portfolio
from onnxremat.planner.schedule import Schedule


@dataclass(frozen=True)
class Tuning:
    """Constants of when that is done.

    Attributes:
        first: share of the limit before any order is looked at by itself (a GPT-2 step at 50 %:
            1.30 % proven in 3 s; in its own order 2.00 % are optimal).
        several: that share on several devices, where fewer ways lead from one order to another (a
            U-Net step at 50 %, swapping, step_unet: 2.50 %, 4.19 % in the base order alone).
        brief: share of the limit for it from where no order can gain much any more.
        pace: ops per second of the limit up to which that is begun with.
        later, most: of the time until one order is closed, and of the limit at most, for more.
    """

    first: float = 0.1
    several: float = 0.5
    brief: float = 0.02
    pace: float = 100.0
    later: float = 1.0
    most: float = 0.3


TUNING = Tuning()


@dataclass
class AnyOrder:
    """Rounds of such cuts, as long as they pay.

    Attributes:
        incumbent: what they are a part of, which takes what they find.
        options: of planning.
        more: another round can be had.
    """

    incumbent: Incumbent
    options: PlanOptions
    more: bool = True

    @cached_property
    def portfolio(self) -> Portfolio:
        """With such cuts, in the base order where an interval says nothing else."""
        order = self.incumbent.problem.store_all()
        return Portfolio.of(self.incumbent, order, self.options, chained=True)

    def begin(self, placed: Schedule | None = None) -> None:
        """Before anything else.

        Args:
            placed: on several devices, a schedule that is best without budgets.
        """
        incumbent, share = self.incumbent, TUNING.first
        if placed is not None:
            share, incumbent.tied = TUNING.several, True
            self.more = self.portfolio.lazy.places.add(placed, 1, placing=False)
        if self.more and incumbent.problem.ops < TUNING.pace * incumbent.limit:
            self._run(share * incumbent.limit, beside=placed is not None)

    def go_on(self) -> None:
        """Once one order is closed: beside walks, where there is a second thread for them."""
        incumbent = self.incumbent
        seconds = min(TUNING.later * incumbent.elapsed, TUNING.most * incumbent.limit)
        self._run(seconds, beside=True)

    def _run(self, seconds: float, *, beside: bool) -> None:
        """Rounds for so long.

        Args:
            beside: with walks in a second thread, where there is one and something to begin at.
        """
        incumbent = self.incumbent
        beside = beside and self.options.beside and incumbent.best is not None
        limit = min(incumbent.limit, incumbent.elapsed + seconds)
        part = incumbent.part(any_order=True, limit=limit)
        if incumbent.best is not None:
            part.offer(incumbent.best.schedule, incumbent.best.planner)
        if not self.more or part.over():
            return  # before anything is built or a thread begun for it

        def tell(_best: float, _bound: float, stage: str) -> None:
            found = part.best
            if found is not None and part.value < incumbent.value:
                incumbent.offer(found.schedule, found.planner)
            else:
                incumbent.tell(stage)

        part.progress, portfolio = tell, self.portfolio
        portfolio.work_for(part)
        with portfolio.beside(bool) if beside else nullcontext():
            while self.more and not part.over():
                if part.little_left:
                    part.limit = min(part.limit, part.elapsed + TUNING.brief * incumbent.limit)
                self.more = portfolio.round() or part.stopped()
