"""Limits for tests: nothing that a busy machine changes decides whether one passes.

Where time is not what is tested, work of a second gets :data:`LONG`. Where work has to end early,
it is asked to when something has happened (:class:`Planned`), not after some seconds. What a limit
or a stop may cost is told in seconds of the processor (:func:`work`), which other processes do not
spend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from time import process_time

LONG = 120.0  # seconds, for what takes a second or two: no limit on any machine


@dataclass
class Planned:
    """``progress`` and ``stop`` of a planner that is to end soon after it has a plan.

    Attributes:
        goal: seconds of a plan that is good enough.
        looks: how often it may still ask whether to stop.
    """

    goal: float = inf
    looks: int = 0
    told: list[float] = field(default_factory=list)

    def progress(self, best: float, *_: object) -> None:
        """Hear of a plan."""
        if best < inf:
            self.told.append(best)

    def stop(self) -> bool:
        """Whether there is one, and it was asked often enough since."""
        if not self.told or self.told[-1] > self.goal:
            return False
        self.looks -= 1
        return self.looks < 0


def after(looks: int) -> Callable[[], bool]:
    """A ``stop`` that is True from the time it was asked so often."""
    left = iter(range(looks))
    return lambda: next(left, None) is None


@contextmanager
def work(most: float) -> Iterator[None]:
    """Fails where this process spends more than ``most`` seconds of processor time, all threads
    together."""
    begin = process_time()
    yield
    took = process_time() - begin
    assert took < most, f"{took:.1f} s of processor time"
