"""Planning in one order: lazy cuts and the compiled search, taking turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from threading import Event, Thread

from onnxremat.planner.devices.layout import Layout
from onnxremat.planner.devices.lazy import LazyDeviceCuts
from onnxremat.planner.devices.problem import (
    DeviceProblem,
    Schedule,
    Step,
    default_hold,
)
from onnxremat.planner.devices.record import PACE, DeviceRecord
from onnxremat.planner.options import PlanOptions
from onnxremat.planner.problem import Rows
from onnxremat.planner.search.lists import Lists
from onnxremat.planner.search.session import Search

DEPTHS = ((2, 1.0), (0, 1.0), (2, 0.5), (6, 1.0))  # greedy: (depth, power)
LARGE = 1000  # ops from which polishing takes noticeable time
LISTING = 0.5  # share of the time for list scheduling where there are many ops
REPAIR = 0.1  # share of the time left for the repair of one such schedule
HOT, MILD = 0.6, 0.05  # mean op costs that annealing starts at; mild leaves good lists good
SMALL = 400  # ops below which the sum of all steps is planned first for the makespan too
SERIAL = 0.4  # share of the time for the sum of all steps when the makespan is wanted


@dataclass
class DeviceClimb:
    """Lazy cuts and search on ops renumbered to one order.

    Attributes:
        named: op numbers of the caller for each op here.
    """

    record: DeviceRecord
    layout: Layout
    named: list[int]
    search: Search
    options: PlanOptions
    merit: tuple[float, float] = (-inf, -inf)  # of the greedy result: less excess, less time
    start: Schedule | None = None
    turns: int = 0  # of annealing
    lazy: LazyDeviceCuts = field(init=False)

    @classmethod
    def of(cls, record: DeviceRecord, order: list[int], options: PlanOptions) -> DeviceClimb:
        """Prepare for one order of the caller's ops."""
        problem = record.problem
        same = order == list(range(problem.ops))
        layout = Layout(problem if same else reordered(problem, order))
        search = Search(
            layout,
            record.budgets,
            free_order=not record.fixed_order,
            seed=options.seed,
            clock=record.clock,
        )
        climb = cls(record, layout, order, search, options)
        climb.lazy = climb.cuts(parallel=False)
        return climb

    def cuts(self, *, parallel: bool) -> LazyDeviceCuts:
        """Lazy cuts for the sum of all steps, or for the loads."""
        return LazyDeviceCuts(
            self.layout, self.record, self.offer, self.repair, self.best, self.options.solver,
            self.options.solver_threads, self.options.seed, not self.record.fixed_order, parallel,
        )  # fmt: skip

    def offer(self, schedule: Schedule, planner: str) -> None:
        """Offer a schedule in this numbering."""
        self.record.offer(renamed(schedule, self.named), planner)

    def best(self, in_order: bool = False) -> Schedule | None:
        """The best schedule so far in this numbering, with first runs in base order if asked."""
        found = self.record.kept if in_order else self.record.best
        if found is None:
            return None
        rank = [0] * len(self.named)
        for here, op in enumerate(self.named):
            rank[op] = here
        return renamed(found.schedule, rank)

    def listed(self) -> None:
        """List scheduling: what is within the budgets is offered, the best that is not repaired."""
        record = self.record
        lists = Lists(self.search, record.fixed_order)
        share = LISTING if self.layout.problem.ops > SMALL else 0.3 * LISTING
        lists.run(
            share * record.left,
            lambda: record.stopped() or record.closed,
            lambda found: self.offer(found, "list scheduling"),
        )
        for start in lists.over():
            until = record.begin + record.elapsed + REPAIR * record.left
            if record.stopped() or record.closed:
                break
            fitted = self.search.fit(start, until, record.stopped, *DEPTHS[0])
            if fitted is not None:
                self.offer(fitted, "list scheduling")

    def greedy(self, *, quick: bool = False) -> None:
        """Greedy repair of every op on one device, for each device that runs them all.

        Args:
            quick: with one setting of the repair instead of all.
        """
        for device in self.layout.devices:
            if all(device in able for able in self.layout.able):
                begin = on_device(self.layout.problem, device)
                self._fit(begin, DEPTHS[:1] if quick else DEPTHS[1:])

    def _fit(self, begin: Schedule, depths: Sequence[tuple[int, float]]) -> None:
        record = self.record
        for depth, power in depths:
            if record.stopped() or record.closed:
                return
            until = record.begin + min(record.limit, record.elapsed + 0.1 * record.limit)
            found = self.search.fit(begin, until, record.stopped, depth, power)
            reached = found or self.search.left
            figures = None if reached is None else self.search.replay(reached)
            if figures is None:
                continue
            merit = (-figures.area, -figures.seconds)
            if merit > self.merit:
                self.merit, self.start = merit, reached
            if found is not None:
                self.offer(found, "greedy")
            if self.layout.problem.ops > 3000 and record.best is not None:
                return

    def repair(self, schedule: Schedule) -> Schedule | None:
        """Greedy repair of a schedule over budget."""
        record = self.record
        until = record.begin + min(record.limit, record.elapsed + 0.2 * max(0.5, record.left))
        best, least = None, inf
        self.search.free_order = not record.fixed_order  # solutions may move loose ops
        for depth, power in DEPTHS[:3]:
            found = self.search.fit(schedule, until, record.stopped, depth, power)
            figures = None if found is None else self.search.replay(found)
            if figures is not None and figures.seconds < least:
                best, least = found, figures.seconds
        return best

    def anneal(self, search: Search, seconds: float, done: Callable[[], bool]) -> None:
        """Anneal from the best schedule (or the best start), then drop what is not needed.

        Where bounds hold for the base order only, first runs keep it every other time. For the
        makespan the walk begins mild, with few ops every other time.
        """
        record = self.record
        record.clock.spend(1)
        self.turns += 1
        loose = record.parallel or self.lazy.free or self.turns % 2 == 0
        search.free_order = loose and not record.fixed_order
        mild = record.parallel and record.best is not None
        mild &= self.layout.problem.ops > SMALL or self.turns % 2 == 1
        start = self.best(not search.free_order) or self.start or self.lazy.last
        if start is None or search.replay(start) is None:
            return
        search.anneal(
            start,
            min(seconds, record.left),
            lambda: record.stopped() or record.closed or done(),
            lambda found: self.offer(found, "annealing"),
            parallel=record.parallel,
            heat=MILD if mild else HOT,
        )
        late = record.stopped() and self.layout.problem.ops > LARGE
        best = self.best(not search.free_order)
        if best is not None and not (record.closed or record.parallel or late):
            self.offer(search.polished(best), "annealing")

    def run(self) -> None:
        """Lazy cuts and search until the gap is closed or time is up."""
        record = self.record
        if record.parallel:
            if record.best is None or self.layout.problem.ops < SMALL:
                self._serial_first()
            self.lazy = replace_cuts(self.cuts(parallel=True), self.lazy)
        first = self.start is None and not (record.parallel and record.best)
        if first:
            self.greedy(quick=True)
        more = self._pays() and self._round()
        if record.closed or record.stopped():
            return
        if first:
            self.greedy()
        if self.options.beside:
            self._run_beside(more)
        else:
            self._take_turns(more)

    def _serial_first(self) -> None:
        """A good schedule for the sum of all steps, with a share of the time."""
        record = self.record
        part = replace(
            record, limit=SERIAL * record.limit, parallel=False, gap=max(record.gap, 1e-3),
            progress=None, kept=None, moved=None, trace=[],
        )  # fmt: skip
        part.free, part.ordered = record.free, record.ordered
        other = DeviceClimb(part, self.layout, self.named, self.search, self.options)
        other.lazy = other.cuts(parallel=False)
        other.run()
        self.lazy.cuts, self.start, self.merit = other.lazy.cuts, other.start, other.merit
        if part.best is not None:
            record.offer(part.best.schedule, part.best.planner)

    def _pays(self) -> bool:
        """Whether a model can be solved in its share of the time."""
        record = self.record
        return not record.parallel or self.layout.problem.ops < PACE * record.limit

    def _round(self) -> bool:
        return not self.record.stopped() and self.lazy.round()

    def _take_turns(self, more: bool) -> None:
        record, slice_ = self.record, 0.2 + 0.0006 * self.layout.problem.ops
        while not record.closed and not record.stopped():
            rest = record.left if record.parallel or self.lazy.free else 0.5 * record.left
            self.anneal(self.search, slice_ if more else max(slice_, rest), bool)
            if self.best() is None and self.start is None and self.lazy.last is None:
                return
            more = more and not record.closed and self._round()

    def _run_beside(self, more: bool) -> None:
        """Lazy cuts here, annealing in a second thread (both leave the interpreter lock)."""
        record, finished = self.record, Event()
        search = Search(self.layout, record.budgets, seed=self.options.seed + 1)

        def walk() -> None:
            seconds = 1.0 + 0.002 * self.layout.problem.ops
            while not (record.closed or record.stopped() or finished.is_set()):
                self.anneal(search, seconds, finished.is_set)
                finished.wait(0.01)
                seconds = min(30.0, 1.5 * seconds)

        thread = Thread(target=walk, name="annealing", daemon=True)
        thread.start()
        try:
            while more and not record.closed:
                more = self._round()
            while thread.is_alive() and not record.closed and not record.stopped():
                thread.join(0.1)
        finally:
            finished.set()
            thread.join()


