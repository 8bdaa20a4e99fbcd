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

from onnxremat.plan.formulations.cuts import (
    CutModel,
    Spans,
    build,
    fixed_spans,
    free_spans,
    project,
)
from onnxremat.plan.formulations.extract import (
    breaches,
    first_run_excess,
    late_remakes,
    stage_excess,
)
from onnxremat.plan.formulations.paths import Path, add_paths
from onnxremat.plan.formulations.watches import Watch, add_watches, certify
from onnxremat.plan.problem import Bytes, Floats, occupancy
from onnxremat.plan.record import Record
from onnxremat.plan.relaxed import Relaxed, tighten
from onnxremat.plan.solvers import Limits, Outcome, Result, confirm_infeasible, minimise
from onnxremat.plan.wiring import Wiring

INCOMPARABLE = 0.02  # share of ops that one cut may leave free before the order is fixed
WATCHED = 8  # second runs watched per round
SLOW = 0.5  # seconds of a solve from which cuts are placed by the continuous relaxation first
FAR = 3e-3  # share of the store-all time above which the gap calls for that
MANY = 3  # cuts added per round then
GLANCES = 4  # rounds on the continuous relaxation alone in a row
NEAR = 0.1  # share of the budget that the excess may be for a repair by a smaller budget
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
    paths: list[Path] = field(default_factory=list)
    glances: int = 0  # rounds on the continuous relaxation alone that are due
    slack: float = 0.15  # share of the open gap within which a round is solved

    def round(self) -> bool:
        """Solve once and add a cut; False when there is nothing more to gain."""
        record = self.record
        if not self.cuts:
            self.cuts.append(self._peak_op())
        spans = self._spans()
        made = self._build(spans, record.budget)
        relaxed = self._relax(made)
        if record.closed or record.stopped():
            return False
        if relaxed is not None and self.glances > 0:
            self.glances -= 1
            return self._glance(made, relaxed)
        result = self._minimise(made, self._share())
        self._raise(made, result)
        if result.outcome is Outcome.INFEASIBLE or result.point is None:
            return False
        sequence = self._extract(made, result.point)
        if record.closed or record.stopped() or sequence is None:
            return False
        use = occupancy(self.wiring.problem, sequence)
        excess = int(use.max()) - record.budget
        if excess <= 0:  # optimal for the relaxation: only the solver's gap is left
            self.slack *= 0.2
            return result.outcome is Outcome.OPTIMAL and self.slack > 1e-4
        if excess <= NEAR * record.budget:
            self._shrink(spans, excess)
        if not record.closed and not record.stopped():
            self._fit(sequence)
        if record.closed or record.stopped():
            return False
        if result.seconds > SLOW and self._far():
            self.glances = GLANCES
        return self._advance(made, result.point, sequence, use)

    def _far(self) -> bool:
        """True when the gap is wide: cuts matter more than solving each round to the end."""
        record = self.record
        return record.time - record.bound > FAR * record.total

    def _share(self) -> float:
        """Seconds for one round."""
        left = self.record.left
        return left if len(self.cuts) == 1 else max(10.0, 0.3 * left)

    def _relax(self, made: CutModel) -> Relaxed | None:
        """Tighten the continuous relaxation (exact for one cut) and take its bound."""
        record = self.record
        if len(self.cuts) == 1:
            return None
        relaxed = tighten(
            made, self.paths, seconds=0.3 * record.left, stop=record.stop, seed=self.seed
        )
        if relaxed is not None:
            self.paths = relaxed.paths
            bound = made.seconds(relaxed.bound)
            record.raise_bound(bound, self._kind(made), any_order=made.spans.any_order)
        return relaxed

    def _glance(self, made: CutModel, relaxed: Relaxed) -> bool:
        """Place cuts where the rounded solution of the continuous relaxation breaks the budget."""
        sequence = self._extract(made, relaxed.point)
        if sequence is None:
            self.glances = 0
            return True
        use = occupancy(self.wiring.problem, sequence)
        if int(use.max()) <= self.record.budget or not self._add_cuts(sequence, use):
            self.glances = 0
        return True

    def _build(self, spans: Spans, budget: int) -> CutModel:
        made = build(self.wiring, spans, budget)
        add_watches(made, self.watches)
        return made

    def _kind(self, made: CutModel) -> str:
        count = len(made.spans.cuts)
        return "single-cut" if count == 1 else f"lazy-cuts({count})"

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
        most = 1e-3 if self._far() else 1e-4
        return max(0.3 * record.gap * record.total, min(self.slack * open_gap, most * record.total))

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
        kind = self._kind(made)
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
            add_paths(made, self.paths)
            result = self._minimise(made, min(0.2 * self.record.left, 10.0))
            if result.point is None:
                return
            sequence = self._extract(made, result.point)
            if sequence is None:
                return
            excess = int(occupancy(self.wiring.problem, sequence).max()) - self.record.budget
            if excess <= 0:
                return

    def _fit(self, sequence: list[int]) -> None:
        repaired = self.repair(sequence)
        if repaired is not None:
            self._offer(repaired, "lazy-cuts+search")

    def _offer(self, sequence: list[int], planner: str) -> None:
        self.record.offer([self.named[op] for op in sequence], planner)

    def _advance(self, made: CutModel, point: Floats, sequence: list[int], use: Bytes) -> bool:
        """Cut or watch where a sequence breaks the budget; False when neither can be."""
        budget, ops = self.record.budget, self.wiring.problem.ops
        first = int(first_run_excess(ops, sequence, use, budget).max())
        if 2 * first < int(use.max()) - budget and self._watch(made, point, sequence, use):
            return True
        return self._add_cuts(sequence, use) or self._watch(made, point, sequence, use)

    def _add_cuts(self, sequence: list[int], use: Bytes) -> bool:
        """Cut at the stages with the largest excess, or the ones before them."""
        left = stage_excess(self.wiring.problem.ops, sequence, use, self.record.budget)
        apart, least = max(1, len(left) // 50), int(left.max()) // 3
        many = MANY if self._far() and len(self.cuts) >= MANY else 1
        added = False
        while many > 0 and int(left.max()) > least:
            stage = int(left.argmax())
            left[max(0, stage - apart) : stage + apart + 1] = 0
            cut = next((c for c in (stage, stage - 1) if c >= 0 and c not in self.cuts), None)
            if cut is not None:
                self.cuts.append(cut)
                added = True
            elif not added:
                return False  # the worst breach is inside a stage: watch it
            many -= 1
        return added

    def _watch(self, made: CutModel, point: Floats, sequence: list[int], use: Bytes) -> bool:
        """Add memory rows at second runs that break the budget; True when one cuts ``point``."""
        record, wiring = self.record, self.wiring
        added = False
        found = breaches(wiring, made.spans.cuts, sequence, use, record.budget)
        for breach in found[:WATCHED]:
            watch, proven = certify(made, point, breach)
            if proven <= record.budget:
                continue
            added = True
            for known in self.watches:
                if known.place == watch.place:
                    for value, certificates in watch.certificates.items():
                        known.certificates.setdefault(value, set()).update(certificates)
                    break
            else:
                self.watches.append(watch)
        return added
