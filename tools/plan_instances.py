"""Generated instances for measuring the planner: transformers and random layered graphs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from random import Random

from onnxremat.planner.problem import Problem


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
    return Problem.plain(sizes, costs, reads)


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


def random_layered(
    count: int, width: float, *, spread: float = 0.75, density: float = 0.27, skips: float = 0.14,
    seed: int = 0,
) -> Problem:  # fmt: skip
    """A random layered graph of the kind of the MOCCASIN study (Bartan et al., ICML 2023).

    One op first, one last, layers between. Fitted to the figures of the study's files: layers hold
    ``2 * width * sqrt(count)`` ops on average, uniform within ``spread`` of it; ops of adjacent
    layers are joined with probability ``density``, and every op has an input and a reader; edges
    over several layers are the share ``skips`` of all. Sizes are half-normal with mean 2000, times
    uniform up to 1000. ``width``, ``spread`` and ``skips`` are the w, nlv and scd of the files'
    names; their ed is 0.2, where the edges in them are 0.27 of the pairs.
    """
    draw = Random(seed)
    layers = [[0]]
    mean = 2 * width * count**0.5
    made = 1
    while made < count - 1:
        ops = round(draw.uniform((1 - spread) * mean, (1 + spread) * mean))
        ops = min(max(1, ops), count - 1 - made)
        layers.append(list(range(made, made + ops)))
        made += ops
    layers.append([count - 1])
    edges: set[tuple[int, int]] = set()
    for above, below in pairwise(layers):
        edges |= {(u, v) for u in above for v in below if draw.random() < density}
        edges |= {(draw.choice(above), v) for v in below if not any((u, v) in edges for u in above)}
        edges |= {(u, draw.choice(below)) for u in above if not any((u, v) in edges for v in below)}
    wanted = round(len(edges) / (1 - skips))
    while len(edges) < wanted and len(layers) > 2:
        first, last = sorted(draw.sample(range(len(layers)), 2))
        if last - first > 1:
            edges.add((draw.choice(layers[first]), draw.choice(layers[last])))
    reads: list[list[int]] = [[] for _ in range(count)]
    for u, v in sorted(edges):
        reads[v].append(u)
    size = [10 * max(1, round(abs(draw.gauss(0, 250)))) for _ in range(count)]
    cost = [0.0, *(float(draw.randint(1, 1000)) for _ in range(count - 2)), 0.0]
    return Problem.plain(size, cost, reads)
