"""Planning in one order: lazy cuts and the compiled search, taking turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import cycle
from math import inf
from threading import Event, Thread

from onnxremat.planner.lazy import LazyCuts
from onnxremat.planner.options import PlanOptions
from onnxremat.planner.record import Record
from onnxremat.planner.search.session import SequenceSearch
from onnxremat.planner.wiring import Wiring, reordered

HEATS = (0.6, 0.05)  # of annealing by turns, in mean op costs: afresh, and near the best
LONG = 0.04  # seconds per op that a run afresh takes at most: what is gained by more is luck
COOL = 0.02  # of annealing from a sequence over budget
COOLS = (0.02, 0.1, 0.04, 0.2)  # the same beside the solver, by turns
SHORT = 0.4  # of the seconds of a run afresh, for each of those
DEPTHS = ((0, 1.0), (2, 1.0), (6, 1.0), (0, 0.5), (2, 0.5), (6, 0.5))  # greedy: (depth, power)


@dataclass
class Climb:
    """Lazy cuts and search on ops renumbered to one order."""

    record: Record
    wiring: Wiring
    named: list[int]
    search: SequenceSearch
    lazy: LazyCuts
    merit: float = -inf  # of the greedy result: less time is better, then less excess
    start: list[int] = field(default_factory=list)
    beside: bool = False  # run the search in a thread beside the solver

    @classmethod
    def of(
        cls, record: Record, order: list[int], options: PlanOptions
    ) -> Climb:  # fmt: skip
        """Prepare for one order of the caller's ops."""
        same = order == list(range(record.problem.ops))
        problem = record.problem if same else reordered(record.problem, order)
        wiring = Wiring(problem)
        search = SequenceSearch(problem, record.budget, seed=options.seed, clock=record.clock)
        beside = options.beside
        lazy = LazyCuts(
            wiring, record, order, lambda _s, _t: None, options.solver,
            max(1, options.solver_threads - 1), options.seed, free=not options.fixed_order,
            beside=beside,
        )  # fmt: skip
        climb = cls(record, wiring, order, search, lazy)
        lazy.repair = climb.repair
        search.free_order = not options.fixed_order
        climb.start = problem.store_all()
        climb.beside = beside
        return climb

    @cached_property
    def rank(self) -> dict[int, int]:
        """Number here of each op of the caller."""
        return {op: i for i, op in enumerate(self.named)}

    def greedy(self) -> None:
        """Greedy insertion at several depths; the best result is offered and kept as start."""
        record, begin = self.record, self.wiring.problem.store_all()
        for depth, power in DEPTHS:
            if record.stopped() or record.closed:
                return
            until = record.begin + min(record.limit, record.elapsed + 0.2 * record.limit)
            found = self.search.fit(begin, until, record.stopped, depth, power)
            replay = self.search.replay(found or self.search.left or [])
            if replay is None:
                continue
            took, area = replay.seconds, replay.area
            merit = -took if found is not None else -1e9 * took - area
            if merit > self.merit:
                self.merit, self.start = merit, found or list(self.search.left or [])
            if found is not None:
                self.offer(found, "greedy")
            if self.wiring.problem.ops > 3000 and record.sequence is not None:
                return

    def offer(self, sequence: list[int], planner: str) -> None:
        """Offer a sequence in this numbering."""
        self.record.offer([self.named[op] for op in sequence], planner)

    def repair(self, sequence: list[int], seconds: float) -> list[int] | None:
        """Greedy insertion from a sequence over budget; then cool annealing from it, repeatedly."""
        record = self.record
        begin = record.elapsed
        until = record.begin + min(record.limit, begin + 0.2 * max(0.5, record.left))
        found: list[tuple[float, list[int]]] = []
        for depth, power in DEPTHS[:3]:
            fitted = self.search.fit(sequence, until, record.stopped, depth, power)
            replay = None if fitted is None else self.search.replay(fitted)
            if fitted is not None and replay is not None:
                found.append((replay.seconds, fitted))
        once = 0.2 + 0.001 * self.wiring.problem.ops
        while record.elapsed + once < begin + seconds and not record.stopped():
            self.search.anneal(
                sequence, once, record.stopped, lambda s, t: found.append((t, s)), heat=COOL
            )
        return min(found)[1] if found else None

    def anneal(
        self,
        search: SequenceSearch,
        seconds: float,
        done: Callable[[], bool],
        heat: float = HEATS[0],
        start: list[int] | None = None,
    ) -> None:
        """Anneal from the best sequence (or the best start), then drop what is not needed.

        Args:
            start: a sequence, perhaps over budget, to start from instead.
        """
        record = self.record

        def better(found: list[int], took: float) -> None:
            if took < record.time:
                self.offer(found, "annealing")

        search.anneal(
            self._best() if start is None else start,
            min(seconds, record.left),
            lambda: record.stopped() or record.closed or done(),
            better,
            heat=heat,
        )
        if record.sequence is not None and not record.closed:
            self.offer(search.polished(self._best()), "annealing")

    def _best(self) -> list[int]:
        sequence = self.record.sequence
        return self.start if sequence is None else [self.rank[op] for op in sequence]

    def run(self) -> None:
        """Lazy cuts and search until the gap is closed or time is up."""
        record = self.record
        more = self.lazy.round()
        if record.closed or record.stopped():
            return
        if self.merit == -inf:
            self.greedy()
        if self.beside:
            self._run_beside(more)
        else:
            self._take_turns(more)

    def cut(self) -> None:
        """Lazy cuts alone, with their repair."""
        while self.lazy.round() and not self.record.closed and not self.record.stopped():
            pass

    def walk(self) -> None:
        """The compiled search alone."""
        if self.merit == -inf:
            self.greedy()
        while not self.record.closed and not self.record.stopped():
            self.anneal(self.search, self.record.left, bool)

    def _take_turns(self, more: bool) -> None:
        record, turns = self.record, cycle(HEATS)
        slice_ = 0.2 + 0.0004 * self.wiring.problem.ops
        while not record.closed and not record.stopped():
            self.anneal(self.search, slice_ if more else record.left, bool, next(turns))
            if more and not record.closed and not record.stopped():
                begin = record.elapsed
                more = self.lazy.round()
                slice_ = max(slice_, 0.5 * (record.elapsed - begin))

    def _run_beside(self, more: bool) -> None:
        """Lazy cuts here, annealing in a second thread (both leave the interpreter lock)."""
        record, finished = self.record, Event()
        search = SequenceSearch(
            self.wiring.problem,
            record.budget,
            free_order=self.search.free_order,
            seed=self.lazy.seed + 1,
        )

        def walk() -> None:
            seconds = 1.0 + 0.002 * self.wiring.problem.ops
            heats = cycle(COOLS)
            while not (record.closed or record.stopped() or finished.is_set()):
                if record.left < 2.5 * seconds:
                    seconds = 0.8 * record.left
                known = record.time
                self.anneal(search, seconds, finished.is_set, HEATS[0])
                if record.time < known:
                    self.anneal(search, 0.25 * seconds, finished.is_set, HEATS[1])
                seconds = min(2.0 * seconds, LONG * self.wiring.problem.ops)
                for sequence in self.lazy.read:
                    heat = next(heats)
                    self.anneal(search, SHORT * seconds, finished.is_set, heat, sequence)

        thread = Thread(target=walk, name="annealing", daemon=True)
        thread.start()
        try:
            while more and not record.closed and not record.stopped():
                more = self.lazy.round()
            while thread.is_alive() and not record.closed and not record.stopped():
                thread.join(0.1)
        finally:
            finished.set()
            thread.join()
