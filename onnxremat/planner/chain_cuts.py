"""Cuts that hold for every order of the ops, however many of them the order leaves free.

In the training steps of exporters the gradients of weights can run anywhere behind those of rows,
so that at the peak a tenth to a quarter of all ops may have run or not. A cut on a chain of the
dependency order leaves that to the model (docs/bounds.md, "Any order"): a bound for every order,
and a solution that says where they run.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from onnxremat.planner.cut_places import CutPlaces
from onnxremat.planner.formulations.extract import stage_excess
from onnxremat.planner.formulations.spans import Spans, free_spans, with_splits
from onnxremat.planner.problem import Floats
from onnxremat.planner.schedule import Schedule


@dataclass(frozen=True)
class Tuning:
    """Constants of where such cuts go.

    Attributes:
        loose: share of the ops that one may leave free: what it proves goes down with it, and the
            integers take longer.
        looked: stages over budget, the worst first, that are looked at for the next cut.
        apart: share of the ops between two cuts that are added at once.
        least: share of the worst breach that another one must be for that.
    """

    loose: float = 0.4
    looked: int = 100
    apart: float = 0.02
    least: float = 0.33


TUNING = Tuning()


@dataclass
class ChainCuts(CutPlaces):
    """Cuts on one chain of the dependency order, and splits between them."""

    tuning: Tuning = TUNING
    shares: dict[int, float] = field(default_factory=dict)  # of the ops that a cut leaves free

    def spans(self) -> Spans:
        spans = free_spans(self.lists, self.cuts)
        assert spans is not None  # only such cuts are added
        return with_splits(spans, self.splits)

    def give_order(self) -> bool:
        """They hold for every order or are not made."""
        return False

    def first(self) -> int | None:
        """Where the base order breaks the budget most and the order leaves few ops free."""
        store_all = self.lists.problem.store_all()
        over = self._over_budget(Schedule.of(self.lists.problem, store_all))
        left = np.zeros(self.lists.problem.ops)
        left[store_all] = np.maximum(over, 0.0)
        return self._best(left)

    def add(self, schedule: Schedule, many: int, placing: bool) -> bool:
        """Cut at the worst stages that are on the chain."""
        ops = self.lists.problem.ops
        left = stage_excess(ops, schedule, self._over_budget(schedule))
        apart, least = max(1, int(self.tuning.apart * ops)), self.tuning.least * float(left.max())
        added = False
        while many > 0 and float(left.max()) > 0:
            cut = self._best(left)
            if cut is None or (added and left[cut] < least):
                break
            self.cuts.append(cut)
            left[max(0, cut - apart) : cut + apart + 1] = 0
            added = True
            many -= 1
        return added

    def _best(self, left: Floats) -> int | None:
        """The op with the largest breach times the share of ops that a cut there does not free."""
        best, chosen = 0.0, None
        for cut in np.argsort(-left, kind="stable")[: self.tuning.looked].tolist():
            if left[cut] <= best:
                break
            worth = float(left[cut]) * (1.0 - self._share(cut))
            if worth > best and self._fits(cut):
                best, chosen = worth, cut
        return chosen

    def _fits(self, cut: int) -> bool:
        if cut in self.cuts or self._share(cut) > self.tuning.loose:
            return False
        below, above = self.lists.ancestor_ops(cut), self.lists.descendant_ops(cut)
        return all(other in below or other in above for other in self.cuts)

    def _share(self, cut: int) -> float:
        if cut not in self.shares:
            lists, ops = self.lists, self.lists.problem.ops
            known = len(lists.ancestor_ops(cut)) + len(lists.descendant_ops(cut))
            self.shares[cut] = 1.0 - (known + 1) / ops
        return self.shares[cut]
