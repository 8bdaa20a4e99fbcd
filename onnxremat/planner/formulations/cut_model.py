"""The cut model with its columns by meaning; see :mod:`onnxremat.planner.formulations.cuts`."""

from __future__ import annotations

from dataclasses import dataclass, field

from onnxremat.planner.formulations.spans import Spans
from onnxremat.planner.model import Model
from onnxremat.planner.problem import Floats
from onnxremat.planner.problem_lists import ProblemLists

NEVER = -1  # marks a variable fixed to 0
ALWAYS = -2  # marks a variable fixed to 1

Key = tuple[int, int]
Terms = list[tuple[int, float]]


@dataclass
class CutModel:
    """A model with the columns of E, X, K (``NEVER`` and ``ALWAYS`` mark fixed ones).

    Attributes:
        budgets: bytes per device.
        unit: seconds per unit of the objective.
        run: ``run[b][d][v]``.
        carry: ``carry[b][d][u]``.
        copied: ``copied[b][e, d][u]`` per link.
        share: ``share[g, d]``, columns of G.
        resident: ``resident[d, w]``, columns of U.
        presence: (column, cut, device, value) of the columns for max(X, R).
        takeover: (column, cut, device, value) of the columns y.
        memory: (cut, device) to its memory row; none where the limit cannot be broken.
        load: column of the makespan objective, -1 without.
    """

    lists: ProblemLists
    spans: Spans
    budgets: tuple[int, ...]
    unit: float
    model: Model = field(default_factory=lambda: Model("cuts"))
    run: list[list[list[int]]] = field(default_factory=list)
    carry: list[list[list[int]]] = field(default_factory=list)
    copied: list[dict[Key, list[int]]] = field(default_factory=list)
    share: dict[Key, int] = field(default_factory=dict)
    resident: dict[Key, int] = field(default_factory=dict)
    presence: list[tuple[int, int, int, int]] = field(default_factory=list)
    takeover: list[tuple[int, int, int, int]] = field(default_factory=list)
    memory: dict[Key, int] = field(default_factory=dict)
    load: int = NEVER

    @property
    def intervals(self) -> int:
        """Number of intervals, K + 1."""
        return len(self.spans.cuts) + 1

    def seconds(self, objective: float) -> float:
        """Time in seconds of an objective value."""
        return objective * self.unit

    def runs(self, interval: int, op: int) -> list[int]:
        """Columns of E of an op in an interval, fixed ones included."""
        able = self.lists.able[op]
        return [j for d in able if (j := self.run[interval][d][op]) != NEVER]

    def room(self, device: int) -> int:
        """Bytes of a device's budget beside what is always resident."""
        return self.budgets[device] - int(self.lists.problem.fixed[device])

    def first_runs(
        self, point: Floats, *, in_order: bool = False, soon: bool = False
    ) -> list[list[int]]:
        """Ops that run first in each interval, in base order but the cut op last.

        Args:
            in_order: in base order throughout. Where an interval is split the point may have a
                later op in its first part and an earlier one in its second.
            soon: ops that may fall in several intervals follow right behind what they read.
        """
        rows: list[list[int]] = [[] for _ in range(self.intervals)]
        reached = 0
        for op, early in enumerate(self.spans.earliest):
            late = self.spans.latest[op]
            chosen = (b for b in range(early, late) if any(self.chosen(point, b, op)))
            reached = max(next(chosen, late), reached if in_order else 0)
            rows[reached].append(op)
        if soon:
            rows = [self._soon(row) for row in rows]
        for interval, cut in enumerate(self.spans.cuts):
            if self.spans.split(cut) is None:
                rows[interval].remove(cut)
                rows[interval].append(cut)
        return rows

    def _soon(self, row: list[int]) -> list[int]:
        """The ops of an interval with those that may fall in others right behind what they read:
        what that is may then be given back, and it is no later than where it stood."""
        lists, spans, here = self.lists, self.spans, set(row)
        missing: dict[int, set[int]] = {}
        behind: dict[int, list[int]] = {}
        placed: list[int] = []
        for op in row:
            if spans.earliest[op] < spans.latest[op]:
                missing[op] = here.intersection(lists.before[op])
                for maker in missing[op]:
                    behind.setdefault(maker, []).append(op)
        for op in row:
            todo = [op] if not missing.get(op) and op in here else []
            while todo:
                placed.append(todo.pop())
                here.remove(placed[-1])
                for reader in behind.pop(placed[-1], []):
                    missing[reader].discard(placed[-1])
                    if not missing[reader]:
                        todo.append(reader)
        return placed

    def chosen(self, point: Floats, interval: int, op: int) -> list[bool]:
        """Per device, whether an op runs there in an interval."""
        return [is_on(point, row[op]) for row in self.run[interval]]

    def carried(self, point: Floats, interval: int) -> list[set[int]]:
        """Values carried over the cut before an interval, per device."""
        return [
            {u for u, j in enumerate(row) if j == ALWAYS or (j >= 0 and point[j] > 0.5)}
            for row in self.carry[interval]
        ]


def is_on(point: Floats, column: int) -> bool:
    """Whether a 0/1 column, which may be a fixed one, is 1 at a point."""
    return column == ALWAYS or (column >= 0 and bool(point[column] > 0.5))
