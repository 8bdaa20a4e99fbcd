"""Where the cut relaxation keeps the memory limit: cuts, the intervals between, and splits.

A *cut* k = 1..K is the step of the first run of op c_k. Cuts split a schedule into intervals
b = 0..K; interval b ends with (and contains) cut b + 1. With a fixed order the interval of every
first run is known. Without one, cuts on a chain c_1 < c_2 < ... of the dependency order still fix
the interval of ancestors and descendants; other first runs may fall in a range of intervals
(``earliest``..``latest``), and the bound holds for every order of the ops.

Where first runs are used up, an interval is *split* at the first run of an op w in it, on whatever
device: a cut like the others if w runs there, else the end of the interval before, and the part
before it is empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from onnxremat.planner.problem_lists import ProblemLists


class Split(NamedTuple):
    """A cut at the first run of ``op`` between two adjacent cuts ``start`` and ``end`` (or -1).

    Where the op does not run between them, the cut coincides with ``start``.
    """

    start: int
    end: int
    op: int


@dataclass(frozen=True)
class Spans:
    """Cuts and what they say about first runs.

    Attributes:
        cuts: c_1..c_K in the order they happen: an op stands for its first run, ``ops + i`` for
            split i.
        earliest, latest: range of intervals that the first run of each op may fall in.
        any_order: True when the ranges hold for every order of the ops.
        splits: those that cuts may stand for.
    """

    cuts: tuple[int, ...]
    earliest: list[int]
    latest: list[int]
    any_order: bool
    splits: tuple[Split, ...] = ()

    def split(self, cut: int) -> Split | None:
        """The split that a cut stands for, None for a first run."""
        ops = len(self.earliest)
        return self.splits[cut - ops] if cut >= ops else None

    def op(self, cut: int) -> int:
        """The op at whose run a cut is."""
        split = self.split(cut)
        return cut if split is None else split.op

    def known(self, interval: int, op: int) -> bool:
        """True when the first run of the op is surely in the interval."""
        return self.earliest[op] == interval == self.latest[op]

    def ends(self, runs: Sequence[int]) -> list[int]:
        """Last step of each interval that a cut ends: that of the one before where it is empty.

        Args:
            runs: the op that each step runs, -1 where it copies.
        """
        first: dict[int, int] = {}
        for step, op in enumerate(runs):
            first.setdefault(op, step)
        at = {cut: first[cut] for cut in self.cuts if self.split(cut) is None}
        for cut in sorted(cut for cut in self.cuts if cut not in at):
            start, end, op = self.splits[cut - len(self.earliest)]
            begin = at.get(start, -1)
            steps = range(begin + 1, at.get(end, len(runs) - 1) + 1)
            at[cut] = next((step for step in steps if runs[step] == op), begin)
        return [at[cut] for cut in self.cuts]


def with_splits(spans: Spans, splits: Sequence[Split]) -> Spans:
    """Spans with those of the splits, in their order, whose two cuts are adjacent.

    Not one at the op that ends its interval, which would split nothing off.
    """
    cuts, early, late = list(spans.cuts), spans.earliest, spans.latest
    ops = len(early)
    for number, (start, end, chosen) in enumerate(splits):
        at = cuts.index(start) + 1 if start in cuts else 0
        if (cuts[at - 1] if at else -1, cuts[at] if at < len(cuts) else -1) != (start, end):
            continue
        if chosen == (splits[end - ops].op if end >= ops else end):
            continue
        early = [b + (b > at or (b == at and op == end)) for op, b in enumerate(early)]
        late = [b + (b >= at) for b in late]
        cuts.insert(at, ops + number)
    return Spans(tuple(cuts), early, late, spans.any_order, tuple(splits))


def fixed_spans(ops: int, cuts: Sequence[int]) -> Spans:
    """Spans for first runs in the order 0..ops-1."""
    chosen = tuple(sorted(set(cuts)))
    interval = np.searchsorted(np.asarray(chosen), np.arange(ops), side="left").tolist()
    return Spans(chosen, interval, interval, any_order=False)


def free_spans(lists: ProblemLists, cuts: Sequence[int]) -> Spans | None:
    """Spans for any order, or None when the cuts are not on one chain of the dependency order."""
    ops = lists.problem.ops
    chosen = tuple(sorted(set(cuts)))
    earliest, latest = [0] * ops, [len(chosen)] * ops
    for k, cut in enumerate(chosen):
        below, above = lists.ancestors(cut), lists.descendants(cut)
        if any(not below[other] for other in chosen[:k]):
            return None
        for op in range(ops):
            if above[op]:
                earliest[op] = k + 1
            elif below[op] or op == cut:
                latest[op] = min(latest[op], k)
    return Spans(chosen, earliest, latest, any_order=True)
