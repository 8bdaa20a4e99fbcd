"""What a training step would take on a cluster: pipelines side by side, simulated.

Ranks of one pipeline are neighbours; the same stage of all pipelines adds up its gradients by a
ring. Parts take what a roofline of the cluster's devices says, or what they take on this machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from onnxremat.cost.analytic import Roofline, analytic_costs
from onnxremat.errors import UsageError
from onnxremat.grad.description import training_of
from onnxremat.ort.session import Options
from onnxremat.workers.pieces import Piece, cut
from onnxremat.workers.pipeline import B, F, W
from onnxremat.workers.pipelines.cluster import Cluster
from onnxremat.workers.pipelines.replay import Replay, carry_out
from onnxremat.workers.pipelines.schedules import AUTO, named
from onnxremat.workers.pipelines.search import best_order
from onnxremat.workers.pipelines.staged import owners_of, require_unplanned
from onnxremat.workers.pipelines.stages import even_begins, fine_cuts, grouped, part_seconds
from onnxremat.workers.sums.exchange import Network, best, of_parts
from onnxremat.workers.sums.gathering import gathering
from onnxremat.workers.sums.halves import Halves, halves_of
from onnxremat.workers.sums.layers import Key, Layers, most_late
from onnxremat.workers.sums.spread import spread

RANKS = 1 << 16  # at most


@dataclass(frozen=True)
class Grid:
    """How a step is dealt out.

    Attributes:
        pipelines: that each take other batches.
        stages: of a pipeline, a rank each.
        micro_batches: per pipeline and step.
        schedule: of each pipeline, or ``auto``.
        in_flight: most micro-batches alive in a stage.
    """

    pipelines: int
    stages: int
    micro_batches: int
    schedule: str = "1f1b"
    in_flight: int | None = None

    @property
    def ranks(self) -> int:
        """How many."""
        return self.pipelines * self.stages


@dataclass(frozen=True)
class Memory:
    """Bytes of a stage: parameters, optimizer state, sums of gradients, and what F leaves for B and
    W of a micro-batch. Workspace of kernels is not in it."""

    parameters: int = 0
    state: int = 0
    sums: int = 0
    stash: int = 0

    def peak(self, alive: int) -> int:
        """With so many micro-batches alive."""
        return self.parameters + self.state + self.sums + alive * self.stash


@dataclass(frozen=True)
class Projection:
    """A step on a cluster.

    Attributes:
        replay: one pipeline's schedule, up to its last gradient.
        sums: seconds in which the gradients of each stage are added up over pipelines.
        updates: seconds of the update of each stage.
        seconds: of the whole step.
        memory: per stage.
        rows: of a step.
        measured: parts were measured on this machine; else they are of a roofline.
    """

    cluster: Cluster
    grid: Grid
    replay: Replay
    sums: tuple[float, ...]
    updates: tuple[float, ...]
    seconds: float
    memory: tuple[Memory, ...]
    rows: int
    measured: bool

    @property
    def efficiency(self) -> float:
        """Share of the ranks' time in which they compute."""
        return self.replay.pipeline.work / (self.grid.stages * self.seconds)

    @property
    def peaks(self) -> tuple[int, ...]:
        """Bytes of a rank, per stage."""
        rows = zip(self.memory, self.replay.peak, strict=True)
        return tuple(memory.peak(alive) for memory, alive in rows)


def project(
    model: onnx.ModelProto, folder: Path | None, cluster: Cluster, grid: Grid, seed: int = 0
) -> Projection:
    """Simulate a step, which is made for one micro-batch.

    Args:
        seed: of the search for a schedule.

    Raises:
        UsageError: more stages than layers, too many ranks, or a schedule that does not suit.
        UnsupportedError: a planned step.
        InfeasibleError: the schedule keeps more micro-batches alive than it may.
    """
    if grid.ranks > RANKS:
        raise UsageError(f"{grid.ranks} ranks are too many", why=f"at most {RANKS} are simulated")
    require_unplanned(model)
    model = gathering(model)
    halves = halves_of(model, folder)
    fine = fine_cuts(halves.step, grid.stages)
    layers = halves.layers(fine)
    seconds = _seconds(halves, layers, cluster, folder)
    begins = even_begins(seconds, layers.count, grid.stages)
    pipeline = grouped(seconds, begins, grid.micro_batches, grid.in_flight)
    stages = halves.layers([fine[at - 1] for at in begins[1:-1]])
    pieces = cut(halves.step, stages.parts, halves.about)
    pipeline = replace(pipeline, communication=_transfers(pieces, cluster, grid))
    if grid.schedule == AUTO:
        replay = best_order(pipeline, grid.stages, seed=seed).replay
    else:
        replay = carry_out(pipeline, named(pipeline, grid.schedule, grid.stages))
    memory = _memory(halves, stages, pieces, grid.stages)
    wire = cluster.wire(grid.ranks)
    sums = tuple(wire.sum_seconds(each.sums, grid.pipelines) for each in memory)
    moved = (2 * (each.parameters + each.state) + each.sums for each in memory)
    updates = tuple(size / cluster.bandwidth for size in moved)
    total = _total(replay, sums, updates)
    if grid.stages == 1:
        total = _one_stage(halves, layers, seconds, cluster, grid) + updates[0]
    about, types = training_of(model), halves.step.tensors
    first = types[(*about.data, about.target)[0]].shape
    rows = (first[0] if first else 1) * grid.micro_batches * grid.pipelines
    return Projection(cluster, grid, replay, sums, updates, total, memory, rows, not cluster.flops)


