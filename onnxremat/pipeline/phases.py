"""What goes on, told as it begins; the seconds that each phase took; and what may be ended before
it is done."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import inf

Say = Callable[[str], None]
Ended = Callable[[str, float], None]
Ending = Callable[[bool], AbstractContextManager[object]]
READ, OPTIMISE, COSTS, PLAN = "read", "optimise offline", "costs", "plan"
LOAD = "load the search"
BUILD, MEASURE, VERIFY, TIME, WRITE = "build", "measure", "verify", "time", "write"


class Phases:
    """Called with a text it tells it; every moment counts for the phase that was entered last.

    Args:
        ended: told the phase that has ended and its seconds so far.
        worked: seconds that the processor has worked so far.

    Attributes:
        seconds: by phase, in the order in which they first began.
        due: moment at which all has to be done, later by what loading the search takes; infinity
            for no such moment.
        ending: entered around work that an interrupt ends at once: by EndedError where it is told
            that there is something to keep without it, else together with everything.
    """

    def __init__(
        self,
        say: Say | None = None,
        now: Callable[[], float] = time.perf_counter,
        ended: Ended | None = None,
        worked: Callable[[], float] = time.process_time,
    ) -> None:
        self._say, self._now, self._worked = say or (lambda _: None), now, worked
        self._ended = ended or (lambda *_: None)
        self._open: list[str] = []
        self._since = now()
        self.seconds: dict[str, float] = {}
        self.due = self._work = inf
        self.ending: Ending = nullcontext

    @classmethod
    def of(cls, say: Say | None) -> Phases:
        """``say`` itself where it is one."""
        return say if isinstance(say, Phases) else cls(say)

    @property
    def left(self) -> float:
        """Seconds until all has to be done."""
        return self.due - self._now()

    @property
    def unhindered(self) -> float:
        """Seconds that were left on a machine that does nothing else; :attr:`left` at least."""
        return max(self.left, self._work - self._worked())

    def end_within(self, seconds: float) -> None:
        """All has to be done in so many seconds from now."""
        self.due = self._now() + seconds
        self._work = self._worked() + seconds

    def __call__(self, text: str) -> None:
        self._say(text)

    @contextmanager
    def phase(self, name: str, text: str = "") -> Iterator[None]:
        """Count the time inside for a phase; one inside it counts for itself alone."""
        if text:
            self(text)
        self._count()
        self._open.append(name)
        before, worked = self.seconds.setdefault(name, 0.0), self._worked()
        try:
            yield
        finally:
            self._count()
            self._open.pop()
            if name == LOAD:  # the search may be compiled, which no limit is for
                self.due += self.seconds[name] - before
                self._work += self._worked() - worked
            self._ended(name, self.seconds[name])

    def _count(self) -> None:
        now = self._now()
        if self._open:
            self.seconds[self._open[-1]] += now - self._since
        self._since = now
