"""Regions of an inference in parts over several devices, where its ops as they are find no room.

Regions are chosen for one device that holds everything, and what is planned over devices then is
the graph in these parts, as it is with a part of the batch for each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from onnxremat.errors import NO_FIT, InfeasibleError, OnnxrematError, UnsupportedError
from onnxremat.fission.choosers import Choosers
from onnxremat.fission.pricing import Priced
from onnxremat.pipeline.closed_loop import Candidate, Unfit
from onnxremat.pipeline.devices.several_devices import SeveralDevices
from onnxremat.pipeline.in_parts.divided import prepare_fission
from onnxremat.pipeline.in_parts.fission_ways import NOT_EVERY, described
from onnxremat.pipeline.in_parts.ways_in_parts import of_these_parts
from onnxremat.pipeline.limits import on_top
from onnxremat.pipeline.phases import PLAN
from onnxremat.pipeline.refusal import Refusal
from onnxremat.planner.options import PlanOptions
from onnxremat.planner.solution import Solution

TRIES = 3  # graphs in parts that are planned for
LESS = 8  # the next one takes less by what was too much, at least by this part of what it took
LEAST = 0.2  # of the time limit, for plans of these where whole ops have taken all of it

Planned = Callable[[SeveralDevices, PlanOptions], Candidate | Unfit[Solution]]


def in_regions(
    target: SeveralDevices,
    choosers: Choosers | None,
    options: PlanOptions,
    planned: Planned,
    error: OnnxrematError,
) -> Candidate:
    """A plan with regions in parts that keeps the limits.

    Args:
        choosers: of the graph as it is, None where regions are not tried.
        planned: prices a target, plans it and tries that out.
        error: why ops as they are find no room.

    Raises:
        InfeasibleError, NoPlanError, OverBudgetError: there is none, or none was found.
    """
    if choosers is None or options.stopped or target.site.pins:
        raise error
    room, options = _room(target), _with_time(options)
    for _ in range(TRIES):
        with target.log.phase(PLAN, "choosing regions to compute in parts"):
            chosen = choosers.within(room)
        made = _with(target, chosen, choosers, options, planned)
        if isinstance(made, Candidate):
            return made.noted(
                f"computed in parts: {described(chosen.regions)} (whole: {error.what}; "
                "--fission off keeps it whole)",
                of_these_parts("graph"),
            )
        if made is None or chosen.peak > room or options.stopped or options.left <= 0:
            break
        room = min(room, chosen.peak) - max(made, chosen.peak // LESS)
    if not isinstance(error, InfeasibleError) or target.hopeless:
        raise error
    raise Refusal.of(error).unproven(NOT_EVERY).error() from error


def _with(
    target: SeveralDevices,
    chosen: Priced,
    choosers: Choosers,
    options: PlanOptions,
    planned: Planned,
) -> Candidate | int | None:
    """The plan; else by how many bytes the last one was too large; None where regions gain nothing
    or do not go."""
    if not chosen.regions or chosen.peak >= choosers.whole.peak:
        return None
    try:
        split = prepare_fission(
            target.prepared, chosen.regions, target.log, options.left,
            hide_shapes=False,  # a partition's session has its options from who runs the file
        )  # fmt: skip
        found = planned(target.of(split), options)
    except UnsupportedError:
        return None
    except NO_FIT:
        return 0
    return found if isinstance(found, Candidate) else max(found.over.values(), default=0)


def _room(target: SeveralDevices) -> int:
    """Bytes of values for which regions are chosen first: what a device holds beside its share of
    weights and what is always there, the largest one."""
    prepared, site = target.prepared, target.site
    beside = on_top(prepared, site.machine, site.counted)
    computing = [device.name for device in site.machine.devices if device.computes]
    limits = {name: target.limits.get(name, prepared.store_all_peak) for name in computing}
    most = max(limits[name] - beside[name] for name in computing)
    return most - prepared.weights // len(computing)


def _with_time(options: PlanOptions) -> PlanOptions:
    """Options with some time left, however late it is."""
    if options.work is not None:
        return options
    least = options.now() + LEAST * options.time_limit
    return replace(options, until=max(options.until, least))