def _seconds(
    halves: Halves, layers: Layers, cluster: Cluster, folder: Path | None
) -> dict[Key, float]:
    """Of every part of a finely cut step."""
    if not cluster.flops:
        one = Options(pattern=False, reuse=False, threads=1)
        return part_seconds(cut(halves.step, layers.parts, halves.about), one, folder)
    roofline = Roofline(cluster.flops, cluster.bandwidth, cluster.dispatch)
    known = analytic_costs(halves.step, roofline).seconds
    return {key: sum(known[op.name] for op in ops) for key, ops in layers.parts.items()}


def _transfers(pieces: Mapping[Key, Piece], cluster: Cluster, grid: Grid) -> tuple[float, ...]:
    """Seconds over each boundary: the larger of what goes forward and what comes back, by the
    slowest link that any pipeline has there."""
    maker = {name: key for key, piece in pieces.items() for name in piece.makes}
    sent: dict[tuple[int, bool], dict[str, int]] = {}
    for (_, layer), piece in pieces.items():
        for name in piece.reads:
            home = maker.get(name, (F, layer))[1]
            for at in range(min(home, layer), max(home, layer)):
                size = piece.graph.tensors[name].bytes
                sent.setdefault((at, home < layer), {})[name] = size
    found = []
    for at in range(grid.stages - 1):
        apart = any((d * grid.stages + at + 1) % cluster.node == 0 for d in range(grid.pipelines))
        wire = cluster.between if apart else cluster.within
        both = (sum(sent.get((at, way), {}).values()) for way in (True, False))
        found.append(wire.seconds(max(both)))
    return tuple(found)


def _memory(
    halves: Halves, layers: Layers, pieces: Mapping[Key, Piece], stages: int
) -> tuple[Memory, ...]:
    homes = {name: at for name, (_, at) in halves.homes(layers).items()}
    updates = cut(halves.update, spread(halves.update, homes), halves.told)
    owners = owners_of(halves, range(stages), pieces, updates)
    trained = {v.input for v in halves.told.parameters}
    known = {**halves.step.tensors, **halves.update.tensors}
    rows = [Memory() for _ in range(stages)]
    for name, at in owners.items():
        size, row = known[name].bytes, rows[at]
        if name in trained:
            rows[at] = replace(row, parameters=row.parameters + size)
        else:
            rows[at] = replace(row, state=row.state + size)
    for name, at in homes.items():
        rows[at] = replace(rows[at], sums=rows[at].sums + known[name].bytes)
    made = {name for (kind, _), piece in pieces.items() if kind == F for name in piece.makes}
    for at in range(stages):
        late = [pieces[key] for key in ((B, at), (W, at)) if key in pieces]
        kept = {name for piece in late for name in piece.reads if name in made}
        rows[at] = replace(rows[at], stash=sum(known[name].bytes for name in kept))
    return tuple(rows)


def _total(replay: Replay, sums: tuple[float, ...], updates: tuple[float, ...]) -> float:
    """Until the last update: each stage adds up and updates as soon as its last W is done."""
    ends = [0.0] * len(sums)
    for steps, _, stop in replay.rows():
        for step, end in zip(steps.tolist(), stop.tolist(), strict=True):
            ends[step // 4] = max(ends[step // 4], end)
    rows = zip(ends, sums, updates, strict=True)
    return max(end + added + updated for end, added, updated in rows)


def _one_stage(
    halves: Halves, layers: Layers, seconds: Mapping[Key, float], cluster: Cluster, grid: Grid
) -> float:
    """Without a pipeline sums travel layer by layer, beside the last backward pass and the next
    forward pass."""
    sizes = [0] * layers.count
    for name, (_, at) in halves.homes(layers).items():
        sizes[at] += halves.update.tensors[name].bytes
    times = of_parts(seconds, sizes)
    wire, ranks = cluster.wire(grid.ranks), grid.pipelines
    byte = 2 * (ranks - 1) / ranks / wire.bandwidth
    network = Network(2 * (ranks - 1) * wire.latency, byte)
    if ranks == 1:
        return times.compute * grid.micro_batches
    return (
        times.compute * (grid.micro_batches - 1)
        + best(times, network, most_late(layers))[0].seconds
    )
