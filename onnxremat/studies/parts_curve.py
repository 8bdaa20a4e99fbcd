"""What regions in parts take at the budgets of a memory-time curve, by the costs of the ops.

Estimates: the graphs in parts are neither run nor recomputed in, which ``optimize`` does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import inf, sqrt

from onnxremat.errors import OnnxrematError
from onnxremat.fission.choosers import Choosers
from onnxremat.fission.pricing import Priced
from onnxremat.graph.spans import CannotSplitError
from onnxremat.pipeline.in_parts.in_regions import wholes_of, written
from onnxremat.pipeline.prepared import Prepared
from onnxremat.pipeline.study_problem import Subject
from onnxremat.planner.options import PlanOptions
from onnxremat.studies.points import SweepPoint

PLANNER = "regions in parts"
TRIES = 3  # smaller graphs looked for, where the nodes of parts take a budget over its limit


def _why_whole(subject: Subject, options: PlanOptions) -> str:
    """Why a curve has no points in parts, for people; "" where it has."""
    prepared = subject.model
    if prepared is None:
        return "graph files are planned whole"
    settings = prepared.settings
    if prepared.in_place or settings.train is not None:
        return "training steps are planned whole; optimize --train makes them in parts"
    if settings.fission is not None:
        return "--fission off"
    if settings.split_batch is not None or settings.fixed_order or not options.method.ladder:
        return "another order, split or planner was asked for"
    return ""


def parts_curve(
    subject: Subject,
    points: Sequence[SweepPoint],
    options: PlanOptions,
    *,
    further: bool,
    say: Callable[[str], None],
) -> tuple[list[SweepPoint], str]:
    """The same budgets with regions in parts, where storing everything does not keep them; and
    why there are none, for people, "" where they were looked for.

    Args:
        points: of the whole.
        further: also the least that parts need, and half-way to it.
    """
    whole = _why_whole(subject, options)
    if whole or not points:
        return [], whole
    say("choosing regions to compute in parts")
    assert subject.model is not None
    made = _Curve(subject.model, options)
    rows = [made.point(p.limit, p.budget) for p in points if p.limit < subject.store_all_peak]
    if further:
        whole_least = min((p.process for p in points if p.process is not None), default=inf)
        more = made.further(min(point.limit for point in points))
        rows += [row for row in more if row and (row.process or inf) < whole_least]
    found = {row.budget: row for row in rows if row is not None}
    if further and not found and not options.stopped:
        return [], "none takes less than the whole, with what onnxruntime keeps of their nodes"
    return [found[budget] for budget in sorted(found, reverse=True)], ""


class _Curve:
    """Of one model.

    Args:
        options: how long a search may take.
    """

    def __init__(self, prepared: Prepared, options: PlanOptions) -> None:
        self.prepared, self.options, self.until = prepared, options, options.begun()
        ways = wholes_of(prepared.graph, prepared.costs, prepared.folder)
        self.choosers = Choosers(ways, lambda: self.until.stopped or self.until.left <= 0)

    def _chosen(self, room: int) -> Priced:
        self.until = self.options.begun()
        return self.choosers.within(room)

    def point(self, limit: int, budget: int) -> SweepPoint | None:
        """Parts within a budget; None where none were found.

        Args:
            limit: bytes of weights and values.
            budget: bytes of the process.
        """
        room, begun = limit - self.prepared.weights, time.monotonic()
        for _ in range(TRIES):
            if self.options.stopped:
                return None
            chosen = self._chosen(room)
            beside = self._beside(chosen)
            if beside is None or chosen.peak > room:
                return None
            over = chosen.peak + self.prepared.weights + beside - budget
            if over <= 0:
                return self._row(chosen, limit, budget, beside, time.monotonic() - begun)
            room = min(room, chosen.peak) - over
        return None

    def further(self, limit: int) -> list[SweepPoint | None]:
        """The least that parts need, and one point between it and a limit of the whole."""
        begun, chosen = time.monotonic(), self._chosen(0)
        beside = self._beside(chosen)
        least = chosen.peak + self.prepared.weights
        if beside is None or least >= limit:
            return []
        spent = time.monotonic() - begun
        between = int(sqrt(least * limit))
        return [
            self.point(between, between + beside),
            self._row(chosen, least, least + beside, beside, spent),
        ]

    def _beside(self, chosen: Priced) -> int | None:
        """Bytes that budgets count beside weights and values; None where nothing is in parts."""
        if not chosen.regions:
            return None
        try:
            graph = written(self.prepared.graph, chosen.regions, self.prepared.folder)
        except (CannotSplitError, OnnxrematError):
            return None
        return self.prepared.beside_in(graph).total

    def _row(
        self, chosen: Priced, limit: int, budget: int, beside: int, spent: float
    ) -> SweepPoint:
        peak = chosen.peak + self.prepared.weights
        more = chosen.seconds / (self.choosers.whole.seconds or 1.0) - 1
        return SweepPoint(
            budget, limit, peak + beside, peak, more, None, False, "estimated", PLANNER, spent
        )
