"""All forwards, then all backwards: the largest forward time plus the largest backward time.

No placement has less than its max-load, so that every bound of that holds here too.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np

from onnxremat.errors import InfeasibleError
from onnxremat.placement import contiguous
from onnxremat.placement.answer import SAME, Answer, Work
from onnxremat.placement.anywhere import Search, by_class
from onnxremat.placement.anywhere import solve as solve_max_load
from onnxremat.placement.balance import balance
from onnxremat.placement.chains import Chain, Chains
from onnxremat.placement.classes import Classes, condense, loads
from onnxremat.placement.graph import Index, PlacementGraph
from onnxremat.placement.reduce import free_ends, inseparable

FIRST = 0.3  # share of the time for a first search
CHAINED = 0.1  # share of the time for the best chain, which is a placement of any shape, too
ALONE = 0.25  # share of what is left, for a proof of each load alone
WIDTH = 0.003  # of the value: of the ranges that chains are looked for in


def chain(graph: PlacementGraph, work: Work) -> Answer:
    """The best chain of ideals, proven where ideals are few enough and time lasts.

    Raises:
        InfeasibleError: proven that no chain keeps the limits.
    """
    first = contiguous.solve(graph, work.share(work.seconds / 2))
    if not graph.training or first.where is None:
        return first
    whole = condense(graph, chain=True)
    c = free_ends(whole)
    forward, backward = loads(whole, by_class(whole, first.where)).max(0).tolist()
    begun = replace(first, method="dp", value=forward + backward)
    ranges = _Ranges(_along_orders(begun, c, work), c, work)
    ranges.close()
    return ranges.answer()


def _along_orders(best: Answer, c: Classes, work: Work) -> Answer:
    """The best chain along a few orders: of each, the least backward maximum below caps on the
    forward one that fall."""
    chains = Chains(c, two=True)
    least = chains.balances[0].bound
    for order in islice(contiguous.orders(c), contiguous.ORDERS):
        found = chains.along(order)
        while found is not None and work.left:
            forward, backward = loads(c, found.where).max(0).tolist()
            best = _better(best, c, found, forward + backward)
            cap = min(forward, best.value - backward)
            found = chains.along(order, best.value - least, cap)
    return best


class _Ranges:
    """Chains by their forward maximum f: in a range low <= f < high, what is better than the best
    has a backward maximum below that less ``low``. In a narrow range both are nearly as low as they
    can be, so that walks over pieces end early.

    Attributes:
        best: the answer so far.
        forward: the forward maximum of the first one.
        width: of ranges that are searched at once.
        open: ranges of the forward maximum in which a better chain may be.
    """

    def __init__(self, first: Answer, c: Classes, work: Work) -> None:
        self.best, self.work = first, work
        self.small = inseparable(c, first.value)
        self.chains = Chains(self.small, two=True)
        least, self.other = (b.bound for b in self.chains.balances)
        assert first.where is not None
        self.forward = float(loads(c, by_class(c, first.where)).max(0)[0])
        self.width = WIDTH * first.value
        self.open = [(least, first.value - self.other)]

    def close(self) -> None:
        """Ranges near the best one's first, until none is left or time is up."""
        if self.chains.lattice(self.work.share(self.work.left * contiguous.LISTING)) is None:
            return
        while self.open and self.work.left and not self._met:
            low, high = self._cut()
            ended, proven = self._searched(low, high)
            if not proven:  # the rest of it stays open, and time is up
                self.open.append((low, ended))
                return

    @property
    def _met(self) -> bool:
        """The best has a value that is proven of every placement."""
        return self.work.met(self.best.value, self.best.bound, SAME)

    def answer(self) -> Answer:
        """The best, with what the open ranges leave proven."""
        value = self.best.value
        found = [low + self.other for low, high in self.open if low + self.other < value]
        if not found:
            return replace(self.best, bound=value, bound_by="all chains", notes=(),
                           seconds=self.work.taken)  # fmt: skip
        bound = max(self.best.bound, min(found))
        return replace(self.best, bound=min(bound, value), seconds=self.work.taken)

    def _cut(self) -> tuple[float, float]:
        """A range taken out of the open ones: next to the first one's, at most so wide."""
        start, width = self.forward, self.width
        nearest = min(self.open, key=lambda r: max(r[0] - start, start - r[1], 0.0))
        self.open.remove(nearest)
        low, high = nearest
        middle = min(max(start, low), high)
        first, last = max(low, middle - width / 2), min(high, middle + width / 2)
        self.open += [(a, b) for a, b in ((low, first), (last, high)) if a < b]
        return first, last

    def _searched(self, low: float, high: float) -> tuple[float, bool]:
        """All chains of a range; where what is left of it ends, and whether nothing is."""
        while low < (high := min(high, self.best.value - self.other)):
            found, proven = self.chains.whole(self.work, self.best.value - low, high)
            if found is not None:
                forward, backward = loads(self.small, found.where).max(0).tolist()
                self.best = _better(self.best, self.small, found, forward + backward)
                self.work.progress(self.best.value, self.best.bound, "chains")
            if not proven:
                return high, False
            if found is None:
                break
            # Of all chains of the range this one has the least backward maximum.
            high = min(forward, self.best.value - backward)
        return high, True


def _better(best: Answer, c: Classes, found: Chain, value: float) -> Answer:
    """The better one of an answer and a chain of this value."""
    if value >= best.value:
        return best
    return replace(best, value=value, where=c.nodes(found.where), order=found.order)


def anywhere(graph: PlacementGraph, work: Work) -> Answer:
    """The best placement of any shape that is found. Its bound is that of the max-load, or the sum
    of the bounds of both loads alone.

    Raises:
        InfeasibleError: proven that nothing fits.
    """
    first = solve_max_load(graph, work.share(FIRST * work.seconds))
    if not graph.training or first.where is None:
        return first
    search = begin(graph, first, work)
    search.take(_chained(graph, work.share(CHAINED * work.seconds)))
    both = sum(_alone(search, side, work.share(ALONE * work.left)) for side in (0, 1))
    if both > search.bound:
        search.bound, search.by = both, "both loads alone"
    search.run()
    return search.answer()


def _chained(graph: PlacementGraph, work: Work) -> Index | None:
    """The best chain, a device per node; None where there is none."""
    try:
        return chain(graph, work).where
    except InfeasibleError:  # of chains alone
        return None


def begin(graph: PlacementGraph, first: Answer, work: Work) -> Search:
    """A search from the best placement of the max-load, with its bound."""
    c = free_ends(condense(graph, chain=False))
    assert first.where is not None
    search = Search(c, [by_class(c, first.where)], two=True, floor=first.bound, work=work)
    search.by = first.bound_by
    return search


def _alone(search: Search, side: int, work: Work) -> float:
    """What is proven of the largest forward (0) or backward (1) load without the other."""
    c = search.c
    mask = np.asarray([side == 0, side == 1], np.float64)
    counted = np.flatnonzero(c.cost[:, side] > 0).tolist()
    alone = replace(
        c, acc=c.acc * mask, cpu=c.cpu * mask, nets=tuple(c.nets[e] for e in counted),
        cost=c.cost[counted] * mask,
    )  # fmt: skip
    graph = c.graph
    floor = balance(alone.load, alone.slow, c.supported, graph.accelerators, graph.cpus).bound
    part = Search(alone, [search.best], two=False, floor=floor, work=work)
    part.run()
    return min(part.bound, part.value)
