"""Lazy cuts: solve the cut relaxation, read its solution as a sequence, cut where that breaks.

Start with one cut at the peak of the base order. The optimum of the relaxation raises the bound;
its solution, remade as late as possible, is a sequence. If that fits the budget it is optimal for
the relaxation and the two meet. If not, it is repaired by the sequence search and by solving once
more with the budget shrunk by the excess, and a cut is added at the stage with the largest excess.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

import numpy as np

from onnxremat.plan.formulations.cuts import (
    CutModel,
    Spans,
    build,
    fixed_spans,
    free_spans,
    project,
)
from onnxremat.plan.formulations.extract import breaches, late_remakes, stage_excess
from onnxremat.plan.formulations.watches import Watch, add_watches, certify
from onnxremat.plan.problem import Floats, occupancy
from onnxremat.plan.record import Record
from onnxremat.plan.solvers import Limits, Outcome, Result, confirm_infeasible, minimise
from onnxremat.plan.wiring import Wiring

INCOMPARABLE = 0.02  # share of ops that one cut may leave free before the order is fixed
WATCHED = 8  # second runs watched per round
SLOW = 0.5  # seconds of a solve from which the next cut is chosen among several
FAR = 3e-3  # share of the store-all time above which the gap calls for that
TRIALS = 10.0  # seconds that must be left for it
CANDIDATES = 6  # cuts compared then
SHRINKS = 2  # re-solves with a smaller budget per round


@dataclass
class LazyCuts:
    """The loop for one order: ops of ``wiring`` are numbered in that order.

    Attributes:
        named: op numbers of the caller for each op here.
        repair: turns a sequence over budget into one within, or None.
        free: try to keep the bound valid for every order.
    """

    wiring: Wiring
    record: Record
    named: list[int]
    repair: Callable[[list[int]], list[int] | None]
    solver: str = "auto"
    threads: int = 1
    seed: int = 0
    free: bool = True
    cuts: list[int] = field(default_factory=list)
    watches: list[Watch] = field(default_factory=list)
    slow: bool = False  # the last solve took long: choose cuts with care
    slack: float = 0.15  # share of the open gap within which a round is solved

    def round(self) -> bool:
        """Solve once and add a cut; False when there is nothing more to gain."""
        record = self.record
        if not self.cuts:
            self.cuts.append(self._peak_op())
        spans = self._spans()
        made = self._build(spans, record.budget)
        result = self._minimise(made, record.left)
        far = record.time - record.bound > FAR * record.total
        self.slow = result.seconds > SLOW and far and record.left > TRIALS
        self._raise(made, result)
        if result.outcome is Outcome.INFEASIBLE or result.point is None:
            return False
        sequence = self._extract(made, result.point)
        if record.closed or record.stopped():
            return False
        if sequence is None:
            return False
        excess = self._excess(sequence)
        if int(excess.max()) <= 0:  # optimal for the relaxation: only the solver's gap is left
            self.slack *= 0.2
            return result.outcome is Outcome.OPTIMAL and self.slack > 1e-4
        if int(excess.max()) > 0:
            self._shrink(spans, int(excess.max()))
            if not record.closed and not record.stopped():
                self._fit(sequence)
        if record.closed or record.stopped():
            return False
        return self._add_cut(excess) or self._watch(made, result.point, sequence)

    def _build(self, spans: Spans, budget: int) -> CutModel:
        made = build(self.wiring, spans, budget)
        add_watches(made, self.watches)
        return made

    def _peak_op(self) -> int:
        return int(occupancy(self.wiring.problem, self.wiring.problem.store_all()).argmax())

    def _spans(self) -> Spans:
        ops = self.wiring.problem.ops
        if self.free:
            spans = free_spans(self.wiring, self.cuts)
            if spans is not None:
                loose = sum(a < b for a, b in zip(spans.earliest, spans.latest, strict=True))
                if loose <= INCOMPARABLE * ops * len(self.cuts):
                    return spans
            self.free = False
        return fixed_spans(ops, self.cuts)

    def _minimise(self, made: CutModel, seconds: float) -> Result:
        record = self.record
        target = record.target / made.unit
        limits = Limits(
            seconds=max(0.05, 0.9 * min(seconds, record.left)),
            gap=self._tolerance() / made.unit,
            threads=self.threads,
            seed=self.seed,
            warm=self._warm(made),
            stop=record.stop,
            target=target,
        )
        result, notes = minimise(made.model, limits, self.solver)
        record.notes.extend(note for note in notes if note not in record.notes)
        return result

    def _tolerance(self) -> float:
        """Seconds within which a round is solved: tight only when that can close the gap."""
        record = self.record
        open_gap = record.time - record.bound if record.sequence is not None else 0.0
        return max(0.3 * record.gap * record.total, min(self.slack * open_gap, 1e-4 * record.total))

    def _warm(self, made: CutModel) -> Floats | None:
        """The best sequence as a point of the model, when its first runs respect the spans."""
        record = self.record
        if record.sequence is None:
            return None
        if not made.spans.any_order and tuple(self.named) != tuple(dict.fromkeys(record.sequence)):
            return None
        rank = {op: i for i, op in enumerate(self.named)}
        point = project(made, [rank[op] for op in record.sequence])
        return point if made.model.violation(point) < 1e-6 else None

    def _raise(self, made: CutModel, result: Result) -> None:
        count = len(made.spans.cuts)
        kind = "single-cut" if count == 1 else f"lazy-cuts({count})"
        if result.outcome is Outcome.INFEASIBLE:
            limits = Limits(seconds=max(1.0, self.record.left), stop=self.record.stop)
            if not confirm_infeasible(made.model, limits):
                return
            self.record.raise_bound(inf, kind, any_order=made.spans.any_order)
        elif result.bound > -inf:
            bound = made.seconds(result.bound)
            self.record.raise_bound(bound, kind, any_order=made.spans.any_order)

    def _extract(self, made: CutModel, point: Floats) -> list[int] | None:
        sequence = late_remakes(self.wiring, made.first_runs(point), made.carried(point))
        if sequence is not None:
            self._offer(sequence, "lazy-cuts")
        return sequence

    def _shrink(self, spans: Spans, excess: int) -> None:
        """Solve again with the excess taken off the budget."""
        budget = self.record.budget
        for _ in range(SHRINKS):
            budget -= excess
            if budget <= 0 or self.record.closed or self.record.stopped():
                return
            made = self._build(spans, budget)
            result = self._minimise(made, min(0.2 * self.record.left, 10.0))
            if result.point is None:
                return
            sequence = self._extract(made, result.point)
            if sequence is None:
                return
            excess = int(self._excess(sequence).max())
            if excess <= 0:
                return

    def _fit(self, sequence: list[int]) -> None:
        repaired = self.repair(sequence)
        if repaired is not None:
            self._offer(repaired, "lazy-cuts+search")

    def _offer(self, sequence: list[int], planner: str) -> None:
        self.record.offer([self.named[op] for op in sequence], planner)

    def _excess(self, sequence: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        use = occupancy(self.wiring.problem, sequence)
        return stage_excess(self.wiring.problem.ops, sequence, use, self.record.budget)

    def _add_cut(self, excess: np.ndarray[tuple[int], np.dtype[np.int64]]) -> bool:
        """Cut at the stage with the largest excess, or the one before it."""
        options: list[int] = []
        left = excess.copy()
        apart = max(1, len(excess) // 100)
        while len(options) < (CANDIDATES if self.slow else 1) and int(left.max()) > 0:
            stage = int(left.argmax())
            left[max(0, stage - apart) : stage + apart + 1] = 0
            cut = next((c for c in (stage, stage - 1) if c >= 0 and c not in self.cuts), None)
            if cut is None and not options:
                return False  # the worst breach is inside a stage: watch it
            options += [] if cut is None else [cut]
        if not options:
            return False
        self.cuts = self._best_of(options)
        return True

    def _best_of(self, options: list[int]) -> list[int]:
        """The cuts with one of ``options`` added, or put in place of the latest one.

        Where solves are slow, each choice is tried briefly and the one with the best bound taken:
        a good pair of cuts often beats six poor ones, and is solved sooner.
        """
        if len(options) == 1 and not self.slow:
            return [*self.cuts, options[0]]
        choices = [[*self.cuts, cut] for cut in options]
        if len(self.cuts) > 1:
            choices += [[*self.cuts[:-1], cut] for cut in options]
        seconds = min(4.0, 0.1 * self.record.left / len(choices))
        return max(choices, key=lambda cuts: self._promise(cuts, seconds))

    def _promise(self, cuts: list[int], seconds: float) -> float:
        """Bound that a short solve with these cuts gives (better ties: fewer columns)."""
        if self.record.stopped() or self.record.closed:
            return -inf
        kept, self.cuts = self.cuts, cuts
        made = self._build(self._spans(), self.record.budget)
        result = self._minimise(made, seconds)
        self.cuts = kept
        self._raise(made, result)
        if result.point is not None:
            self._extract(made, result.point)
        return result.bound - 1e-6 * made.model.columns

    def _watch(self, made: CutModel, point: Floats, sequence: list[int]) -> bool:
        """Add memory rows at second runs that break the budget; True when one cuts ``point``."""
        record, wiring = self.record, self.wiring
        use = occupancy(wiring.problem, sequence)
        added = False
        found = breaches(wiring, made.spans.cuts, sequence, use, record.budget)
        for breach in found[:WATCHED]:
            ran = set(breach.ran)
            watch, proven = certify(made, point, breach.interval, ran, breach.op, breach.live)
            if proven <= record.budget:
                continue
            added = True
            for known in self.watches:
                if (known.start, known.end, known.op) == (watch.start, watch.end, watch.op):
                    for value, certificates in watch.certificates.items():
                        known.certificates.setdefault(value, set()).update(certificates)
                    break
            else:
                self.watches.append(watch)
        return added
