"""A training step within a budget, its forward pass in parts before it is differentiated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from onnxremat.fission.training import BATCH, ROWS, StepParts
from onnxremat.pipeline.closed_loop import Candidate
from onnxremat.pipeline.in_parts.step_in_parts import prepare_step
from onnxremat.pipeline.in_parts.ways_in_parts import LEANER, InParts, attempt_in_parts
from onnxremat.pipeline.in_session import OneSession
from onnxremat.pipeline.limits import Limit, limit_of
from onnxremat.pipeline.prepared import Prepared

MOST = 64  # parts of a batch
MOST_OPS = 32_000  # of a step in parts
NOT_EVERY = "in parts none was found, which is no proof that there is none"
# Rows of images: the largest values alone, and those of half their size, too. More parts than four
# take more time for rows that two parts need than they save in recomputation.
IMAGES = (StepParts(ROWS, 4, 0.75), StepParts(ROWS, 4, 0.4))


def applies_to_step(prepared: Prepared) -> bool:
    """Whether a model is a step that was made here, in an order that nobody asked for."""
    return prepared.settings.train is not None and not why_whole(prepared)


def why_whole(prepared: Prepared) -> str:
    """Why a training step cannot be in parts, "" where it can be; for people."""
    train = prepared.settings.train
    if train is None or prepared.unsplit.forward is None:
        return "the file holds a step already; optimize --train splits the model that it is made of"
    if train.loss_output is not None:
        return "the loss is an output of the model (--loss-output)"
    return "" if prepared.settings.dw_policy is None else "its order is that of --dw-policy"


@dataclass
class StepInParts(InParts):
    """Plans of a step with its batch, or rows of its largest images, in parts."""

    def _within(self, limit: Limit, why: str) -> Candidate | None:
        """The quickest: of as few parts of the batch as fit without recomputation (or of the
        leanest, with it), or else of rows in parts."""
        room = limit.planned - self.prepared.weights
        last: Prepared | None = None
        for split in self._batches(max(room, 1), why):
            allowed = limit_of(split, self.budget) or limit
            if split.store_all_peak > LEANER * (last or self.prepared).store_all_peak:
                break
            last = split
            if split.store_all_peak <= allowed.planned:
                break
        splits = [last] if last is not None else list(self._images(why))
        best: Candidate | None = None
        for number, split in enumerate(splits):
            if best is not None and self.options.stopped:
                break
            allowed = limit_of(split, self.budget) or limit
            options = self.options.within(1 / (len(splits) - number))
            target = OneSession(split, allowed, self.log)
            found = attempt_in_parts(target, options, self.whole)
            if not isinstance(found, Candidate):
                continue
            self._seen(found.kept)
            if best is None or found.artifact.seconds < best.artifact.seconds:
                best = found
        return best

    def _why_not_proven(self, limit: Limit) -> str:
        if 2 * len(self.prepared.graph.ops) > MOST_OPS:
            return f"parts of a step of more than {MOST_OPS // 2} ops are not tried"
        return "" if self.smallest is None else NOT_EVERY

    def _leanest(self) -> Prepared | None:
        """As many parts of the batch as need less and less, or rows in parts."""
        best: Prepared | None = None
        for ways in (self._batches(0, "needs more"), self._images("needs more")):
            for split in ways:
                if split.store_all_peak > LEANER * (best or self.prepared).store_all_peak:
                    break
                best = split
        return best

    def _batches(self, room: int, why: str) -> Iterator[Prepared]:
        """More and more parts of the batch, from as many as may fit, or as there can be.

        Args:
            room: bytes of values; 0 for as little as can be.
        """
        parts, values = 2, self.prepared.store_all_peak - self.prepared.weights
        while room and parts * room < values and self._may_be(2 * parts):
            parts *= 2
        split = self._split(StepParts(BATCH, parts), why) if self._may_be(parts) else None
        while split is None and parts > 2 and not (self.late or self.options.stopped):
            parts //= 2  # there are fewer rows
            split = self._split(StepParts(BATCH, parts), why)
        while split is not None:
            yield split
            if self.options.stopped or (self.options.left <= 0 and not room):
                return
            parts *= 2
            split = self._split(StepParts(BATCH, parts), why) if self._may_be(parts) else None

    def _may_be(self, parts: int) -> bool:
        return parts <= MOST and parts * len(self.prepared.graph.ops) <= MOST_OPS

    def _images(self, why: str) -> Iterator[Prepared]:
        for parts in IMAGES:
            split = self._split(parts, why)
            if split is not None:
                yield split

    def _split(self, parts: StepParts, why: str) -> Prepared | None:
        """The step in parts, None where it does not go or nobody waits for it any more."""
        left = self.options.left
        split = self._made(lambda: prepare_step(self.prepared, parts, self.log, left))
        if split is None:
            return None
        more = split.costs.total / self.prepared.costs.total - 1
        what = (
            f"{parts}, forward and back (whole: {why}; --fission off keeps it whole), which takes "
            f"{more:+.1%} of the whole's time"
        )
        return self._noted(split, what, "step")
