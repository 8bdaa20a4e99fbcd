"""One measured run beside the plan: order, bytes, outputs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from onnxremat.graph.ir import Graph, Op
from onnxremat.graph.light import read_structure
from onnxremat.graph.onnx_io import to_model
from onnxremat.graph.order import default_order, priority_order, reordered
from onnxremat.ort.blocks import DOMAIN, known_as
from onnxremat.ort.offline import is_light, resident_weights, weights_held
from onnxremat.ort.profile import Feeds, Kernel, Profile, Profiling, Read, profile
from onnxremat.ort.session import Options
from onnxremat.ort.weights import held_by
from onnxremat.rewrite.pins import is_added
from onnxremat.schedule.simulate import Rules, Timeline, simulate
from onnxremat.schedule.updates import given_memory


@dataclass(frozen=True)
class Measurement:
    """What a run did, beside what was predicted.

    Attributes:
        options: session options of the run.
        order_kept: executed order equals planned order (added ops aside; ops that the options
            let onnxruntime fuse away are listed in ``missing``).
        missing: planned ops that did not run under their name.
        merged: recomputations among them: onnxruntime joined them with an earlier run.
        extra: kernels that were not planned.
        predicted: the simulator's timeline for these options.
        peak: measured bytes: weights + live + scratch at the worst kernel.
        arena_bytes: bytes the arena holds afterwards.
        outputs: by name.
        profile: the kernels.
        resized: a value that had another shape than the graph says, in words; "" where none had.
    """

    options: Options
    order_kept: bool
    missing: tuple[str, ...]
    merged: tuple[str, ...]
    extra: tuple[str, ...]
    predicted: Timeline
    peak: int
    arena_bytes: int
    outputs: dict[str, Any]
    profile: Profile
    resized: str = ""

    @property
    def prediction_error(self) -> float:
        """Predicted over measured peak, minus one."""
        return self.predicted.peak / self.peak - 1.0 if self.peak else 0.0


def weight_bytes(
    graph: Graph,
    measured: Profile | None = None,
    *,
    level: str = "disable",
    folder: Path | None = None,
) -> int:
    """Resident bytes of the weights: as a session at that level holds them after folding, or
    more where kernels keep packed copies.

    Args:
        measured: a run at that level; where it kept what onnxruntime made of the graph, that need
            not be asked again.
    """
    held = weights_foreseen(graph, measured, level=level, folder=folder)
    return max(held, measured.weight_bytes if measured else 0)


def weights_foreseen(
    graph: Graph, measured: Profile | None, *, level: str, folder: Path | None
) -> int:
    """The same by what is known of kernels alone: what they pack of quantised weights, and hold of
    those inside bodies, a run tells."""
    if level == "disable":
        return held_by(graph)
    if measured is not None and measured.fused is not None:
        return weights_held(measured.fused)
    return resident_weights(to_model(graph), level, folder)


def executed(graph: Graph, options: Options) -> Graph:
    """The graph in the order a session with these options runs it (nothing being fused)."""
    order = priority_order(graph) if options.order == "priority" else default_order(graph)
    return reordered(graph, order)


def predict(
    graph: Graph,
    options: Options,
    *,
    scratch: Mapping[str, int] | None = None,
    seconds: Mapping[str, float] | None = None,
    weights: int | None = None,
) -> Timeline:
    """The simulator's timeline of a rewritten graph under session options."""
    return simulate(
        executed(graph, options),
        Rules(reuse=options.reuse),
        scratch=scratch,
        seconds=seconds,
        weight_bytes=weights,
    )


def profiled(
    model: onnx.ModelProto | Path,
    feeds: Feeds,
    options: Options,
    folder: Path | None = None,
    bound: Sequence[str] = (),
    read: Read = read_structure,
) -> Profile:
    """A run with the profiler on, and what onnxruntime made of the model where it fuses.

    Args:
        read: for what it made: without the bytes of big weights, or whole.
        bound: see :class:`onnxremat.ort.profile.Profiling`.

    Raises:
        ModelError: onnxruntime refuses the model or the run fails.
    """
    light = isinstance(model, onnx.ModelProto) and is_light(model)
    fused = read if light and options.fuses else None
    return profile(model, feeds, options, Profiling(fused=fused, bound=bound), folder=folder)


