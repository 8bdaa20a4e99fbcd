"""Hold rows: memory while an interval of the cut relaxation passes, not only at its cuts.

A value i, made by p, that is needed at or after some step of interval b and whose op p does not run
in the interval is held from before the interval to that step. So for every op k and every set S of
values, with m(k) the first run of k in interval b,

    base_k E[b, k] + sum_{i in S} size_i (U[i] - E[b, p]) <= budget - fixed        (hold)

``base_k`` counts workspace, inputs and outputs of k that are not in S, less the largest takeover
(inputs that k may take over are never in S). ``U[i]`` says that i is needed after m(k): it is 1 for
inputs of the op that ends the interval, and, where the first run of k is known to come in the
interval, for inputs of ops whose first runs are known to follow in it; else it is X[b + 1, i].

If k runs, all of that is in memory at m(k); if not, the second sum is held through the interval,
whose last step is within the budget too. Values that are not held only lower the left-hand side,
so the row holds for every S; the most violated one takes the values with U[i] > E[b, p].
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from onnxremat.planner.formulations.cuts import ALWAYS, NEVER, SCALE, CutModel
from onnxremat.planner.problem import Floats

RAN = 0.02  # ops that run less than this in an interval get no row


@dataclass(frozen=True)
class Hold:
    """A row for the runs of ``op`` between cuts ``start`` and ``end`` (ops), counting values."""

    start: int
    end: int
    op: int
    values: tuple[int, ...]


@dataclass
class Holds:
    """Hold rows of one cut model."""

    made: CutModel
    _needed: dict[tuple[int, int], frozenset[int]] = field(default_factory=dict)

    def add(self, holds: Iterable[Hold]) -> list[Hold]:
        """Append the rows of the holds whose interval is in the model; returns those."""
        made, cuts = self.made, self.made.spans.cuts
        interval = {ends: b + 1 for b, ends in enumerate(pairwise(cuts))}
        added = []
        for hold in holds:
            b = interval.get((hold.start, hold.end))
            if b is not None and made.run[b][hold.op] != NEVER:
                self._add(b, hold)
                added.append(hold)
        return added

    def _add(self, b: int, hold: Hold) -> None:
        made, wiring = self.made, self.made.wiring
        size, run, needed = wiring.size, made.run[b], self.needed(b, hold.op)
        counted = set(hold.values) & set(wiring.reads[hold.op])
        base = self._base(hold.op) - sum(size[value] for value in counted)
        room = made.budget - wiring.problem.fixed
        weight: dict[int, int] = {}
        if run[hold.op] == ALWAYS:
            room -= base
        else:
            weight[run[hold.op]] = base
        for value in hold.values:
            out, ran = made.carry[b + 1][value], run[wiring.producer[value]]
            if ran == ALWAYS or (out == NEVER and value not in needed):
                continue
            if out == ALWAYS or value in needed:
                room -= size[value]
            else:
                weight[out] = size[value]
            if ran != NEVER:
                weight[ran] = weight.get(ran, 0) - size[value]
        scale = SCALE / max(1, made.budget)
        terms = [(column, bytes_ * scale) for column, bytes_ in weight.items()]
        made.model.row(terms, upper=room * scale)

    def _base(self, op: int) -> int:
        """Bytes that a run of an op needs at least."""
        wiring, size = self.made.wiring, self.made.wiring.size
        bytes_ = wiring.work[op] + sum(size[v] for v in {*wiring.reads[op], *wiring.writes[op]})
        return bytes_ - max((size[v] for v in wiring.inplace[op]), default=0)

    def needed(self, b: int, op: int) -> frozenset[int]:
        """Values that are surely read in interval ``b`` after the first run of an op in it."""
        if (b, op) not in self._needed:
            wiring, spans, known = self.made.wiring, self.made.spans, self.made.run[b]
            end = spans.cuts[b]
            after = [end] if op != end and spans.split(end) is None else []
            if known[op] == ALWAYS:
                later = wiring.descendant_ops(op) if spans.any_order else range(op + 1, len(known))
                after += [j for j in later if known[j] == ALWAYS]
            self._needed[b, op] = frozenset(v for j in after for v in wiring.reads[j])
        return self._needed[b, op]

    def violated(self, point: Floats, least: float, most: int) -> list[tuple[float, Hold]]:
        """Holds whose row a point breaks by more than ``least`` of the budget, with by how much.

        Args:
            most: rows per interval, the worst ones.
        """
        found: list[tuple[float, Hold]] = []
        for b in range(1, self.made.intervals - 1):
            broken = self._broken(b, point, least * self.made.budget)
            found += sorted(broken, key=lambda item: -item[0])[:most]
        return found

    def _broken(self, b: int, point: Floats, least: float) -> list[tuple[float, Hold]]:
        made, wiring, cuts = self.made, self.made.wiring, self.made.spans.cuts
        size, producer = np.asarray(wiring.size, float), np.asarray(wiring.producer)
        ran = _numbers(made.run[b], point)
        unmade = np.maximum(0.0, 1.0 - ran[producer])
        carried = np.maximum(0.0, _numbers(made.carry[b + 1], point) - ran[producer])
        room = made.budget - wiring.problem.fixed
        found = []
        for op in np.flatnonzero(ran > RAN).tolist():
            held = carried.copy()
            needed = list(self.needed(b, op))
            held[needed] = unmade[needed]
            inputs = [v for v in wiring.reads[op] if v not in wiring.inplace[op]]
            held[[*wiring.inplace[op], *wiring.writes[op]]] = 0.0
            held[[v for v in inputs if held[v] <= ran[op]]] = 0.0
            counted = sum(wiring.size[v] for v in inputs if held[v] > 0)
            broken = (self._base(op) - counted) * ran[op] + float(held @ size) - room
            if broken > least:
                values = tuple(np.flatnonzero(held > 0).tolist())
                found.append((broken / made.budget, Hold(cuts[b - 1], cuts[b], op, values)))
        return found


def _numbers(columns: list[int], point: Floats) -> Floats:
    """Values of columns, fixed ones included."""
    index = np.asarray(columns)
    return np.where(index >= 0, point[np.maximum(index, 0)], (index == ALWAYS).astype(float))
