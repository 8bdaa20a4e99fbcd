"""A pipeline and an order of it as the flat arrays that compiled loops take."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxremat.workers.pipeline import Pipeline
from onnxremat.workers.pipelines.kernels import Shape, Work


def shape_of(pipeline: Pipeline, rank: Sequence[int], lengths: Sequence[int]) -> Shape:
    """The pipeline with its stages on these ranks.

    Args:
        lengths: steps of each rank.
    """
    homes = np.array(rank, np.int32)
    held = np.argsort(homes, kind="stable").astype(np.int64)
    sizes = np.bincount(homes, minlength=len(lengths))
    lag = np.array(pipeline.communication, np.float64)
    lag[homes[1:] == homes[:-1]] = 0.0
    limit = pipeline.in_flight or pipeline.micro_batches
    times = (pipeline.forward, pipeline.backward, pipeline.weight)
    return Shape(
        seconds=np.ascontiguousarray(np.array(times, np.float64).T),
        lag=lag,
        rank=homes,
        held=held,
        held_begin=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        begin=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        room=(limit * sizes).astype(np.int64),
        most=np.array([limit], np.int64),
        batches=np.array([pipeline.micro_batches], np.int64),
    )


def work_of(shape: Shape) -> Work:
    """Memory for a replay."""
    steps, ranks, stages = int(shape.begin[-1]), len(shape.room), len(shape.rank)
    pairs = 2 * stages * int(shape.batches[0])
    return Work(
        start=np.zeros(max(steps, ranks)),
        end=np.zeros(steps),
        done=np.zeros(pairs),
        at=np.zeros(pairs, np.int64),
        ran=np.zeros(4 * stages, np.int64),
        next=np.zeros(ranks, np.int64),
        free=np.zeros(ranks),
        queue=np.zeros(ranks, np.int64),
        queued=np.zeros(ranks, np.int64),
        last=np.zeros(steps, np.int64),
    )
