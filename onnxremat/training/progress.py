"""How far a run of training is."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass
class Progress:
    """How far a run is.

    Attributes:
        step: batches done.
        epoch, batch: the next batch.
        updates: of the parameters; as many as steps unless gradients are accumulated.
        gathered: batches whose gradients wait for an update.
        losses: of all steps of this process, for a curve.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    updates: int = 0
    gathered: int = 0
    losses: list[float] = field(default_factory=list, init=False)

    def where_lost(self) -> str:
        """The step after the last one with a sound loss."""
        sound = np.flatnonzero(np.isfinite(self.losses))
        first = self.step - len(self.losses) + (sound[-1] + 2 if len(sound) else 1)
        if first > self.step:
            return f"step {self.step}"
        return f"the loss is {self.losses[-1]} since step {first}"


COUNTS = ("step", "epoch", "batch", "updates", "gathered")  # of Progress, in a checkpoint
