"""A model that keeps the budget already: written as it is, for sessions with default options.

What onnxruntime makes of it at load is what the plan lists: the graph optimised for this
processor, in the order in which it ran. The file holds the original, which is as quick and as
small as it was, on every processor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import onnx

from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import write_model
from onnxremat.graph.order import reordered
from onnxremat.graph.temporary import scratch_folder
from onnxremat.ort.blocks import LAYOUTS, known_as
from onnxremat.ort.infer import build_graph
from onnxremat.ort.offline import optimised_for
from onnxremat.ort.profile import Kernel
from onnxremat.ort.session import DEFAULT
from onnxremat.pipeline.artifact import CPU, excess
from onnxremat.pipeline.closed_loop import Candidate
from onnxremat.pipeline.in_place import in_place
from onnxremat.pipeline.in_session import InOneSession
from onnxremat.pipeline.phases import MEASURE, Phases
from onnxremat.pipeline.prepared import Prepared
from onnxremat.rewrite.emit import Rewritten, pack, set_metadata
from onnxremat.rewrite.restore import restored
from onnxremat.schedule.plan import Plan, Provenance, graph_hash
from onnxremat.schedule.simulate import Rules, Timeline, simulate
from onnxremat.session.process import SLACK
from onnxremat.session.resident import resident_rise
from onnxremat.units import format_bytes

# As sessions without any options, but for the pattern: from the second run on it keeps one block
# for the most that was ever live.
OPTIONS = replace(DEFAULT, pattern=False)
OPENING = 3  # times the weights, while a session under default options is made: at most, as seen


@dataclass(frozen=True)
class AsItIs(Rewritten):
    """The original with a plan that lists what onnxruntime makes of it.

    Attributes:
        graph: what runs, in the order in which it runs.
        source: what is written.
    """

    source: onnx.ModelProto

    def model(self, facts: Mapping[str, Any] | None = None) -> onnx.ModelProto:
        """The original, ``facts`` and the plan in its metadata."""
        made = onnx.ModelProto()
        made.CopyFrom(self.source)
        set_metadata(made, {**(facts or {}), "plan": pack(self.plan)})
        return made


@dataclass(frozen=True)
class Unchanged(InOneSession):
    """The original in a session that optimises it at load."""

    loaded: ClassVar[bool] = True

    @cached_property
    def timeline(self) -> Timeline:
        """Predicted bytes at every op: buffers are held for values of the same shape."""
        return simulate(
            self.graph, Rules(reuse=True), scratch=self.scratch, seconds=self.times,
            weight_bytes=self.weights,
        )  # fmt: skip


def unchanged(prepared: Prepared, limit: int, log: Phases) -> Candidate | None:
    """The original, where weights and values keep ``limit`` bytes as onnxruntime runs it.

    None where another target or a split was asked for, where nothing is measured, and where the
    order in which onnxruntime ran it cannot be told.
    """
    if prepared.unsplit.peak > limit:
        return None
    graph = as_it_ran(prepared)
    if graph is None or prepared.baseline is None or prepared.feeds is None:
        return None
    total = prepared.costs.total
    note = (
        f"the original takes {format_bytes(prepared.unsplit.peak)} and keeps this budget: it is "
        "written as it is, to be opened without any options"
    )
    provenance = Provenance(
        planner="unchanged", status="optimal", budget=limit + prepared.beside.total,
        bound=total, seconds=total, store_all_seconds=total, graph_hash=graph_hash(prepared.graph),
        cost_source=prepared.costs.source, notes=(note, *prepared.notes),
        settings=prepared.settings.to_json(),
    )  # fmt: skip
    rewritten = AsItIs(
        graph, Plan.of(graph, [op.name for op in graph.ops], provenance), prepared.original
    )
    options = replace(OPTIONS, threads=prepared.settings.threads)
    costs = prepared.costs
    artifact = Unchanged(
        rewritten, options, prepared.home, costs.scratch, costs.seconds, prepared.weights,
        ran=(prepared.feeds, options, prepared.baseline), beside=prepared.beside.total,
    )  # fmt: skip
    with log.phase(MEASURE):
        measured = artifact.measure(prepared.feeds)
        limits = {CPU: limit}
        if excess(measured.peaks, limits) or not measured.tuned.order_kept:
            return None
    return Candidate(prepared, artifact, limits, measured)


def as_it_ran(prepared: Prepared) -> Graph | None:
    """What onnxruntime ran of the original, None where it cannot be written as it is."""
    if not prepared.as_it_is or prepared.baseline is None or prepared.feeds is None:
        return None
    return _as_run(prepared.graph, prepared.baseline.kernels)


def opens(found: Candidate) -> bool:
    """Whether the original can be opened in a process that keeps the budget. onnxruntime folds,
    packs and lays out weights at load, and holds them several times until it is done. Where so many
    weights do not fit, a fresh process tries it."""
    artifact, prepared = found.artifact, found.prepared
    assert isinstance(artifact, Unchanged)
    assert prepared.feeds is not None
    if OPENING * artifact.timeline.weight_bytes <= found.limit:
        return True
    with scratch_folder() as folder:
        file = Path(folder) / "original.onnx"
        write_model(artifact.model(), file, artifact.folder)
        room = found.limit + prepared.everything_in(artifact.graph).session
        updates = in_place(prepared.original, prepared.settings.not_counted)
        threads = prepared.settings.threads
        rise = resident_rise(file, prepared.feeds, threads=threads, room=room, updates=updates)
    if rise.kept is not None:  # it ran inside the limit, as `verify` asks, or did not
        return rise.kept
    return rise.bytes is not None and rise.bytes <= room + SLACK


def _as_run(graph: Graph, kernels: Sequence[Kernel]) -> Graph | None:
    """The graph in the order of a run; None where the run was of other ops.

    Copies out of blocks are numbered by chance at every load: they are known by what they do, the
    shape of what they make, and who reads it first.
    """
    place = {op.name: index for index, op in enumerate(graph.ops)}
    if sorted(map(known_as, graph.ops)) != sorted(map(known_as, kernels)):
        return None
    before, turn = graph.predecessors(), {kernel.name: at for at, kernel in enumerate(kernels)}
    first = [len(kernels)] * len(graph.ops)  # turn of the first reader
    for index, row in enumerate(before):
        for source in row:
            first[source] = min(first[source], turn.get(graph.ops[index].name, len(kernels)))
    order: list[int] = []
    done: set[int] = set()
    for kernel in kernels:
        able = [
            index
            for index, op in enumerate(graph.ops)
            if op.op_type == kernel.op_type and index not in done
            and graph.tensors[op.outputs[0]].shape == kernel.outputs[0][1]
        ] if kernel.op_type in LAYOUTS else [place[kernel.name]]  # fmt: skip
        ready = [index for index in able if done.issuperset(before[index])]
        if not ready:
            return None
        order.append(min(ready, key=first.__getitem__))
        done.add(order[-1])
    return reordered(graph, order)


def _in_order(graph: Graph, ran: list[str]) -> Graph | None:
    """The graph in the order of a list of its ops; None where the list is of others."""
    place = {op.name: index for index, op in enumerate(graph.ops)}
    if sorted(place) != sorted(ran):
        return None
    return reordered(graph, [place[name] for name in ran])


def as_loaded(model: onnx.ModelProto, plan: Plan, folder: Path | None) -> Graph:
    """The graph that onnxruntime makes of an unchanged original, in the order of its plan; in the
    listed order where this processor makes another one."""
    made = optimised_for(restored(model), "host", folder)
    graph = build_graph(made.model, made.folder)
    return _in_order(graph, list(plan.sequence)) or graph
