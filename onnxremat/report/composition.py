"""What the memory of each step is made of: the simulator's buffers, sorted by kind."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from onnxremat.graph.ir import Graph
from onnxremat.schedule.simulate import Timeline

SHORT = 0.02  # a buffer that lives for less than this share of the steps is short-lived
SHORT_STEPS = 8  # ... or for no more steps than this

Bytes = NDArray[np.int64]


class Kind(Enum):
    """Why bytes are held, in the order in which they are stacked from the bottom."""

    WEIGHTS = "weights"
    OUTPUTS = "graph outputs"
    KEPT = "values kept for later"
    PASSING = "short-lived values"
    RECOMPUTED = "recomputed values"
    SCRATCH = "operator scratch"


COLOURS = {
    Kind.WEIGHTS: "#2f2f2f",
    Kind.OUTPUTS: "#cc79a7",
    Kind.KEPT: "#1b7fbf",
    Kind.PASSING: "#a6d3ee",
    Kind.RECOMPUTED: "#e69f00",
    Kind.SCRATCH: "#f7efb2",
}


@dataclass(frozen=True, slots=True)
class Held:
    """A buffer held at some step.

    Attributes:
        tensor: the value the buffer was allocated for.
        bytes: its size, rounded as allocated.
        shape: of the tensor, None when unknown.
    """

    tensor: str
    bytes: int
    shape: tuple[int, ...] | None
    kind: Kind


def compose(graph: Graph, timeline: Timeline) -> dict[Kind, Bytes]:
    """Bytes of each kind while each op runs; together they are weights + live + scratch.

    Args:
        graph: the graph that was simulated (its listed order does not matter).
    """
    steps = len(timeline.ops)
    change = {kind: np.zeros(steps + 1, np.int64) for kind in Kind}
    rows = zip(timeline.buffers, kinds_of(graph, timeline), strict=True)
    for (_, first, last, size), kind in rows:
        row = change[kind]
        row[first] += size
        row[last + 1] -= size
    found = {kind: np.cumsum(row)[:steps] for kind, row in change.items()}
    found[Kind.WEIGHTS] += timeline.weight_bytes
    found[Kind.SCRATCH] += np.asarray(timeline.scratch, np.int64)
    return found


def kinds_of(graph: Graph, timeline: Timeline) -> list[Kind]:
    """The kind of every buffer of a timeline, in its order."""
    again, short = recomputed_tensors(graph), short_life(len(timeline.ops))
    return [
        _kind(graph, again, short, name, last - first) for name, first, last, _ in timeline.buffers
    ]


def totals(timeline: Timeline) -> Bytes:
    """Weights + live + scratch bytes while each op runs."""
    live = np.asarray(timeline.live, np.int64) + np.asarray(timeline.scratch, np.int64)
    return live + timeline.weight_bytes


def largest(graph: Graph, timeline: Timeline, step: int, count: int = 3) -> list[Held]:
    """The largest buffers held at a step, largest first."""
    again = recomputed_tensors(graph)
    short = short_life(len(timeline.ops))
    alive = [row for row in timeline.buffers if row[1] <= step <= row[2]]
    alive.sort(key=lambda row: (-row[3], row[1]))
    return [
        Held(name, size, _shape(graph, name), _kind(graph, again, short, name, last - first))
        for name, first, last, size in alive[:count]
    ]


def recomputed_tensors(graph: Graph) -> frozenset[str]:
    """Names of the tensors that recomputations write."""
    return frozenset(name for op in graph.ops if op.origin for name in op.writes)


def short_life(steps: int) -> int:
    """Longest life, in steps, of what counts as short-lived in a run of so many steps."""
    return max(SHORT_STEPS, int(steps * SHORT))


def _kind(graph: Graph, again: frozenset[str], short: int, name: str, life: int) -> Kind:
    if name in graph.outputs:
        return Kind.OUTPUTS
    if name in again:
        return Kind.RECOMPUTED
    return Kind.PASSING if life <= short else Kind.KEPT


def _shape(graph: Graph, name: str) -> tuple[int, ...] | None:
    tensor = graph.tensors.get(name)
    return tensor.shape if tensor else None
