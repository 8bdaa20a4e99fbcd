"""Cut relaxation: the memory limit kept only while K chosen ops run for the first time.

A *cut* k = 1..K is the step of the first run of op c_k. Cuts split a sequence into intervals
b = 0..K; interval b ends with (and contains) cut b + 1. Binaries

    E[b, v]   op v runs at least once in interval b
    X[b, u]   value u is in memory across cut b: made by then, held after the step of c_b

Minimise sum cost_v E[b, v] subject to, for all b, v and values u (p = producer of u),

    E[b, v] <= X[b, u] + E[b, p]               u in reads(v)           (inputs)
    X[b, u] <= X[b-1, u] + E[b-1, p]                                   (carried)
    sum_b E[b, v] >= 1                                                 (every op runs)
    fixed + work_c + size(reads_c + writes_c)
      + sum_{u not in reads_c, writes_c} size_u X[b, u] - takeover_c <= budget   (memory, c = c_b)
    takeover_c <= sum_i size_i y_i, y_i <= 1 - X[b, i], sum y <= 1, i in inplace_c

where E is fixed to 1 in the interval of a first run that is known, and X to 1 for kept values
once made. Every sequence within the budget satisfies all rows (``project`` gives its point), so
the optimum, or any dual bound of a solver, is a lower bound of the time of every such sequence.

With a fixed order the interval of every first run is known. Without one, cuts on a chain
c_1 < c_2 < ... of the dependency order still fix the interval of ancestors and descendants; other
first runs may fall in a range of intervals (``earliest``..``latest``), and the bound holds for
every order of the ops.

Where first runs are used up, an interval is *split* at the first run of an op w in it: a cut like
the others if w runs there, else the end of the interval before, and the part before it is empty:

    base_w E[b-1, w] + sum_{u not in reads_w, writes_w} size_u X[b, u] <= budget - fixed
    E[b-1, v] <= E[b-1, w] for all v,   E[b, w] <= E[b-1, w]

These hold for every sequence too, whatever the order and number of runs in the interval.

Sizes in the memory row are whole multiples of their common divisor, so the right-hand side is
rounded down to one (Chvatal and Gomory): training graphs of equal layers have few sizes.

The model is the project's own; it relaxes the stage model of Jain et al., "Checkmate: Breaking
the Memory Wall with Optimal Tensor Rematerialization", MLSys 2020, section 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import NamedTuple

import numpy as np

from onnxremat.planner.model import Model
from onnxremat.planner.problem import Floats
from onnxremat.planner.wiring import Wiring

NEVER = -1  # marks a variable fixed to 0
ALWAYS = -2  # marks a variable fixed to 1
SCALE = 1000.0  # store-all time and budget, in model units
TINY = 1e-6  # share of the budget up to which a value does not keep sizes from being rounded


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

    def ends(self, sequence: Sequence[int]) -> list[int]:
        """Last step of each interval that a cut ends: that of the one before where it is empty."""
        first: dict[int, int] = {}
        for step, op in enumerate(sequence):
            first.setdefault(op, step)
        at = {cut: first[cut] for cut in self.cuts if self.split(cut) is None}
        for cut in sorted(cut for cut in self.cuts if cut not in at):
            start, end, op = self.splits[cut - len(self.earliest)]
            begin = at.get(start, -1)
            steps = range(begin + 1, at.get(end, len(sequence) - 1) + 1)
            at[cut] = next((step for step in steps if sequence[step] == op), begin)
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


def free_spans(wiring: Wiring, cuts: Sequence[int]) -> Spans | None:
    """Spans for any order, or None when the cuts are not on one chain of the dependency order."""
    ops = wiring.problem.ops
    chosen = tuple(sorted(set(cuts)))
    earliest, latest = [0] * ops, [len(chosen)] * ops
    for k, cut in enumerate(chosen):
        below, above = wiring.ancestors(cut), wiring.descendants(cut)
        if any(not below[other] for other in chosen[:k]):
            return None
        for op in range(ops):
            if above[op]:
                earliest[op] = k + 1
            elif below[op] or op == cut:
                latest[op] = min(latest[op], k)
    return Spans(chosen, earliest, latest, any_order=True)


@dataclass
class CutModel:
    """A model with the columns of E and X: ``run[b][v]`` and ``carry[b][u]`` (or NEVER, ALWAYS)."""

    wiring: Wiring
    spans: Spans
    budget: int
    unit: float  # seconds per unit of the objective
    model: Model = field(default_factory=lambda: Model("cuts"))
    run: list[list[int]] = field(default_factory=list)
    carry: list[list[int]] = field(default_factory=list)
    takeover: list[tuple[int, int, int]] = field(default_factory=list)  # (column, cut, value)
    memory: dict[int, int] = field(default_factory=dict)  # cut to its memory row

    @property
    def intervals(self) -> int:
        """Number of intervals, K + 1."""
        return len(self.spans.cuts) + 1

    def seconds(self, objective: float) -> float:
        """Time in seconds of an objective value."""
        return objective * self.unit

    def carried(self, point: Floats) -> list[set[int]]:
        """Values carried over the cut before each interval, for a point of the model."""
        return [
            {u for u, j in enumerate(row) if j == ALWAYS or (j >= 0 and point[j] > 0.5)}
            for row in self.carry
        ]

    def first_runs(self, point: Floats) -> list[list[int]]:
        """Ops that run first in each interval, in base order but the cut op last."""
        rows: list[list[int]] = [[] for _ in range(self.intervals)]
        for op, early in enumerate(self.spans.earliest):
            late = self.spans.latest[op]
            chosen = (b for b in range(early, late) if point[self.run[b][op]] > 0.5)
            rows[next(chosen, late)].append(op)
        for interval, cut in enumerate(self.spans.cuts):
            if self.spans.split(cut) is None:
                rows[interval].remove(cut)
                rows[interval].append(cut)
        return rows


def build(wiring: Wiring, spans: Spans, budget: int) -> CutModel:
    """The cut relaxation for a budget in bytes."""
    total = sum(wiring.cost)
    unit = total / SCALE if total > 0 else 1.0
    made = CutModel(wiring, spans, budget, unit)
    for interval in range(made.intervals):
        _add_columns(made, interval, _wanted(wiring, spans, interval))
    for interval in range(made.intervals):
        _add_inputs(made, interval)
        if interval:
            _add_carries(made, interval)
            split = spans.split(spans.cuts[interval - 1])
            if split is None:
                _add_memory(made, interval)
            else:
                _add_split(made, interval, split.op)
    _add_first_runs(made)
    return made


def _wanted(wiring: Wiring, spans: Spans, interval: int) -> list[bool]:
    """Values that some op may read in this interval or later, shape (values,).

    A reader counts when its first run may come so late, or when it may run again to make a value
    that is itself wanted. Holding or remaking other values only costs, so they get no columns.
    """
    wanted = [False] * wiring.problem.values
    for op in reversed(range(wiring.problem.ops)):
        again = wiring.recomputable[op] and any(wanted[value] for value in wiring.writes[op])
        if again or spans.latest[op] >= interval:
            for value in wiring.reads[op]:
                wanted[value] = True
    return wanted


def _add_columns(made: CutModel, interval: int, wanted: list[bool]) -> None:
    wiring, spans, model = made.wiring, made.spans, made.model
    problem = wiring.problem
    run, carry = [NEVER] * problem.ops, [NEVER] * problem.values
    keep, recomputable = wiring.keep, wiring.recomputable
    for op, cost in enumerate(wiring.cost):
        early, late = spans.earliest[op], spans.latest[op]
        if early == late == interval:
            run[op] = ALWAYS
            model.offset += cost / made.unit
        elif early <= interval <= late or (
            early < interval and recomputable[op] and any(wanted[v] for v in wiring.writes[op])
        ):
            run[op] = model.binary(cost / made.unit)
        if early >= interval:
            continue
        for value in wiring.writes[op]:
            if keep[value] and late < interval:
                carry[value] = ALWAYS
            elif keep[value] or wanted[value]:
                carry[value] = model.binary()
    made.run.append(run)
    made.carry.append(carry)


def _add_inputs(made: CutModel, interval: int) -> None:
    wiring, row = made.wiring, made.model.row
    run, carry, producer = made.run[interval], made.carry[interval], wiring.producer
    cut = made.spans.cuts[interval] if interval + 1 < made.intervals else NEVER
    split = made.spans.split(cut)
    for op, reads in enumerate(wiring.reads):
        here = run[op]
        if here == NEVER:
            continue
        for value in reads:
            held, remade = carry[value], run[producer[value]]
            if split is not None and producer[value] == split.op:
                remade = NEVER  # it runs at the end of the interval
            if held == ALWAYS or remade == ALWAYS:
                continue
            sources = [(j, 1.0) for j in (held, remade) if j >= 0]
            if here == ALWAYS:
                row(sources, lower=1.0)
            else:
                row([*sources, (here, -1.0)], lower=0.0)


def _add_carries(made: CutModel, interval: int) -> None:
    wiring, row = made.wiring, made.model.row
    carry, earlier = made.carry[interval], made.carry[interval - 1]
    ran, producer, keep = made.run[interval - 1], wiring.producer, wiring.keep
    for value, here in enumerate(carry):
        if here < 0:
            continue
        held, remade = earlier[value], ran[producer[value]]
        if held != ALWAYS and remade != ALWAYS:
            sources = [(j, 1.0) for j in (held, remade) if j >= 0]
            row([*sources, (here, -1.0)], lower=0.0)
        if keep[value]:  # once made it stays
            for source in (held, remade):
                if source >= 0:
                    row([(here, 1.0), (source, -1.0)], lower=0.0)
                elif source == ALWAYS:
                    row([(here, 1.0)], lower=1.0)


def _add_memory(made: CutModel, interval: int) -> None:
    wiring, model = made.wiring, made.model
    op, size, carry = made.spans.cuts[interval - 1], wiring.size, made.carry[interval]
    present = set(wiring.reads[op]) | set(wiring.writes[op])
    room = made.budget - wiring.problem.fixed - wiring.work[op] - sum(size[u] for u in present)
    weight: dict[int, int] = {}
    for value, column in enumerate(carry):
        if value in present:
            continue
        if column == ALWAYS:
            room -= size[value]
        elif column >= 0 and size[value]:
            weight[column] = size[value]
    candidates = wiring.inplace[op]
    if len(candidates) == 1:  # takeover = size (1 - X), without a column of its own
        (value,) = candidates
        room += size[value]
        if carry[value] >= 0:
            weight[carry[value]] = size[value]
    elif candidates:
        takes = [model.column(0.0, 1.0) for _ in candidates]
        for value, column in zip(candidates, takes, strict=True):
            if carry[value] >= 0:
                model.row([(column, 1.0), (carry[value], 1.0)], upper=1.0)
            made.takeover.append((column, interval, value))
            weight[column] = -size[value]
        model.row([(column, 1.0) for column in takes], upper=1.0)
    _add_limit(made, op, weight, room, whole=len(candidates) < 2)


def _add_split(made: CutModel, interval: int, op: int) -> None:
    """Rows of the split before an interval: the part before ends with its op, or is empty."""
    wiring, model, before = made.wiring, made.model, made.run[interval - 1]
    size, here = wiring.size, before[op]
    present = set(wiring.reads[op]) | set(wiring.writes[op])
    base = wiring.work[op] + sum(size[u] for u in present)
    base -= max((size[u] for u in wiring.inplace[op]), default=0)
    room = made.budget - wiring.problem.fixed
    scale = SCALE / max(1, made.budget)
    terms = [(here, base * scale)] if here >= 0 else []
    for value, column in enumerate(made.carry[interval]):
        if value in present or not size[value]:
            continue
        if column == ALWAYS:
            room -= size[value]
        elif column >= 0:
            terms.append((column, size[value] * scale))
    made.memory[made.spans.cuts[interval - 1]] = model.row(terms, upper=room * scale)
    for column in (*before, made.run[interval][op]):
        if column >= 0 and column != here:
            model.row([(column, -1.0), *([(here, 1.0)] if here >= 0 else [])], lower=0.0)


def _add_limit(made: CutModel, op: int, weight: dict[int, int], room: int, *, whole: bool) -> None:
    """Append the memory row of a cut, rounded where sizes have a common divisor.

    Sums of multiples of a divisor do not come closer to the limit than its next multiple below;
    sizes that are next to nothing are left out of the rounded row and kept in one of their own.
    """
    scale = SCALE / max(1, made.budget)
    sizes = {column: size for column, size in weight.items() if size > TINY * made.budget}
    divisor = gcd(*sizes.values()) if whole else 1
    if len(sizes) < len(weight) or divisor <= 1:
        terms = [(column, size * scale) for column, size in weight.items()]
        made.memory[op] = made.model.row(terms, upper=room * scale)
    if divisor > 1:
        terms = [(column, size * scale) for column, size in sizes.items()]
        made.memory[op] = made.model.row(terms, upper=room // divisor * divisor * scale)


def _add_first_runs(made: CutModel) -> None:
    spans, model = made.spans, made.model
    recomputable = made.wiring.recomputable
    for op, (early, late) in enumerate(zip(spans.earliest, spans.latest, strict=True)):
        if early == late:
            continue
        terms = [(made.run[b][op], 1.0) for b in range(early, late + 1)]
        model.row(terms, lower=1.0, upper=len(terms) if recomputable[op] else 1.0)


def project(made: CutModel, sequence: Sequence[int]) -> Floats:
    """The point of a sequence whose first runs respect the spans, shape (columns,).

    Feasible for the model when the sequence is within its budget; its objective is at most the
    time of the sequence. Used to start solvers, and in tests to show that the bound is valid.
    """
    wiring = made.wiring
    keep = wiring.keep
    point = np.zeros(made.model.columns)
    interval, held = 0, [False] * wiring.problem.values
    ends = made.spans.ends(sequence)
    born = [-1] * wiring.problem.values  # interval of the current instance
    spanned: list[set[int]] = [set() for _ in range(made.intervals)]
    for step, op in enumerate(sequence):
        while interval < len(ends) and step > ends[interval]:
            interval += 1
        for value in wiring.reads[op]:
            for b in range(born[value] + 1, interval + 1):
                spanned[b].add(value)
        if made.run[interval][op] >= 0:
            point[made.run[interval][op]] = 1.0
        for value in wiring.writes[op]:
            if not (keep[value] and held[value]):
                born[value], held[value] = interval, True
    for value, kept in enumerate(keep):
        if kept:
            for b in range(born[value] + 1, made.intervals):
                spanned[b].add(value)
    for b, row in enumerate(made.carry):
        for value in spanned[b]:
            if row[value] >= 0:
                point[row[value]] = 1.0
    taken: set[int] = set()
    for column, b, value in made.takeover:
        if value not in spanned[b] and b not in taken:
            point[column] = 1.0
            taken.add(b)
    return point