def replace_cuts(fresh: LazyDeviceCuts, known: LazyDeviceCuts) -> LazyDeviceCuts:
    """New lazy cuts that start where others ended."""
    fresh.cuts, fresh.free = list(known.cuts), known.free
    return fresh


def on_device(problem: DeviceProblem, device: int) -> Schedule:
    """Every op once on one device, in base order."""
    steps = tuple(Step(op, device) for op in range(problem.ops))
    return Schedule(steps, default_hold(problem, steps))


def renamed(schedule: Schedule, names: list[int]) -> Schedule:
    """The schedule with op ``i`` called ``names[i]``."""
    steps = tuple(Step(names[s.item], s.device) if s.runs else s for s in schedule.steps)
    return Schedule(steps, schedule.hold)


def reordered(problem: DeviceProblem, order: list[int]) -> DeviceProblem:
    """The same problem with op ``order[i]`` called ``i``; values keep their ids."""

    def rows(table: Rows) -> Rows:
        lists = table.lists()
        return Rows.of([lists[op] for op in order])

    return replace(
        problem,
        cost=problem.cost[:, order],
        work=problem.work[:, order],
        reads=rows(problem.reads),
        writes=rows(problem.writes),
        inplace=rows(problem.inplace),
        recompute=problem.recompute[order],
        group=problem.group[order],
        uses=rows(problem.uses),
    )
