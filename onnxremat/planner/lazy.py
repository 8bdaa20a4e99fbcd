"""Lazy cuts: solve the cut relaxation, read its solution as a sequence, cut where that breaks.

Start with one cut at the peak of the base order. The optimum of the relaxation raises the bound;
its solution, remade as late as possible, is a sequence. If that fits the budget it is optimal for
the relaxation and the two meet. If not, it is repaired by the sequence search and by solving once
more with the budget shrunk by the excess, and a cut is added at the stage with the largest excess.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf, log

from onnxremat.planner.formulations.cuts import (
    CutModel,
    Spans,
    Split,
    build,
    fixed_spans,
    free_spans,
    project,
    with_splits,
)
from onnxremat.planner.formulations.extract import late_remakes, stage_excess
from onnxremat.planner.problem import Bytes, Floats, occupancy
from onnxremat.planner.record import Record
from onnxremat.planner.relaxed import Relaxed, Row, add_rows, tighten
from onnxremat.planner.solvers import Limits, Outcome, Result, confirm_infeasible, minimise
from onnxremat.planner.wiring import Wiring

INCOMPARABLE = 0.02  # share of ops that one cut may leave free before the order is fixed
SLOW = 0.5  # seconds of a solve from which cuts are placed by the continuous relaxation first
FAR = 1.5e-3  # share of the store-all time above which the gap calls for that
MANY = 3  # cuts added then each time the relaxation is solved
STALL = 2  # solves in a row that gain little, after which no more are added
LITTLE = 0.03  # gain, as a share of the gap
PLACING = 0.06  # share of the time left for that
LOSS = 0.2  # of the gap that leaving cuts out again may cost the relaxation, for the first round
FINER = 0.8  # what that is multiplied by for each of the next
OUT = 0.15  # share of the cuts left out at a time
SWAPPED = 3  # cuts of the least price that others are tried for
SLIGHT = 1e-2  # gain that an exchange must bring, in thousandths of the store-all time
DEARER = 1.8  # times the seconds that one cut more makes a round take
NEAR = 0.1  # share of the budget that the excess may be for a repair by a smaller budget
SHRINKS = 2  # re-solves with a smaller budget per round
BRIEF = 2.0  # seconds of a solve up to which it is worth solving again like that
PART = 0.05  # of the time left, up to which it is as well
REPAIR = 0.25  # seconds of repair for each second of a solve
ENOUGH = 0.02  # seconds of repair per op at most
READ = 3  # sequences that are kept for the search to start from


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
    splits: list[Split] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    placing: bool = False  # cuts are placed by the continuous relaxation
    loss: float = LOSS
    read: list[list[int]] = field(default_factory=list)  # the last rounds' sequences over budget
    asked: set[int] = field(default_factory=set)  # cuts where an integer solution broke the budget
    most: int = 0  # cuts, splits included, that the next round can afford
    beside: bool = False  # the search runs in a thread of its own meanwhile
    slack: float = 0.15  # share of the open gap within which a round is solved

    def round(self) -> bool:
        """Solve once and add a cut; False when there is nothing more to gain."""
        record = self.record
        if not self.cuts:
            self.cuts.append(self._peak_op())
        placed = self.placing
        if placed:
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
        self.read = [*self.read, sequence][-READ:]
        if excess <= NEAR * record.budget and result.seconds < max(BRIEF, PART * record.left):
            self._shrink(spans, excess)
        if not record.closed and not record.stopped():
            self._fit(sequence, min(REPAIR * result.seconds, ENOUGH * self.wiring.problem.ops))
        if record.closed or record.stopped():
            return False
        self._set_pace(made, result)
        known = set(self.cuts)
        more = self._advance(made, result.point, sequence)
        if placed:
            ends = {cut for split in self.splits for cut in (split.start, split.end)}
            self.asked = set(self.cuts) - known | ends
        return more

    def _far(self) -> bool:
        """True when the gap is wide: cuts matter more than solving each round to the end."""
        record = self.record
        return record.time - record.bound > FAR * record.total

    def _set_pace(self, made: CutModel, result: Result) -> None:
        """Place cuts by the continuous relaxation where rounds are slow and the gap is wide."""
        affordable = log(max(DEARER, self._share() / max(result.seconds, SLOW)), DEARER)
        self.most = len(made.spans.cuts) + int(affordable)
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
            relaxed = self._relax(made, max(1.0, end - record.elapsed))
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
            if int(use.max()) <= record.budget or not self._add_cuts(sequence, use, MANY):
                break
        else:
            return
        pool = list(self.cuts)
        few = self._thin(relaxed, best - self.loss * (record.time - record.bound))
        self._swap(few, pool, record.elapsed + 0.5 * PLACING * record.left)

    def _thin(self, relaxed: Relaxed, least: float) -> Relaxed:
        """Leave out the cuts with the least price, while the relaxation still gives ``least``.

        Those that an integer solution asked for stay; if there are too many for the time that is
        left, more go.
        """
        kept = self.cuts
        while len(kept) > MANY and not self._over():
            ranked = sorted(set(kept) - self.asked, key=relaxed.price.__getitem__, reverse=True)
            if not ranked:
                break
            out = ranked[len(ranked) - max(1, int(OUT * len(ranked))) :]
            self.cuts = [cut for cut in kept if cut not in out]
            made = self._build(self._spans(), self.record.budget)
            fewer = self._relax(made, 0.5 * PLACING * self.record.left)
            few = len(kept) <= self.most
            if few and fewer is not None and made.seconds(fewer.bound) < least:
                break
            kept, relaxed = self.cuts, fewer or relaxed
        self.cuts = kept
        return relaxed

    def _swap(self, relaxed: Relaxed, pool: list[int], end: float) -> None:
        """Exchange cuts with a low price for others of the pool while the relaxation gains."""
        kept, tried = self.cuts, set[tuple[int, int]]()
        while not self._over() and self.record.elapsed < end:
            low = sorted(set(kept) - self.asked, key=relaxed.price.__getitem__)[:SWAPPED]
            pairs = ((out, into) for out in low for into in pool if into not in kept)
            pair = next((pair for pair in pairs if pair not in tried), None)
            if pair is None:
                break
            tried.add(pair)
            self.cuts = [*(cut for cut in kept if cut != pair[0]), pair[1]]
            made = self._build(self._spans(), self.record.budget)
            other = self._relax(made)
            if other is not None and other.bound > relaxed.bound + SLIGHT:
                kept, relaxed = self.cuts, other
                tried.clear()
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

    def _relax(self, made: CutModel, seconds: float = inf) -> Relaxed | None:
        """Tighten the continuous relaxation (exact for one cut) and take its bound."""
        record = self.record
        if len(self.cuts) == 1:
            return None
        seconds = min(seconds, 0.3 * record.left)
        relaxed = tighten(
            made, self.rows, Limits(seconds, seed=self.seed, stop=self._over, clock=record.clock)
        )
        if relaxed is not None:
            self.rows = relaxed.rows
            bound = made.seconds(relaxed.bound)
            record.raise_bound(bound, self._kind(made), any_order=made.spans.any_order)
        return relaxed

    def _build(self, spans: Spans, budget: int) -> CutModel:
        return build(self.wiring, spans, budget)

    def _kind(self, made: CutModel) -> str:
        count = len(made.spans.cuts)
        return "single-cut" if count == 1 else f"lazy-cuts({count})"

    def _peak_op(self) -> int:
        return int(occupancy(self.wiring.problem, self.wiring.problem.store_all()).argmax())

    def _spans(self) -> Spans:
        if self.free:
            spans = self._chained(self.cuts)
            if spans is not None:
                return with_splits(spans, self.splits)
            self.free = False
        return with_splits(fixed_spans(self.wiring.problem.ops, self.cuts), self.splits)

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
            clock=record.clock,
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
            limits = Limits(
                seconds=max(1.0, self.record.left), stop=self.record.stop, clock=self.record.clock
            )
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

    def _advance(self, made: CutModel, point: Floats, sequence: list[int]) -> bool:
        """Cut where the sequence of a point breaks the budget; False when no cut can be added.

        Where nothing more can be learnt from the sequence, it is read again with all runs in the
        intervals that the point has them in.
        """
        if self._learn(made, sequence):
            return True
        first, carried = made.first_runs(point), made.carried(point)
        strict = late_remakes(self.wiring, first, carried, within=True)
        if strict is None:
            return False
        self._offer(strict, "lazy-cuts")
        if self._learn(made, strict):
            return True
        if not (self.free and self.placing):
            return False
        self.free = False  # cuts that hold for the one order are all that is left
        return True

    def _learn(self, made: CutModel, sequence: list[int]) -> bool:
        """Cut at first runs, or where that is done at second runs, that break the budget."""
        use = occupancy(self.wiring.problem, sequence)
        many = max(1, min(MANY, self.most - len(made.spans.cuts))) if self.placing else 1
        return self._add_cuts(sequence, use, many) or self._split(made, sequence, use)

    def _add_cuts(self, sequence: list[int], use: Bytes, many: int) -> bool:
        """Cut at the stages with the largest excess, or the ones before them."""
        left = stage_excess(self.wiring.problem.ops, sequence, use, self.record.budget)
        apart, least = max(1, len(left) // 50), int(left.max()) // 3
        added = False
        while many > 0 and int(left.max()) > least:
            stage = int(left.argmax())
            left[max(0, stage - apart) : stage + apart + 1] = 0
            cut = self._cut_near(stage)
            if cut is not None:
                self.cuts.append(cut)
                added = True
            elif not added and not self.placing:
                return False  # the worst breach is inside a stage: split it
            many -= 1
        return added

    def _cut_near(self, stage: int) -> int | None:
        """An op to cut at for a breach at a stage: one that keeps the bound valid for any order,
        if there is one. Where cuts are placed by the dozen another one is not worth losing that."""
        ops = self.wiring.problem.ops
        if self.free:
            for step in (0, -1, 1, -2, 2, -3, 3):
                cut = stage + step
                if 0 <= cut < ops and cut not in self.cuts and self._chained([*self.cuts, cut]):
                    return cut
            if self.placing:
                return None
        near = (cut for cut in (stage, stage - 1) if cut >= 0 and cut not in self.cuts)
        return next(near, None)

    def _split(self, made: CutModel, sequence: list[int], use: Bytes) -> bool:
        """Split an interval at the worst second run over the budget; False when none can be."""
        spans, seen = made.spans, set[int]()
        ends, cuts = spans.ends(sequence), spans.cuts
        worst, chosen = 0, None
        for step, op in enumerate(sequence):
            excess = int(use[step]) - self.record.budget
            if op in seen and excess > worst:
                b = next((b for b, end in enumerate(ends) if step <= end), len(ends))
                if b < len(ends) and step == ends[b]:
                    continue
                split = Split(cuts[b - 1] if b else -1, cuts[b] if b < len(cuts) else -1, op)
                if split not in self.splits:
                    worst, chosen = excess, split
            seen.add(op)
        if chosen is not None:
            self.splits.append(chosen)
        return chosen is not None
