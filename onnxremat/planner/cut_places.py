"""Where the cut relaxation keeps the budgets: cuts and splits so far, and where the next ones go.

A schedule that is read from a solution breaks a budget somewhere; the next cut is there. First runs
first: where they are used up, intervals are split at second runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from onnxremat.planner.formulations.extract import stage_excess
from onnxremat.planner.formulations.spans import (
    Spans,
    Split,
    fixed_spans,
    free_spans,
    with_splits,
)
from onnxremat.planner.problem import Bytes, Floats
from onnxremat.planner.problem_lists import ProblemLists
from onnxremat.planner.schedule import Schedule
from onnxremat.planner.semantics import occupancy

INCOMPARABLE = 0.02  # share of ops that a cut may leave free before the order is fixed: more, and
# the model grows by a column per interval and op (random_100 to random_1000 of make bench-plan)


@dataclass
class CutPlaces:
    """Cuts and splits of the ops of ``lists``, which are numbered in one order.

    Attributes:
        budgets: bytes per device, shape (D,).
        free: try to keep the bound valid for every order.
        cuts: ops at whose first runs the budgets are kept.
        splits: second runs where they are.
    """

    lists: ProblemLists
    budgets: Bytes
    free: bool = True
    cuts: list[int] = field(default_factory=list)
    splits: list[Split] = field(default_factory=list)

    def first(self) -> int | None:
        """Where the first cut goes: at the peak of the base order."""
        problem = self.lists.problem
        return int(occupancy(problem, problem.store_all()).argmax())

    def holds_anywhere(self, cut: int) -> bool:
        """A first cut at an op holds for every order."""
        return self.free and self._chained([cut]) is not None

    def give_order(self) -> bool:
        """Go on with cuts that hold for the one order; False where none of them can be made."""
        self.free = False
        return True

    def spans(self) -> Spans:
        """The intervals between them, for every order of the ops where that can be had."""
        if self.free:
            spans = self._chained(self.cuts)
            if spans is not None:
                return with_splits(spans, self.splits)
            self.free = False
        return with_splits(fixed_spans(self.lists.problem.ops, self.cuts), self.splits)

    def add(self, schedule: Schedule, many: int, placing: bool) -> bool:
        """Cut at the stages with the largest excess, or the ones before them.

        Args:
            many: cuts at most.
            placing: they are chosen by the continuous relaxation, which splits nothing.
        """
        ops = self.lists.problem.ops
        left = stage_excess(ops, schedule, self._over_budget(schedule))
        apart, least = max(1, len(left) // 50), float(left.max()) / 3
        added = False
        while many > 0 and float(left.max()) > least:
            stage = int(left.argmax())
            left[max(0, stage - apart) : stage + apart + 1] = 0
            cut = self.near(stage, placing)
            if cut is not None:
                self.cuts.append(cut)
                added = True
            elif not added and not placing:
                return False  # the worst breach is inside a stage: split it
            many -= 1
        return added

    def near(self, stage: int, placing: bool) -> int | None:
        """An op to cut at for a breach at a stage: one that keeps the bound valid for any order,
        if there is one. Where cuts are placed by the dozen another one is not worth losing that."""
        if self.free:
            for step in (0, -1, 1, -2, 2, -3, 3):
                cut = stage + step
                inside = 0 <= cut < self.lists.problem.ops
                if inside and cut not in self.cuts and self._chained([*self.cuts, cut]):
                    return cut
            if placing:
                return None
        near = (cut for cut in (stage, stage - 1) if cut >= 0 and cut not in self.cuts)
        return next(near, None)

    def split(self, spans: Spans, schedule: Schedule) -> bool:
        """Split an interval at the worst second run over a budget; False when none can be."""
        seen, runs = set[int](), [item if source < 0 else -1 for item, _, source in schedule.steps]
        ends, cuts, over = spans.ends(runs), spans.cuts, self._over_budget(schedule)
        worst, chosen = 0.0, None
        for step, op in enumerate(runs):
            if op in seen and over[step] > worst:
                b = next((b for b, end in enumerate(ends) if step <= end), len(ends))
                if b < len(ends) and step == ends[b]:
                    continue
                split = Split(cuts[b - 1] if b else -1, cuts[b] if b < len(cuts) else -1, op)
                if split not in self.splits:
                    worst, chosen = float(over[step]), split
            if op >= 0:
                seen.add(op)
        if chosen is not None:
            self.splits.append(chosen)
        return chosen is not None

    def _chained(self, cuts: list[int]) -> Spans | None:
        """Spans for any order, when the cuts are on a chain and few ops are not comparable."""
        spans = free_spans(self.lists, cuts)
        if spans is None:
            return None
        loose = sum(a < b for a, b in zip(spans.earliest, spans.latest, strict=True))
        most = INCOMPARABLE * self.lists.problem.ops * len(cuts)
        return spans if loose <= most else None

    def _over_budget(self, schedule: Schedule) -> Floats:
        """Bytes over budget of each step as a share of it, on the worst device, shape (steps,)."""
        budgets = self.budgets[:, None].astype(np.float64)
        use = occupancy(self.lists.problem, schedule)
        over: Floats = ((use - budgets) / np.maximum(1.0, budgets)).max(axis=0)
        return over
