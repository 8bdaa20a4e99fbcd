"""Where a step is cut to stages of a pipeline: so that the slowest takes as little as it can."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from onnx import helper

from onnxremat.cost.analytic import analytic_costs
from onnxremat.errors import ModelError, UsageError
from onnxremat.graph.ir import Graph, Tensor
from onnxremat.ort.binding import BoundState
from onnxremat.ort.session import Options
from onnxremat.workers.pieces import Piece, Pieces, Pool
from onnxremat.workers.pipeline import B, F, Pipeline, W
from onnxremat.workers.sums.layers import Key, even_cuts, forward_ops

FINE = 4  # layers that are measured per stage wanted, at least ...
LEAST = 16  # ... and in all
SHORTEST = 1e-9  # seconds that a simulated part takes at least
RUNS = 3  # of every part, of which the quickest counts
CACHES = 32 << 20  # bytes that are touched between two runs where caches are to be cold


def fine_cuts(graph: Graph, stages: int) -> list[str]:
    """Cuts for measuring: more than stages are wanted."""
    return even_cuts(graph, max(FINE * stages, LEAST))


def named_cuts(graph: Graph, text: str) -> list[str]:
    """Cuts by hand: ``a,b`` for a stage up to op a, one up to op b, and the rest.

    Raises:
        UsageError: there is no such op, or they come in another order.
    """
    order = {op.name: at for at, op in enumerate(forward_ops(graph))}
    names = [part.strip() for part in text.split(",") if part.strip()]
    for name in names:
        if name not in order:
            near = [known for known in order if name in known][:5]
            raise UsageError(
                f"--stages: the forward pass has no op '{name}'",
                hint=f"there are {', '.join(near or list(order)[:5])}, ...",
            )
    places = [order[name] for name in names]
    if places != sorted(set(places)) or 0 in places:
        raise UsageError(
            f"--stages '{text}' is not in the order of the forward pass",
            hint="name the first op of each stage but the first",
        )
    return names


def part_seconds(
    cut: Mapping[Key, Piece], options: Options, folder: Path | None, *, cold: bool = False
) -> dict[Key, float]:
    """Seconds of every part by itself, on made-up values; estimated where it stops at these (a
    division by zero).

    Args:
        cold: as after other parts, which leave nothing in caches that this one reads.
    """
    found, other = dict[Key, float](), np.zeros(CACHES if cold else 0, np.uint8)
    for key, piece in cut.items():
        tensors = piece.graph.tensors
        arrays = {name: _small(tensors[name]) for name in piece.states}
        arrays |= {old: _small(tensors[new]) for old, new in piece.copied}
        state = BoundState(arrays)
        pieces = Pieces({key: piece}, state, options, Pool(), folder)
        feeds = {name: _small(tensors[name]) for name in piece.reads}
        seconds = []
        for _ in range(RUNS):
            flight = pieces.flight(feeds)
            other += 1
            begin = time.perf_counter()
            try:
                pieces.run(key, flight)
            except ModelError:
                seconds = [analytic_costs(piece.graph).total]
                break
            seconds.append(time.perf_counter() - begin)
            flight.end()
        found[key] = min(seconds)
    return found


def _small(tensor: Tensor) -> np.ndarray:
    """Small positive numbers; zeros where they may be indices."""
    kind = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.dtype))
    value = 0.01 if np.issubdtype(kind, np.floating) else 0
    return np.full(tensor.shape or (), value, kind)


def balanced(seconds: Sequence[float], stages: int) -> list[int]:
    """First layer of each stage but the first, so that the slowest stage takes least.

    Raises:
        UsageError: fewer layers than stages.
    """
    n = len(seconds)
    if n < stages:
        raise UsageError(
            f"the step has {n} layers, too few for {stages} stages",
            hint=f"a pipeline of {n} stages at most",
        )
    total = np.concatenate([[0.0], np.cumsum(seconds)])
    best = np.full((stages + 1, n + 1), np.inf)
    begin = np.zeros((stages + 1, n + 1), np.int64)
    best[0, 0] = 0.0
    for k in range(1, stages + 1):
        for end in range(k, n + 1):
            each = [max(best[k - 1, at], total[end] - total[at]) for at in range(k - 1, end)]
            at = int(np.argmin(each))
            best[k, end], begin[k, end] = each[at], at + k - 1
    cuts, end = list[int](), n
    for k in range(stages, 1, -1):
        end = int(begin[k, end])
        cuts.append(end)
    return cuts[::-1]


def grouped(
    seconds: Mapping[Key, float], begins: Sequence[int], micro_batches: int, in_flight: int | None
) -> Pipeline:
    """Stages that begin at these layers, of parts that take so long.

    Args:
        begins: layers, the first 0; the last is how many there are.
    """

    def of(kind: int, least: float) -> tuple[float, ...]:
        rows = (sum(seconds.get((kind, k), 0.0) for k in range(a, b))
                for a, b in itertools.pairwise(begins))  # fmt: skip
        return tuple(max(row, least) for row in rows)

    return Pipeline(
        of(F, SHORTEST), of(B, SHORTEST), of(W, 0.0), micro_batches, in_flight=in_flight
    )


def even_begins(seconds: Mapping[Key, float], layers: int, stages: int) -> list[int]:
    """Where stages of about equal times begin, and how many layers there are.

    Raises:
        UsageError: fewer layers than stages.
    """
    whole = [sum(seconds.get((kind, k), 0.0) for kind in (F, B, W)) for k in range(layers)]
    return [0, *balanced(whole, stages), layers]
