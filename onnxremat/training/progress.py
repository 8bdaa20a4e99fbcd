"""How far a run of training is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

COUNTS = ("step", "epoch", "batch", "updates", "gathered")  # of Progress, in a checkpoint
ROWS = "rows"  # of a step, in a checkpoint


@dataclass
class Progress:
    """How far a run is.

    Attributes:
        step: batches done.
        epoch, batch: the next batch.
        updates: of the parameters; as many as steps unless gradients are accumulated.
        gathered: batches whose gradients wait for an update.
        losses: of all steps of this process, for a curve.
        counted: rows of the steps that a checkpoint had counted, where they were others.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    updates: int = 0
    gathered: int = 0
    losses: list[float] = field(default_factory=list, init=False)
    counted: int = field(default=0, init=False, compare=False)

    @classmethod
    def from_facts(cls, facts: Mapping[str, str], rows: int) -> Progress:
        """Of a checkpoint, counted in steps of so many rows, as many processes make of them, or
        another step: at the same place in the data and in the rate's schedule. Where the rows seen
        do not fill such steps, fewer than one of them are seen again.

        Raises:
            KeyError, ValueError: the checkpoint does not say.
        """
        found = cls(**{key: int(facts[key]) for key in COUNTS})
        before = int(facts.get(ROWS, rows))
        if before != rows:
            found.counted = before
            for key in ("step", "batch", "updates"):
                setattr(found, key, getattr(found, key) * before // rows)
        return found

    def facts(self, rows: int) -> dict[str, str]:
        """For a checkpoint."""
        return {**{key: str(getattr(self, key)) for key in COUNTS}, ROWS: str(rows)}

    def where_lost(self) -> str:
        """The step after the last one with a sound loss."""
        sound = np.flatnonzero(np.isfinite(self.losses))
        first = self.step - len(self.losses) + (sound[-1] + 2 if len(sound) else 1)
        if first > self.step:
            return f"step {self.step}"
        return f"the loss is {self.losses[-1]} since step {first}"
