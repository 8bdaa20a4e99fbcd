"""What becomes of an order: when each action runs, and how many micro-batches are alive."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from onnxremat.errors import OnnxrematError
from onnxremat.workers.pipeline import BW, KINDS, F, Order, Pipeline, Steps, W
from onnxremat.workers.pipelines import kernels
from onnxremat.workers.pipelines.arrays import shape_of, work_of

Seconds = NDArray[np.float64]


@dataclass(frozen=True)
class Action:
    """One run of a part of a stage.

    Attributes:
        rank, stage, kind, micro_batch: which; ``kind`` is F, B, W or BW.
        start, end: seconds from the first start.
    """

    rank: int
    stage: int
    kind: str
    micro_batch: int
    start: float
    end: float


@dataclass(frozen=True)
class Replay:
    """An order of a pipeline, carried out.

    Attributes:
        start, end: seconds per step, in the order of :attr:`Order.steps`.
        makespan: the last end.
    """

    pipeline: Pipeline
    order: Order
    start: Seconds
    end: Seconds
    makespan: float

    @cached_property
    def peak(self) -> tuple[int, ...]:
        """Most micro-batches alive at once, per stage."""
        found = [0] * self.pipeline.stages
        for steps in self.order.steps:
            change = alive(steps)
            for stage in np.unique(steps // 4):
                found[stage] = int(np.cumsum(change[steps // 4 == stage]).max(initial=0))
        return tuple(found)

    @property
    def bubble(self) -> float:
        """Share of the ranks' time in which they wait."""
        return 1 - self.pipeline.work / (self.order.ranks * self.makespan)

    def rows(self) -> Iterator[tuple[Steps, Seconds, Seconds]]:
        """Per rank its steps, starts and ends."""
        begin = 0
        for steps in self.order.steps:
            until = begin + len(steps)
            yield steps, self.start[begin:until], self.end[begin:until]
            begin = until

    def actions(self) -> Iterator[Action]:
        """Everything that runs, rank by rank."""
        for rank, (steps, starts, ends) in enumerate(self.rows()):
            seen: dict[int, int] = {}
            rows = zip(steps.tolist(), starts.tolist(), ends.tolist(), strict=True)
            for step, start, end in rows:
                k = seen[step] = seen.get(step, -1) + 1
                yield Action(rank, step // 4, KINDS[step % 4], k, start, end)


def alive(steps: Steps) -> NDArray[np.int64]:
    """What each step adds to the micro-batches alive."""
    kind = steps % 4
    return (kind == F).astype(np.int64) - ((kind == W) | (kind == BW))


def carry_out(pipeline: Pipeline, order: Order) -> Replay:
    """Every action as soon as it can, in the order of its rank. Transfers run beside computing.

    Raises:
        OnnxrematError: actions that wait for each other for ever.
    """
    found = try_out(pipeline, order)
    if found is None:
        raise OnnxrematError(
            f"the schedule '{order.name}' never ends", why="its actions wait for each other"
        )
    return found


def try_out(pipeline: Pipeline, order: Order) -> Replay | None:
    """As :func:`carry_out`; None where actions wait for each other for ever."""
    shape = shape_of(pipeline, order.rank, [len(row) for row in order.steps])
    work = work_of(shape)
    steps = np.ascontiguousarray(np.concatenate(order.steps), np.int32)
    makespan = kernels.replay(steps, shape, work)
    if makespan < 0:
        return None
    return Replay(pipeline, order, work.start[: len(steps)], work.end, float(makespan))


def fits(replay: Replay, limit: int | None) -> bool:
    """Whether no stage keeps more micro-batches alive."""
    return limit is None or max(replay.peak) <= limit
