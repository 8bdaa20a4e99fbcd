"""Small training graphs for tests."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np

from onnxremat.planner.problem import Problem


def training(size: list[int], cost: list[float], inputs: list[list[int]]) -> Problem:
    """Forward ops and one gradient op each, in reverse; a gradient reads its op's inputs."""
    count = len(size)
    readers: list[list[int]] = [[] for _ in range(count)]
    for op, row in enumerate(inputs):
        for value in row:
            readers[value].append(op)
    reads, sizes, costs = [list(row) for row in inputs], list(size), list(cost)
    gradient: dict[int, int] = {}
    for op in reversed(range(count)):
        gradient[op] = len(sizes)
        reads.append(sorted({*(gradient[r] for r in readers[op]), *inputs[op]} or {op}))
        sizes.append(size[op])
        costs.append(2 * cost[op])
    return Problem.plain(sizes, costs, reads)


def late_weights(layers: int) -> Problem:
    """A chain, its gradients in reverse, and then those of all weights, small results: each reads
    the gradient behind a layer and what the layer read."""
    reads: list[list[int]] = [[layer - 1] if layer else [] for layer in range(layers)]
    for layer in reversed(range(layers)):
        reads.append([len(reads) - 1, layer] if layer < layers - 1 else [layer])
    for layer in reversed(range(1, layers)):
        reads.append([2 * layers - 1 - layer, layer - 1])
    size = [100] * (2 * layers) + [1] * (layers - 1)
    made = Problem.plain(size, [10.0] * len(reads), reads)
    return replace(made, keep=np.arange(made.values) >= 2 * layers)


def ones(reads: list[list[int]]) -> Problem:
    """Ops that take a second and make a value of a byte each, read by others as given."""
    return Problem.plain([1] * len(reads), [1.0] * len(reads), reads)


def skip_chain(length: int, seed: int, skip: float = 0.0) -> Problem:
    """A chain of ``length // 2`` forward ops, some with a second input further back."""
    draw = Random(seed)
    half = length // 2
    inputs = [[op - 1] if op else [] for op in range(half)]
    for op in range(3, half):
        if draw.random() < skip:
            inputs[op].insert(0, draw.randint(max(0, op - 8), op - 2))
    size = [draw.randint(5, 20) for _ in range(half)]
    return training(size, [float(draw.randint(1, 20)) for _ in range(half)], inputs)


def small_transformer(layers: int) -> Problem:
    """Eight forward ops a layer: norm, q, k, v, scores, context, residual, feed-forward."""
    size, cost, inputs = [8], [1.0], [[]]
    for _ in range(layers):
        x = len(size) - 1
        norm = x + 1
        inputs += [[x], [norm], [norm], [norm], [norm + 1, norm + 2], [norm + 3, norm + 4]]
        inputs += [[x, norm + 5], [norm + 6]]
        size += [8, 8, 8, 8, 24, 8, 8, 8]
        cost += [1.0, 4.0, 4.0, 4.0, 3.0, 3.0, 1.0, 8.0]
    return training(size, cost, inputs)


def graph_file(problem: Problem, path: Path) -> Path:
    """A planner study's graph file of a problem in which op i makes value i."""
    nodes = [
        {"id": op, "cost_cpu": float(cost), "cost_ram": int(size)}
        for op, (cost, size) in enumerate(zip(problem.cost[0], problem.size[0], strict=True))
    ]
    links = [
        {"source": value, "target": op}
        for op, row in enumerate(problem.reads.lists())
        for value in row
    ]
    path.write_text(json.dumps({"graph": {}, "nodes": nodes, "links": links}))
    return path
