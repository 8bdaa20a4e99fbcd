"""What the memory of each step is made of: the simulator's buffers, sorted by kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from onnxremat.graph.ir import Graph
from onnxremat.schedule.simulate import Timeline
from onnxremat.session.process import Beside

SHORT = 0.02  # a buffer that lives for less than this share of the steps is short-lived
SHORT_STEPS = 8  # ... or for no more steps than this
BACKWARD = "grad/"  # how the ops are called that differentiate adds for the backward pass

Bytes = NDArray[np.int64]


class Kind(Enum):
    """Why bytes are held, in the order in which they are stacked from the bottom."""

    SESSION = "the session's structures"
    INPUTS = "inputs"
    STATE = "parameters and state"
    WEIGHTS = "weights"
    OUTPUTS = "graph outputs"
    KEPT = "values kept for later"
    GRADIENTS = "gradients"
    PASSING = "short-lived values"
    RECOMPUTED = "recomputed values"
    SCRATCH = "operator scratch"


COLOURS = {
    Kind.SESSION: "#bdbdbd",
    Kind.INPUTS: "#d9c8ea",
    Kind.STATE: "#7b5aa6",
    Kind.WEIGHTS: "#2f2f2f",
    Kind.OUTPUTS: "#cc79a7",
    Kind.KEPT: "#1b7fbf",
    Kind.GRADIENTS: "#009e73",
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
    """Bytes of each kind while each op runs; together they are weights + live + scratch, nothing of
    what a process has beside them (:func:`with_beside`).

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


def with_beside(parts: Mapping[Kind, Bytes], beside: Beside) -> dict[Kind, Bytes]:
    """What :func:`compose` found, and what lies beside it from the first step to the last."""
    found = dict(parts)
    for kind, size in (
        (Kind.SESSION, beside.session), (Kind.INPUTS, beside.inputs), (Kind.STATE, beside.state),
    ):  # fmt: skip
        found[kind] = found[kind] + size
    return found


def kinds_of(graph: Graph, timeline: Timeline) -> list[Kind]:
    """The kind of every buffer of a timeline, in its order."""
    kinds = _Kinds.of(graph, timeline)
    return [kinds.kind(name, last - first) for name, first, last, _ in timeline.buffers]


def totals(timeline: Timeline) -> Bytes:
    """Weights + live + scratch bytes while each op runs."""
    live = np.asarray(timeline.live, np.int64) + np.asarray(timeline.scratch, np.int64)
    return live + timeline.weight_bytes


def largest(graph: Graph, timeline: Timeline, step: int, count: int = 3) -> list[Held]:
    """The largest buffers held at a step, largest first."""
    kinds = _Kinds.of(graph, timeline)
    alive = [row for row in timeline.buffers if row[1] <= step <= row[2]]
    alive.sort(key=lambda row: (-row[3], row[1]))
    return [
        Held(name, size, _shape(graph, name), kinds.kind(name, last - first))
        for name, first, last, size in alive[:count]
    ]


def recomputed_tensors(graph: Graph) -> frozenset[str]:
    """Names of the tensors that recomputations write."""
    return frozenset(name for op in graph.ops if op.origin for name in op.writes)


def short_life(steps: int) -> int:
    """Longest life, in steps, of what counts as short-lived in a run of so many steps."""
    return max(SHORT_STEPS, int(steps * SHORT))


@dataclass(frozen=True)
class _Kinds:
    """What tells the kind of a buffer.

    Attributes:
        outputs, recomputed, gradients: tensors of these kinds, the first counting.
        short: longest life, in steps, of what is short-lived.
    """

    outputs: frozenset[str]
    recomputed: frozenset[str]
    gradients: frozenset[str]
    short: int

    @classmethod
    def of(cls, graph: Graph, timeline: Timeline) -> _Kinds:
        """Of a graph and its run."""
        back = (op for op in graph.ops if op.name.startswith(BACKWARD))
        return cls(
            frozenset(graph.outputs),
            recomputed_tensors(graph),
            frozenset(name for op in back for name in op.writes),
            short_life(len(timeline.ops)),
        )

    def kind(self, name: str, life: int) -> Kind:
        """Of the buffer of a tensor that lives for so many steps."""
        if name in self.outputs:
            return Kind.OUTPUTS
        if name in self.recomputed:
            return Kind.RECOMPUTED
        if name in self.gradients:
            return Kind.GRADIENTS
        return Kind.PASSING if life <= self.short else Kind.KEPT


def _shape(graph: Graph, name: str) -> tuple[int, ...] | None:
    tensor = graph.tensors.get(name)
    return tensor.shape if tensor else None
