"""The compiled searches behind one face: schedules in, schedules out.

One device has a search of its own, whose walk edits a line of time instead of replaying every
schedule; it speaks sequences of ops.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from onnxremat.planner.incumbent import Incumbent
from onnxremat.planner.problem_lists import ProblemLists
from onnxremat.planner.schedule import Schedule
from onnxremat.planner.semantics import Figures

if TYPE_CHECKING:
    from onnxremat.planner.search import Search as Editing

Stop = Callable[[], bool]
Improved = Callable[[Schedule], None]


class Search(Protocol):
    """Search over the schedules of one problem within its budgets.

    Attributes:
        free_order: first runs may leave the base order.
        left: what the last :meth:`fit` reached.
    """

    free_order: bool
    left: Schedule | None

    def replay(self, schedule: Schedule) -> Figures | None:
        """Figures of a schedule, or None when it is not valid (or far too long)."""

    def fit(
        self, schedule: Schedule, until: float, stop: Stop, depth: int, power: float
    ) -> Schedule | None:
        """Greedy repair, polished; None when the budgets are not met."""

    def polished(self, schedule: Schedule) -> Schedule:
        """Delete what the budgets do not need."""

    def anneal(
        self, schedule: Schedule, seconds: float, stop: Stop, improved: Improved, *,
        parallel: bool = False, heat: float = 0.6,
    ) -> None:  # fmt: skip
        """Anneal from a schedule; ``improved`` is called with better feasible ones."""


def search_for(lists: ProblemLists, incumbent: Incumbent, *, free_order: bool, seed: int) -> Search:
    """A search for the budgets of an incumbent, on its clock. Its compiled code is loaded here."""
    if lists.problem.devices == 1:
        from onnxremat.planner.search import Search as Editing

        (budget,) = incumbent.budgets
        return _OneDevice(
            Editing(lists.problem, budget, free_order=free_order, seed=seed, clock=incumbent.clock)
        )
    from onnxremat.planner.devices.search import Search as Replaying

    return Replaying(
        lists, incumbent.budgets, free_order=free_order, seed=seed, clock=incumbent.clock
    )


def warm_up() -> float:
    """Compile all searches, or load them from the cache; returns the seconds it took.

    Worth a call before a short limit of time.
    """
    from onnxremat.planner.search import warm_up as one_device

    begin = monotonic()
    one_device()
    import_module("onnxremat.planner.devices.search")  # compiles as it is imported
    return monotonic() - begin


class _OneDevice:
    """The search of one device in terms of schedules."""

    def __init__(self, inner: Editing) -> None:
        self.inner = inner
        inner.left = []
        self.left: Schedule | None = None

    @property
    def free_order(self) -> bool:
        return self.inner.free_order

    @free_order.setter
    def free_order(self, flag: bool) -> None:
        self.inner.free_order = flag

    def replay(self, schedule: Schedule) -> Figures | None:
        found = self.inner.replay(schedule.sequence)
        if found is None:
            return None
        seconds, peak, area = found
        return Figures(seconds, seconds, (peak,), area)

    def fit(
        self, schedule: Schedule, until: float, stop: Stop, depth: int, power: float
    ) -> Schedule | None:
        found = self.inner.fit(schedule.sequence, until, stop, depth, power)
        self.left = Schedule.of(self.inner.problem, self.inner.left)
        return None if found is None else Schedule.of(self.inner.problem, found)

    def polished(self, schedule: Schedule) -> Schedule:
        return Schedule.of(self.inner.problem, self.inner.polished(schedule.sequence))

    def anneal(
        self, schedule: Schedule, seconds: float, stop: Stop, improved: Improved, *,
        parallel: bool = False, heat: float = 0.6,
    ) -> None:  # fmt: skip
        problem = self.inner.problem
        self.inner.anneal(
            schedule.sequence, seconds, stop,
            lambda found, _: improved(Schedule.of(problem, found)), heat=heat,
        )  # fmt: skip
