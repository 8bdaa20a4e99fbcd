"""A training step whose forward pass is in parts, ready to be planned."""

from __future__ import annotations

import warnings
from dataclasses import replace
from math import inf

from onnxremat.errors import TrainingWarning, UsageError
from onnxremat.grad.parted import Parting
from onnxremat.graph.onnx_io import to_model
from onnxremat.graph.order import without_dead_ops
from onnxremat.ort.infer import build_graph
from onnxremat.ort.profile import named_outputs
from onnxremat.ort.session import TUNED
from onnxremat.pipeline.in_parts.divided import IN_PARTS
from onnxremat.pipeline.in_parts.in_regions import check_parts
from onnxremat.pipeline.original.first_values import without_first_values
from onnxremat.pipeline.original.sizes import in_tensors, with_measured_shapes
from onnxremat.pipeline.phases import OPTIMISE, Phases
from onnxremat.pipeline.prepare import Progress, for_planning, step_of
from onnxremat.pipeline.prepared import Prepared
from onnxremat.pipeline.time_left import passing
from onnxremat.pipeline.unsplit import AsRead, optimised


def prepare_step(
    prepared: Prepared,
    parting: Parting,
    progress: Progress | None = None,
    left: float = inf,
) -> Prepared:
    """The same training step, its forward pass in parts before it was differentiated.

    Args:
        prepared: from a model that a step was made of.
        left: seconds of planning that are left.

    Raises:
        UnsupportedError: it does not go in these parts, or computes something else.
        UsageError: what was read is a step, or none was asked for.
    """
    log, whole = Phases.of(progress), prepared.unsplit
    settings = replace(prepared.settings, costs_within=IN_PARTS * left)
    if whole.forward is None:
        raise UsageError(
            "only a step that is made here can be in parts",
            why="the forward pass is split before it is differentiated",
            hint="optimize --train, with the model that the step is made from",
        )
    home = whole.home
    with log.phase(OPTIMISE), warnings.catch_warnings():
        warnings.simplefilter("ignore", TrainingWarning)  # said of the whole
        bound, _ = without_first_values(step_of(whole.forward, home, settings, parting))
        original = without_dead_ops(build_graph(bound, home))
        plain = in_tensors(original, home)
        if whole.feeds is not None:
            model = to_model(original)
            original = with_measured_shapes(original, model, whole.feeds, home)
            found = named_outputs(model, whole.feeds, home, TUNED)
            known = prepared.outputs
            if known is None and whole.baseline is not None:  # costs were known without a run
                known = whole.baseline.outputs
            check_parts(found, prepared.graph, whole.feeds, prepared.folder, known)
        read = AsRead(whole.name, home, original, plain, whole.feeds, None, None, whole.files)
        parts = optimised(read, settings, log)
        unsplit = replace(whole, made=parts.made, graph=parts.graph, listed=parts.listed)
        made = for_planning(unsplit, settings, log, whole=prepared)
    notes = tuple(dict.fromkeys((*prepared.notes, *made.notes)))
    whole_graph = prepared.whole or prepared.graph
    return replace(
        made,
        notes=notes,
        whole=whole_graph,
        whole_seconds=prepared.store_all_seconds,
        as_it_is=False,
        passing=passing(prepared, len(made.graph.ops) / max(1, len(prepared.graph.ops))),
        parting=parting,
    )
