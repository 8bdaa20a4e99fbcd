"""From a model file to the graph that is planned: bound, optimised offline, ordered, priced."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import onnx

from onnxremat.errors import UsageError
from onnxremat.grad import differentiate, training_of
from onnxremat.grad.parted import Parting
from onnxremat.graph.bodies import brought_out
from onnxremat.graph.ir import Graph
from onnxremat.graph.light import read_structure
from onnxremat.graph.onnx_io import computes_nothing, to_model
from onnxremat.graph.order import without_dead_ops
from onnxremat.ort.blocks import require_block
from onnxremat.ort.feeds import load_feeds, seeded_feeds
from onnxremat.ort.functions import check_domains, inline_functions
from onnxremat.ort.infer import bind, build_graph, require_shapes
from onnxremat.ort.offline import HOST, TARGETS, read_saved
from onnxremat.ort.profile import Feeds
from onnxremat.ort.session import DEFAULT
from onnxremat.pipeline.in_parts.batch_slices import in_parts
from onnxremat.pipeline.in_parts.in_regions import in_regions, with_shapes_hidden
from onnxremat.pipeline.in_place import in_place
from onnxremat.pipeline.original.as_it_came import AsItCame, require_same
from onnxremat.pipeline.original.base_order import base_order, target_notes, weights_notes
from onnxremat.pipeline.original.first_values import said_of_defaults, without_first_values
from onnxremat.pipeline.original.largest import at_largest
from onnxremat.pipeline.original.lost_sums import without_lost_sums
from onnxremat.pipeline.original.mispadded import mispadded
from onnxremat.pipeline.original.sizes import (
    in_tensors,
    seen_sizes,
    size_notes,
    with_measured_shapes,
)
from onnxremat.pipeline.original.source import Source, files_read, read_source
from onnxremat.pipeline.phases import MEASURE, OPTIMISE, READ, Phases
from onnxremat.pipeline.prepared import Prepared
from onnxremat.pipeline.priced import priced
from onnxremat.pipeline.settings import AUTO, Settings
from onnxremat.pipeline.time_left import say_of_runs
from onnxremat.pipeline.unsplit import AsRead, Unsplit, optimised, peak_of
from onnxremat.pipeline.weight_order import fixes_order
from onnxremat.rewrite.restore import restored
from onnxremat.schedule.simulate import simulate
from onnxremat.session.measure import profiled, weight_bytes
from onnxremat.session.process import PARTS, UPDATES

Progress = Callable[[str], None]


def prepare(source: Source, settings: Settings, progress: Progress | None = None) -> Prepared:
    """Read, bind, optimise, order and price a model.

    Args:
        source: a file, or a model in memory.
        progress: told what is being done.

    Raises:
        ModelError: not readable, not valid, or onnxruntime refuses it.
        UsageError: wrong target, shape, dimension or inputs, two orders asked for.
        UnsupportedError: no gradients of weights for a policy.
    """
    log = Phases.of(progress)
    if settings.target not in (AUTO, *TARGETS):
        names = ", ".join((AUTO, *TARGETS))
        raise UsageError(f"unknown target '{settings.target}'", hint=f"one of {names}")
    if odd := ", ".join(sorted(set(settings.not_counted).difference(parts := (*PARTS, UPDATES)))):
        raise UsageError(f"a budget counts no '{odd}'", hint="one of " + ", ".join(parts))
    kept = fixes_order(settings.dw_policy, settings.fixed_order)
    settings = replace(settings, fixed_order=settings.fixed_order or kept)
    before, ran = log.seconds.get(OPTIMISE, 0.0), log.seconds.get(MEASURE, 0.0)
    with log.phase(READ, "reading the model"):
        made = _prepared(source, settings.on_this_machine(), log)
    whole = not (settings.split_batch or settings.fission or kept)
    took, passing = log.seconds[OPTIMISE] - before, log.seconds.get(MEASURE, 0.0) - ran
    as_it_is = settings.target == AUTO and whole
    return replace(made, as_it_is=as_it_is, optimising=took, passing=passing)


def _prepared(source: Source, settings: Settings, log: Phases) -> Prepared:
    listed, folder, name = read_source(source)
    files = files_read(source, listed, folder)
    require_block(listed)
    model = restored(listed)
    check_domains(model)
    bound = bind(inline_functions(model), settings.shapes, settings.dims)
    forward, unsaid = None, ""
    if settings.train is not None:
        log("adding the backward pass")
        forward, bound = bound, step_of(bound, folder, settings)
        unsaid = training_of(bound).unsaid
    bound, dropped = without_first_values(bound)
    dropped = (*([unsaid] if unsaid else []), *said_of_defaults(listed), *dropped)
    bound, folder = brought_out(bound, folder) if forward is None else (bound, folder)
    original = without_dead_ops(build_graph(bound, folder, opened=not settings.measure))
    if all(op.op_type == "Constant" for op in original.ops):
        raise computes_nothing(name)
    given, (original, lost) = original, without_lost_sums(original)
    dropped = (*dropped, *lost)
    plain = in_tensors(original, folder)
    bound = to_model(original)
    feeds = _feeds(original, settings)
    baseline = came = None
    if feeds is not None:
        with log.phase(MEASURE, "measuring the original"):
            options = replace(DEFAULT, threads=settings.threads)
            updates = tuple(in_place(bound, settings.not_counted).values())
            began = time.perf_counter()
            # What is planned for this processor is what this session makes of it, too.
            read = partial(read_saved, folder=folder) if settings.target == HOST else read_structure
            baseline = profiled(bound, feeds, options, folder, updates, read)
            took = time.perf_counter() - began
            if lost:
                came = peak_of(given, profiled(to_model(given), feeds, options, folder), folder)
        say_of_runs(took, log)
        if model.functions:
            alone = AsItCame.of(source, bound if forward is None else forward, folder)
            seen = (feeds, baseline.outputs) if forward is None else None
            dropped = (*dropped, *require_same(alone, settings.seed, seen))
        original = with_measured_shapes(original, bound, feeds, folder)
    with log.phase(OPTIMISE):
        found = AsRead(name, folder, original, plain, feeds, baseline, came, files)
        unsplit = optimised(found, settings, log)
        made = for_planning(replace(unsplit, forward=forward), settings, log)
    return replace(made, notes=(*dropped, *mispadded(original), *made.notes))


def step_of(
    forward: onnx.ModelProto,
    folder: Path | None,
    settings: Settings,
    parting: Parting | None = None,
) -> onnx.ModelProto:
    """The training step of a model."""
    assert settings.train is not None
    # The portable graph uses no kernels of one processor; a file for this one may.
    step = settings.train.on_this_machine() if settings.target == HOST else settings.train
    return differentiate(forward, folder=folder, settings=step, parting=parting)


def for_planning(
    unsplit: Unsplit,
    settings: Settings,
    log: Phases,
    outputs: Mapping[str, Any] | None = None,
    whole: Prepared | None = None,
) -> Prepared:
    """The optimised graph, in parts where that is asked for, ordered and priced.

    Args:
        outputs: what the whole batch gives, where that is known.
        whole: the same model whole, priced already: an interrupt ends measuring, and costs are
            estimated by it.
    """
    made, graph, listed = unsplit.made, unsplit.graph, unsplit.listed
    feeds, folder = unsplit.feeds, made.folder
    asked, settings = settings.target, replace(settings, target=made.target)
    lean = unsplit.lean
    settings = replace(settings, **(lean.settings if lean else {}))
    original = unsplit.baseline.outputs if unsplit.baseline else None
    if settings.split_batch:
        # Afterwards, so that parts share weights that are made from others (with a normalisation
        # folded in).
        log("splitting the batch")
        graph = in_parts(graph, settings.split_batch, feeds, folder, outputs, original)
        assert feeds is not None  # or there were no parts
        listed = graph = with_measured_shapes(graph, to_model(graph), feeds, folder)
        require_shapes(graph)
    policy, unordered = settings.dw_policy, graph
    graph = base_order(graph, listed, settings.fixed_order, policy)
    if settings.fission:
        log("computing regions in parts")
        graph = in_regions(graph, settings.fission, feeds, folder, outputs, original)
        graph = with_shapes_hidden(graph) if settings.hide_shapes else graph
    costs, measured = priced(graph, feeds, settings, unsplit, log, whole)
    if policy is not None and not policy.fixed and not settings.fission:
        # Only now it is known which order takes least, workspace included.
        graph = base_order(unordered, listed, settings.fixed_order, policy, costs.scratch)
    weights = weight_bytes(graph, measured)
    store_all = simulate(graph, scratch=costs.scratch, weight_bytes=weights).peak
    largest = at_largest(graph) if seen_sizes(graph) else None
    most = simulate(largest, weight_bytes=weights).peak if largest is not None else None
    notes = (*(lean.notes if lean else ()), *target_notes(asked, made, store_all, unsplit.peak))
    notes += size_notes(graph, feeds is not None, most)
    notes += (*weights_notes(policy, graph, listed, costs, weights), *costs.notes)
    return Prepared(
        unsplit, graph, costs, weights, store_all, settings, notes,
        outputs=measured.outputs if measured else None,
        lasting=None if settings.split_batch or settings.fission else made.lasting,
    )  # fmt: skip


def _feeds(graph: Graph, settings: Settings) -> Feeds | None:
    if not settings.measure:
        return None
    if settings.data is not None:
        return load_feeds(settings.data, graph)
    return seeded_feeds(graph, settings.seed)
