"""What the actions of a deployment really take, and costs that agree with it.

The cost of an op is measured by itself or in some stretch of the listed order. In a partition its
neighbours, what is in the cache and what runs beside it on another device are others, and each
call of a provider that compiles its parts has a price of its own. A short trial run tells; the
next plan is made with costs corrected by it.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from onnxremat.cost.boundaries import call_seconds
from onnxremat.cost.table import CostTable
from onnxremat.execute.deployment import Deployment
from onnxremat.execute.executor import Executor
from onnxremat.rewrite.partition import Partition

RUNS = (5, 40)
SECONDS = 2.0
MOST = 5.0  # times dearer or cheaper than thought; more is another process, not the op
AS_TRIED = ", corrected by a trial run"
FEW = 4  # partitions from which the price of a call is told from that of ops


class TimedExecutor(Executor):
    """Keeps the seconds of every action of every run in :attr:`took`."""

    def __init__(self, *args: Any, **more: Any) -> None:
        self.took: dict[int, list[float]] = defaultdict(list)
        super().__init__(*args, **more)

    @property
    def crowded(self) -> int:
        """Bytes by which one slab for all sessions would be over the limits, so that each has its
        own, which is given back and comes anew; known after a run."""
        return self._shared.crowded if self._shared else 0

    def act(self, index: int) -> None:
        """Carry out one action; see :class:`Executor`."""
        begin = time.perf_counter()
        super().act(index)
        self.took[index].append(time.perf_counter() - begin)


def tried(
    made: Deployment,
    feeds: Mapping[str, np.ndarray],
    *,
    seconds: float = SECONDS,
    stop: Callable[[], bool] | None = None,
) -> Deployment:
    """The deployment with the seconds of each of its actions, run as it will be.

    Args:
        seconds: to spend on runs, more than a few of them provided.
        stop: polled; True ends the trial after the run in progress.

    Raises:
        MissingComponentError, ModelError: it cannot be run.
    """
    state, given = made.state_and_rest(feeds)
    with made.executor(state, kind=TimedExecutor) as executor:
        assert isinstance(executor, TimedExecutor)
        executor.run(given)  # buffers are made
        executor.took.clear()
        walls: list[float] = []
        begin = time.perf_counter()
        for count in range(RUNS[1]):
            start = time.perf_counter()
            late = start - begin > seconds and count >= RUNS[0]
            if late or (count and stop is not None and stop()):
                break
            executor.run(given)
            walls.append(time.perf_counter() - start)
        rows, crowded = list(zip(*executor.took.values(), strict=True)), executor.crowded
    runs = tuple(dict(zip(executor.took, row, strict=True)) for row in rows)
    pairs = zip(walls, map(made.makespan_of, runs), strict=True)
    around = statistics.median(wall - simulated for wall, simulated in pairs)
    return replace(made, tried=runs, around=max(0.0, around), crowded=crowded)


def corrected(
    tables: Mapping[str, CostTable], made: Deployment, *, opaque: Mapping[str, bool]
) -> dict[str, CostTable]:
    """Costs under which every partition takes what it took in the trial, but for recomputed ops,
    which cost what they do on the average of their partitions.

    Ops of a partition are scaled together; ops that ran on another device as all of this device's
    were. Where a provider compiles its parts, what they have in common is the price of a call.

    Args:
        opaque: whether a device's provider does.
    """
    found = dict(tables)
    usually = {i: statistics.median(run[i] for run in made.tried) for i in made.tried[0]}
    for name, table in tables.items():
        parts = {
            index: part
            for index, part in enumerate(made.parts.actions)
            if isinstance(part, Partition) and part.device == name
        }
        ops = {index: _seconds(table, part) for index, part in parts.items()}
        took = {i: usually[i] - (made.seconds[i] - ops[i]) for i in parts}
        if not sum(ops.values()):
            continue
        extra = _common(list(ops.values()), list(took.values())) if opaque[name] else 0.0
        usual = _near(sum(took.values()) - extra * len(parts), sum(ops.values()))
        factors: dict[str, list[float]] = defaultdict(list)
        for index, part in parts.items():
            for op in part.graph.ops:
                factors[op.origin or op.name].append(_near(took[index] - extra, ops[index]))
        seconds = {
            op: value * (statistics.mean(factors[op]) if op in factors else usual)
            for op, value in table.seconds.items()
        }
        found[name] = replace(
            table, seconds=seconds, call=call_seconds(table) + extra if extra else table.call,
            source=table.source.removesuffix(AS_TRIED) + AS_TRIED,
        )  # fmt: skip
    return found


def _seconds(table: CostTable, part: Partition) -> float:
    return sum(table.seconds.get(op.origin or op.name, 0.0) for op in part.graph.ops)


def _near(took: float, thought: float) -> float:
    """The factor between two times, within reason."""
    return min(MOST, max(1 / MOST, took / thought)) if thought > 0 else 1.0


def _common(ops: list[float], took: list[float]) -> float:
    """What every call takes beside its ops: least squares of relative errors, none below zero."""
    if len(ops) < FEW:
        return 0.0
    weight = 1 / np.maximum(1e-6, np.asarray(took))
    sides = np.stack([np.asarray(ops) * weight, weight], axis=1)
    (_, extra), *_ = np.linalg.lstsq(sides, np.ones(len(ops)), rcond=None)
    return max(0.0, float(extra))
