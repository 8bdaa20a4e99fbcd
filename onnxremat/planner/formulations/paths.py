"""Path rows: what the continuous relaxation of the cut model forgets between cuts.

A cut splits the runs of an op over two intervals, and with them what they need: half a run before
the cut and half after it are content with halves of the inputs. So more cuts can *weaken* the
continuous relaxation. For cuts a <= e, an op v and values w_0, .., w_k so that v makes w_0, w_i is
read by the op that makes w_{i+1}, and w_k is read by an op whose first run lies in interval e,

    sum_{b = a..e} sum_d E[b, d, v] + sum_i sum_d X[a, d, w_i] >= 1                     (path)

holds for every schedule: the reader reads an instance of w_k; if none of them, on any device,
crossed the start of interval a, the op that makes w_k runs in a..e before it (copies come from an
instance that is there) and reads an instance of w_{k-1}; and so on down to v. For one interval
(a = e) the rows follow from those of the model.

A violated row of every window a..e and op is found by one shortest path with node weights X[a, .],
in time linear in the graph. Rows are kept by the ops that cut, so that they hold in models with
further cuts between.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from onnxremat.planner.formulations.cut_model import ALWAYS, NEVER, CutModel
from onnxremat.planner.problem import Floats


@dataclass(frozen=True)
class Path:
    """A row for the window from cut ``start`` to cut ``end`` (ops; -1: to the end)."""

    start: int
    end: int
    op: int
    values: tuple[int, ...]


def add_paths(made: CutModel, paths: Iterable[Path]) -> list[Path]:
    """Append the rows of the paths whose cuts are in the model; returns those."""
    first = {cut: k + 1 for k, cut in enumerate(made.spans.cuts)}
    last = {cut: k for k, cut in enumerate(made.spans.cuts)}
    last[-1] = made.intervals - 1
    added = []
    for path in paths:
        start, end = first.get(path.start), last.get(path.end)
        if start is None or end is None:
            continue
        columns = [j for b in range(start, end + 1) for j in made.runs(b, path.op)]
        columns += [row[value] for row in made.carry[start] for value in path.values]
        if ALWAYS not in columns:
            made.model.row([(column, 1.0) for column in columns if column != NEVER], lower=1.0)
            added.append(path)
    return added


def violated(made: CutModel, point: Floats, least: float) -> list[tuple[float, Path]]:
    """Paths whose row a point breaks by more than ``least``, each with by how much."""
    found: list[tuple[float, Path]] = []
    lists, cuts = made.lists, (*made.spans.cuts, -1)
    values = point.tolist()

    def numbers(rows: list[list[int]]) -> list[float]:
        """Sums over devices."""
        each = [[values[j] if j >= 0 else float(j == ALWAYS) for j in row] for row in rows]
        return each[0] if len(each) == 1 else [sum(column) for column in zip(*each, strict=True)]

    runs = [numbers(rows) for rows in made.run]
    for start in range(1, made.intervals):
        held = numbers(made.carry[start])
        ran = [0.0] * lists.problem.ops
        for end in range(start, made.intervals):
            ran = [a + b for a, b in zip(ran, runs[end], strict=True)]
            if end == start:
                continue
            window = _Window(made, held, end)
            for op in window.broken(ran, least):
                path = Path(cuts[start - 1], cuts[end], op, window.path(op))
                found.append((1.0 - ran[op] - window.weight[op], path))
    return found


class _Window:
    """Lightest paths from every op to a first run in interval ``end``, weighed by what is held."""

    def __init__(self, made: CutModel, held: list[float], end: int) -> None:
        lists, spans = made.lists, made.spans
        ops, readers, writes = lists.problem.ops, lists.readers, lists.writes
        self.known = [spans.known(end, op) for op in range(ops)]
        self.weight = [inf] * ops
        self.first = [-1] * ops  # first value of the path
        self.next = [-1] * lists.problem.values  # op that reads each value on its path, -1: known
        known, weight = self.known, self.weight
        for op in reversed(range(ops)):
            for value in writes[op]:
                least, after = inf, -1
                for reader in readers[value]:
                    if known[reader]:
                        least, after = 0.0, -1
                        break
                    if weight[reader] < least:
                        least, after = weight[reader], reader
                if least + held[value] < weight[op]:
                    weight[op], self.first[op] = least + held[value], value
                self.next[value] = after

    def broken(self, ran: list[float], least: float) -> list[int]:
        """Ops that run too little in the window."""
        pairs = zip(ran, self.weight, strict=True)
        return [op for op, (a, b) in enumerate(pairs) if a + b < 1.0 - least]

    def path(self, op: int) -> tuple[int, ...]:
        """Values of the lightest path from an op."""
        values = [self.first[op]]
        while (op := self.next[values[-1]]) >= 0:
            values.append(self.first[op])
        return tuple(values)
