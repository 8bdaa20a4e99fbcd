"""Fission of a graph that can be said in several ways: as it is, with normalisations written out
and layouts apart, and with second makers of its images."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from onnxremat.fission.candidates import Regions
from onnxremat.fission.choose import FREE, LEVELS, STEP, Chooser
from onnxremat.fission.paper import Paper
from onnxremat.fission.pricing import Priced, Whole


class Choosers:
    """Fission of a graph that can be said in several ways, of which the first is taken where it
    keeps a limit.

    Args:
        stop: asked between trials, and before regions of a stretch are looked for.
        late: the same, once regions are known that keep the limit: what has to be done with these
            is to end in time.

    Raises:
        IndexError: there is no way.
    """

    def __init__(
        self,
        ways: Sequence[Whole],
        stop: Callable[[], bool] = lambda: False,
        late: Callable[[], bool] = lambda: False,
    ) -> None:
        self._ways = list(ways)
        self._stop, self._late = stop, late
        self._able = [Regions(Paper(way.graph)) for way in ways]
        self._made = [Chooser(ways[0], stop, late=late)]

    @property
    def whole(self) -> Priced:
        """Nothing in parts."""
        return self._made[0].whole

    @property
    def ended(self) -> bool:
        """It may not go on: what was not found may be there."""
        return self._stop()

    def go_on(self, stop: Callable[[], bool]) -> None:
        """With what is known, until another moment."""
        self._stop = stop
        for made in self._made:
            made.until(stop)

    def within(self, limit: int) -> Priced:
        """As :meth:`Chooser.within`, of the first way that keeps the limit at little time, or else
        the best."""
        with _no_collection():
            return self._within(limit)

    def _within(self, limit: int) -> Priced:
        found = list[Priced]()
        for index, way in enumerate(self._ways):
            if found and (
                self._done(found, limit) or (way.again and _best(found, limit).peak <= limit)
            ):
                break
            if len(self._made) <= index:
                once = index > 0 and any(each.again for each in self._ways)
                self._made.append(Chooser(way, self._stop, once, self._late))
                if way.again:
                    self._made[-1].begin(self._made[-2])
            able = self._able[index:]
            if able[0].never_within(limit) and not all(a.never_within(limit) for a in able[1:]):
                continue
            found.append(self._made[index].within(limit))
            if found[-1].peak <= limit and found[-1].seconds <= FREE * self.whole.seconds:
                break
        return _best(found, limit)

    def _done(self, found: Sequence[Priced], limit: int) -> bool:
        """There is no time for another way."""
        return self._stop() or (_best(found, limit).peak <= limit and self._late())

    def never(self, name: str) -> bool:
        """An op is whole whatever is in parts: it goes in no region, nor is it written out."""
        for able in self._able:
            place = able.paper.place.get(name)
            if place is None or able.splits(place):
                return False
        return True

    def leanest(self, seconds: float) -> Priced:
        """What was found to need least in so many seconds, among limits that go down until none is
        kept in that time, however little kernels cost."""
        limit = STEP * self.whole.peak
        while not self._stop():
            self.within(int(limit))
            cheap = min(
                (made.quickest(int(limit), LEVELS[0]) for made in self._made),
                key=lambda found: (found.peak > limit, found.effort.at(LEVELS[0])),
            )
            if cheap.peak > limit or cheap.effort.at(LEVELS[0]) > seconds:
                break
            limit *= STEP
        return min(
            (made.leanest(seconds) for made in self._made),
            key=lambda found: (found.peak, found.seconds),
        )


@contextmanager
def _no_collection() -> Iterator[None]:
    """Nothing here is in cycles, and looking for them takes a fifth of a search."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def _best(found: Sequence[Priced], limit: int) -> Priced:
    """The quickest that keeps a limit, or what needs least."""
    kept = [each for each in found if each.peak <= limit]
    if kept:
        return min(kept, key=lambda each: (each.seconds, each.peak))
    return min(found, key=lambda each: (each.peak, each.seconds))
