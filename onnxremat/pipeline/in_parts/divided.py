"""A prepared model with its batch, or regions of its graph, computed in parts."""

from __future__ import annotations

import math
from dataclasses import replace

from onnxremat.fission.region import Region
from onnxremat.pipeline.phases import OPTIMISE, Phases
from onnxremat.pipeline.prepare import Progress, for_planning
from onnxremat.pipeline.prepared import Prepared
from onnxremat.pipeline.settings import Settings

IN_PARTS = 0.25  # of the time that is left to plan, for the costs of a graph in parts


def prepare_split(
    prepared: Prepared,
    split: tuple[int, ...],
    progress: Progress | None = None,
    left: float = math.inf,
) -> Prepared:
    """The same model, its batch computed in parts.

    Args:
        split: rows of each part, or the number of equal parts.
        left: seconds of planning that are left.

    Raises:
        UsageError: as :func:`prepare`.
        UnsupportedError: rows of the batch depend on each other, or an output has no batch.
    """
    return _divided(prepared, replace(prepared.settings, split_batch=split), progress, left)


def prepare_fission(
    prepared: Prepared,
    regions: tuple[Region, ...],
    progress: Progress | None = None,
    left: float = math.inf,
    *,
    hide_shapes: bool = True,
) -> Prepared:
    """The same model, some regions of its graph computed in parts.

    Args:
        left: seconds of planning that are left.
        hide_shapes: see :class:`~onnxremat.pipeline.settings.Settings`.

    Raises:
        UnsupportedError: with them it does not run, or computes something else.
    """
    settings = replace(prepared.settings, fission=regions, hide_shapes=hide_shapes)
    return _divided(prepared, settings, progress, left)


def _divided(
    prepared: Prepared, settings: Settings, progress: Progress | None, left: float
) -> Prepared:
    log, settings = Phases.of(progress), replace(settings, costs_within=IN_PARTS * left)
    before = log.seconds.get(OPTIMISE, 0.0)
    outputs = None if prepared.whole else prepared.outputs
    with log.phase(OPTIMISE):
        made = for_planning(prepared.unsplit, settings, log, outputs, prepared)
    # How well costs are known is said once, of the graph that is planned.
    older = set(prepared.costs.notes) if made.costs.notes else set()
    said = (note for note in prepared.notes if note not in older)
    notes = tuple(dict.fromkeys((*said, *made.notes)))
    took = log.seconds[OPTIMISE] - before  # it was written, opened, run and looked at
    return replace(
        made, notes=notes, whole=prepared.whole or prepared.graph,
        whole_seconds=prepared.store_all_seconds, passing=took,
    )  # fmt: skip
