"""The point of the cut model that a schedule stands for: warm starts, and tests of validity."""

from __future__ import annotations

import numpy as np

from onnxremat.planner.devices.cuts import DeviceCuts
from onnxremat.planner.devices.problem import Instance, Ledger, Schedule, ledger
from onnxremat.planner.problem import Floats, Ints


def project(made: DeviceCuts, schedule: Schedule) -> Floats:
    """Values of all columns for a schedule whose first runs respect the spans, shape (columns,).

    Feasible for the model when the schedule is within its budgets and has no run or copy that
    nobody reads; its objective is at most the time of the schedule.

    Raises:
        InvalidScheduleError: the schedule cannot be carried out.
    """
    book = ledger(made.layout.problem, schedule)
    point = np.zeros(made.model.columns)
    interval, ends = _intervals(made, schedule)
    _project_carries(made, book, ends, point)
    arrived = _crossing(book, ends)
    for step, (item, device, source) in enumerate(schedule.steps):
        b = int(interval[step])
        if source < 0:
            _set(point, made.run[b][device][item])
        elif (b, device, item) not in arrived:
            _set(point, made.copied[b][source, device][item])
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


def _intervals(made: DeviceCuts, schedule: Schedule) -> tuple[Ints, list[int]]:
    """Interval of every step, and the step of every cut."""
    cuts = made.spans.cuts
    interval = np.zeros(len(schedule.steps), np.int32)
    ends: list[int] = []
    for step, move in enumerate(schedule.steps):
        interval[step] = len(ends)
        if len(ends) < len(cuts) and move.runs and move.item == cuts[len(ends)]:
            ends.append(step)
    return interval, ends


def _spans(instance: Instance, ends: list[int]) -> list[int]:
    """Numbers of the cuts (from 1) that an instance crosses."""
    return [k + 1 for k, end in enumerate(ends) if instance.birth <= end < instance.death]


def _crossing(book: Ledger, ends: list[int]) -> set[tuple[int, int, int]]:
    return {(b, i.device, i.value) for i in book.instances for b in _spans(i, ends)}


def _project_carries(made: DeviceCuts, book: Ledger, ends: list[int], point: Floats) -> None:
    for b, device, value in _crossing(book, ends):
        _set(point, made.carry[b][device][value])


def _project_shares(made: DeviceCuts, schedule: Schedule, point: Floats) -> None:
    layout = made.layout
    for move in schedule.steps:
        if move.runs:
            group = layout.group[move.item]
            if group >= 0:
                point[made.share[group, move.device]] = 1.0
            for weight in layout.uses[move.item]:
                point[made.resident[move.device, weight]] = 1.0


def _project_takeovers(
    made: DeviceCuts, schedule: Schedule, ends: list[int], point: Floats
) -> None:
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


def _load(made: DeviceCuts, schedule: Schedule, interval: Ints, point: Floats) -> float:
    """Largest load of a device or link, each op and copy once per interval, in seconds."""
    layout = made.layout
    loads = [0.0]
    for device in layout.devices:
        runs = {
            (int(interval[step]), move.item)
            for step, move in enumerate(schedule.steps)
            if move.runs and move.device == device
        }
        loads.append(sum(layout.cost[device][op] for _, op in runs))
    for e, d in layout.links:
        rows = [made.copied[b][e, d] for b in range(made.intervals)]
        seconds = layout.copy[e][d]
        loads.append(
            sum(
                seconds[value]
                for row in rows
                for value, column in enumerate(row)
                if column >= 0 and point[column] > 0.5
            )
        )
    return max(loads)
