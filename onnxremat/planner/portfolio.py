"""Planning in one order: greedy repair, lazy cuts and annealing, taking turns or side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import cycle
from math import inf
from threading import Event, Thread
from time import sleep

import numpy as np

from onnxremat.planner.chain_cuts import ChainCuts
from onnxremat.planner.cut_places import CutPlaces
from onnxremat.planner.incumbent import Incumbent
from onnxremat.planner.lazy_cuts import LazyCuts
from onnxremat.planner.options import PlanOptions
from onnxremat.planner.problem_lists import ProblemLists, reordered
from onnxremat.planner.schedule import Schedule, Step
from onnxremat.planner.search.session import Search
from onnxremat.planner.walks import Walks

Depths = tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Tuning:
    """Constants of the portfolio; rows are those of ``make bench-plan``.

    Attributes:
        depths: of greedy repair: (levels of ancestry remade, exponent of the cost in the score).
        quick: how many of them before the first round of lazy cuts.
        greedy_share: of the time limit for one of them at most.
        first_share: of it for one of them while there is no plan, before the first round of cuts.
        begin_share: of it after which no further one is begun before the first round of cuts.
        large: ops from which the first plan of greedy repair is good enough (bert_1000).
        repairs: how many of the depths repair a schedule of the cuts.
        heats: of annealing by turns, in mean op costs: afresh, and near the best.
        cool: of annealing from a schedule over budget, in its repair.
        turn, per_op: seconds of the first turn of annealing, and more for each op.
        late: ops from which polishing is left out when time is up.
        listing: share of the time for list scheduling where there are many ops.
        list_repair: share of the time left for the repair of one such schedule.
        mild: heat that leaves good lists good (makespan).
        small: ops below which the sum of all steps is planned first for the makespan too.
        serial: share of the time for that.
        pace: ops per second of the limit up to which a model of all ops can be solved.
    """

    depths: Depths
    quick: int
    greedy_share: float
    first_share: float = 0.5
    begin_share: float = 0.1
    heats: tuple[float, ...] = (0.6, 0.05)
    large: int = 3000
    repairs: int = 3
    cool: float = 0.02
    turn: float = 0.2
    per_op: float = 0.0004
    late: int = 1000
    listing: float = 0.5
    list_repair: float = 0.1
    mild: float = 0.05
    small: int = 400
    serial: float = 0.4
    pace: float = 150.0


ONE_DEVICE = Tuning(((0, 1.0), (2, 1.0), (6, 1.0), (0, 0.5), (2, 0.5), (6, 0.5)), 0, 0.2)
SEVERAL = Tuning(((2, 1.0), (0, 1.0), (2, 0.5), (6, 1.0)), 1, 0.1)


@dataclass
class Portfolio:
    """Lazy cuts and search on ops renumbered to one order.

    Attributes:
        named: op numbers of the caller for each op here.
        merit: of the greedy result: less excess, then less time.
        start: that result; where annealing begins as long as nothing is found.
        chained: cuts are those alone that hold for every order.
    """

    incumbent: Incumbent
    lists: ProblemLists
    named: list[int]
    options: PlanOptions
    tuning: Tuning
    search: Search
    merit: tuple[float, float] = (-inf, -inf)
    start: Schedule | None = None
    tried: int = 0  # greedy depths
    turns: int = 0  # of annealing
    chained: bool = False
    lazy: LazyCuts = field(init=False)

    def __post_init__(self) -> None:
        self.lazy = self._cuts(parallel=False)

    @classmethod
    def of(
        cls, incumbent: Incumbent, order: list[int], options: PlanOptions, *, chained: bool = False
    ) -> Portfolio:
        """Prepare for one order of the caller's ops."""
        problem = incumbent.problem
        same = order == list(range(problem.ops))
        lists = ProblemLists(problem if same else reordered(problem, order))
        search = Search(
            lists, incumbent.budgets, free_order=not incumbent.fixed_order, seed=options.seed,
            clock=incumbent.clock,
        )  # fmt: skip
        tuning = ONE_DEVICE if problem.devices == 1 else SEVERAL
        return cls(incumbent, lists, order, options, tuning, search, chained=chained)

    def _cuts(self, *, parallel: bool) -> LazyCuts:
        """Lazy cuts for the sum of all steps, or for the loads."""
        budgets = np.asarray(self.incumbent.budgets, np.int64)
        kind = ChainCuts if self.chained else CutPlaces
        places = kind(self.lists, budgets, not self.incumbent.fixed_order)
        incumbent, options = self.incumbent, self.options
        return LazyCuts(places, incumbent, options, self.offer, self.repair, self.best, parallel)

    def offer(self, schedule: Schedule, planner: str) -> None:
        """Offer a schedule in this numbering."""
        self.incumbent.offer(renamed(schedule, self.named), planner)

    def best(self, in_order: bool = False) -> Schedule | None:
        """The best schedule so far in this numbering, with first runs in base order if asked."""
        found = self.incumbent.kept if in_order else self.incumbent.best
        if found is None:
            return None
        rank = [0] * len(self.named)
        for here, op in enumerate(self.named):
            rank[op] = here
        return renamed(found.schedule, rank)

    def run(self, rung: str = "") -> None:
        """Plan until the gap is closed or time is up.

        Args:
            rung: ``cuts`` or ``search`` alone.
        """
        if rung == "cuts":
            while self.round():
                pass
        elif rung == "search":
            self.greedy()
            while not self.incumbent.over():
                self.anneal(self.search, self.incumbent.left, bool)
        else:
            self._run()

    def _run(self) -> None:
        incumbent = self.incumbent
        if incumbent.parallel:
            if incumbent.best is None or self.lists.problem.ops < self.tuning.small:
                self._serial_first()
            known, self.lazy = self.lazy, self._cuts(parallel=True)
            places = known.places
            self.lazy.places.cuts, self.lazy.places.free = list(places.cuts), places.free
        first = not (incumbent.parallel and incumbent.best)
        if first:
            self.greedy(quick=True)
        more = self._pays() and self.round()
        if incumbent.over():
            return
        if first:
            self.greedy()
        if self.options.beside:
            self._run_beside(more)
        else:
            self._take_turns(more)

    def work_for(self, incumbent: Incumbent) -> None:
        """Offer to another run from here on, and end with it."""
        self.incumbent = self.lazy.incumbent = incumbent

    def place(self) -> None:
        """Greedy repair once, and the first round on several devices: the best placement, and a
        cut where that breaks a budget."""
        self.greedy(quick=True)
        self.round()

    @property
    def last(self) -> Schedule | None:
        """The schedule of the last solution of the cuts, in the caller's numbers."""
        return None if self.lazy.last is None else renamed(self.lazy.last, self.named)

    def _pays(self) -> bool:
        """Whether a model can be solved in its share of the time."""
        incumbent = self.incumbent
        return not incumbent.parallel or self.lists.problem.ops < self.tuning.pace * incumbent.limit

    def round(self) -> bool:
        """A round of lazy cuts; False when there is nothing more to gain by them."""
        return not self.incumbent.over() and self.lazy.round() and not self.incumbent.over()

    def _serial_first(self) -> None:
        """A good schedule for the sum of all steps, with a share of the time."""
        incumbent = self.incumbent
        part = incumbent.part(
            limit=self.tuning.serial * incumbent.limit, parallel=False,
            gap=max(incumbent.gap, 1e-3),
        )  # fmt: skip
        other = replace(self, incumbent=part)
        other._run()
        self.lazy.places.cuts = other.lazy.places.cuts
        self.start, self.merit = other.start, other.merit
        self.tried = other.tried
        if part.best is not None:
            incumbent.offer(part.best.schedule, part.best.planner)

    def listed(self) -> None:
        """List scheduling: what is within the budgets is offered, the best that is not repaired."""
        from onnxremat.planner.search.lists import Lists  # compiled, for several devices only

        incumbent, tuning = self.incumbent, self.tuning
        lists = Lists(self.search, incumbent.fixed_order)
        many = self.lists.problem.ops > tuning.small
        lists.run(
            (1.0 if many else 0.3) * tuning.listing * incumbent.left,
            incumbent.over,
            lambda found: self.offer(found, "list scheduling"),
        )
        for start in lists.over():
            until = incumbent.begin + incumbent.elapsed + tuning.list_repair * incumbent.left
            if incumbent.over():
                break
            fitted = self.search.fit(start, until, incumbent.stopped, *tuning.depths[0])
            if fitted is not None:
                self.offer(fitted, "list scheduling")

    def greedy(self, *, quick: bool = False) -> None:
        """Greedy repair of every op on one device, for each device that runs them all; the best
        result is offered and kept as start.

        Args:
            quick: with the first settings only; the others are left for later.
        """
        self._greedy(self.tuning.quick if quick else len(self.tuning.depths))

    def begin(self) -> None:
        """Greedy repair with one setting after the other until there is a plan: on a large problem
        a round of cuts takes many times as long, and a busy machine may not come to its end."""
        incumbent, tuning = self.incumbent, self.tuning
        end = incumbent.spent + tuning.begin_share * incumbent.limit
        while incumbent.best is None and self.tried < len(tuning.depths):
            if incumbent.over() or incumbent.spent >= end:
                return
            self._greedy(self.tried + 1, tuning.first_share)

    def refit(self, schedule: Schedule) -> None:
        """Greedy repair of a schedule over budget; what fits is offered."""
        incumbent, tuning = self.incumbent, self.tuning
        for depth in tuning.depths[: tuning.repairs]:
            if incumbent.best is None and not incumbent.over():
                self._fit(schedule, (depth,))

    def _greedy(self, count: int, share: float = 0.0) -> None:
        """With so many of the settings, those aside that were tried; ``share`` as of _fit."""
        wanted = self.tuning.depths[self.tried : count]
        self.tried = max(self.tried, count)
        for device in self.lists.devices:
            if all(device in able for able in self.lists.able):
                problem = self.lists.problem
                self._fit(Schedule.of(problem, problem.store_all(), device), wanted, share)

    def _fit(self, begin: Schedule, depths: Depths, share: float = 0.0) -> None:
        """Greedy repair with these settings.

        Args:
            share: of the time for each of them, where it is not that of the tuning.
        """
        incumbent, tuning = self.incumbent, self.tuning
        for depth, power in depths:
            if incumbent.over():
                return
            most = incumbent.spent + (share or tuning.greedy_share) * incumbent.limit

            def late(most: float = most) -> bool:
                return incumbent.stopped() or incumbent.spent >= most

            found = self.search.fit(begin, inf, late, depth, power)
            reached = found or self.search.left
            figures = None if reached is None else self.search.replay(reached)
            if figures is None:
                continue
            merit = (-figures.area, -figures.seconds)
            if merit > self.merit:
                self.merit, self.start = merit, reached
            if found is not None:
                self.offer(found, "greedy")
            if self.lists.problem.ops > tuning.large and incumbent.best is not None:
                return

    def repair(self, schedule: Schedule, seconds: float) -> Schedule | None:
        """Greedy repair of a schedule over budget; then cool annealing from it, repeatedly."""
        incumbent, search, tuning = self.incumbent, self.search, self.tuning
        begin = incumbent.elapsed
        until = incumbent.begin + min(incumbent.limit, begin + 0.2 * max(0.5, incumbent.left))
        found: list[Schedule] = []
        search.free_order = not incumbent.fixed_order  # solutions may move loose ops
        for depth, power in tuning.depths[: tuning.repairs]:
            fitted = search.fit(schedule, until, incumbent.stopped, depth, power)
            if fitted is not None:
                found.append(fitted)
        once = 0.2 + 0.001 * self.lists.problem.ops
        while (
            not incumbent.parallel
            and incumbent.elapsed + once < begin + seconds
            and not incumbent.stopped()
        ):
            search.anneal(schedule, once, incumbent.stopped, found.append, heat=tuning.cool)
        figures = ((search.replay(one), one) for one in found)
        quickest = min(
            ((known.seconds, k, one) for k, (known, one) in enumerate(figures) if known),
            default=None,
        )
        return None if quickest is None else quickest[2]

    def anneal(
        self,
        search: Search,
        seconds: float,
        done: Callable[[], bool],
        heat: float | None = None,
        start: Schedule | None = None,
    ) -> Schedule | None:
        """Anneal from the best schedule (or the best start), then drop what is not needed.

        On several devices, where bounds hold for the base order only, first runs keep it every
        other time. For the makespan the walk begins mild, with few ops every other time.

        Args:
            start: a schedule, perhaps over budget, to start from instead.

        Returns:
            The best that the walk came by within the budgets, better than a start within them.
        """
        incumbent, tuning = self.incumbent, self.tuning
        incumbent.clock.spend(1)
        self.turns += 1
        single = self.lists.problem.devices == 1
        loose = single or incumbent.parallel or self.lazy.places.free or self.turns % 2 == 0
        search.free_order = loose and not incumbent.fixed_order
        if incumbent.parallel:
            mild = self.lists.problem.ops > tuning.small or self.turns % 2 == 1
            heat = tuning.mild if mild and incumbent.best is not None else tuning.heats[0]
        begin = start or self.best(not search.free_order) or self.start or self.lazy.last
        ended: list[Schedule] = []
        if begin is None or search.replay(begin) is None:
            return None

        def take(found: Schedule) -> None:
            ended[:] = [found]
            self.offer(found, "annealing")

        search.anneal(
            begin,
            min(seconds, incumbent.left),
            lambda: incumbent.over() or done(),
            take,
            parallel=incumbent.parallel,
            heat=tuning.heats[0] if heat is None else heat,
        )
        late = incumbent.stopped() and self.lists.problem.ops > tuning.late and not single
        best = self.best(not search.free_order)
        if best is not None and not (incumbent.closed or incumbent.parallel or late):
            self.offer(search.polished(best), "annealing")
        return ended[0] if ended else None

    def _take_turns(self, more: bool) -> None:
        """Annealing and rounds of lazy cuts by turns; once these have ended, annealing goes on as
        it does beside them."""
        incumbent, tuning, heats = self.incumbent, self.tuning, cycle(self.tuning.heats)
        turn = tuning.turn + tuning.per_op * self.lists.problem.ops
        walks = Walks(
            self, self.search, lambda: not more and (incumbent.elsewhere or not self._begun)
        )
        runs = walks.each()
        while more and not incumbent.over():
            begin = incumbent.elapsed
            if not walks.rounds:
                self.anneal(self.search, turn, bool, next(heats))
            while walks.rounds and incumbent.elapsed < begin + turn and not incumbent.over():
                next(runs, None)
            begin = incumbent.elapsed
            more = self.round()
            turn = max(turn, 0.5 * (incumbent.elapsed - begin))
        for _ in runs:
            pass

    @property
    def _begun(self) -> bool:
        """There is something to anneal from."""
        return (self.best() or self.start or self.lazy.last) is not None

    def _run_beside(self, more: bool) -> None:
        """Lazy cuts here, annealing in a second thread; once cuts have ended, in both."""
        with self.beside(bool):
            while more:
                more = self.round()
            self._walk(self.search, lambda: self.incumbent.elsewhere)

    def walk(self, done: Callable[[], bool]) -> None:
        """Anneal again and again, in as many threads as there are, until that is done."""
        with self.beside(done) if self.options.beside else nullcontext():
            self._walk(self.search, done)

    @contextmanager
    def beside(self, done: Callable[[], bool]) -> Iterator[None]:
        """Annealing in a second thread (it leaves the interpreter lock) while the block runs."""
        finished = Event()
        search = Search(
            self.lists, self.incumbent.budgets, free_order=self.search.free_order,
            seed=self.options.seed + 1, clock=self.incumbent.clock,
        )  # fmt: skip
        thread = Thread(
            target=self._walk, args=(search, lambda: finished.is_set() or done()),
            name="annealing", daemon=True,
        )  # fmt: skip
        thread.start()
        try:
            yield
        finally:
            finished.set()
            thread.join()

    def _walk(self, search: Search, done: Callable[[], bool]) -> None:
        for _ in Walks(self, search, done).each():
            if self.best() is None:
                sleep(0.01)  # there may be nothing to start from yet


def renamed(schedule: Schedule, names: list[int]) -> Schedule:
    """The schedule with op ``i`` called ``names[i]``."""
    if names == list(range(len(names))):
        return schedule
    steps = tuple([Step(names[s.item], s.device) if s.runs else s for s in schedule.steps])
    return Schedule(steps, schedule.placement)
