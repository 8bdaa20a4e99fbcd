"""The stages of a pipeline on ranks: where the step is cut, its schedule, who holds what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import onnx

from onnxremat.cost.analytic import analytic_costs
from onnxremat.errors import MissingComponentError, UnsupportedError
from onnxremat.graph.ir import Op
from onnxremat.graph.onnx_io import read_model
from onnxremat.ort.session import Options
from onnxremat.training.state import Step
from onnxremat.workers.courier import Courier, Delay
from onnxremat.workers.mpi import Mesh, Ranks
from onnxremat.workers.pieces import Piece, cut
from onnxremat.workers.pipeline import F, Order, Pipeline
from onnxremat.workers.pipelines.again import Stage
from onnxremat.workers.pipelines.replay import Replay, carry_out
from onnxremat.workers.pipelines.schedules import AUTO, SEVERAL, named
from onnxremat.workers.pipelines.search import best_order
from onnxremat.workers.pipelines.stages import (
    even_begins,
    fine_cuts,
    grouped,
    named_cuts,
    part_seconds,
)
from onnxremat.workers.pipelines.within import (
    PLANNING,
    PROCESS,
    Beside,
    Fitted,
    Memory,
    Within,
    opened,
    repeats,
)
from onnxremat.workers.sums.gathering import gathering
from onnxremat.workers.sums.halves import Halves, halves_of
from onnxremat.workers.sums.layers import Key, Layers, crossing_bytes, forward_ops
from onnxremat.workers.sums.spread import EVERYWHERE, Phase, spread
from onnxremat.workers.sums.tied import apart
from onnxremat.workers.sums.tuning import measured_network


@dataclass(frozen=True)
class Wanted:
    """A pipeline as asked for.

    Attributes:
        micro_batches: per step.
        schedule: a name, or ``auto``.
        stages: first op of each stage but the first, with commas between them; "" for as balanced
            as measured times say.
        in_flight: most micro-batches that a stage keeps alive, None for no limit.
        delay: of every transfer, for tests and studies.
        pipelines: side by side, each with micro-batches of its own.
        budget: bytes that a process may take, of what it holds for the run; None for no limit.
    """

    micro_batches: int
    schedule: str = "1f1b"
    stages: str = ""
    in_flight: int | None = None
    delay: Delay | None = None
    pipelines: int = 1
    budget: int | None = None


@dataclass(frozen=True)
class Staged:
    """A pipeline that can run.

    Attributes:
        cuts: first op of each stage but the first.
        fitted: the schedule, simulated with measured times; what stages make again.
        courier: between the ranks of a pipeline.
        between: between the same ranks of all pipelines; None where there is one pipeline.
        homes: stage of every sum of gradients.
        pieces: all parts of the step, of all ranks.
        updates: all parts of the update.
        owners: rank that holds the newest value of each variable.
        copies: parameters that other ranks than their owner read: owner, and those.
    """

    cuts: tuple[str, ...]
    fitted: Fitted
    courier: Courier
    between: Courier | None
    homes: Mapping[str, int]
    pieces: Mapping[Key, Piece]
    updates: Mapping[Phase, Piece]
    owners: Mapping[str, int]
    copies: Mapping[str, tuple[int, tuple[int, ...]]]

    @property
    def replay(self) -> Replay:
        """The schedule, carried out in simulation."""
        return self.fitted.replay

    @property
    def order(self) -> Order:
        """The schedule."""
        return self.replay.order

    def rank_of(self, key: Key) -> int:
        """Where a part runs."""
        return self.order.rank[key[1]]

    def opened(self) -> Staged:
        """What is read of it once all parts have sessions: their graphs are let go."""
        pieces = {key: piece.opened() for key, piece in self.pieces.items()}
        updates = {key: piece.opened() for key, piece in self.updates.items()}
        return replace(self, pieces=pieces, updates=updates)

    def actions(self, rank: int) -> Iterator[tuple[int, int, int]]:
        """Stage, kind and micro-batch of everything that a rank does, in order."""
        seen: dict[int, int] = {}
        own = self.order.steps[rank].tolist() if rank < self.order.ranks else []
        for step in own:
            k = seen[step] = seen.get(step, -1) + 1
            yield step // 4, step % 4, k

    def held(self, rank: int) -> frozenset[str]:
        """Variables that a rank needs, and values of other parts that it reads."""
        return held(rank, self.order.rank, self.pieces, self.updates, self.owners)


def require_unplanned(model: onnx.ModelProto) -> None:
    """Raises:
    UnsupportedError: the step is planned.
    """
    if any(entry.key == "onnxremat.plan" for entry in model.metadata_props):
        raise UnsupportedError(
            "a planned step cannot be cut to stages",
            why="its plan holds for the step in one piece",
            hint="give the step as differentiate made it",
        )


def gathered(step: Step) -> Step:
    """The step that gathers, each micro-batch by itself, its update inside.

    Raises:
        UnsupportedError: the step is planned.
    """
    require_unplanned(step.model)
    model = read_model(step.file) if step.file is not None else step.model
    return Step(gathering(model, each=True), step.folder, None)


def staged(step: Step, mesh: Mesh, wanted: Wanted, options: Options) -> Staged:
    """Cut a step that gathers to stages, and choose their schedule, the same in all pipelines; all
    ranks have to call.

    Raises:
        MissingComponentError: this MPI does not let several threads call it.
        UnsupportedError: state that several stages overwrite.
        UsageError: stages or a schedule that do not suit the ranks.
        InfeasibleError: the schedule keeps more micro-batches alive than it may.
        NoPlanError: a process needs more than the budget, whatever its stage makes again.
    """
    courier = mesh.pipeline.courier(wanted.delay)
    between = mesh.across.courier(wanted.delay) if wanted.pipelines > 1 else None
    if courier is None:
        raise MissingComponentError(
            "a pipeline needs an MPI that several threads may call",
            why="this one was started without MPI_THREAD_MULTIPLE",
            hint="another MPI, or mpi4py's default settings (mpi4py.rc.thread_level)",
        )
    halves = halves_of(step.model, step.folder)
    measured = _Measured(halves, mesh.everyone, options, step.folder)
    cuts = _cuts(halves, mesh, wanted, measured)
    layers = halves.layers(cuts)
    pipeline = grouped(
        measured.seconds(layers, cold=True),
        range(layers.count + 1),
        wanted.micro_batches,
        wanted.in_flight,
    )
    lags = _communication(halves, cuts, courier, mesh.pipeline)
    pipeline, first = replace(pipeline, communication=lags), None
    parts = apart(layers.parts)
    if mesh.everyone.first:
        first = _fitted(halves, layers, parts, pipeline, wanted, mesh.pipeline.size)
    fitted: Fitted = mesh.everyone.told(first)
    rank, again = fitted.replay.order.rank, repeats(fitted.again, parts)
    pieces = cut(halves.step, parts, halves.about, again)
    homes, updates, owners = _owned(halves, layers, rank, pieces)
    copies = _copies(halves, owners, rank, pieces, updates)
    couriers = courier, between
    return Staged(tuple(cuts), fitted, *couriers, homes, pieces, updates, owners, copies)


def _fitted(
    halves: Halves,
    layers: Layers,
    parts: Mapping[Key, Sequence[Op]],
    pipeline: Pipeline,
    wanted: Wanted,
    ranks: int,
) -> Fitted:
    """The schedule, and what stages make again where there is a budget."""

    @cache
    def scheduled(each: Pipeline) -> Replay:
        return _scheduled(each, wanted.schedule, ranks)

    if wanted.budget is None:
        return Fitted(scheduled(pipeline))
    known = analytic_costs(halves.step).seconds
    whole = cut(halves.step, parts, halves.about)

    def stage(at: int) -> Stage:
        ops = parts.get((F, at), ())
        share = pipeline.forward[at] / (sum(known[op.name] for op in ops) or 1.0)
        seconds = {op.name: share * known[op.name] for op in ops}
        return Stage.of(halves.step, parts, at, halves.about.updates, seconds)

    def beside(rank: Sequence[int]) -> list[Beside]:
        _, updates, owners = _owned(halves, layers, rank, whole)
        sizes = {n: t.bytes for g in (halves.step, halves.update) for n, t in g.tensors.items()}
        variables = {v.input for v in (*halves.about.variables, *halves.told.variables)}
        found = []
        for at in range(max(rank) + 1):
            names = held(at, rank, whole, updates, owners) & variables
            state = sum(sizes[name] for name in names)
            memory = Memory(state=state, process=PROCESS if at else PROCESS + PLANNING)
            graphs = tuple(piece.graph for key, piece in updates.items() if key[1] in (-1, at))
            for graph in graphs:
                memory = opened(memory, graph)
            found.append(Beside(memory, graphs))
        return found

    return Within(
        pipeline,
        [stage(at) for at in range(pipeline.stages)],
        scheduled,
        lambda again: cut(halves.step, parts, halves.about, repeats(again, parts)),
        beside,
        wanted.budget,
        wanted.schedule == AUTO,
    ).fit()


def _owned(
    halves: Halves, layers: Layers, rank: Sequence[int], pieces: Mapping[Key, Piece]
) -> tuple[dict[str, int], dict[Phase, Piece], dict[str, int]]:
    """Stage of every sum of gradients, parts of the update, who owns which variable."""
    homes = {name: at for name, (_, at) in halves.homes(layers).items()}
    owner = {name: rank[at] for name, at in homes.items()}
    updates = cut(halves.update, spread(halves.update, owner), halves.told)
    return homes, updates, owners_of(halves, rank, pieces, updates)


def held(
    at: int,
    rank: Sequence[int],
    pieces: Mapping[Key, Piece],
    updates: Mapping[Phase, Piece],
    owners: Mapping[str, int],
) -> frozenset[str]:
    """Variables that a rank needs, and values of other parts that it reads."""
    rows = [piece for key, piece in pieces.items() if rank[key[1]] == at]
    rows += [p for key, p in updates.items() if key == EVERYWHERE or key[1] == at]
    names = {name for piece in rows for name in (*piece.states, *piece.reads)}
    names |= {old for piece in rows for old, _ in piece.copied}
    return frozenset(names | {name for name, owner in owners.items() if owner == at})


@dataclass(frozen=True)
class _Measured:
    """Measures parts of a step, each rank some of them."""

    halves: Halves
    ranks: Ranks
    options: Options
    folder: Path | None

    def seconds(self, layers: Layers, *, cold: bool = False) -> dict[Key, float]:
        """Of every part, the same numbers everywhere; all ranks have to call."""
        pieces, ranks = cut(self.halves.step, layers.parts, self.halves.about), self.ranks
        mine = {key: piece for key, piece in pieces.items() if key[1] % ranks.size == ranks.rank}
        found: dict[Key, float] = {}
        for row in ranks.everybody(part_seconds(mine, self.options, self.folder, cold=cold)):
            found.update(row)
        return found


def _cuts(halves: Halves, mesh: Mesh, wanted: Wanted, measured: _Measured) -> list[str]:
    """First op of each stage but the first: by hand, or by the times of a finer cut."""
    if wanted.stages:
        return named_cuts(halves.step, wanted.stages)
    count = mesh.pipeline.size * (2 if wanted.schedule in SEVERAL else 1)
    fine = fine_cuts(halves.step, count)
    layers = halves.layers(fine)
    begins = even_begins(measured.seconds(layers), layers.count, count)
    return [fine[at - 1] for at in begins[1:-1]]


def _communication(
    halves: Halves, cuts: Sequence[str], courier: Courier, ranks: Ranks
) -> tuple[float, ...]:
    """Seconds over each boundary, by the bytes that cross it forward, as a sum of so many takes."""
    network = measured_network(courier, ranks)
    ops = forward_ops(halves.step)
    bytes_at = dict(zip((op.name for op in ops), crossing_bytes(halves.step, ops), strict=True))
    return tuple(network.seconds(bytes_at[name]) for name in cuts)


def _scheduled(pipeline: Pipeline, schedule: str, ranks: int) -> Replay:
    if schedule == AUTO:
        return best_order(pipeline, ranks).replay
    return carry_out(pipeline, named(pipeline, schedule, ranks))


def owners_of(
    halves: Halves,
    rank: Sequence[int],
    pieces: Mapping[Key, Piece],
    updates: Mapping[Phase, Piece],
) -> dict[str, int]:
    """Who has the newest value of each variable: who updates it, or the first that reads it."""
    sums, found = {name for _, name in halves.told.gradients}, dict[str, int]()
    where = [(rank[layer], piece) for (_, layer), piece in pieces.items()]
    where += [(max(home, 0), piece) for (_, home), piece in updates.items()]
    for home, piece in where:
        found.update((old, home) for old, _ in (*piece.placed, *piece.copied))
    for home, piece in sorted(where, key=lambda row: row[0]):
        for name in (*piece.states, *piece.reads):
            found.setdefault(name, home)
    known = {v.input for v in (*halves.about.variables, *halves.told.variables)}
    return {name: home for name, home in found.items() if name in known - sums}


def _copies(
    halves: Halves,
    owners: Mapping[str, int],
    rank: Sequence[int],
    pieces: Mapping[Key, Piece],
    updates: Mapping[Phase, Piece],
) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Parameters, and state of the optimizer (a counter that a loss scale holds back), that other
    ranks than their owner read.

    Raises:
        UnsupportedError: state that the step itself moves is read by several ranks.
    """
    found: dict[str, set[int]] = {}
    where = [(rank[layer], piece) for (_, layer), piece in pieces.items()]
    for key, piece in updates.items():
        where += [(at, piece) for at in ({*rank} if key == EVERYWHERE else [key[1]])]
    for at, piece in where:
        for name in (*piece.states, *piece.reads):
            if owners.get(name, at) != at:
                found.setdefault(name, set()).add(at)
    moved = sorted(found.keys() & halves.about.updates.keys())
    if moved:
        raise UnsupportedError(
            f"'{moved[0]}' is overwritten in one stage and read in another",
            hint="cut elsewhere: --stages OP,OP",
        )
    updated = {v.input for v in halves.told.variables if v.output}
    return {
        name: (owners[name], tuple(sorted(found[name])))
        for name in sorted(found)
        if name in updated
    }
