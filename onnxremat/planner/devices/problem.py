"""A model on several devices: pure numbers, and the reference semantics of time and memory.

A :class:`DeviceProblem` is what the planners of this package read; a :class:`Schedule` is what
they find. ``occupancy`` and ``makespan`` are the judges: everything compiled or formulated
elsewhere must agree with them to the byte. Swapping is copying to a device that computes nothing
and back; nothing else about it is special.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from onnxremat.planner.problem import Bytes, Floats, Ints, Problem, Rows

RUN = -1  # source of a step that runs an op
ANY = -1  # no required device, no group


class Step(NamedTuple):
    """Run op ``item`` on ``device``, or copy value ``item`` from ``source`` to ``device``."""

    item: int
    device: int
    source: int = RUN

    @property
    def runs(self) -> bool:
        """True when the step runs an op, False when it copies a value."""
        return self.source == RUN


@dataclass(frozen=True)
class Schedule:
    """Steps in order, and where results end up.

    Attributes:
        steps: runs and copies; a further run of an op is a recomputation.
        hold: for each kept value the device that holds it from its first arrival there to the
            end, -1 for values that are not kept, length m.
    """

    steps: tuple[Step, ...]
    hold: tuple[int, ...]


@dataclass(frozen=True)
class DeviceProblem:
    """Ops ``0..n-1`` in a topological base order on devices ``0..D-1``.

    A run of an op on a device starts a new *instance* there of each value it makes, a copy one of
    the value it copies. An instance lives from that step to the last step that reads it on that
    device, being the source of a copy included; a copy takes memory on both sides while it lasts.
    A kept value is made once, by the first run of its op, and copied otherwise; it has a hold
    device (``goal``, or a choice of the schedule where that is -1): the first instance there is the
    only one there and lives to the end. While a step goes on, a device has in use

        fixed + weights of all ops that ever run there + live instances (inputs, outputs included)
        + work[d, v] - takeover   when the step runs op v there,

    where takeover is the size of the first value in ``inplace[v]`` that is not kept and whose
    instance is read for the last time by this step. Every op runs at least once on some device.

    A graph input given on a device is an op that costs nothing, may run again, runs only there,
    and makes a value of size 0 there (the caller holds it); ``given`` such ops come first.

    Attributes:
        names: of the devices, length D.
        cost: seconds per run, shape (D, n); ``inf`` where an op cannot run.
        work: workspace bytes while an op runs, shape (D, n).
        size: bytes of each value on each device, shape (D, m).
        copy: seconds to copy a value from the first to the second device, shape (D, D, m);
            ``inf`` where there is no link.
        reads, writes, inplace: values per op, as in :class:`~onnxremat.planner.problem.Problem`.
        keep: values that must be there at the end, shape (m,).
        goal: device where a kept value must be at the end, -1 for any, shape (m,).
        recompute: ops that may run more than once (all devices together), shape (n,).
        group: colocation group of each op, -1 for none, shape (n,): all runs of all ops of a
            group are on one device.
        uses: weights each op reads (n rows); a weight is resident throughout on every device on
            which some op that reads it runs.
        weight: bytes of each weight, shape (w,).
        fixed: bytes resident throughout on each device, shape (D,).
        given: number of leading ops that only stand for graph inputs.
        toll: seconds of a copy's own that also keep the device it comes from (0) and the one it
            goes to (1) from running ops, shape (2, D, m), no more than the copy takes; None for
            links that do it all by themselves. They count in the makespan only.
    """

    names: tuple[str, ...]
    cost: Floats
    work: Bytes
    size: Bytes
    copy: Floats
    reads: Rows
    writes: Rows
    inplace: Rows
    keep: NDArray[np.bool_]
    goal: Ints
    recompute: NDArray[np.bool_]
    group: Ints
    uses: Rows
    weight: Bytes
    fixed: Bytes
    given: int = 0
    toll: Floats | None = None

    @property
    def devices(self) -> int:
        """Number of devices, D."""
        return len(self.names)

    @property
    def ops(self) -> int:
        """Number of ops, n."""
        return int(self.cost.shape[1])

    @property
    def values(self) -> int:
        """Number of values, m."""
        return int(self.size.shape[1])

    @cached_property
    def tolls(self) -> Floats:
        """``toll``, zeros where there is none, shape (2, D, m)."""
        if self.toll is None:
            return np.zeros((2, self.devices, self.values))
        return self.toll

    @cached_property
    def skeleton(self) -> Problem:
        """One device with the least cost of each op: same ids, for orders and dependencies."""
        return Problem(
            cost=self.cost.min(axis=0),
            work=self.work.min(axis=0),
            reads=self.reads,
            writes=self.writes,
            size=self.size.max(axis=0),
            keep=self.keep,
            inplace=self.inplace,
            recompute=self.recompute,
            fixed=0,
        )

    @cached_property
    def reference(self) -> float:
        """Seconds that shares of time refer to: each op once on the best single device that can
        run all of them, or each on its own best device when no device can."""
        alone = float(self.cost.sum(axis=1).min())
        return alone if isfinite(alone) else float(self.cost.min(axis=0).sum())

    def runs_on(self, op: int) -> list[int]:
        """Devices an op can run on."""
        return [d for d in range(self.devices) if isfinite(self.cost[d, op])]


class InvalidScheduleError(ValueError):
    """A schedule that cannot be carried out; the message says at which step and why."""


def seconds(problem: DeviceProblem, schedule: Schedule) -> float:
    """Sum of the seconds of all runs and copies, one after the other."""
    return float(sum(durations(problem, schedule.steps)))


def durations(problem: DeviceProblem, steps: Sequence[Step]) -> list[float]:
    """Seconds of each step."""
    return [
        float(problem.cost[d, item] if source == RUN else problem.copy[source, d, item])
        for item, d, source in steps
    ]


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


def ledger(problem: DeviceProblem, schedule: Schedule) -> Ledger:
    """Follow every instance of a schedule.

    Raises:
        InvalidScheduleError: a step reads what is not there, runs or copies where it cannot, runs
            an op again that must not or breaks a group; an op never runs; a result is missing.
    """
    return _Walk(problem, schedule).finish()


class _Walk:
    def __init__(self, problem: DeviceProblem, schedule: Schedule) -> None:
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
        return self.kept[value] and self.schedule.hold[value] == device

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
        problem, hold = self.problem, self.schedule.hold
        missing = [op for op, count in enumerate(self.runs) if not count]
        if missing:
            raise InvalidScheduleError(f"ops {missing[:5]} never run")
        for value in np.flatnonzero(problem.keep).tolist():
            goal = int(problem.goal[value])
            if goal not in (ANY, hold[value]):
                raise InvalidScheduleError(
                    f"value {value} must end on device {goal}, not {hold[value]}"
                )
            if (hold[value], value) not in self.current:
                raise InvalidScheduleError(f"value {value} never comes to device {hold[value]}")

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
            total[device] += int(problem.weight[weight])
        return total


def occupancy(problem: DeviceProblem, schedule: Schedule) -> Bytes:
    """Bytes in use on each device while each step goes on, shape (D, len(steps)).

    Raises:
        InvalidScheduleError: see :func:`ledger`.
    """
    return bytes_of(problem, schedule, ledger(problem, schedule))


def bytes_of(problem: DeviceProblem, schedule: Schedule, book: Ledger) -> Bytes:
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


def peaks(problem: DeviceProblem, schedule: Schedule) -> Bytes:
    """Largest occupancy of each device, in bytes, shape (D,)."""
    return occupancy(problem, schedule).max(axis=1, initial=0)


def fits(problem: DeviceProblem, schedule: Schedule, budgets: Sequence[int]) -> bool:
    """True when no device is ever over its budget.

    Raises:
        InvalidScheduleError: see :func:`ledger`.
    """
    return bool((peaks(problem, schedule) <= np.asarray(budgets)).all())


def first_runs(schedule: Schedule) -> list[int]:
    """Ops in the order of their first runs."""
    return list(dict.fromkeys(step.item for step in schedule.steps if step.runs))


def least_seconds(problem: DeviceProblem) -> float:
    """Seconds of each op once on its best device: no schedule takes less."""
    return float(problem.cost.min(axis=0).sum()) if problem.ops else 0.0


def default_hold(problem: DeviceProblem, steps: Sequence[Step]) -> tuple[int, ...]:
    """Hold devices: the goal, or where a value is made first."""
    hold = np.where(problem.keep, problem.goal, ANY).tolist()
    writes = problem.writes.lists()
    for step in steps:
        if step.runs:
            for value in writes[step.item]:
                if problem.keep[value] and hold[value] == ANY:
                    hold[value] = step.device
    return tuple(hold)
