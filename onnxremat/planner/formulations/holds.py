"""Hold rows: memory while an interval of the cut relaxation passes, not only at its cuts.

A value i, made by p, that is needed on a device at or after some step of interval b, whose op p
does not run there in the interval and that nothing copies to the device, is held there from before
the interval to that step. So for every device d, op k and set S of values that have no link to d,
with m(k) the first run of k on d in interval b,

    base_{d,k} E[b, d, k] + sum_w weight_w U[d, w]
      + sum_{i in S} size_i (N[i] - E[b, d, p]) <= budget_d - fixed_d                    (hold)

``base`` counts workspace, inputs and outputs of k that are not in S, less the largest takeover
(inputs that k may take over are never in S); no kept output that may be elsewhere, which a second
run does not make. ``N[i]`` says that i is needed after m(k): it is 1 for
inputs of the op that ends the interval, and, where the first run of k is known to come in the
interval, for inputs of ops whose first runs are known to follow in it, all of them on d alone; else
it is X[b + 1, d, i].

If k runs, all of that is in memory at m(k); if not, the second sum is held through the interval,
whose last step is within the budget too. Values that are not held only lower the left-hand side,
so the row holds for every S; the most violated one takes the values with N[i] > E[b, d, p].

Values that can be copied to d are left out because K[b, e, d, i] only counts the first arrival of
an interval: one that was there, was given back and came again is not held, and no column says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from onnxremat.planner.formulations.cut_model import ALWAYS, NEVER, CutModel
from onnxremat.planner.formulations.stages import SCALE
from onnxremat.planner.problem import Floats

RAN = 0.02  # ops that run less than this in an interval get no row


@dataclass(frozen=True)
class Hold:
    """A row for the runs of ``op`` on a device between cuts ``start`` and ``end``, counting
    values."""

    start: int
    end: int
    device: int
    op: int
    values: tuple[int, ...]


@dataclass
class Holds:
    """Hold rows of one cut model."""

    made: CutModel
    _needed: dict[tuple[int, int, int], frozenset[int]] = field(default_factory=dict)

    def add(self, holds: Iterable[Hold]) -> list[Hold]:
        """Append the rows of the holds whose interval is in the model; returns those."""
        made, cuts = self.made, self.made.spans.cuts
        interval = {ends: b + 1 for b, ends in enumerate(pairwise(cuts))}
        added = []
        for hold in holds:
            b = interval.get((hold.start, hold.end))
            if b is not None and made.run[b][hold.device][hold.op] != NEVER:
                self._add(b, hold)
                added.append(hold)
        return added

    def _add(self, b: int, hold: Hold) -> None:
        made, lists, d = self.made, self.made.lists, hold.device
        size, run, needed = lists.size[d], made.run[b][d], self.needed(b, d, hold.op)
        counted = set(hold.values) & set(lists.reads[hold.op])
        base = lists.least_run(d, hold.op, first=False) - sum(size[value] for value in counted)
        room = made.room(d)
        weight: dict[int, int] = {}
        if run[hold.op] == ALWAYS:
            room -= base
        else:
            weight[run[hold.op]] = base
        for value in hold.values:
            out, ran = made.carry[b + 1][d][value], run[lists.producer[value]]
            if ran == ALWAYS or (out == NEVER and value not in needed):
                continue
            if out == ALWAYS or value in needed:
                room -= size[value]
            else:
                weight[out] = size[value]
            if ran != NEVER:
                weight[ran] = weight.get(ran, 0) - size[value]
        for (device, item), column in made.resident.items():
            if device == d:
                weight[column] = int(lists.problem.weight[d, item])
        scale = SCALE / max(1, made.budgets[d])
        terms = [(column, bytes_ * scale) for column, bytes_ in weight.items()]
        made.model.row(terms, upper=room * scale)

    def needed(self, b: int, device: int, op: int) -> frozenset[int]:
        """Values that are surely read on a device in interval ``b`` after the first run of an op
        there."""
        key = b, device, op
        if key not in self._needed:
            lists, spans, known = self.made.lists, self.made.spans, self.made.run[b][device]
            end = spans.cuts[b]
            first = spans.split(end) is None and known[end] == ALWAYS
            after = [end] if first and op != end else []
            if known[op] == ALWAYS:
                later = lists.descendant_ops(op) if spans.any_order else range(op + 1, len(known))
                after += [j for j in later if known[j] == ALWAYS]
            self._needed[key] = frozenset(v for j in after for v in lists.reads[j])
        return self._needed[key]

    def violated(self, point: Floats, least: float, most: int) -> list[tuple[float, Hold]]:
        """Holds whose row a point breaks by more than ``least`` of the budget, with by how much.

        Args:
            most: rows per interval and device, the worst ones.
        """
        found: list[tuple[float, Hold]] = []
        for b in range(1, self.made.intervals - 1):
            for device in self.made.lists.devices:
                broken = self._broken(b, device, point, least * self.made.budgets[device])
                found += sorted(broken, key=lambda item: -item[0])[:most]
        return found

    def _broken(self, b: int, device: int, point: Floats, least: float) -> list[tuple[float, Hold]]:
        made, lists, cuts = self.made, self.made.lists, self.made.spans.cuts
        size, producer = np.asarray(lists.size[device], float), np.asarray(lists.producer)
        ran = _numbers(made.run[b][device], point)
        unmade = np.maximum(0.0, 1.0 - ran[producer])
        carried = np.maximum(0.0, _numbers(made.carry[b + 1][device], point) - ran[producer])
        stays = np.asarray([not into for into in lists.into[device]], np.bool_)
        room = made.room(device) - sum(
            float(point[column]) * float(lists.problem.weight[d, item])
            for (d, item), column in made.resident.items()
            if d == device
        )
        found = []
        for op in np.flatnonzero(ran > RAN).tolist():
            held = carried.copy()
            needed = list(self.needed(b, device, op))
            held[needed] = unmade[needed]
            inputs = [v for v in lists.reads[op] if v not in lists.inplace[op]]
            held[[*lists.inplace[op], *lists.writes[op]]] = 0.0
            held[[v for v in inputs if held[v] <= ran[op]]] = 0.0
            held *= stays
            counted = sum(lists.size[device][v] for v in inputs if held[v] > 0)
            base = lists.least_run(device, op, first=False) - counted
            broken = base * ran[op] + float(held @ size) - room
            if broken > least:
                values = tuple(np.flatnonzero(held > 0).tolist())
                hold = Hold(cuts[b - 1], cuts[b], device, op, values)
                found.append((broken / max(1, made.budgets[device]), hold))
        return found


def _numbers(columns: list[int], point: Floats) -> Floats:
    """Values of columns, fixed ones included."""
    index = np.asarray(columns)
    return np.where(index >= 0, point[np.maximum(index, 0)], (index == ALWAYS).astype(float))
