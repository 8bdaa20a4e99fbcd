"""Regions that were chosen, in as few parts as keep a limit, rows that two parts need treated as is
quickest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from onnxremat.fission.pricing import Effort, Priced, copy_effort
from onnxremat.fission.region import Region
from onnxremat.fission.rows import Rows
from onnxremat.fission.trials import Trials
from onnxremat.graph.ir import Op
from onnxremat.graph.spans import CannotSplitError, Piece

MOST = 64  # parts of a region
COUNTS = (*range(2, 13), 14, 16, 20, 24, 32, 40, 48)  # parts that are tried in the end
SHARES = 32  # rows are held or made again by such shares of an image
KEEPING = 2  # times that each value of a region is looked at


class Tuner:
    """Of one graph in regions."""

    def __init__(self, trials: Trials) -> None:
        self.trials, self.able = trials, trials.able
        self.reads: dict[str, int] = {}
        self.rough: dict[object, Effort | None] = {}

    def tuned(self, now: Priced, limit: int) -> Priced:
        """The same regions, in as few parts as keep the limit, with the rows kept that are
        quickest, and as little made again."""
        now = self.fewer(self._held(now, limit), limit)
        for region in now.regions:
            kept = self._kept(now, region, limit)
            if kept is not now:
                now = self._fewest(kept, region, [_like(region, kept).kept], limit)
        return self._held(now, limit)

    def _held(self, now: Priced, limit: int) -> Priced:
        """The same, with as many rows held that are made again as the limit has room for: there is
        more in more parts, of the region and of those that make what it holds."""
        for region in now.regions:
            before: Priced | None = None
            ways: list[tuple[Region, ...]] = [()]
            while region.again and now is not before and not self.trials.stop():
                before = now
                found = [self._most_held(before, region, finer, limit) for finer in ways]
                now = min(found, key=self.trials.seconds)
                own = _like(region, now)
                makers = self._makers(now, own)
                ways = [(own,), makers, (own, *makers)] if own.again else []
                if not ways:
                    break
        return now

    def _makers(self, now: Priced, region: Region) -> tuple[Region, ...]:
        """Regions that make what one holds in part."""
        held = {self.able.paper.either[name] for name in region.again}
        return tuple(r for r in now.regions if r is not region and held.intersection(r.results))

    def _most_held(
        self, now: Priced, region: Region, finer: Sequence[Region], limit: int
    ) -> Priced:
        """A region with as many rows held as the limit has room for, where that is quicker than it
        is now: they are looked for by halving.

        Args:
            finer: regions that are in twice as many parts then.
        """
        own, kept = _like(region, now), []
        for each in now.regions:
            if each in finer:
                parts = min(2 * len(each.parts), MOST, self.able.length(each))
                each = replace(each, parts=(1,) * parts)
            if each.ops == own.ops:
                own = each
            else:
                kept.append(each)
        lengths = self.able.eithers(own)
        shares = [SHARES * own.again.get(n, size) // size for n, size in lengths.items()]
        held = min(shares, default=0)
        low, high = held, SHARES + 1  # shares held: enough and too many
        middle = held if not finer else held + 1
        while lengths and low < high and not self.trials.stop():
            rows = {name: size * middle // SHARES for name, size in lengths.items()}
            again = rows if middle < SHARES else {}
            found = self.trials.price((*kept, replace(own, again=again)))
            if found is None or found.peak > limit:
                high = middle
            else:
                low = middle
                if self.trials.seconds(found) < self.trials.seconds(now):
                    now = found
            if high - low <= 1:
                break
            middle = (low + high) // 2
        return now

    def fewer(self, now: Priced, limit: int) -> Priced:
        """The same regions in as few parts as keep the limit, none of the rows that two parts
        need kept, or those of convolutions, or all."""
        for region in now.regions:
            now = self._fewest(now, region, self.able.policies(region), limit)
        return now

    def _fewest(
        self, now: Priced, region: Region, policies: Sequence[frozenset[str]], limit: int
    ) -> Priced:
        """A region in as few parts as keep the limit, with the rows kept that is quickest with.

        More parts need less and take longer: the fewest are looked for by halving.
        """
        for kept in policies:
            most = min(2 * len(region.parts), MOST, self.able.length(region))
            counts = [n for n in COUNTS if n < most] + [most]
            low, high, best = 0, len(counts), now
            while low < high and not self.trials.stop():
                middle = (low + high) // 2
                parts = (1,) * counts[middle]
                found = self.trials.instead(now, replace(region, parts=parts, kept=kept))
                if found is None or self.trials.seconds(found) >= self.trials.seconds(best):
                    high = middle  # more parts take longer still
                elif found.peak <= limit:
                    best, high = found, middle
                else:
                    low = middle + 1
            now = best
        return now

    def _kept(self, now: Priced, region: Region, limit: int) -> Priced:
        """Rows of single values of a region kept, or not any more, where that is quicker: of a
        narrow value they cost little, and all that it is made of is computed once."""
        overlapping = self.able.overlapping(region)
        for _ in range(KEEPING):
            before = now
            for name in overlapping:
                if self.trials.stop():
                    return now
                own = _like(region, now)
                other = replace(own, kept=own.kept ^ {name})
                if self._roughly(other) >= self._roughly(own):
                    continue
                found = self.trials.instead(now, other)
                if found is None or found.peak > limit:
                    continue
                if self.trials.seconds(found) < self.trials.seconds(now):
                    now = found
            if now is before:
                break
        return now

    def _roughly(self, region: Region) -> float:
        """Seconds of a region, from its rows alone."""
        if region.key not in self.rough:
            self.rough[region.key] = self._rough(region)
        found = self.rough[region.key]
        return math.inf if found is None else found.at(self.trials.level)

    def _rough(self, region: Region) -> Effort | None:
        """None where it cannot be split so."""
        trials, effort = self.trials, Effort(0.0, 0.0, 0.0)
        try:
            parts = trials.prices.paper.rows(region)
        except CannotSplitError:
            return None
        for before, rows in zip([None, *parts[:-1]], parts, strict=True):
            for name, piece in rows.pieces.items():
                op = trials.graph.ops[trials.place[name]]
                value = op.inputs[0] if op.writes[0] in region.sums else op.writes[0]
                share = piece.made.size / trials.able.facts.shape(value)[piece.made.axis]
                seconds = trials.of.seconds.get(name, 0.0) * share
                effort = effort.more(seconds, 1 - share, (1 - share) * self._whole(op, piece))
            for size in self._copied(region, before, rows) if before else ():
                near, far = copy_effort(size, trials.of.rate)
                effort = effort.more(far, 1, near)
        return effort

    def _whole(self, op: Op, piece: Piece) -> int:
        """Bytes that a piece of an op reads whole."""
        if op.name not in self.reads:
            names = [name for name, span in piece.taken(op.inputs) if name and span is None]
            tensors = self.trials.graph.tensors
            self.reads[op.name] = sum(tensors[name].bytes for name in names)
        return self.reads[op.name]

    def _copied(self, region: Region, before: Rows, rows: Rows) -> list[int]:
        """Bytes of the copies that keep rows of values from one part to the next: those taken out,
        and they and the new ones put together."""
        found = []
        for name in region.kept & rows.wanted.keys() & before.wanted.keys():
            wanted, there = rows.wanted[name], before.wanted[name]
            both = min(there.end, wanted.end) - wanted.first
            if both > 0:
                shape = self.able.facts.shape(name)
                each = self.trials.graph.tensors[name].bytes / shape[wanted.axis]
                found += [int(each * both), int(each * wanted.size)]
        return found


def _like(region: Region, now: Priced) -> Region:
    """The region of the same ops as it is now."""
    return next(other for other in now.regions if other.ops == region.ops)
