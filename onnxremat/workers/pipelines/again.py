"""What a stage of a pipeline computes again, instead of keeping it for every micro-batch alive.

F of a stage leaves values for its B and W, as many sets of them as micro-batches are alive there. A
stage that has no room for all keeps some, and B makes the others again from these (checkpointing:
Chen et al. 2016, arXiv:1604.06174), for W as well. Which ones is an integer program over the ops of
F (0/1: run again) and the values they make or read (0/1: kept): the least seconds so that what is
kept fits, proven by the solver.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from onnxremat.graph.ir import Graph, Op
from onnxremat.graph.traits import may_recompute
from onnxremat.planner.model import Model
from onnxremat.planner.solvers import minimise
from onnxremat.planner.solvers.base import Limits, Outcome
from onnxremat.workers.pieces import shown
from onnxremat.workers.pipeline import B, F, W
from onnxremat.workers.sums.layers import Key

SECONDS = 10.0  # of the solver, per stage and limit
GAP = 1e-4  # of F's seconds
LARGE = 1e3  # of all bytes in the units of the program, whose solver is exact to 1e-6
SMALL = 1e-6  # of all seconds of F: what keeping everything is worth, so that ties keep less


@dataclass(frozen=True)
class Again:
    """What a stage computes again.

    Attributes:
        ops: by name, of F.
        seconds: they take.
        bound: no choice that fits takes less.
        kept: bytes that F leaves for a micro-batch.
        handed: bytes that B leaves for W.
    """

    ops: tuple[str, ...] = ()
    seconds: float = 0.0
    bound: float = 0.0
    kept: int = 0
    handed: int = 0

    def bytes(self, alive: int, waiting: int) -> int:
        """With so many micro-batches between F and W, so many of them between B and W."""
        return alive * self.kept + waiting * self.handed


@dataclass(frozen=True)
class Stage:
    """F of a stage and what reads from it. Values that show others in another shape are not among
    what is read, those are.

    Attributes:
        graph: the step.
        forward: its ops.
        back, weight: values that its B and W read.
        elsewhere: values that other stages read, or that leave the step.
        moved: state that the step itself overwrites.
        seconds: of each op of F.
        passed: bytes that its B makes for its W in any case.
    """

    graph: Graph
    forward: Sequence[Op]
    back: Collection[str]
    weight: Collection[str]
    elsewhere: Collection[str]
    moved: Collection[str]
    seconds: Mapping[str, float]
    passed: int = 0

    @classmethod
    def of(
        cls,
        graph: Graph,
        parts: Mapping[Key, Sequence[Op]],
        at: int,
        moved: Mapping[str, str],
        seconds: Mapping[str, float],
    ) -> Stage:
        """A stage of a cut step.

        Args:
            moved: old and new names of what the step overwrites.
            seconds: of each op.
        """

        def read(keys: Collection[Key]) -> set[str]:
            return {name for key in keys for op in parts.get(key, ()) for name in seen(graph, op)}

        own = {(F, at), (B, at), (W, at)}
        leaving = {*graph.outputs, *moved.values()}
        outside = read(parts.keys() - own) | {shown(graph, name) for name in leaving}
        forward = tuple(parts.get((F, at), ()))
        if (B, at) not in parts:
            return cls(graph, forward, read([(W, at)]), (), outside, {*moved}, seconds)
        back, weight = read([(B, at)]), read([(W, at)])
        made = {name for op in parts[B, at] for name in op.writes}
        passed = sum(graph.tensors[name].bytes for name in made & weight)
        return cls(graph, forward, back, weight, outside, {*moved}, seconds, passed)

    @cached_property
    def free(self) -> dict[str, Op]:
        """Ops that may run again, by what they make."""
        return {
            name: op
            for op in self.forward
            if may_recompute(op)
            and shown(self.graph, op.writes[0]) == op.writes[0]
            and not {*op.reads}.intersection(self.moved)
            and not {*op.writes}.intersection(self.elsewhere)
            for name in op.writes
        }

    @cached_property
    def values(self) -> dict[str, int]:
        """Bytes of what F makes, and of what it reads of other stages."""
        made = {shown(self.graph, name) for op in self.forward for name in op.writes}
        made |= {n for op in self.forward for n in seen(self.graph, op)}
        made &= self.graph.producer.keys()
        return {name: self.graph.tensors[name].bytes for name in sorted(made)}

    def everything_kept(self) -> Again:
        """Nothing again."""
        late = {*self.back, *self.weight} & self.values.keys()
        return Again(kept=sum(self.values[name] for name in late), handed=self.passed)

    def choose(self, room: int, alive: int, waiting: int) -> Again | None:
        """The least seconds within a room; None where nothing fits, or the solver finds nothing.

        Args:
            room: bytes for everything that lies there at once.
            alive, waiting: micro-batches between F and W, and between B and W.
        """
        plain = self.everything_kept()
        if plain.bytes(alive, waiting) <= room:
            return plain
        asked = _Program(self, alive, waiting)
        total = sum(self.seconds.get(op.name, 0.0) for op in self.forward) or 1.0
        every = sum(self.values.values()) or 1
        for name, column in asked.runs.items():
            asked.model.cost[column] = self.seconds.get(name, 0.0) / total
        for name, column in asked.kept.items():
            asked.model.cost[column] = SMALL * self.values[name] / every
        asked.model.row(asked.sizes, upper=(room - waiting * self.passed) / asked.unit)
        found = asked.solve()
        return self._chosen(found[0], max(0.0, found[1] - SMALL) * total) if found else None

    def least(self, alive: int, waiting: int) -> Again:
        """The fewest bytes at once that are found, whatever it takes."""
        asked = _Program(self, alive, waiting)
        for column, size in asked.sizes:
            asked.model.cost[column] = size
        found = asked.solve()
        return self._chosen(*found) if found else self.everything_kept()

    def _chosen(self, names: set[str], bound: float) -> Again:
        """What a choice of ops means: values that nobody wants then are not kept."""
        again = [op for op in self.forward if op.name in names]
        made = {name for op in again for name in op.writes}
        late = {*self.back, *self.weight}
        read = late | {name for op in again for name in seen(self.graph, op)}
        seconds = sum(self.seconds.get(op.name, 0.0) for op in again)
        return Again(
            tuple(op.name for op in again),
            seconds,
            min(bound, seconds),
            sum(self.values[n] for n in (read & self.values.keys()) - made),
            sum(self.values[n] for n in made & {*self.weight}) + self.passed,
        )


class _Program:
    """The integer program of a stage, without an objective and a limit.

    Attributes:
        runs, kept: columns by op and by value.
        unit: bytes.
        sizes: columns with the units that they take at once.
    """

    def __init__(self, stage: Stage, alive: int, waiting: int) -> None:
        model = self.model = Model("recompute")
        values, free = stage.values, stage.free
        ops = {op.name: op for op in free.values()}
        self.runs = runs = {name: model.binary(label=name) for name in ops}
        self.kept = kept = {name: model.binary(label=name) for name in values}
        handed = {name: model.column(0.0, 1.0) for name in values if name in stage.weight}

        def there(name: str) -> list[tuple[int, float]]:
            again = [(runs[free[name].name], 1.0)] if name in free else []
            return [(kept[name], 1.0), *again]

        for name in {*stage.back, *stage.weight} & values.keys():
            model.row(there(name), lower=1.0)
        for name, column in handed.items():
            model.row([(column, 1.0), (kept[name], 1.0)], lower=1.0)
        for name, op in ops.items():
            for read in seen(stage.graph, op) & values.keys():
                model.row([*there(read), (runs[name], -1.0)], lower=0.0)
        self.unit = unit = (alive * sum(values.values()) or 1) / LARGE
        self.sizes = [(column, alive * values[n] / unit) for n, column in kept.items()]
        self.sizes += [(column, waiting * values[n] / unit) for n, column in handed.items()]

    def solve(self) -> tuple[set[str], float] | None:
        """Ops that run again, and the bound of the objective."""
        result, _ = minimise(self.model, Limits(seconds=SECONDS, gap=GAP))
        if result.point is None or result.outcome not in (Outcome.OPTIMAL, Outcome.FEASIBLE):
            return None
        names = {name for name, column in self.runs.items() if result.point[column] > 0.5}
        return names, result.bound


def seen(graph: Graph, op: Op) -> set[str]:
    """What an op reads, or what that shows."""
    return {shown(graph, name) for name in op.reads}
