"""XEngine's model with its columns by meaning: schedules of its points, and points of schedules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from onnxremat.planner.formulations.extract import without_unread
from onnxremat.planner.formulations.stages import StageModel
from onnxremat.planner.problem import ANY, Floats
from onnxremat.planner.problem_lists import ProblemLists
from onnxremat.planner.schedule import Schedule, Step
from onnxremat.planner.semantics import ledger

Key = tuple[int, int, int]  # device, stage, op or value


@dataclass
class XengineModel(StageModel):
    """The model with its columns of copies, their sources and hold devices.

    Attributes:
        retain, copy, source: ``S``, ``K`` and ``A`` by (device, stage, value).
        hold: ``H`` by (device, value), where the device is a choice.
        group: ``G`` by (group, device).
    """

    layout: ProblemLists = field(kw_only=True)
    retain: dict[Key, int] = field(default_factory=dict)
    copy: dict[Key, int] = field(default_factory=dict)
    source: dict[Key, int] = field(default_factory=dict)
    hold: dict[tuple[int, int], int] = field(default_factory=dict)
    group: dict[tuple[int, int], int] = field(default_factory=dict)

    def schedule(self, point: Floats) -> Schedule:
        """The schedule of a point, without what nobody reads.

        At each place copies of kept values come first, then the runs, then what they made is
        copied.
        """
        steps: list[Step] = []
        for stage in range(self.layout.problem.ops):
            for place in range(stage + 1):
                made = self.layout.writes[place]
                old = [i for i in made if self.layout.keep[i] and stage > place]
                steps += self._copies(point, stage, old)
                steps += [
                    Step(place, d)
                    for d in self.layout.devices
                    if _on(point, self.run.get((d, stage, place)))
                ]
                steps += self._copies(point, stage, [i for i in made if i not in old])
        hold = list(self.layout.required)
        for value, kept in enumerate(self.layout.keep):
            if kept and hold[value] == ANY:
                chosen = (d for d in self.layout.devices if _on(point, self.hold.get((d, value))))
                hold[value] = next(chosen, 0)
        return without_unread(self.layout, Schedule(tuple(steps), tuple(hold)))

    def columns_of(self, schedule: Schedule) -> set[int] | None:
        """Binary columns that are 1 for a schedule whose first runs are in base order; None when
        it runs or copies what the model has no column for.

        Its copies move to the places where the model has them, and nothing is held where it is made
        again: whether the budgets still hold is for the rows to say.
        """
        chosen = _Reading(self, schedule).read()
        columns = {table.get(key) for table, keys in chosen for key in keys}
        return None if None in columns else {column for column in columns if column is not None}

    def _copies(self, point: Floats, stage: int, values: Sequence[int]) -> Iterator[Step]:
        seconds = self.layout.copy
        for value in values:
            for d in self.layout.devices:
                if _on(point, self.copy.get((d, stage, value))):
                    sources = [
                        e
                        for e in self.layout.devices
                        if e != d and _on(point, self.source.get((e, stage, value)))
                    ]
                    if sources:
                        yield Step(value, d, min(sources, key=lambda e: seconds[e][d][value]))


class _Reading:
    """What a schedule runs, holds and copies in each stage."""

    def __init__(self, made: XengineModel, schedule: Schedule) -> None:
        self.made, self.schedule, self.layout = made, schedule, made.layout
        self.book = ledger(made.layout.problem, schedule)
        self.stage = self._stages()

    def _stages(self) -> list[int]:
        """Stage of each step. A copy right behind the first run of the op that made its value, from
        there, still belongs to the stage that this run ends."""
        stages: list[int] = []
        maker, last = self.layout.producer, self.layout.problem.ops - 1
        seen: set[int] = set()
        ended = -1  # device of the first run that ended a stage, until the next run
        for item, device, source in self.schedule.steps:
            now = len(seen)
            if source >= 0:
                early = ended == source and maker[item] == now - 1
                stages.append(min(now - early, last))
                continue
            stages.append(min(now, last))
            ended = -1 if item in seen else device
            seen.add(item)
        return stages

    def read(self) -> list[tuple[dict[Any, int], set[Any]]]:
        """Columns by their keys, and the keys that are 1."""
        model, layout, given = self.made, self.layout, self.layout.problem.host_inputs
        runs: set[Key] = set()
        makes: set[Key] = set()
        copies: dict[Key, int] = {}
        for step, (item, d, source) in enumerate(self.schedule.steps):
            at = self.stage[step]
            fresh = {self.book.instances[made].value for made in self.book.made[step]}
            if source < 0 and (item >= given or at == item):
                runs.add((d, at, item))
                makes |= {(d, at, value) for value in fresh}
            elif source >= 0 and fresh:
                copies.setdefault((d, at, item), source)
        held = self._held(makes)
        copies = {key: e for key, e in copies.items() if key not in makes | held}
        hold = {(d, i) for i, d in enumerate(self.schedule.placement) if (d, i) in model.hold}
        sources = {(e, at, value) for (_, at, value), e in copies.items()}
        group = {(g, d) for d, _, op in runs for g in [layout.group[op]] if g != ANY}
        return [
            (model.run, runs), (model.retain, held), (model.copy, set(copies)),
            (model.source, sources), (model.hold, hold), (model.group, group),
        ]  # fmt: skip

    def _held(self, makes: set[Key]) -> set[Key]:
        """Values there when a stage begins and not made again in it; inputs at home are always."""
        layout, held = self.layout, set()
        final = layout.problem.ops - 1
        for value, d, birth, death in self.book.instances:
            maker = layout.producer[value]
            outside = maker < layout.problem.host_inputs and d in layout.able[maker]
            last = final if outside or death == len(self.stage) else self.stage[death]
            held |= {(d, at, value) for at in range(self.stage[birth] + 1, last + 1)}
        return {key for key in held if key not in makes}


def _on(point: Floats, column: int | None) -> bool:
    return column is not None and float(point[column]) > 0.5
