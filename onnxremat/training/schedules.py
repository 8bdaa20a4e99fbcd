"""Learning-rate schedules: the rate is an input of the step, so any function of time will do."""

from __future__ import annotations

import math
from dataclasses import dataclass

from onnxremat.errors import UsageError
from onnxremat.limits import at_least

KINDS = ("constant", "linear", "cosine", "step")
FALLING = ("linear", "cosine")  # to a floor, at the end


@dataclass(frozen=True)
class Schedule:
    """A learning rate over the updates of a run.

    Attributes:
        rate: the highest one.
        kind: ``constant``; ``linear`` or ``cosine`` down to ``floor`` at the end; ``step`` times
            ``factor`` every ``every`` updates.
        warmup: updates over which it rises from 0.
        floor: lowest rate of linear and cosine.
        every, factor: of the kind ``step``.

    Raises:
        UsageError: an unknown kind, a negative number, or a floor above the rate.
    """

    rate: float
    kind: str = "constant"
    warmup: int = 0
    floor: float = 0.0
    every: int = 1000
    factor: float = 0.1

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UsageError(
                f"unknown schedule '{self.kind}'", hint="schedules are " + ", ".join(KINDS)
            )
        if self.every < 1:
            raise UsageError(f"a rate cannot drop every {self.every} updates")
        for name in ("rate", "warmup", "floor", "factor"):
            at_least(getattr(self, name), 0, name)
        if self.floor > self.rate and self.kind in FALLING:
            raise UsageError(
                f"the floor of {self.floor:g} is above the rate of {self.rate:g}",
                hint="the rate is the highest one, the floor where it ends",
            )

    def at(self, step: int, total: int) -> float:
        """The rate of update ``step`` (from 0) of ``total``.

        Raises:
            UsageError: the schedule falls towards an end, and ``total`` is not known (0).
        """
        if step < self.warmup:
            return self.rate * (step + 1) / self.warmup
        if self.kind == "constant":
            return self.rate
        if self.kind == "step":
            return self.rate * self.factor ** ((step - self.warmup) // self.every)
        if not total:
            raise UsageError(
                f"the schedule '{self.kind}' needs to know how many updates there will be",
                hint="train with fit(), or give each step its rate",
            )
        part = min(1.0, (step - self.warmup) / max(1, total - self.warmup))
        fall = 1.0 - part if self.kind == "linear" else 0.5 * (1.0 + math.cos(math.pi * part))
        return self.floor + (self.rate - self.floor) * fall
