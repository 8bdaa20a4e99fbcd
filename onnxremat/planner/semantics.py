"""The reference semantics of time and memory: what everything compiled or formulated must agree
with, to the byte.

Swapping is copying to a device that computes nothing and back; nothing else about it is special.
Where a function takes a schedule it also takes a sequence of ops: their runs on the only device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple

import numpy as np

from onnxremat.planner.problem import ANY, Bytes, Problem
from onnxremat.planner.schedule import RUN, InvalidScheduleError, Schedule, Step


def seconds(problem: Problem, schedule: Schedule | Sequence[int]) -> float:
    """Sum of the seconds of all runs and copies, one after the other."""
    if problem.devices == 1:
        return float(problem.cost[0, np.asarray(_sequence(schedule), np.int64)].sum())
    return float(sum(durations(problem, _schedule(problem, schedule).steps)))


def durations(problem: Problem, steps: Sequence[Step]) -> list[float]:
    """Seconds of each step."""
    return [
        float(problem.cost[d, item] if source == RUN else problem.copy[source, d, item])
        for item, d, source in steps
    ]


def occupancy(problem: Problem, schedule: Schedule | Sequence[int]) -> Bytes:
    """Bytes in use on each device while each step goes on, shape (D, steps).

    Raises:
        InvalidScheduleError: see :func:`ledger`.
    """
    if problem.devices == 1:
        return _on_one_device(problem, _sequence(schedule))[None]
    schedule = _schedule(problem, schedule)
    return bytes_of(problem, schedule, ledger(problem, schedule))


def peaks(problem: Problem, schedule: Schedule | Sequence[int]) -> Bytes:
    """Largest occupancy of each device, in bytes, shape (D,)."""
    least = problem.fixed if not problem.ops else 0
    top: Bytes = np.maximum(occupancy(problem, schedule).max(axis=1, initial=0), least)
    return top


def peak(problem: Problem, schedule: Schedule | Sequence[int]) -> int:
    """Largest occupancy of the first device (the only one, as a rule), in bytes."""
    return int(peaks(problem, schedule)[0])


def _sequence(schedule: Schedule | Sequence[int]) -> Sequence[int]:
    return schedule.sequence if isinstance(schedule, Schedule) else schedule


def _schedule(problem: Problem, schedule: Schedule | Sequence[int]) -> Schedule:
    return schedule if isinstance(schedule, Schedule) else Schedule.of(problem, schedule)


def _on_one_device(problem: Problem, sequence: Sequence[int]) -> Bytes:
    """:func:`occupancy` where there is one device: the same in a tenth of the time, shape
    (steps,)."""
    reads, writes, inplace = problem.reads.lists(), problem.writes.lists(), problem.inplace.lists()
    size, keep = problem.size[0].tolist(), problem.keep.tolist()
    again = problem.recompute.tolist()
    steps = len(sequence)
    born = [-1] * problem.values  # step that made the current instance of each value
    ran = [False] * problem.ops
    death: dict[tuple[int, int], int] = {}  # (value, birth step) -> last step that reads it
    for step, op in enumerate(sequence):
        for value in reads[op]:
            if born[value] < 0:
                raise InvalidScheduleError(
                    f"step {step} (op {op}) reads value {value} before it is made"
                )
            death[value, born[value]] = step
        if ran[op] and not again[op]:
            raise InvalidScheduleError(f"step {step}: op {op} may run only once")
        ran[op] = True
        for value in writes[op]:
            if keep[value] and born[value] >= 0:
                continue
            born[value] = step
            death[value, step] = step
    if not all(ran):
        missing = [op for op, flag in enumerate(ran) if not flag]
        raise InvalidScheduleError(f"ops {missing[:5]} never run")
    change = np.zeros(steps + 1, np.int64)
    for (value, birth), last in death.items():
        change[birth] += size[value]
        change[steps if keep[value] else last + 1] -= size[value]
    use = np.cumsum(change[:-1]) + problem.work[0, np.asarray(sequence, np.int64)]
    use += problem.resident
    current = [-1] * problem.values
    for step, op in enumerate(sequence):
        for value in inplace[op]:
            if not keep[value] and death.get((value, current[value])) == step:
                use[step] -= size[value]
                break
        for value in writes[op]:
            if not (keep[value] and current[value] >= 0):
                current[value] = step
    return use


class Figures(NamedTuple):
    """What a replay says: seconds, makespan, peak bytes per device, excess area in byte-steps."""

    seconds: float
    makespan: float
    peaks: tuple[int, ...]
    area: float


class Instance(NamedTuple):
    """One copy of a value in the memory of a device, in steps of a schedule."""

    value: int
    device: int
    birth: int
    death: int  # last step that needs it; one past the last step when it is held to the end


@dataclass(frozen=True)
class Ledger:
    """Which instance every step makes and reads.

    Attributes:
        instances: in order of birth.
        made: instances each step starts.
        read: instances each step reads, in the order of ``reads`` (or the source of a copy).
        takeover: instance each step's output 0 takes over, -1 for none.
        resident: bytes on each device throughout, weights included, shape (D,).
    """

    instances: list[Instance]
    made: list[list[int]]
    read: list[list[int]]
    takeover: list[int]
    resident: Bytes


def ledger(problem: Problem, schedule: Schedule) -> Ledger:
    """Follow every instance of a schedule.

    Raises:
        InvalidScheduleError: a step reads what is not there, runs or copies where it cannot, runs
            an op again that must not or breaks a group; an op never runs; a result is missing.
    """
    return _Walk(problem, schedule).finish()


class _Walk:
    def __init__(self, problem: Problem, schedule: Schedule) -> None:
        self.problem, self.schedule = problem, schedule
        self.reads, self.writes = problem.reads.lists(), problem.writes.lists()
        self.inplace = problem.inplace.lists()
        self.current: dict[tuple[int, int], int] = {}  # (device, value) -> instance
        self.births: list[tuple[int, int, int]] = []  # value, device, step
        self.deaths: list[int] = []
        self.made: list[list[int]] = []
        self.read: list[list[int]] = []
        self.runs = [0] * problem.ops
        self.kept = [bool(flag) for flag in problem.keep]
        self.home: dict[int, int] = {}  # group -> device

    def finish(self) -> Ledger:
        for step, move in enumerate(self.schedule.steps):
            self._check(step, move)
            needed = self.reads[move.item] if move.runs else [move.item]
            self._read(step, needed, move.device if move.runs else move.source)
            self.made.append([])
            for value in self._makes(move):
                self._make(step, value, move.device)
        self._complete()
        takeover = [self._takeover(step, move) for step, move in enumerate(self.schedule.steps)]
        instances = [
            Instance(*birth, death)
            for birth, death in zip(
                ((v, d, s) for v, d, s in self.births), self.deaths, strict=True
            )
        ]
        return Ledger(instances, self.made, self.read, takeover, self._resident())

    def _refuse(self, step: int, why: str) -> InvalidScheduleError:
        return InvalidScheduleError(f"step {step} {self.schedule.steps[step]}: {why}")

    def _check(self, step: int, move: Step) -> None:
        problem, (item, device, source) = self.problem, move
        if not (0 <= device < problem.devices and RUN <= source < problem.devices):
            raise self._refuse(step, "no such device")
        if source == RUN:
            if not isfinite(problem.cost[device, item]):
                raise self._refuse(step, "the op cannot run there")
            if self.runs[item] and not problem.recompute[item]:
                raise self._refuse(step, "the op may run only once")
            self.runs[item] += 1
            group = int(problem.group[item])
            if group != ANY and self.home.setdefault(group, device) != device:
                raise self._refuse(step, f"group {group} runs on device {self.home[group]}")
        elif source == device or not isfinite(problem.copy[source, device, item]):
            raise self._refuse(step, "there is no such link")

    def _read(self, step: int, values: Sequence[int], device: int) -> None:
        found = []
        for value in values:
            instance = self.current.get((device, value))
            if instance is None:
                raise self._refuse(step, f"value {value} is not on device {device}")
            if not self._held(instance):
                self.deaths[instance] = step
            found.append(instance)
        self.read.append(found)

    def _makes(self, move: Step) -> list[int]:
        if not move.runs:
            return [move.item]
        again = self.runs[move.item] > 1
        return [value for value in self.writes[move.item] if not (again and self.kept[value])]

    def _held(self, instance: int) -> bool:
        value, device, _ = self.births[instance]
        return self.kept[value] and self.schedule.placement[value] == device

    def _make(self, step: int, value: int, device: int) -> None:
        known = self.current.get((device, value))
        if known is not None and self._held(known):
            return
        instance = len(self.births)
        self.births.append((value, device, step))
        self.current[device, value] = instance
        self.deaths.append(len(self.schedule.steps) if self._held(instance) else step)
        self.made[step].append(instance)

    def _complete(self) -> None:
        problem, placed = self.problem, self.schedule.placement
        missing = [op for op, count in enumerate(self.runs) if not count]
        if missing:
            raise InvalidScheduleError(f"ops {missing[:5]} never run")
        for value in np.flatnonzero(problem.keep).tolist():
            where = int(problem.required[value])
            if where not in (ANY, placed[value]):
                raise InvalidScheduleError(
                    f"value {value} must end on device {where}, not {placed[value]}"
                )
            if (placed[value], value) not in self.current:
                raise InvalidScheduleError(f"value {value} never comes to device {placed[value]}")

    def _takeover(self, step: int, move: Step) -> int:
        if not move.runs:
            return -1
        where = dict(zip(self.reads[move.item], self.read[step], strict=True))
        for value in self.inplace[move.item]:
            instance = where.get(value, -1)
            if instance >= 0 and not self.kept[value] and self.deaths[instance] == step:
                return instance
        return -1

    def _resident(self) -> Bytes:
        problem = self.problem
        uses = problem.uses.lists()
        there = {
            (move.device, weight)
            for move in self.schedule.steps
            if move.runs
            for weight in uses[move.item]
        }
        total = problem.fixed.astype(np.int64).copy()
        for device, weight in there:
            total[device] += int(problem.weight[device, weight])
        return total


def bytes_of(problem: Problem, schedule: Schedule, book: Ledger) -> Bytes:
    """:func:`occupancy` of a schedule whose ledger is known."""
    count = len(schedule.steps)
    change = np.zeros((problem.devices, count + 2), np.int64)
    for value, device, birth, death in book.instances:
        change[device, birth] += problem.size[device, value]
        change[device, death + 1] -= problem.size[device, value]
    use = np.cumsum(change[:, :count], axis=1) + book.resident[:, None]
    for step, (item, device, source) in enumerate(schedule.steps):
        if source == RUN:
            use[device, step] += problem.work[device, item]
            taken = book.takeover[step]
            if taken >= 0:
                use[device, step] -= problem.size[device, book.instances[taken].value]
    return use
