"""Instances for measuring the planner: study graph files and generated training graphs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxremat.plan.problem import Problem, Rows


def training_graph(
    size: Sequence[int],
    cost: Sequence[float],
    inputs: Sequence[Sequence[int]],
    saved: Sequence[Sequence[int]],
) -> Problem:
    """Forward ops, a loss, and one gradient op per forward op in reverse order.

    Args:
        size: bytes of each forward value.
        cost: time of each forward op; its gradient takes twice as long.
        inputs: forward values each forward op reads.
        saved: forward values the gradient of each op reads besides its consumers' gradients.
    """
    count = len(size)
    readers: list[list[int]] = [[] for _ in range(count)]
    for op, row in enumerate(inputs):
        for value in row:
            readers[value].append(op)
    sizes, costs, reads = list(size), list(cost), [list(row) for row in inputs]
    sizes.append(4)
    costs.append(1e-9)
    reads.append([op for op in range(count) if not readers[op]])
    gradient: dict[int, int] = {}
    for op in reversed(range(count)):
        gradient[op] = len(sizes)
        sizes.append(max((size[value] for value in inputs[op]), default=size[op]))
        costs.append(2 * cost[op])
        above = [gradient[later] for later in readers[op]] or [count]
        reads.append(sorted({*above, *saved[op]}))
    return one_value_each(sizes, costs, reads)


def one_value_each(
    size: Sequence[int], cost: Sequence[float], reads: Sequence[Sequence[int]]
) -> Problem:
    """Problem in which op i makes value i and everything may be recomputed."""
    count = len(size)
    return Problem(
        cost=np.asarray(cost, np.float64),
        work=np.zeros(count, np.int64),
        reads=Rows.of(reads),
        writes=Rows.of([[op] for op in range(count)]),
        size=np.asarray(size, np.int64),
        keep=np.zeros(count, np.bool_),
        inplace=Rows.of([[] for _ in range(count)]),
        recompute=np.ones(count, np.bool_),
    )


def transformer(layers: int, *, batch: int = 8, length: int = 512, width: int = 768) -> Problem:
    """Training graph of a BERT-like encoder, 15 forward ops a layer, 12 heads, roofline times."""
    flops, bandwidth, heads = 100e12, 1.5e12, 12
    tokens, scores = batch * length, batch * heads * length * length
    size: list[int] = []
    cost: list[float] = []
    inputs: list[list[int]] = []
    saved: list[list[int]] = []

    def add(
        elements: float, work: float, moved: float, reads: list[int], *, keep: str = "input"
    ) -> int:
        op = len(size)
        size.append(int(2 * elements))
        cost.append(max(work / flops, 2 * moved / bandwidth) * 1e6 + 2.0)
        inputs.append(reads)
        saved.append({"input": reads, "output": [op], "none": []}[keep])
        return op

    flat, head = tokens * width, width / heads
    x = add(flat, 0, flat, [], keep="none")
    for _ in range(layers):
        norm = add(flat, 0, 2 * flat, [x])
        q, k, v = (add(flat, 2 * flat * width, 2 * flat, [norm]) for _ in range(3))
        score = add(scores, 2 * scores * head, scores + 2 * flat, [q, k])
        soft = add(scores, 0, 2 * scores, [score], keep="output")
        drop = add(scores, 0, 2 * scores, [soft], keep="none")
        context = add(flat, 2 * scores * head, scores + flat, [drop, v])
        project = add(flat, 2 * flat * width, 2 * flat, [context])
        first = add(flat, 0, 3 * flat, [x, project], keep="none")
        norm2 = add(flat, 0, 2 * flat, [first])
        wide = add(4 * flat, 8 * flat * width, 5 * flat, [norm2])
        gelu = add(4 * flat, 0, 8 * flat, [wide])
        narrow = add(flat, 8 * flat * width, 5 * flat, [gelu])
        x = add(flat, 0, 3 * flat, [first, narrow], keep="none")
    return training_graph(size, cost, inputs, saved)
