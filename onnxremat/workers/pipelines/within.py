"""Stages of a pipeline within a budget of bytes per rank: schedule and recomputation together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from onnxremat.errors import NoPlanError
from onnxremat.graph.ir import Graph, Op, Role
from onnxremat.session.structures import graph_bytes
from onnxremat.units import format_bytes
from onnxremat.workers.pieces import Piece
from onnxremat.workers.pipeline import B, F, Pipeline, W
from onnxremat.workers.pipelines.again import Again, Stage
from onnxremat.workers.pipelines.replay import Replay
from onnxremat.workers.pipelines.workspace import pool_bytes
from onnxremat.workers.sums.layers import Key

PROCESS = 13 << 20  # bytes of ``Memory.process``
PLANNING = 7 << 20  # and of the rank that plans for all
AHEAD = 2  # actions for which a rank has asked for what they read
ROUNDS = 8  # of choosing what is made again, and seeing what that takes


@dataclass(frozen=True)
class Memory:
    """Bytes of a rank.

    Attributes:
        state: parameters, optimizer state, sums of gradients.
        values: what F leaves for B and W, and B for W, of all micro-batches alive.
        crossing: buffers of what comes from other ranks and goes to them.
        workspace: what the pool of the sessions comes to hold: values inside parts and updates.
        sessions: weights that are constants, structures.
        process: what making the parts leaves in the process: libraries, holes between what Python
            holds (4 to 8.6 MiB were measured), and solvers where the plan is made (to 15 MiB).
    """

    state: int = 0
    values: int = 0
    crossing: int = 0
    workspace: int = 0
    sessions: int = 0
    process: int = 0

    @property
    def total(self) -> int:
        return sum(vars(self).values())


@dataclass(frozen=True)
class Beside:
    """What a rank takes whatever its stages make again.

    Attributes:
        memory: of variables and updates.
        updates: graphs of these, which run in the same pool as parts.
    """

    memory: Memory = Memory()
    updates: tuple[Graph, ...] = ()


@dataclass(frozen=True)
class Fitted:
    """A schedule; within a budget also what each stage makes again, and bytes per rank as
    planned."""

    replay: Replay
    again: tuple[Again, ...] = ()
    memory: tuple[Memory, ...] = ()


Cut = Callable[[Sequence[Again]], Mapping[Key, Piece]]


@dataclass(frozen=True)
class Within:
    """What is to fit.

    Attributes:
        pipeline: stages without recomputation.
        stages: what each may make again.
        scheduled: a pipeline with its schedule.
        cut: the parts, by what each makes again.
        beside: what ranks take besides, by the rank of each stage.
        budget: bytes per rank.
        any_order: ``scheduled`` finds a schedule for any limit of micro-batches alive; else it has
            the one that was asked for.
    """

    pipeline: Pipeline
    stages: Sequence[Stage]
    scheduled: Callable[[Pipeline], Replay]
    cut: Cut
    beside: Callable[[Sequence[int]], Sequence[Beside]]
    budget: int
    any_order: bool = False

    def fit(self) -> Fitted:
        """Least time by simulation within the budget.

        Raises:
            NoPlanError: a rank needs more in every way that was tried.
        """
        replay = self.scheduled(self.pipeline)
        found, refused = list[Fitted](), list[NoPlanError]()
        for limit in self._limits(replay):
            pipeline = replace(self.pipeline, in_flight=limit)
            try:
                found.append(self._fitted(pipeline))
            except NoPlanError as error:
                refused.append(error)
        if not found:
            raise min(refused, key=lambda error: error.smallest or inf)
        return min(found, key=lambda one: one.replay.makespan)

    def _limits(self, replay: Replay) -> list[int | None]:
        """Limits of micro-batches alive to try: what is asked for, and less where a schedule can be
        found for any."""
        most = max(replay.peak)
        fewer = {most // 2, most - 1, len(self.stages), 1} if self.any_order else set[int]()
        return [self.pipeline.in_flight, *sorted(n for n in fewer if 0 < n < most)]

    def _fitted(self, pipeline: Pipeline) -> Fitted:
        """Rounds of choosing and weighing: what is made again takes workspace, and time, by which
        the schedule may change."""
        replay = self.scheduled(pipeline)
        again = [stage.everything_kept() for stage in self.stages]
        memory = self._memory(replay, again)
        for _ in range(ROUNDS):
            if max(each.total for each in memory) <= self.budget:
                return Fitted(replay, tuple(again), memory)
            chosen = self._chosen(replay, memory)
            if chosen is None:
                break
            again, replay = chosen, self._longer(pipeline, chosen)
            memory = self._memory(replay, again)
        return self._leanest(pipeline, replay)

    def _longer(self, pipeline: Pipeline, again: Sequence[Again]) -> Replay:
        """The schedule of a pipeline whose stages make this again."""
        longer = (a + b.seconds for a, b in zip(pipeline.backward, again, strict=True))
        return self.scheduled(replace(pipeline, backward=tuple(longer)))

    def _chosen(self, replay: Replay, memory: Sequence[Memory]) -> list[Again] | None:
        """For each stage the least seconds in its share of what its rank has for values; None where
        one does not do with that."""
        waits, found = waiting(replay), []
        for at, stage in enumerate(self.stages):
            rank, counts = replay.order.rank[at], (replay.peak[at], waits[at])
            each = memory[rank]
            room = self.budget - (each.total - each.values)
            own = stage.everything_kept().bytes(*counts)
            beside = sum(
                other.everything_kept().bytes(replay.peak[k], waits[k])
                for k, other in enumerate(self.stages)
                if replay.order.rank[k] == rank
            )
            best = stage.choose(int(room * own / max(1, beside)), *counts)
            if best is None:
                return None
            found.append(best)
        return found

    def _leanest(self, pipeline: Pipeline, replay: Replay) -> Fitted:
        """All stages keep as little as they can.

        Args:
            replay: by which micro-batches are counted that are alive.

        Raises:
            NoPlanError: the fullest rank needs more even so.
        """
        counts = zip(replay.peak, waiting(replay), strict=True)
        again = tuple(s.least(*n) for s, n in zip(self.stages, counts, strict=True))
        replay = self._longer(pipeline, again)
        memory = self._memory(replay, again)
        if max(each.total for each in memory) <= self.budget:
            return Fitted(replay, again, memory)
        raise self._refused(memory)

    def _refused(self, memory: Sequence[Memory]) -> NoPlanError:
        """What the fullest rank takes so."""
        rank = max(range(len(memory)), key=lambda k: memory[k].total)
        parts = ", ".join(
            f"{format_bytes(size)} {name}" for name, size in vars(memory[rank]).items() if size
        )
        return NoPlanError(
            f"process {rank} needs more than the budget of {format_bytes(self.budget)}",
            smallest=memory[rank].total,
            why=f"keeping as little as can be it takes {format_bytes(memory[rank].total)}: {parts}",
            hint=f"--budget {1 + (memory[rank].total >> 20)}MiB or more; more "
            "processes, smaller micro-batches, or fewer in flight (--in-flight, another schedule)",
        )

    def _memory(self, replay: Replay, again: Sequence[Again]) -> tuple[Memory, ...]:
        rank, waits = replay.order.rank, waiting(replay)
        pieces = self.cut(again)
        home = {name: at for (_, at), piece in pieces.items() for name in piece.makes}
        beside = self.beside(rank)
        found = [each.memory for each in beside]
        for at, each in enumerate(again):
            row = found[rank[at]]
            found[rank[at]] = replace(
                row, values=row.values + each.bytes(replay.peak[at], waits[at])
            )
        for (_, at), piece in pieces.items():
            row, tensors = found[rank[at]], piece.graph.tensors
            come = {n for n in piece.reads if rank[home.get(n, at)] != rank[at]}
            go = {n for n in piece.makes if any(n in p.reads for (_, k), p in pieces.items()
                                                if rank[k] != rank[at])}  # fmt: skip
            # The other end may be behind by all that are alive; what comes is asked for early.
            crossing = replay.peak[at] * sum(tensors[n].bytes for n in go)
            crossing += AHEAD * sum(tensors[n].bytes for n in come)
            found[rank[at]] = opened(replace(row, crossing=row.crossing + crossing), piece.graph)
        for at, other in enumerate(beside):
            inside = [p.graph for (_, k), p in sorted(pieces.items()) if rank[k] == at]
            found[at] = replace(found[at], workspace=pool_bytes([*inside, *other.updates]))
        return tuple(found)


def repeats(again: Sequence[Again], parts: Mapping[Key, Sequence[Op]]) -> dict[Key, list[Op]]:
    """What B of each stage, or W where it has no B, repeats of its F."""
    found = {}
    for at, each in enumerate(again):
        if each.ops:
            names = {*each.ops}
            late = (B, at) if (B, at) in parts else (W, at)
            found[late] = [op for op in parts[F, at] if op.name in names]
    return found


def waiting(replay: Replay) -> list[int]:
    """Most micro-batches between B and W at once, the one that is on among them, per stage."""
    found = [1] * replay.pipeline.stages
    for steps in replay.order.steps:
        for stage in np.unique(steps // 4).tolist():
            kinds = steps[steps // 4 == stage] % 4
            change = (kinds == B).astype(np.int64) - (kinds == W)
            found[stage] = max(1, int(np.cumsum(change).max(initial=0)))
    return found


def opened(memory: Memory, graph: Graph) -> Memory:
    """With a session more."""
    constants = sum(t.bytes for t in graph.tensors.values() if t.role is Role.WEIGHT)
    return replace(memory, sessions=memory.sessions + graph_bytes(graph) + constants)
