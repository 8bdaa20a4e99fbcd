"""Points of a memory-time curve, as tables and plots read them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class Point(Protocol):
    """The answer for one budget. Sizes are bytes, overhead and bound fractions of the
    store-all time; what is not known is None."""

    @property
    def budget(self) -> int:
        """Bytes asked for, of the process."""

    @property
    def limit(self) -> int:
        """What of these is for weights and values."""

    @property
    def process(self) -> int | None:
        """Bytes the process takes; None where no plan was found."""

    @property
    def peak(self) -> int | None:
        """What of these is for weights and values."""

    @property
    def overhead(self) -> float | None:
        """Extra time of the plan."""

    @property
    def bound(self) -> float | None:
        """Proven least extra time of any plan."""

    @property
    def status(self) -> str:
        """``optimal``, ``feasible``, ``none found``, or ``infeasible ...`` when proven."""

    @property
    def plan_seconds(self) -> float:
        """Wall time of planning."""


def infeasible_until(points: Iterable[Point]) -> int:
    """Largest budget proven infeasible, in bytes; 0 when none is."""
    return max((p.budget for p in points if p.status.startswith("infeasible")), default=0)


def plans(points: Iterable[Point]) -> list[tuple[int, float]]:
    """(bytes, overhead) of every plan found, smallest budget first; a plan that is good for a
    small budget is good for a larger one, so overheads never rise."""
    best: list[tuple[int, float]] = []
    least = float("inf")
    for point in sorted(points, key=lambda p: p.budget):
        if point.overhead is not None:
            least = min(least, max(0.0, point.overhead))
            best.append((point.budget, least))
    return best


def bounds(points: Iterable[Point]) -> list[tuple[int, float]]:
    """(bytes, proven least overhead), smallest budget first; what is proven for a large budget
    holds for a smaller one, so bounds never rise."""
    proven: list[tuple[int, float]] = []
    most = 0.0
    for point in sorted(points, key=lambda p: -p.budget):
        if point.bound is not None:
            most = max(most, point.bound)
            proven.append((point.budget, most))
    return proven[::-1]
