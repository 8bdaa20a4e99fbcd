"""Placements of any shape: annealing and dealing for values; sets and an integer program for
bounds."""

from __future__ import annotations

from math import inf

import numpy as np

from onnxremat.errors import InfeasibleError
from onnxremat.placement import contiguous, limits
from onnxremat.placement.annealing import Annealing
from onnxremat.placement.answer import Answer, Work
from onnxremat.placement.balance import balance, within_memory
from onnxremat.placement.classes import Classes, condense
from onnxremat.placement.columns import raise_bound
from onnxremat.placement.dealing import Dealing
from onnxremat.placement.graph import Index, PlacementGraph
from onnxremat.placement.parting import part
from onnxremat.placement.program import decide, packing
from onnxremat.placement.reduce import free_ends

METHOD = "annealing and dealing"
ROUNDS = 12  # of annealing before the first proof
DEALT, KICKS = 0.5, 6  # of the time left, for dealing; rounds of annealing for each of dealing
SHORT = 0.1  # of a proof's time, for a first try of the integer program
SMALL = 1e-3  # gap that it is tried on again


def solve(graph: PlacementGraph, work: Work) -> Answer:
    """The least max-load of any placement that is found, and what is proven of it.

    Raises:
        InfeasibleError: proven that nothing fits.
    """
    search = begin(graph, work)
    if search is None:
        return Answer(METHOD, inf, 0.0, "", None, seconds=work.taken)
    search.run()
    return search.answer()


def begin(graph: PlacementGraph, work: Work) -> Search | None:
    """A search from the placements that are at hand; None without one.

    Raises:
        InfeasibleError: proven that nothing fits.
    """
    raw = condense(graph, chain=False)
    why = limits.reason(raw)
    if why:
        raise limits.refuse(graph, why)
    c = free_ends(raw)
    floor = balance(c.load, c.slow, c.supported, graph.accelerators, graph.cpus).bound
    floor = max(floor, within_memory(c))
    starts = [by_class(c, where) for where in _starts(graph, c, work)]
    if not starts:
        packed = packing(c, work)
        starts = [] if packed is None else [packed]
    return Search(c, starts, two=False, floor=floor, work=work) if starts else None


class Search:
    """Rounds of annealing, and proofs of what they found, in turn.

    Attributes:
        value, best: the best placement so far, a device per class.
        bound, by: proven, and by whom.
    """

    def __init__(
        self, c: Classes, starts: list[Index], *, two: bool, floor: float, work: Work
    ) -> None:
        self.c, self.starts, self.work = c, starts, work
        self.annealing = Annealing(c, two=two, seed=work.seed)
        self.dealing = None if two else Dealing(self.annealing)
        self.bound, self.by = floor, "balance"
        self._tried, self._ended = inf, False  # the value last proven, and whether all is done
        self.value, self.best = min(
            ((self.annealing.value(where), where) for where in starts), key=lambda entry: entry[0]
        )

    @property
    def done(self) -> bool:
        """The bound has met the value, within the gap, or time is up."""
        return self.work.met(self.value, self.bound) or not self.work.left

    def run(self) -> None:
        """Until it is done. Proofs get half of the time that is left, and again when there is a
        better value."""
        rounds = ROUNDS
        while not self.done:
            self.step(rounds)
            rounds *= 2

    def step(self, rounds: int) -> None:
        """Some rounds of annealing and dealing, and a proof unless there is one of this value."""
        starts = [self.best, *self.starts]
        self.value, self.best = self.annealing.improve(starts, self.work, self.bound, rounds)
        if self.dealing is not None and not self.done:
            work = self.work.share(self.work.left * DEALT)
            self.value, self.best = self.dealing.improve(
                self.best, work, self.bound, rounds // KICKS
            )
        if not self.done and (self.value < self._tried or not self._ended):
            self._tried = self.value
            self._prove()

    def take(self, where: Index | None) -> None:
        """Go on from a placement of the nodes where there is one and it is better."""
        if where is not None:
            found = by_class(self.c, where)
            value = self.annealing.value(found)
            if value < self.value:
                self.value, self.best = value, found

    def answer(self) -> Answer:
        """The best so far."""
        return Answer(
            METHOD, self.value, min(self.bound, self.value), self.by, self.c.nodes(self.best),
            seconds=self.work.taken,
        )  # fmt: skip

    def _prove(self) -> None:
        """The integer program for a short time, prices of sets, the program again for what is left
        of a small gap."""
        work = self.work.share(self.work.left / 2)
        small = part(self.c, self.value, work)
        if self._decided(small, work.share(work.left * SHORT)):
            return
        known = [by_class(small, self.c.nodes(self.best))]
        raised = raise_bound(small, self.value, self.bound, known, work)
        self._ended = raised.ended
        if raised.by:
            self.bound, self.by = raised.bound, raised.by
        self._take(small, raised.better)
        if raised.ended and self.bound >= self.value * (1 - SMALL) and not self.done:
            self._decided(small, work)

    def _decided(self, small: Classes, work: Work) -> bool:
        """Whether the program proves the value; a better placement of it is taken over."""
        proven, better = decide(small, self.value, self.bound, work)
        if proven:
            self.bound, self.by, self._ended = self.value, "integer program", True
        self._take(small, better)
        return proven

    def _take(self, small: Classes, found: Index | None) -> None:
        """Take over a placement of joined classes where it is better."""
        self.take(None if found is None else small.nodes(found))


def by_class(c: Classes, where: Index) -> Index:
    """A device per class from a device per node. Nodes of one class may be apart where it was
    joined of some that cost nothing (:func:`~onnxremat.placement.reduce.free_ends`): these follow
    the one that needs its device, by what it can run on, its time, or its bytes."""
    graph, found = c.graph, np.zeros(c.count, np.int64)
    order = np.lexsort((graph.size, graph.acc + graph.cpu, ~graph.supported))
    found[c.of[order]] = where[order]  # the last one stays
    return found


def _starts(graph: PlacementGraph, c: Classes, work: Work) -> list[Index]:
    """Placements that keep all limits, a device per node: the best chain, and all on CPUs."""
    found = []
    try:
        chain = contiguous.solve(graph, work.share(work.seconds / 10))
    except InfeasibleError:  # no chain, which says nothing of other placements
        chain = None
    if chain is not None and chain.where is not None:
        found.append(chain.where)
    if graph.cpus:
        found.append(np.full(graph.count, graph.accelerators, np.int64))
    packed = _packed(c)
    return found if packed is None else [*found, c.nodes(packed)]


def _packed(c: Classes) -> Index | None:
    """Classes put on accelerators by falling size, each where most bytes are free; None where that
    does not fit."""
    graph = c.graph
    if not graph.accelerators or not c.supported.all():
        return None
    free = np.full(graph.accelerators, graph.memory)
    where = np.zeros(c.count, np.int64)
    for v in np.argsort(-c.size, kind="stable").tolist():
        d = int(np.argmax(free))
        if free[d] < c.size[v]:
            return None
        free[d] -= c.size[v]
        where[v] = d
    return where
