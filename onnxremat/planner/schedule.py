"""What planners find: runs and copies in order, and where results end up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from onnxremat.planner.problem import ANY, Problem

RUN = -1  # source of a step that runs an op


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
        placement: for each kept value the device that holds it from its first arrival there to the
            end, -1 for values that are not kept, length m.
    """

    steps: tuple[Step, ...]
    placement: tuple[int, ...]

    @classmethod
    def of(cls, problem: Problem, sequence: Sequence[int], device: int = 0) -> Schedule:
        """Ops in execution order on one device (the only one, by default)."""
        steps = tuple([Step(op, device) for op in sequence])
        return cls(steps, default_placement(problem, steps))

    @cached_property
    def sequence(self) -> tuple[int, ...]:
        """The ops that run, in order: on one device all there is to say."""
        return tuple([step.item for step in self.steps if step.source == RUN])

    @cached_property
    def first_runs(self) -> tuple[int, ...]:
        """Ops in the order of their first runs."""
        return tuple(dict.fromkeys(self.sequence))


class InvalidScheduleError(ValueError):
    """A schedule that cannot be carried out; the message says at which step and why."""


def default_placement(problem: Problem, steps: Sequence[Step]) -> tuple[int, ...]:
    """Devices of kept values: the required one, or where a value is made first."""
    if problem.devices == 1:
        return tuple(np.where(problem.keep, 0, ANY).tolist())
    placed = np.where(problem.keep, problem.required, ANY).tolist()
    writes = problem.writes.lists()
    for step in steps:
        if step.runs:
            for value in writes[step.item]:
                if problem.keep[value] and placed[value] == ANY:
                    placed[value] = step.device
    return tuple(placed)
