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
from onnxremat.plan.formulations.watches import Watch, add_watches, certify
from onnxremat.plan.problem import Bytes, Floats, occupancy
from onnxremat.plan.record import Record
from onnxremat.plan.relaxed import Relaxed, Row, add_rows, tighten
from onnxremat.plan.solvers import Limits, Outcome, Result, confirm_infeasible, minimise
from onnxremat.plan.wiring import Wiring

INCOMPARABLE = 0.02  # share of ops that one cut may leave free before the order is fixed
WATCHED = 8  # second runs watched per round
SLOW = 0.5  # seconds of a solve from which cuts are placed by the continuous relaxation first
FAR = 1.5e-3  # share of the store-all time above which the gap calls for that
MANY = 3  # cuts added then each time the relaxation is solved
STALL = 2  # solves in a row that gain little, after which no more are added
LITTLE = 0.03  # gain, as a share of the gap
PLACING = 0.06  # share of the time left for that
LOSS = 0.2  # of the gap that leaving cuts out again may cost the relaxation, for the first round
FINER = 0.8  # what that is multiplied by for each of the next
OUT = 0.15  # share of the cuts left out at a time
NEAR = 0.1  # share of the budget that the excess may be for a repair by a smaller budget
SHRINKS = 2  # re-solves with a smaller budget per round
BRIEF = 2.0  # seconds of a solve up to which it is worth solving again like that
REPAIR = 0.25  # seconds of repair for each second of a solve


