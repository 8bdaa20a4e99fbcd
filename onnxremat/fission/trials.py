"""Graphs with regions in parts that were tried in a search, each priced once, and how much of the
search's work they took."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from onnxremat.cost.table import KernelCosts
from onnxremat.fission.candidates import Regions
from onnxremat.fission.in_order import as_regions
from onnxremat.fission.pricing import Priced, Prices, Whole
from onnxremat.fission.region import Region
from onnxremat.fission.twice import is_either
from onnxremat.graph.spans import CannotSplitError

PUT_TOGETHER = 16  # pieces that are put together in the time that one takes to be written


class Trials:
    """Of one graph.

    Args:
        stop: asked between trials.
        late: the same, once something is known that keeps the limit.

    Attributes:
        level: what kernels cost beside their rows in the search that is under way.
        left: work that is left to it, in pieces of ops (a hundred thousand take a second or two).
        enough: what keeps the limit is known: the search may end once it is late.
        paid: trials, and regions, that it has done its work for. Those that another search has done
            are work again, so that what a search finds does not depend on others.
    """

    def __init__(
        self, of: Whole, stop: Callable[[], bool], late: Callable[[], bool] = lambda: False
    ) -> None:
        self.of, self.graph, self._ended, self._late = of, of.graph, stop, late
        self.enough = False
        self.prices = Prices(of)
        self.able, self.place = Regions(self.prices.paper), self.prices.paper.place
        self.known: dict[frozenset[object], Priced | None] = {}
        self.whole = self.prices.priced(as_regions(of.graph))
        self.level = of.kernels
        self.left = 0
        self.paid: set[object] = set()

    def until(self, stop: Callable[[], bool]) -> None:
        """Go on until another moment."""
        self._ended = stop

    def _stop(self) -> bool:
        """There is no time."""
        return self._ended() or (self.enough and self._late())

    def stop(self) -> bool:
        """No further trials: there is no time, or the work that a search may take is done."""
        return self.left <= 0 or self._stop()

    def seconds(self, found: Priced) -> float:
        """By what kernels cost in this search."""
        return found.effort.at(self.level)

    def price(self, regions: tuple[Region, ...]) -> Priced | None:
        """The graph with these regions, None where it cannot be written."""
        regions = self._read(regions)
        keys = {region.key: region.pieces for region in regions}
        key = frozenset(keys)
        if key not in self.paid:
            new = sum(size for each, size in keys.items() if each not in self.paid)
            self.paid.update(keys, [key])
            self.left -= new + (sum(keys.values()) + len(self.graph.ops)) // PUT_TOGETHER
        if key not in self.known:
            try:
                self.known[key] = self.prices.priced(regions)
            except CannotSplitError:
                self.known[key] = None
        return self.known[key]

    def _read(self, regions: tuple[Region, ...]) -> tuple[Region, ...]:
        """The regions, told how much of their results is read elsewhere."""
        either, graph = self.prices.paper.either, self.graph
        if not either:
            return regions
        rows = {either[n]: row for region in regions for n, row in region.again.items()}
        found = []
        for region in regions:
            ops = {self.place[name] for name in region.ops}
            until = {
                name: row for name, row in rows.items()
                if name in region.results
                and all(p in ops or is_either(graph.ops[p]) for p in graph.readers[name])
            }  # fmt: skip
            found.append(region if until == region.until else replace(region, until=until))
        return tuple(found)

    def instead(self, now: Priced, region: Region) -> Priced | None:
        """A region instead of the one of the same ops."""
        return self.price((*(r for r in now.regions if r.ops != region.ops), region))

    def quickest(self, limit: int, kernels: KernelCosts) -> Priced:
        """Of what was tried, the quickest that keeps a limit, or what needs least."""
        tried = [self.whole, *(found for found in self.known.values() if found is not None)]
        kept = [found for found in tried if found.peak <= limit]
        if kept:
            return min(kept, key=lambda found: (found.effort.at(kernels), found.peak))
        return min(tried, key=lambda found: (found.peak, found.effort.at(kernels)))

    def leanest(self, seconds: float) -> Priced:
        """Of what was tried, what needs least in so many seconds."""
        tried = [found for found in self.known.values() if found is not None]
        kept = [found for found in tried if found.seconds <= seconds]
        return min(kept, key=lambda found: (found.peak, found.seconds), default=self.whole)
