"""The least memory within a limit of time: that of regions in parts, and budgets halved between
what is there in any plan and what was found so far."""

from __future__ import annotations

import math
from dataclasses import dataclass

from onnxremat.errors import NO_FIT
from onnxremat.fission.choosers import Choosers
from onnxremat.pipeline.closed_loop import Candidate, load_search
from onnxremat.pipeline.kept_plans import ADDED
from onnxremat.pipeline.phases import PLAN, Phases
from onnxremat.pipeline.prepared import Prepared
from onnxremat.pipeline.ways import choosers_of, plan_within_budget
from onnxremat.planner.options import PlanOptions
from onnxremat.units import Budget

BUDGETS = 7  # that are planned for
IN_PARTS = 2 / 3  # of the time that regions get for one budget, for those in a limit of time
NEAR = 1.02  # ratio of budgets from which nothing is to be gained between them


@dataclass(frozen=True)
class _Search:
    prepared: Prepared
    overhead: float
    log: Phases
    choosers: Choosers | None

    @property
    def allowed(self) -> float:
        """Seconds of a run."""
        return self.prepared.costs.total * (1 + self.overhead)

    def plan(self, size: int, options: PlanOptions) -> Candidate | None:
        """A plan for a budget, None where there is none in time."""
        budget = _budget(self.prepared, size)
        try:
            found = plan_within_budget(self.prepared, budget, options, self.log, self.choosers)
        except NO_FIT:
            return None
        return found if found.artifact.seconds <= self.allowed else None

    def in_parts(self, most: int) -> int | None:
        """Bytes of the leanest graph in parts that is estimated to be in time, None where none of
        less than ``most`` is known."""
        if self.choosers is None:
            return None
        with self.log.phase(PLAN, "choosing regions to compute in parts"):
            found = self.choosers.leanest(self.allowed)
        size = self.prepared.weights + found.peak + ADDED * (1 + len(self.prepared.graph.ops))
        return size if found.regions and size < most else None


def plan_within_time(
    prepared: Prepared, overhead: float, options: PlanOptions, log: Phases | None = None
) -> Candidate:
    """The plan that was found to need least, of those that take at most ``overhead`` (0.1 for a
    tenth) more time than storing everything, by the costs of its ops.

    Raises:
        NoPlanError: stopped before planning began.
    """
    log = log or Phases()
    load_search(1, log)
    options = options.begun()
    choosers = choosers_of(prepared, options.within(IN_PARTS), log)
    search = _Search(prepared, overhead, log, choosers)
    high = _all(prepared)
    low = max(prepared.floor.fixed, 1)
    best: Candidate | None = None
    parts: int | None = None
    tried = 0
    while tried < BUDGETS:
        if best is not None and (high <= NEAR * low or options.stopped or options.left <= 0):
            break
        size = parts or (high if best is None else round(math.sqrt(low * high)))
        found = search.plan(size, options.within(1 / (BUDGETS - tried)))
        tried += 1
        first, parts = best is None, None
        if found is not None:
            best, high = found, min(size, found.held)
            parts = search.in_parts(high) if first else None
        elif best is None:
            break
        else:
            low = size
    if best is None:  # noise of measured costs: nothing recomputed takes its own time
        best = plan_within_budget(prepared, _budget(prepared, _all(prepared)), options, log)
    return best.noted(
        f"the least memory found in {tried} budgets that takes at most {100 * overhead:.3g}% longer"
    )


def _all(prepared: Prepared) -> int:
    """Bytes of weights and values in which everything can be stored, in an order that is pinned."""
    return prepared.store_all_peak + ADDED * (1 + len(prepared.graph.ops))


def _budget(prepared: Prepared, size: int) -> Budget:
    """So many bytes of weights and values."""
    return Budget(f"{size} B", "peak", size / prepared.baseline_peak)
