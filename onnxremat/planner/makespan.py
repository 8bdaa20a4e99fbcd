"""When every step runs if devices and links work side by side, and what no schedule can beat.

Each device has one compute stream, each link (ordered pair of devices) one copy stream. A step
starts as soon as

- its stream has finished the steps listed before it,
- the instances it reads are there,
- it has been granted its memory: each device grants memory to the runs there and the copies to it
  in the order of the list, each as soon as there is room,
- the other readers of a buffer that its output takes over have finished.

A copy may keep the two devices busy for a part of its time (``Problem.copy_busy``): it puts that
off what each runs after it in the list.

What is granted counts as in use; an instance gives its memory back when all steps that read it
have finished. So no device ever has more in use than its budget, and a step waits at most for the
end of all steps before it: the makespan is never above the sum of all steps.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from onnxremat.planner.problem import Floats, Problem
from onnxremat.planner.schedule import RUN, Schedule
from onnxremat.planner.semantics import Ledger, durations, ledger


@dataclass(frozen=True)
class Timing:
    """Start and end of each step in seconds, shape (steps,)."""

    start: Floats
    finish: Floats

    @property
    def makespan(self) -> float:
        """Seconds from the first start to the last end."""
        return float(self.finish.max(initial=0.0))


def timing(problem: Problem, schedule: Schedule, budgets: Sequence[int]) -> Timing:
    """Carry a schedule out with all streams side by side.

    Args:
        budgets: bytes per device; a schedule that breaks them is timed as if they were met.

    Raises:
        InvalidScheduleError: the schedule cannot be carried out.
    """
    return timing_of(problem, schedule, budgets, ledger(problem, schedule))


def timing_of(problem: Problem, schedule: Schedule, budgets: Sequence[int], book: Ledger) -> Timing:
    """:func:`timing` of a schedule whose ledger is known."""
    return _Streams(problem, schedule, budgets, book).run()


def makespan(problem: Problem, schedule: Schedule, budgets: Sequence[int]) -> float:
    """Seconds a schedule takes with all streams side by side; see :func:`timing`."""
    return timing(problem, schedule, budgets).makespan


class _Streams:
    def __init__(
        self, problem: Problem, schedule: Schedule, budgets: Sequence[int], book: Ledger
    ) -> None:
        self.problem, self.steps, self.book = problem, schedule.steps, book
        self.free = [int(budgets[d]) - int(book.resident[d]) for d in range(problem.devices)]
        self.returns: list[list[tuple[float, int]]] = [[] for _ in range(problem.devices)]
        self.granted = [0.0] * problem.devices  # when memory was last granted there
        self.stream: dict[tuple[int, int], float] = {}
        count = len(book.instances)
        self.there = [0.0] * count  # when an instance is made
        self.done = [0.0] * count  # when its readers so far have finished

    def run(self) -> Timing:
        length = durations(self.problem, self.steps)
        start, finish = np.zeros(len(length)), np.zeros(len(length))
        for step, took in enumerate(length):
            start[step] = self._start(step)
            finish[step] = start[step] + took
            self._finish(step, float(finish[step]))
        return Timing(start, finish)

    def _start(self, step: int) -> float:
        _, device, source = self.steps[step]
        begin = max(self.stream.get((source, device), 0.0), self._grant(step, device))
        for instance in self.book.read[step]:
            begin = max(begin, self.there[instance])
        taken = self.book.takeover[step]
        if taken >= 0:
            begin = max(begin, self.done[taken])
        return begin

    def _grant(self, step: int, device: int) -> float:
        """When the device has room for the step, after all grants before."""
        need, returns, when = self._need(step), self.returns[device], self.granted[device]
        while returns and (returns[0][0] <= when or self.free[device] < need):
            back, amount = heapq.heappop(returns)
            self.free[device] += amount
            when = max(when, back)
        self.free[device] -= need
        self.granted[device] = when
        return when

    def _need(self, step: int) -> int:
        item, device, source = self.steps[step]
        need = sum(self._bytes(instance) for instance in self.book.made[step])
        if source < 0:
            need += int(self.problem.work[device, item])
        taken = self.book.takeover[step]
        return need - (self._bytes(taken) if taken >= 0 else 0)

    def _bytes(self, instance: int) -> int:
        value, device, _, _ = self.book.instances[instance]
        return int(self.problem.size[device, value])

    def _finish(self, step: int, end: float) -> None:
        item, device, source = self.steps[step]
        self.stream[source, device] = end
        if source >= 0:
            for which, busy in enumerate((source, device)):
                took = float(self.problem.busy[which, busy, item])
                self.stream[RUN, busy] = self.stream.get((RUN, busy), 0.0) + took
        if source < 0 and self.problem.work[device, item]:
            self._give_back(device, end, int(self.problem.work[device, item]))
        for instance in self.book.made[step]:
            self.there[instance] = self.done[instance] = end
        taken = self.book.takeover[step]
        for instance in dict.fromkeys([*self.book.read[step], *self.book.made[step]]):
            self.done[instance] = max(self.done[instance], end)
            where = self.book.instances[instance]
            if where.death == step and instance != taken:
                self._give_back(where.device, self.done[instance], self._bytes(instance))

    def _give_back(self, device: int, when: float, amount: int) -> None:
        heapq.heappush(self.returns[device], (when, amount))


def critical_path(problem: Problem) -> float:
    """Seconds that no makespan is below, whatever memory there is: the longest chain of runs and
    the copies between them.

    The earliest end of a run of an op on a device is that of its latest input, each brought from
    the device where that ends soonest, and the seconds of the run.
    """
    path = _quickest_copies(problem)
    ready = np.full((problem.devices, problem.values), inf)  # earliest a value is on a device
    reads, writes = problem.reads.lists(), problem.writes.lists()
    last = 0.0
    for op in range(problem.ops):
        begin = ready[:, reads[op]].max(axis=1, initial=0.0)
        end = begin + problem.cost[:, op]
        last = max(last, float(end.min()))
        for value in writes[op]:
            ready[:, value] = (end[:, None] + path[:, :, value]).min(axis=0)
    goals = np.flatnonzero(problem.keep & (problem.required >= 0))
    return max(last, float(ready[problem.required[goals], goals].max(initial=0.0)))


def _quickest_copies(problem: Problem) -> Floats:
    """Seconds to bring each value from one device to another, over others too, shape (D, D, m)."""
    path = problem.copy.astype(np.float64).copy()
    every = np.arange(problem.devices)
    path[every, every] = 0.0
    for over in every:
        path = np.minimum(path, path[:, over, None, :] + path[None, over, :, :])
    return path
