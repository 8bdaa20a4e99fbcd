"""Which regions are computed in how many parts, so that a graph keeps a limit at little time.

A greedy search over whole graphs: at the op where most is live, regions around it between narrow
places of the order are tried, one per axis and way to treat rows that two parts need, each written
out and simulated. What lowers the crowded steps most is taken, until all are within a limit; then
regions are given as few parts as still keep it. Steps of repeated layers are done alike.

Limits go down by steps that depend on the graph alone (*rungs*), each from what was found for the
one before: so a limit that is kept stays kept where it is looser.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice

from onnxremat.cost.table import KernelCosts
from onnxremat.fission.pricing import Priced, Whole
from onnxremat.fission.region import Region
from onnxremat.fission.trials import Trials
from onnxremat.fission.tuning import MOST, Tuner
from onnxremat.graph.axes import total_of
from onnxremat.schedule.simulate import simulate

# Parts that a region is tried with; whether along columns, too, where rows are as many: neighbours
# along different axes have to be joined in between; and whether between the nearest narrow places.
WAYS = (
    (4, False, False), (16, False, False), (4, True, False), (16, True, False),
    (4, False, True), (16, False, True),
)  # fmt: skip
FEW, PROMISING = 4, 12  # parts that new regions are looked at in, and how many are tried in more
SOURCE = 10  # such a share of the peak, at least, is worth a region for it to be made in parts
SIDES = 4  # narrow places looked at on either side of the crowded op
LITTLE = 0.002  # share of the whole time that no step is counted below
LEAST = 1e-12  # seconds that none is counted below, where ops cost nothing
BETTER = 0.99  # share of the crowding before from which a step is one forward
STEP = 0.85  # a rung as a share of the one before
MISSES = 2  # rungs that are not kept, after which lower ones are not tried
FINER = 0.985  # a small step down from the least that was found, where no rung keeps the limit
FREE = 1.01  # share of the whole's time that is worth no further search
# Work of a search at one price, and of the parts that are tried in the end of one limit: in pieces
# of ops, so that what is found depends on the graph alone.
WORK, FINE, TUNING = 200_000, 60_000, 40_000
POWER = 8  # how much more the highest steps count
# What kernels cost beside their rows, for searches: where they are dear other regions are found
# than where they are cheap. They do not depend on what kernels cost here, so that what is found is
# never worse where that is less.
LEVELS = KernelCosts(1.5e-6, 4e10), KernelCosts(1e-5, 2e10)


def crowding(priced: Priced, limit: int) -> float:
    """How far steps are over a limit, the highest ones first."""
    return sum((level / 2**20) ** POWER for level in priced.levels if level > limit)


@dataclass
class _Search:
    """One search: at a price of kernels.

    Attributes:
        rungs: what was found for each.
        left, paid: as of :class:`Trials`.
        missed: rungs that are not kept.
        least: what was found below all rungs, by small steps.
        fine: work that is left to these.
    """

    rungs: list[Priced]
    left: int
    missed: int = 0
    least: Priced | None = None
    fine: int = field(default_factory=lambda: FINE)
    paid: set[object] = field(default_factory=set)


class Chooser(Trials):
    """Fission of one graph.

    Args:
        stop, late: as of :class:`Trials`, also before regions of a stretch are looked for.
        once: at one price of kernels, since images may be made again, here or in a graph that is
            searched next: that is a matter of rows, not of calls. The next goes on from what is
            found, so that a rung that is not kept ends the search before it.
    """

    def __init__(
        self,
        of: Whole,
        stop: Callable[[], bool] = lambda: False,
        once: bool = False,
        late: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(of, stop, late)
        self.tuner, self.next = Tuner(self), once and not of.again
        levels, work = LEVELS[:1] if once or of.again else LEVELS, WORK + of.again * WORK
        self.searches = {level: _Search([self.whole], work) for level in levels}

    def begin(self, other: Chooser) -> None:
        """Begin with what was found of a graph without second makers of this one's images."""
        for level, search in self.searches.items():
            for at, rung in enumerate(other.searches[level].rungs):
                if self._stop():
                    return
                self.level, self.left = level, WORK
                found = self.price(tuple(self.able.with_eithers(r) for r in rung.regions))
                if found is not None and found.peak <= self.whole.peak * STEP**at:
                    search.rungs += [found] * (at + 1 - len(search.rungs))

    def within(self, limit: int) -> Priced:
        """The quickest way found to keep ``limit`` bytes of live values and scratch, or the one
        that needs least: of all that were tried, for this limit or another.

        Whether a limit is kept depends on rungs alone: a looser one is, too.
        """
        tuned = set[object]()
        for level in self.searches:
            self.level = level
            self.enough = self.quickest(limit, self.of.kernels).peak <= limit
            self._down(limit, tuned)
        self.enough = False
        return self.quickest(limit, self.of.kernels)

    def _down(self, limit: int, tuned: set[object]) -> None:
        """Rungs to one that keeps a limit; and further ones, as long as these find what is quicker
        for that limit, too.

        Args:
            tuned: ops of regions whose parts were tuned for the limit already.
        """
        found = self.searches[self.level].rungs
        while found[-1].peak > limit and self._more():
            self._further()
        least = min(found, key=lambda each: each.peak)
        if least.peak > limit and not self.next:
            least = self._finer(limit, least)
        self.enough = self.enough or least.peak <= limit
        regions = frozenset(region.ops for region in least.regions)
        if regions not in tuned:
            tuned.add(regions)
            self.left, self.paid = TUNING, {*self.known, *self.prices.written}
            self.tuner.tuned(least, max(limit, least.peak))
        best = self.quickest(limit, self.of.kernels)
        while best.seconds > FREE * self.whole.seconds and best.peak <= limit and self._more():
            self._further()
            before, best = best, self.quickest(limit, self.of.kernels)
            if best is before:
                break

    def _more(self) -> bool:
        search, misses = self.searches[self.level], 1 if self.next else MISSES
        return search.missed < misses and search.left > 0 and not self._stop()

    def _further(self) -> None:
        """One rung down, from what was found for the one before, or from nothing in parts."""
        search = self.searches[self.level]
        self.left, self.paid = search.left, search.paid
        found = search.rungs
        rung = int(self.whole.peak * STEP ** len(found))
        best = self._toward(rung, found[-1])
        others = (self.whole, min(found, key=lambda each: each.peak))
        for start in () if self.next else others:
            if best.peak > rung:
                best = self._toward(rung, start)
        search.missed += best.peak > rung
        search.left = self.left
        found.append(best)

    def _finer(self, limit: int, least: Priced) -> Priced:
        """Small steps down from the least of all rungs: where few ops are over a limit, regions
        help that do too little for a whole rung. They do not depend on the limit, but end with it.
        """
        search = self.searches[self.level]
        self.left, self.paid = search.fine, search.paid
        least = search.least or self._leanest_paid(least)
        while least.peak > limit and not self.stop():
            self._steps(int(FINER * least.peak), least)  # tuned, it would go up again
            found = self._leanest_paid(least)
            if found is least:
                self.left = 0
            search.least = least = found
        search.fine = self.left
        return least

    def _leanest_paid(self, least: Priced) -> Priced:
        """What needs least of all that this search has done its work for, chosen or not."""
        tried = (found for key, found in self.known.items() if found and key in self.paid)
        return min((least, *tried), key=lambda found: found.peak)

    def _toward(self, limit: int, best: Priced) -> Priced:
        """Step by step to where a limit is kept, in as few parts as keep it, or nothing helps.

        Args:
            best: to begin with.
        """
        best = self._steps(limit, best)
        return self.tuner.tuned(best, limit) if best.peak <= limit else best

    def _steps(self, limit: int, best: Priced) -> Priced:
        """The same, parts as they are."""
        while best.peak > limit and not self.stop():
            steps = (self._step(best, limit, *way) for way in WAYS)
            step = next((found for found in steps if found is not None), None)
            if step is None:
                break
            best = step
        return best

    def _step(self, now: Priced, limit: int, parts: int, every: bool, near: bool) -> Priced | None:
        """One region more, or another one, or one in more parts; None where nothing helps.

        Args:
            parts: of new regions, at least.
            every: along every axis.
            near: between the nearest narrow places alone.
        """
        peak = max(range(len(now.levels)), key=now.levels.__getitem__)
        before = crowding(now, limit)
        best: Priced | None = None

        def rank(found: Priced) -> tuple[int, float]:
            return self._rank(found, now, limit)

        for regions in self._moves(now, limit, parts, every, near):
            if self.stop():
                break
            found = self.price(regions)
            if found is None or crowding(found, limit) > BETTER * before:
                continue
            if best is None or rank(found) < rank(best):
                best = found
            if self._like(regions, now) and found.levels[peak] <= limit:
                best = found  # as in another layer
                break
        return best and self._everywhere(best, limit)

    def _everywhere(self, found: Priced, limit: int) -> Priced:
        """The last region in all other layers that are over the limit, too, where that helps."""
        regions, wanted = found.regions, found.regions[-1]
        kinds = {self.graph.ops[self.place[name]].op_type for name in wanted.ops}
        for place, level in enumerate(found.levels):
            op = self.graph.ops[place]
            if level <= limit or op.op_type not in kinds:
                continue
            own = next((region for region in regions if op.name in region.ops), None)
            if own is not None and self._types(own) == self._types(wanted):
                continue
            moved = self._moved(wanted, place)
            if moved is not None:
                gone = set(moved.ops)
                regions = (*(r for r in regions if gone.isdisjoint(r.ops)), moved)
        more = self.price(regions)
        return found if more is None or crowding(more, limit) > crowding(found, limit) else more

    def _rank(self, found: Priced, now: Priced, limit: int) -> tuple[int, float]:
        """What keeps the limit by its time; others by what they gain for theirs."""
        left = crowding(found, limit)
        if not left:
            return 0, self.seconds(found)
        more = self.seconds(found) - self.seconds(now)
        more = max(more, LITTLE * self.seconds(self.whole), LEAST)
        return 1, -math.log(crowding(now, limit) / left) / more

    def _moves(
        self, now: Priced, limit: int, parts: int, every: bool, near: bool
    ) -> Iterator[tuple[Region, ...]]:
        peak = max(range(len(now.levels)), key=now.levels.__getitem__)
        name = self.graph.ops[peak].name
        own = next((r for r in now.regions if name in r.ops), None)
        if own is None:
            for region in now.regions:
                moved = self._moved(region, peak)
                if moved is not None:
                    yield self._with(now, moved)
        else:
            reads = {n for each in own.ops for n in self.graph.ops[self.place[each]].reads}
            for region in (own, *(r for r in now.regions if reads.intersection(r.results))):
                if 2 * len(region.parts) <= min(MOST, self.able.length(region)):
                    yield self._with(now, replace(region, parts=(1,) * (2 * len(region.parts))))
        yield from self._again(now)
        for place in (peak, *self._sources(now, own)):
            tries = list(self._around(now, place, parts, every, near))
            yield from self._promising(now, limit, tries)

    def _again(self, now: Priced) -> Iterator[tuple[Region, ...]]:
        """What a region may make again made again; and made for the first time together with what
        is summed over it, so that nothing of it is held."""
        for region in now.regions:
            again = self.able.all_again(region)
            if not again or again == region.again:
                continue
            regions = self._with(now, replace(region, again=again))
            yield regions
            for name in again:
                regions = self.able.summed(regions, self.able.paper.either[name])
            if len(regions) < len(now.regions):
                yield regions

    def _promising(
        self, now: Priced, limit: int, tries: list[tuple[Region, ...]]
    ) -> list[tuple[Region, ...]]:
        """Of new regions in many parts those that look best in few, which are priced sooner: half
        by what is still over the limit, half by what they gain for their time."""
        if len(tries) <= PROMISING:
            return tries
        looks: list[tuple[float, tuple[int, float], int]] = []
        for at, (*others, region) in enumerate(tries):
            if self.stop():
                break
            few = min(FEW, len(region.parts))
            found = self.price((*others, replace(region, parts=(1,) * few)))
            if found is not None:
                looks.append((crowding(found, limit), self._rank(found, now, limit), at))
        half = sorted(looks)[: PROMISING // 2]
        rest = sorted(set(looks).difference(half), key=lambda each: each[1:])
        return [tries[at] for *_, at in (*half, *rest[: PROMISING // 2])]

    def _sources(self, now: Priced, own: Region | None) -> list[int]:
        """Ops that make large values for a region as wholes: in parts they would die part by
        part."""
        if own is None:
            return []
        ops, made = self.graph.ops, self.graph.producer
        reads = dict.fromkeys(n for name in own.ops for n in ops[self.place[name]].reads)
        parted = {name for region in now.regions for name in region.ops}
        large = max(now.levels) // SOURCE
        return [
            made[name] for name in reads
            if name in made and ops[made[name]].name not in parted
            and self.graph.tensors[name].bytes >= large
        ]  # fmt: skip

    def _around(
        self, now: Priced, place: int, parts: int, every: bool, near: bool
    ) -> Iterator[tuple[Region, ...]]:
        """Regions around an op, instead of the one that has it."""
        name = self.graph.ops[place].name
        own = next((r for r in now.regions if name in r.ops), None)
        parts = max(parts, len(own.parts)) if own is not None else parts
        seen = set[object]()
        for first, end in self._places(place, near):
            for without in self._left_out(now, own, place, range(first, end)):
                if self.stop():
                    return
                for region in self.able.within(first, end, place, without, every):
                    if region.key in seen:
                        continue
                    seen.add(region.key)
                    most = min(parts, MOST, self.able.length(region))
                    region = replace(region, parts=(1,) * most)
                    for kept in self.able.policies(region) if most > 1 else ():
                        yield self._with(now, replace(region, kept=kept))
                        if again := self.able.all_again(region):
                            yield self._with(now, replace(region, kept=kept, again=again))

    def _left_out(
        self, now: Priced, own: Region | None, peak: int, stretch: range
    ) -> list[frozenset[str]]:
        """Ops that a region among a stretch may leave to the regions that have them: none, those
        of all other regions, or of all but the ones that make what the crowded op reads."""
        inside = {self.graph.ops[place].name for place in stretch}
        others = [r for r in now.regions if r is not own and inside.intersection(r.ops)]
        reads = set(self.graph.ops[peak].reads)
        far = [region for region in others if not reads.intersection(region.axes)]
        found = [(), others, far]
        return list(dict.fromkeys(frozenset(n for r in each for n in r.ops) for each in found))

    def _with(self, now: Priced, region: Region) -> tuple[Region, ...]:
        """The regions that a new one leaves, and it."""
        ops = set(region.ops)
        kept = [other for other in now.regions if not ops.intersection(other.ops)]
        return (*kept, region)

    def _like(self, regions: tuple[Region, ...], now: Priced) -> bool:
        """The last region is one that is there already, of another layer."""
        types = self._types(regions[-1])
        return any(self._types(region) == types for region in now.regions) and len(regions) > len(
            now.regions
        )

    def _types(self, region: Region) -> tuple[object, ...]:
        ops = [self.graph.ops[self.place[name]].op_type for name in region.ops]
        return (*ops, region.parts)

    def _moved(self, region: Region, peak: int) -> Region | None:
        """A region of another layer around an op, where ops there are of the same kinds."""
        places = [self.place[name] for name in region.ops]
        ops, kind = self.graph.ops, self.graph.ops[peak].op_type
        for place in places:
            by = peak - place
            if ops[place].op_type != kind or not by or max(places) + by >= len(ops):
                continue
            if min(places) + by < 0 or any(ops[p].op_type != ops[p + by].op_type for p in places):
                continue
            names = {
                a: b
                for p in places
                for a, b in zip(ops[p].outputs, ops[p + by].outputs, strict=False)
            }
            if set(region.axes) <= names.keys():
                return Region(
                    tuple(ops[p + by].name for p in places),
                    {names[name]: axis for name, axis in region.results.items()},
                    region.parts,
                    {names[name]: grain for name, grain in region.grain.items()},
                    frozenset(names[name] for name in region.kept),
                    {names[name]: axis for name, axis in region.sums.items()},
                    {names[name]: row for name, row in region.again.items()},
                )
        return None

    def _places(self, peak: int, near: bool) -> Iterator[tuple[int, int]]:
        """Stretches of the order around an op between narrow places: each side in turn less is
        carried across, the narrowest last. The next sum behind it is an end, too: what it sums is
        needed whole behind it."""
        across = self._across
        lefts, rights = (
            found[:SIDES] if near else _spread(found)
            for found in (
                _records(across, range(peak, -1, -1)),
                _records(across, range(peak + 1, len(across))),
            )
        )
        ends = (i + 1 for i in range(peak, rights[-1]) if total_of(self.graph.ops[i]) is not None)
        rights = sorted({*rights, *islice(ends, 1)})
        for first in lefts:
            for end in rights:
                yield first, end

    @cached_property
    def _across(self) -> list[int]:
        """Bytes carried into each op of the whole graph, and out of the last."""
        change = [0] * (len(self.graph.ops) + 2)
        for _, start, end, size in simulate(self.graph, weight_bytes=0).buffers:
            if end > start:
                change[start + 1] += size
                change[end + 1] -= size
        total, found = 0, []
        for place in range(len(self.graph.ops) + 1):
            total += change[place]
            found.append(total)
        found[-1] = 0
        return found


def _records(across: Sequence[int], places: range) -> list[int]:
    """Places where less is carried across than at any before."""
    found: list[int] = []
    for place in places:
        if not found or across[place] < across[found[-1]]:
            found.append(place)
    return found


def _spread(places: Sequence[int]) -> list[int]:
    """A few of these, the first and the last among them."""
    if len(places) <= SIDES:
        return list(places)
    return [places[round(i * (len(places) - 1) / (SIDES - 1))] for i in range(SIDES)]
