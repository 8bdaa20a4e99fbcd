"""Training on several processes, each with batches of its own: the mean of all gradients updates.

Every rank holds all parameters and state and makes the same update, from sums of gradients that are
the same bits everywhere. The sums of many parameters lie in one array (a *bucket*), so that they
travel together, without being copied.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from onnxremat.errors import UsageError
from onnxremat.grad.dropout import COUNTER
from onnxremat.grad.update import update_of
from onnxremat.graph.onnx_io import read_model
from onnxremat.training.data import Batch, Data
from onnxremat.training.state import Source, Step
from onnxremat.training.trainer import Trainer
from onnxremat.workers.gathering import gathering
from onnxremat.workers.mpi import Ranks

BUCKET = 8 << 20  # bytes from which a bucket is full
ALIGNED = 64  # bytes that an array in a bucket starts at a multiple of
APART = 1 << 40  # between the counters of dropout of two ranks


class DataParallel(Trainer):
    """A trainer that is one of several.

    The mean over ranks is that of the joined batch where the loss is a mean over rows. Batch
    normalization uses the rows of its own rank; its running statistics are means over ranks. Masks
    of dropout differ between ranks.

    Args:
        ranks: who the others are; otherwise as :class:`Trainer`.
    """

    def __init__(self, graph: Source, weights: Any = None, *, ranks: Ranks, **options: Any) -> None:
        self.ranks = ranks
        self._buckets: list[np.ndarray] = []
        super().__init__(graph, weights, **options)
        self._draw_apart()

    def _open(self, graph: Source, without: str) -> Step:
        step = super()._open(graph, without)
        if update_of(step.model) is not None:
            return step
        if step.file is not None:  # what is cut has no file of its own
            step = Step(read_model(step.file), step.folder, None)
        return replace(step, model=gathering(step.model))

    def _arrange(self, arrays: dict[str, np.ndarray]) -> None:
        """Sums of one element type side by side, in buckets."""
        kinds: dict[np.dtype, list[str]] = {}
        for name in self._sums:
            kinds.setdefault(arrays[name].dtype, []).append(name)
        for kind, group in kinds.items():
            waiting, size = dict[str, int](), 0
            for name in group:
                waiting[name] = size
                size += -(-arrays[name].nbytes // ALIGNED) * ALIGNED
                if size >= BUCKET or name == group[-1]:
                    self._buckets.append(_laid_out(arrays, waiting, size, kind))
                    waiting, size = {}, 0

    def _join(self, gathered: int) -> int:
        """Everybody's gradients into everybody's sums; how many batches they are of."""
        self.pull_state()
        self.ranks.add_up(self._buckets)
        moved = [v.input for v in self.training.states if v.initial == "model" and v.output]
        statistics = [self.state[name] for name in moved]  # those that the step itself moves
        self.ranks.add_up(statistics)
        for array in statistics:
            array /= self.ranks.size
        self.push_state()
        return gathered * self.ranks.size

    def step(self, batch: Batch, rate: float | None = None) -> float:
        """One step on this rank's batch; returns the mean of all ranks' losses."""
        return self.ranks.mean(super().step(batch, rate))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint, which any number of ranks may go on from."""
        if self.ranks.first:
            super().save(path)

    def resume(self, path: str | os.PathLike[str]) -> None:
        """Go on from a checkpoint."""
        super().resume(Path(path))
        if self.progress.gathered:
            raise UsageError(
                f"{path} holds gradients that wait for an update",
                why="they are those of one process",
                hint="go on without --data-parallel until the next update",
            )
        self._draw_apart()

    def _draw_apart(self) -> None:
        if COUNTER in self.state:
            self.state[COUNTER] += self.ranks.rank * APART
            self.push_state()


def _laid_out(
    arrays: dict[str, np.ndarray], places: Mapping[str, int], size: int, kind: np.dtype
) -> np.ndarray:
    """Arrays moved into one of ``size`` bytes, which is returned."""
    room = np.zeros(size + ALIGNED, np.uint8)
    room = room[-room.ctypes.data % ALIGNED :][:size]
    for name, place in places.items():
        old = arrays[name]
        arrays[name] = room[place : place + old.nbytes].view(kind).reshape(old.shape)
        np.copyto(arrays[name], old)
    return room.view(kind)


class Shard:
    """Every so manieth batch of data: one rank's share, the same number for all.

    Together the ranks see in a step what one process sees whose batches are as large as all of
    theirs, in the same order.

    Raises:
        UsageError: fewer batches than ranks.
    """

    def __init__(self, data: Data, ranks: Ranks) -> None:
        self._data, self._ranks = data, ranks
        if len(data) < ranks.size:
            raise UsageError(
                f"{len(data)} batches are too few for {ranks.size} processes",
                hint="fewer processes, more data, or a step with a smaller batch",
            )

    def __len__(self) -> int:
        return len(self._data) // self._ranks.size

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """This rank's batches of an epoch, from its batch ``start``."""
        size = self._ranks.size
        batches = self._data.epoch(number, start * size)
        for k, batch in enumerate(batches):
            if k >= (len(self) - start) * size:
                return
            if k % size == self._ranks.rank:
                yield batch
