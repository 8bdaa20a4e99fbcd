"""Points of a memory-time curve, as tables and plots read them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnxremat.studies.points import SweepPoint

ONE_ORDER = "of plans in one order of first runs alone: in another one may take less"


def infeasible_until(points: Iterable[SweepPoint]) -> int:
    """Largest budget proven infeasible, in bytes; 0 when none is."""
    return max((p.budget for p in points if p.status.startswith("infeasible")), default=0)


def plans(points: Iterable[SweepPoint]) -> list[tuple[int, float]]:
    """(bytes, overhead) of every plan found, smallest budget first; a plan that is good for a
    small budget is good for a larger one, so overheads never rise."""
    best: list[tuple[int, float]] = []
    least = float("inf")
    for point in sorted(points, key=lambda p: p.budget):
        if point.overhead is not None:
            least = min(least, max(0.0, point.overhead))
            best.append((point.budget, least))
    return best


def bounds(points: Iterable[SweepPoint]) -> list[tuple[int, float]]:
    """(bytes, proven least overhead), smallest budget first; what is proven for a large budget
    holds for a smaller one, so bounds never rise, but where one is of one order of first runs
    alone: others may be in use at the smaller."""
    proven: list[tuple[int, float]] = []
    most = 0.0
    for point in sorted(points, key=lambda p: -p.budget):
        if point.bound is not None:
            most = max(most, point.bound) if point.any_order else most
            proven.append((point.budget, max(most, point.bound)))
    return proven[::-1]


def in_one_order(point: SweepPoint) -> bool:
    """What is proven of a budget is of one order of first runs alone; that no plan takes less than
    no time more is so in every order."""
    return bool(point.bound) and not point.any_order
