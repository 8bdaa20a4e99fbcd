"""How far a run of training is."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import nan

import numpy as np

from onnxremat.errors import TrainingWarning

COUNTS = ("step", "epoch", "batch", "updates", "gathered")  # of Progress, in a checkpoint
ROWS = "rows"  # of a step, in a checkpoint
GATHERS = "accumulate"  # steps per update, in a checkpoint
ORDER = "order"  # of the data's rows, in a checkpoint
LOSS = ("epoch_loss", "epoch_losses")  # their sum in this epoch, of how many; in a checkpoint


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
        moved: updates are of other rows than a checkpoint's were, and not counted from the data's
            place yet.
        total, of: sum of the losses of this epoch, and of how many batches, in whichever process.
        mean: loss of the epoch that ended last, over all of its batches; NaN where none has.
        order: that the data of this epoch are gone through in; "" where it is not known.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    updates: int = 0
    gathered: int = 0
    losses: list[float] = field(default_factory=list, init=False)
    total: float = field(default=0.0, init=False, compare=False)
    of: float = field(default=0.0, init=False, compare=False)
    mean: float = field(default=nan, init=False, compare=False)
    counted: int = field(default=0, init=False, compare=False)
    moved: bool = field(default=False, init=False, compare=False)
    order: str = field(default="", init=False, compare=False)

    @classmethod
    def from_facts(cls, facts: Mapping[str, str], rows: int, gathers: int = 1) -> Progress:
        """Of a checkpoint, counted in steps of so many rows, as many processes make of them, or
        another step, and so many steps per update: at the same place in the data and in the rate's
        schedule. Where the rows seen do not fill such steps, fewer than one of them are seen again.

        Raises:
            KeyError, ValueError: the checkpoint does not say.
        """
        found = cls(**{key: int(facts[key]) for key in COUNTS})
        found.order = facts.get(ORDER, "")
        if found.batch:  # older checkpoints say no losses
            found.total, found.of = (float(facts.get(key, 0.0)) for key in LOSS)
        before, each = int(facts.get(ROWS, rows)), int(facts.get(GATHERS, gathers))
        if before != rows:
            found.counted = before
            for key in ("step", "batch"):
                setattr(found, key, getattr(found, key) * before // rows)
            found.total, found.of = found.total * before / rows, found.of * before / rows
        found.updates = found.updates * before * each // (rows * gathers)
        found.moved = before * each != rows * gathers
        return found

    def facts(self, rows: int, gathers: int = 1) -> dict[str, str]:
        """For a checkpoint."""
        counts = {key: str(getattr(self, key)) for key in COUNTS}
        pace = {ROWS: str(rows), GATHERS: str(gathers)}
        loss = dict(zip(LOSS, map(repr, (self.total, self.of)), strict=True))
        return {**counts, **pace, **loss, **({ORDER: self.order} if self.order else {})}

    def add(self, loss: float) -> None:
        """Of one more batch."""
        self.batch += 1
        self.losses.append(loss)
        self.total, self.of = self.total + loss, self.of + 1

    def end_epoch(self) -> None:
        """The next one begins."""
        self.mean = self.total / self.of if self.of else nan
        self.epoch, self.batch, self.total, self.of = self.epoch + 1, 0, 0.0, 0.0

    def begin(self, order: str, batches: int, gathers: int) -> None:
        """Go through data in an order from here on.

        Args:
            batches: of an epoch.
            gathers: of them per update, the last of an epoch aside.

        Warns:
            TrainingWarning: in the middle of an epoch that was begun in another.
        """
        if self.batch and self.order and order and order != self.order:
            warnings.warn(
                f"what is left of epoch {self.epoch + 1} is taken from {order}, what is done of it "
                f"was taken from {self.order}: some rows come twice in it, and others not at all",
                TrainingWarning,
                stacklevel=3,
            )
        self.order = order
        if self.moved and (self.epoch or self.batch):  # rows left out of an epoch count as seen
            self.updates = self.epoch * -(-batches // gathers) + self.batch // gathers
            self.moved = False

    def where_lost(self) -> str:
        """The step after the last one with a sound loss."""
        sound = np.flatnonzero(np.isfinite(self.losses))
        first = self.step - len(self.losses) + (sound[-1] + 2 if len(sound) else 1)
        if first > self.step:
            return f"step {self.step}"
        return f"the loss is {self.losses[-1]} since step {first}"