@dataclass
class LazyCuts:
    """The loop for one order: ops of ``wiring`` are numbered in that order.

    Attributes:
        named: op numbers of the caller for each op here.
        repair: turns a sequence over budget into one within, or None, in about the seconds given.
        free: try to keep the bound valid for every order.
    """

    wiring: Wiring
    record: Record
    named: list[int]
    repair: Callable[[list[int], float], list[int] | None]
    solver: str = "auto"
    threads: int = 1
    seed: int = 0
    free: bool = True
    cuts: list[int] = field(default_factory=list)
    watches: list[Watch] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    placing: bool = False  # cuts are placed by the continuous relaxation
    loss: float = LOSS
    beside: bool = False  # the search runs in a thread of its own meanwhile
    slack: float = 0.15  # share of the open gap within which a round is solved

    def round(self) -> bool:
        """Solve once and add a cut; False when there is nothing more to gain."""
        record = self.record
        if not self.cuts:
            self.cuts.append(self._peak_op())
        if self.placing:
            self._place()
        spans = self._spans()
        made = self._build(spans, record.budget)
        self._relax(made)
        if record.closed or record.stopped():
            return False
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
        if excess <= NEAR * record.budget and result.seconds < BRIEF:
            self._shrink(spans, excess)
        if not record.closed and not record.stopped():
            self._fit(sequence, REPAIR * result.seconds)
        if record.closed or record.stopped():
            return False
        self._set_pace(result)
        return self._advance(made, result.point, sequence, use)

    def _far(self) -> bool:
        """True when the gap is wide: cuts matter more than solving each round to the end."""
        record = self.record
        return record.time - record.bound > FAR * record.total

    def _set_pace(self, result: Result) -> None:
        """Place cuts by the continuous relaxation where rounds are slow and the gap is wide."""
        if not self._far():
            self.placing = False
        elif not self.placing:
            self.placing = result.seconds > SLOW
        elif result.outcome is Outcome.OPTIMAL:
            self.loss *= FINER

    def _place(self) -> None:
        """Cut where the continuous relaxation breaks the budget; keep the cuts that matter."""
        record = self.record
        end, best, stalled = record.elapsed + PLACING * record.left, record.bound, 0
        solved = self.cuts
        while not self._over():
            made = self._build(self._spans(), record.budget)
            relaxed = self._relax(made)
            if relaxed is None:
                self.cuts = solved
                return
            solved = list(self.cuts)
            gap, bound = record.time - record.bound, made.seconds(relaxed.bound)
            stalled = stalled + 1 if bound - best < LITTLE * gap else 0
            best, sequence = max(best, bound), self._extract(made, relaxed.point)
            use = None if sequence is None else occupancy(self.wiring.problem, sequence)
            if stalled == STALL or record.elapsed > end or sequence is None or use is None:
                break
            if int(use.max()) <= record.budget or not self._add_cuts(sequence, use):
                break
        else:
            return
        self._thin(relaxed, best - self.loss * (record.time - record.bound))

    def _thin(self, relaxed: Relaxed, least: float) -> None:
        """Leave out the cuts with the least price, while the relaxation still gives ``least``."""
        kept = self.cuts
        while len(kept) > MANY and not self._over():
            ranked = sorted(kept, key=relaxed.price.__getitem__, reverse=True)
            self.cuts = ranked[: len(ranked) - max(1, int(OUT * len(ranked)))]
            made = self._build(self._spans(), self.record.budget)
            fewer = self._relax(made)
            if fewer is None or made.seconds(fewer.bound) < least:
                break
            kept, relaxed = self.cuts, fewer
        self.cuts = kept

    def _over(self) -> bool:
        """True when the gap is closed or time is up."""
        return self.record.closed or self.record.stopped()

    def _share(self) -> float:
        """Seconds for one round."""
        left = self.record.left
        if len(self.cuts) == 1:
            return left
        share = 0.3 if not self.placing else 0.9 if self.beside else 0.5
        return max(10.0, share * left)

    def _relax(self, made: CutModel) -> Relaxed | None:
        """Tighten the continuous relaxation (exact for one cut) and take its bound."""
        record = self.record
        if len(self.cuts) == 1:
            return None
        relaxed = tighten(
            made, self.rows, seconds=0.3 * record.left, stop=self._over, seed=self.seed
        )
        if relaxed is not None:
            self.rows = relaxed.rows
            bound = made.seconds(relaxed.bound)
            record.raise_bound(bound, self._kind(made), any_order=made.spans.any_order)
        return relaxed

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
        if self.free:
            spans = self._chained(self.cuts)
            if spans is not None:
                return spans
            self.free = False
        return fixed_spans(self.wiring.problem.ops, self.cuts)

    def _chained(self, cuts: list[int]) -> Spans | None:
        """Spans for any order, when the cuts are on a chain and few ops are not comparable."""
        spans = free_spans(self.wiring, cuts)
        if spans is None:
            return None
        loose = sum(a < b for a, b in zip(spans.earliest, spans.latest, strict=True))
        return spans if loose <= INCOMPARABLE * self.wiring.problem.ops * len(cuts) else None

    def _minimise(self, made: CutModel, seconds: float) -> Result:
        record = self.record
        target = record.target / made.unit
        limits = Limits(
            seconds=max(0.05, 0.9 * min(seconds, record.left)),
            gap=self._tolerance() / made.unit,
            threads=self.threads,
            seed=self.seed,
            warm=self._warm(made),
            stop=self._over,
            target=target,
        )
        result, notes = minimise(made.model, limits, self.solver)
        record.notes.extend(note for note in notes if note not in record.notes)
        return result

    def _tolerance(self) -> float:
        """Seconds within which a round is solved: tight only when that can close the gap."""
        record = self.record
        open_gap = record.time - record.bound if record.sequence is not None else 0.0
        most = 1e-4 * record.total
        return max(0.3 * record.gap * record.total, min(self.slack * open_gap, most))

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
            add_rows(made, self.rows)
            result = self._minimise(made, min(0.2 * self.record.left, 10.0))
            if result.point is None:
                return
            sequence = self._extract(made, result.point)
            if sequence is None:
                return
            excess = int(occupancy(self.wiring.problem, sequence).max()) - self.record.budget
            if excess <= 0:
                return

    def _fit(self, sequence: list[int], seconds: float) -> None:
        repaired = self.repair(sequence, seconds)
        if repaired is not None:
            self._offer(repaired, "lazy-cuts+search")

    def _offer(self, sequence: list[int], planner: str) -> None:
        self.record.offer([self.named[op] for op in sequence], planner)

    def _advance(self, made: CutModel, point: Floats, sequence: list[int], use: Bytes) -> bool:
        """Cut or watch where the sequence of a point breaks the budget; False when neither can be.

        Where nothing more can be learnt from the sequence, it is read again with all runs in the
        intervals that the point has them in.
        """
        if self._learn(made, point, sequence, use):
            return True
        first, carried = made.first_runs(point), made.carried(point)
        strict = late_remakes(self.wiring, first, carried, within=True)
        if strict is None:
            return False
        self._offer(strict, "lazy-cuts")
        return self._learn(made, point, strict, occupancy(self.wiring.problem, strict))

    def _learn(self, made: CutModel, point: Floats, sequence: list[int], use: Bytes) -> bool:
        """Cut at first runs or watch second runs that break the budget, as the excess says."""
        budget, ops = self.record.budget, self.wiring.problem.ops
        first = int(first_run_excess(ops, sequence, use, budget).max())
        if 2 * first < int(use.max()) - budget and self._watch(made, point, sequence, use):
            return True
        return self._add_cuts(sequence, use) or self._watch(made, point, sequence, use)

    def _add_cuts(self, sequence: list[int], use: Bytes) -> bool:
        """Cut at the stages with the largest excess, or the ones before them."""
        left = stage_excess(self.wiring.problem.ops, sequence, use, self.record.budget)
        apart, least = max(1, len(left) // 50), int(left.max()) // 3
        many = MANY if self.placing and len(self.cuts) >= MANY else 1
        added = False
        while many > 0 and int(left.max()) > least:
            stage = int(left.argmax())
            left[max(0, stage - apart) : stage + apart + 1] = 0
            cut = self._cut_near(stage)
            if cut is not None:
                self.cuts.append(cut)
                added = True
            elif not added:
                return False  # the worst breach is inside a stage: watch it
            many -= 1
        return added

    def _cut_near(self, stage: int) -> int | None:
        """An op to cut at for a breach at a stage: one that keeps the bound valid for any order."""
        ops = self.wiring.problem.ops
        if self.free:
            for step in (0, -1, 1, -2, 2, -3, 3):
                cut = stage + step
                if 0 <= cut < ops and cut not in self.cuts and self._chained([*self.cuts, cut]):
                    return cut
        near = (cut for cut in (stage, stage - 1) if cut >= 0 and cut not in self.cuts)
        return next(near, None)

    def _watch(self, made: CutModel, point: Floats, sequence: list[int], use: Bytes) -> bool:
        """Add memory rows at second runs that break the budget; True when one cuts ``point``."""
        record, wiring = self.record, self.wiring
        added = False
        found = breaches(wiring, made.spans.cuts, sequence, use, record.budget)
        for breach in found[:WATCHED]:
            watch, proven = certify(made, point, breach)
            if proven <= record.budget:
                continue
            for known in self.watches:
                if known.place == watch.place:
                    added |= known.merge(watch)
                    break
            else:
                self.watches.append(watch)
                added = True
        return added