def _known_as(ops: Iterable[Op | Kernel], loaded: bool) -> list[str]:
    """What ops are called in any session, in order; added ops are left out."""
    return [known_as(op) if loaded else op.name for op in ops if not is_added(op.name)]


def _merged(graph: Graph, ran: Collection[str]) -> set[str]:
    """Recomputations that were joined with an earlier run.

    A copy that is fused away goes together with its first run, which is fused alike. Only ops that
    read the same are joined: one that reads what another copy made, which ran, is there under
    another name (onnxruntime moves a Transpose past the Slice that alone reads it).
    """
    made = graph.producer
    found = set()
    for op in graph.ops:
        if op.origin in ran and op.name not in ran:
            makers = [graph.ops[made[name]] for name in op.reads if name in made]
            if not any(maker.origin and maker.name in ran for maker in makers):
                found.add(op.name)
    return found


@dataclass(frozen=True)
class Running:
    """A rewritten graph as a session runs it, and what is known of its ops.

    Attributes:
        graph: in planned order; its run writes into memory of the caller what takes no bytes there
            (:func:`onnxremat.schedule.updates.written_over`).
        scratch, seconds: per op, where they are known.
        folder: where external weights are.
        loaded: it is what onnxruntime makes of a model at load, in the order in which it runs.
    """

    graph: Graph
    scratch: Mapping[str, int] | None = None
    seconds: Mapping[str, float] | None = None
    folder: Path | None = None
    loaded: bool = False


def measure(
    running: Running, model: onnx.ModelProto | Path, feeds: Feeds, options: Options
) -> Measurement:
    """Run a rewritten model and set what happened beside what was predicted.

    Args:
        model: the graph of ``running`` as a model or file.

    Raises:
        ModelError: onnxruntime refuses the model or the run fails.
    """
    bound = given_memory(running.graph)
    return compared(running, profiled(model, feeds, options, running.folder, bound), options)


def compared(running: Running, found: Profile, options: Options) -> Measurement:
    """What happened in a run, of :func:`profiled`, beside what was predicted."""
    graph, folder, loaded = running.graph, running.folder, running.loaded
    planned = _known_as(graph.ops, loaded)
    ran = _known_as(found.kernels, loaded)
    common = set(planned) & set(ran)
    known = {op.name for op in graph.ops}
    merged = _merged(graph, common)
    kept = [n for n in planned if n in common] == [n for n in ran if n in common]
    level = "disable" if loaded else options.level
    weights = weight_bytes(graph, found, level=level, folder=folder)
    ordered = graph if loaded else executed(graph, options)
    return Measurement(
        options,
        kept,
        tuple(n for n in planned if n not in common),
        tuple(n for n in planned if n in merged),
        tuple(n for n in ran if n not in known),
        simulate(
            ordered,
            Rules(reuse=options.reuse),
            scratch=running.scratch,
            seconds=running.seconds,
            weight_bytes=weights,
        ),
        weights + found.live_peak,
        found.arena_bytes,
        found.outputs,
        found,
        _resized(graph, found),
    )


def _resized(graph: Graph, found: Profile) -> str:
    """A value whose shape in a run is not the one that was inferred: what was made of it, sizes of
    gradients and of parts above all, would be of something else."""
    ops = {op.name: op for op in graph.ops if op.domain != DOMAIN}
    for kernel in found.kernels:
        op = ops.get(kernel.name)
        if op is None or op.op_type != kernel.op_type or len(op.writes) != len(kernel.outputs):
            continue
        for name, (_, shape) in zip(op.writes, kernel.outputs, strict=True):
            known = graph.tensors[name]
            if known.dtype and known.shape not in (None, shape) and not known.seen:
                return f"'{name}' of {op.op_type} is {list(shape)}, not {list(known.shape or ())}"
    return ""
