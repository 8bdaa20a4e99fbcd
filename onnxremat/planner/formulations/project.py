"""The point of the cut model that a schedule stands for: warm starts, and tests of validity."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxremat.planner.formulations.cut_model import CutModel
from onnxremat.planner.problem import Floats
from onnxremat.planner.schedule import RUN, InvalidScheduleError, Schedule


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
    point = np.zeros(made.model.columns)
    interval, ends = _intervals(made, schedule)
    arrived, written = _crossing(made, schedule, interval)
    for b, device, value in arrived:
        _set(point, made.carry[b][device][value])
    for b, (item, device, source), values in zip(interval, schedule.steps, written, strict=True):
        if source == RUN:
            _set(point, made.run[b][device][item])
        elif (b, device, item) not in arrived:
            _set(point, made.copied[b][source, device][item])
        if made.lists.links:
            arrived.update((b, device, value) for value in values)
    _project_shares(made, schedule, point)
    _project_takeovers(made, schedule, ends, point)
    if made.load >= 0:
        point[made.load] = _load(made, schedule, interval, point)
    return point


def _set(point: Floats, column: int) -> None:
    if column >= 0:
        point[column] = 1.0


def _intervals(made: CutModel, schedule: Schedule) -> tuple[list[int], list[int]]:
    """Interval of every step, and the last step of every interval that a cut ends."""
    ends = made.spans.ends([item if source == RUN else -1 for item, _, source in schedule.steps])
    steps = np.arange(len(schedule.steps))
    return np.searchsorted(np.asarray(ends), steps, side="left").tolist(), ends


def _crossing(
    made: CutModel, schedule: Schedule, interval: list[int]
) -> tuple[set[tuple[int, int, int]], list[list[int]]]:
    """(interval, device, value) of everything that is there when an interval begins and needed in
    it or later; and the values that each step makes, a held one once."""
    lists, crossed = made.lists, set[tuple[int, int, int]]()
    there: dict[tuple[int, int], int] = {}  # (device, value) -> interval that it is carried to
    written: list[list[int]] = []

    def carry(b: int, device: int, value: int) -> None:
        begin = there.get((device, value))
        if begin is None:
            raise InvalidScheduleError(f"value {value} is read and not on device {device}")
        if begin < b:
            crossed.update((k, device, value) for k in range(begin + 1, b + 1))
            there[device, value] = b

    ran = [False] * lists.problem.ops
    for b, (item, device, source) in zip(interval, schedule.steps, strict=True):
        for value in lists.reads[item] if source == RUN else (item,):
            carry(b, device if source == RUN else source, value)
        row = lists.writes[item] if source == RUN else [item]
        if source == RUN and ran[item]:
            row = [value for value in row if not lists.keep[value]]
        elif source == RUN:
            ran[item] = True
        fresh = [v for v in row if not ((device, v) in there and schedule.placement[v] == device)]
        there.update(((device, value), b) for value in fresh)
        written.append(fresh)
    for value, kept in enumerate(lists.keep):
        if kept:
            carry(made.intervals - 1, schedule.placement[value], value)
    return crossed, written


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


def _load(made: CutModel, schedule: Schedule, interval: list[int], point: Floats) -> float:
    """Largest load of a device or link, each op and copy once per interval, in seconds."""
    lists = made.lists
    loads = [0.0]
    for device in lists.devices:
        runs = {
            (b, move.item)
            for b, move in zip(interval, schedule.steps, strict=True)
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
