"""The least seconds that any order of a pipeline takes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxremat.workers.pipeline import Pipeline
from onnxremat.workers.pipelines import kernels
from onnxremat.workers.pipelines.arrays import shape_of


def lower_bound(pipeline: Pipeline, rank: Sequence[int]) -> float:
    """Seconds that no order goes below, whatever it does, with the stages on these ranks.

    Before each action some others must have run, and after it others follow: a head and a tail,
    found by recursion over stages and micro-batches, with the limit of those alive. Each rank then
    is one machine whose jobs have heads and tails; its shortest preemptive schedule (Jackson's
    rule) takes no longer than any real one.
    """
    stages, m = pipeline.stages, pipeline.micro_batches
    ranks = max(rank) + 1
    held = np.bincount(rank, minlength=ranks)
    shape = shape_of(pipeline, rank, [3 * m * int(count) for count in held])
    head, tail = np.zeros((3 * stages, m)), np.zeros((3 * stages, m))
    kernels.heads_and_tails(shape, head, tail, pipeline.in_flight or 0)
    rows = 3 * int(held.max())
    busy = kernels.one_machine(shape, head, tail, np.zeros(rows, np.int64), np.zeros(rows))
    took = shape.seconds.reshape(-1, 1)
    return float(max(busy, (head + took + tail).max()))
