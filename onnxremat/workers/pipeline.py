"""A pipeline as numbers: stages with their seconds, and the orders in which ranks run them.

A *stage* is a stretch of the model, a *rank* a process that holds one stage or several. Per
micro-batch a stage runs its forward part (F), then the backward part that makes the gradient of its
input (B), then the part that makes the gradients of its weights (W), which no other stage waits
for. B and W may be one action (BW), whose gradient leaves at its end.

Micro-batches are alike, so the k-th F of a stage is taken to be that of micro-batch k, and so for B
and W. Nothing is lost by that: whatever comes k-th in a schedule finds at least k of what it waits
for done, and giving it number k never makes it wait longer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onnxremat.errors import UsageError

Steps = NDArray[np.int32]
F, B, W, BW = range(4)
KINDS = ("F", "B", "W", "BW")
LARGEST = 1 << 20  # stages times micro-batches


@dataclass(frozen=True)
class Pipeline:
    """What there is to schedule.

    Attributes:
        forward, backward, weight: seconds of F, B and W per stage, for one micro-batch.
        micro_batches: of one training step.
        communication: seconds from a stage to the next, or back, one number per boundary; beside
            computing. Nothing between stages of one rank.
        in_flight: most micro-batches that a stage keeps alive at once, None for no limit. A
            micro-batch is alive in a stage from the start of its F to the end of its W.

    Raises:
        UsageError: no stages or micro-batches, or too many, lists of different lengths, seconds out
            of range.
    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    weight: tuple[float, ...]
    micro_batches: int
    communication: tuple[float, ...] = ()
    in_flight: int | None = None

    def __post_init__(self) -> None:
        if not self.forward or self.micro_batches < 1:
            raise UsageError("a pipeline has at least one stage and one micro-batch")
        if len(self.forward) * self.micro_batches > LARGEST:
            raise UsageError(
                f"{len(self.forward)} stages and {self.micro_batches} micro-batches are too many",
                why=f"their product is at most {LARGEST}",
                hint="fewer micro-batches: between its two ends a pipeline repeats itself",
            )
        if self.in_flight is not None and self.in_flight < 1:
            raise UsageError("a stage has to keep one micro-batch alive at least")
        count = len(self.forward)
        if not self.communication:
            object.__setattr__(self, "communication", (0.0,) * (count - 1))
        for name, row, length, least in (
            ("forward", self.forward, count, 1e-12),
            ("backward", self.backward, count, 1e-12),
            ("weight", self.weight, count, 0.0),
            ("communication", self.communication, count - 1, 0.0),
        ):
            if len(row) != length:
                raise UsageError(f"{len(row)} {name} times for {length} of them", where=name)
            if not all(least <= value < 1e12 for value in row):
                limit = f"numbers of {least:g} and more, below 1e12"
                raise UsageError(f"{name} times have to be {limit}, got {list(row)}")

    @property
    def stages(self) -> int:
        """How many."""
        return len(self.forward)

    @property
    def work(self) -> float:
        """Seconds of all actions of a step, on all stages."""
        return self.micro_batches * (sum(self.forward) + sum(self.backward) + sum(self.weight))


@dataclass(frozen=True)
class Order:
    """What each rank runs, in order.

    Attributes:
        name: of the schedule.
        rank: of each stage.
        steps: per rank its actions, each ``4 * stage + kind``; the k-th of a stage and kind is that
            of micro-batch k.
    """

    name: str
    rank: tuple[int, ...]
    steps: tuple[Steps, ...]

    @property
    def ranks(self) -> int:
        """How many."""
        return len(self.steps)


def code(stage: int, kind: int) -> int:
    """An action as a number."""
    return 4 * stage + kind


def modulo(stages: int, ranks: int) -> tuple[int, ...]:
    """Stages dealt out in turn (modulo allocation of Out-Of-Order BackProp; Megatron's chunks)."""
    return tuple(stage % ranks for stage in range(stages))


def folded(stages: int, ranks: int) -> tuple[int, ...]:
    """Stages dealt out to and fro: the first and the last of two rounds meet on one rank (the V of
    ZB-V)."""
    there = [*range(ranks), *reversed(range(ranks))]
    return tuple(there[stage % (2 * ranks)] for stage in range(stages))


def blocks(stages: int, ranks: int) -> tuple[int, ...]:
    """Neighbouring stages together."""
    return tuple(stage * ranks // stages for stage in range(stages))
