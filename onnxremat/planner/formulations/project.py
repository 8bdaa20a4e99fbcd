"""The point of the cut model that a schedule stands for: warm starts, and tests of validity."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxremat.planner.formulations.cut_model import CutModel
from onnxremat.planner.problem import Floats, Ints
from onnxremat.planner.schedule import RUN, Schedule
from onnxremat.planner.semantics import Instance, Ledger, ledger


def project(made: CutModel, schedule: Schedule | Sequence[int]) -> Floats:
    """Values of all columns for a schedule whose first runs respect the spans, shape (columns,).

    Feasible for the model when the schedule is within its budgets and has no run or copy that
    nobody reads; its objective is at most the time of the schedule.

    Raises:
        InvalidScheduleError: the schedule cannot be carried out.
    """
    problem = made.lists.problem
    if not isinstance(schedule, Schedule):
        schedule = Schedule.of(problem, schedule)
    book = ledger(problem, schedule)
    point = np.zeros(made.model.columns)
    interval, ends = _intervals(made, schedule)
    arrived = _crossing(book, ends)
    for b, device, value in arrived:
        _set(point, made.carry[b][device][value])
    for step, (item, device, source) in enumerate(schedule.steps):
        b = int(interval[step])
        if source == RUN:
            _set(point, made.run[b][device][item])
        elif (b, device, item) not in arrived:
            _set(point, made.copied[b][source, device][item])
        if made.lists.links:
            for instance in book.made[step]:
                value, where, _, _ = book.instances[instance]
                arrived.add((b, where, value))
    _project_shares(made, schedule, point)
    _project_takeovers(made, schedule, ends, point)
    if made.load >= 0:
        point[made.load] = _load(made, schedule, interval, point)
    return point


def _set(point: Floats, column: int) -> None:
    if column >= 0:
        point[column] = 1.0


def _intervals(made: CutModel, schedule: Schedule) -> tuple[Ints, list[int]]:
    """Interval of every step, and the last step of every interval that a cut ends."""
    ends = made.spans.ends([item if source == RUN else -1 for item, _, source in schedule.steps])
    steps = np.arange(len(schedule.steps))
    interval: Ints = np.searchsorted(np.asarray(ends), steps, side="left").astype(np.int32)
    return interval, ends


def _crossed(instance: Instance, ends: list[int]) -> range:
    """Numbers of the cuts (from 1) that an instance crosses."""
    first = int(np.searchsorted(ends, instance.birth, side="left"))
    return range(first + 1, int(np.searchsorted(ends, instance.death, side="left")) + 1)


def _crossing(book: Ledger, ends: list[int]) -> set[tuple[int, int, int]]:
    return {(b, i.device, i.value) for i in book.instances for b in _crossed(i, ends)}


def _project_shares(made: CutModel, schedule: Schedule, point: Floats) -> None:
    lists = made.lists
    if not made.share and not made.resident:
        return
    for move in schedule.steps:
        if move.runs:
            group = lists.group[move.item]
            if group >= 0:
                point[made.share[group, move.device]] = 1.0
            for weight in lists.uses[move.item]:
                point[made.resident[move.device, weight]] = 1.0


def _project_takeovers(made: CutModel, schedule: Schedule, ends: list[int], point: Floats) -> None:
    for column, b, device, value in made.presence:
        runs = schedule.steps[ends[b - 1]].device == device
        carried = made.carry[b][device][value]
        point[column] = float(runs or (carried >= 0 and point[carried] > 0.5))
    taken: set[tuple[int, int]] = set()
    for column, b, device, value in made.takeover:
        carried = made.carry[b][device][value]
        free = carried < 0 or point[carried] < 0.5
        if free and schedule.steps[ends[b - 1]].device == device and (b, device) not in taken:
            point[column] = 1.0
            taken.add((b, device))


def _load(made: CutModel, schedule: Schedule, interval: Ints, point: Floats) -> float:
    """Largest load of a device or link, each op and copy once per interval, in seconds."""
    lists = made.lists
    loads = [0.0]
    for device in lists.devices:
        runs = {
            (int(interval[step]), move.item)
            for step, move in enumerate(schedule.steps)
            if move.runs and move.device == device
        }
        loads.append(sum(lists.cost[device][op] for _, op in runs))
    for e, d in lists.links:
        rows = [made.copied[b][e, d] for b in range(made.intervals)]
        seconds = lists.copy[e][d]
        loads.append(
            sum(
                seconds[value]
                for row in rows
                for value, column in enumerate(row)
                if column >= 0 and point[column] > 0.5
            )
        )
    return max(loads)
