"""What a training step takes whose new values are written over the old ones, said where a budget
that counts both is refused.

A trainer does that; ``--not-counted updates`` plans for it. A refusal names a budget that works so,
where it is less: one that a plan was found for, which is kept for when it is asked for.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from onnxremat.errors import OnnxrematError
from onnxremat.pipeline.in_place import in_place
from onnxremat.pipeline.kept_plans import Known, keep
from onnxremat.pipeline.limits import limit_of
from onnxremat.pipeline.phases import MEASURE, Phases
from onnxremat.pipeline.prepared import Prepared
from onnxremat.pipeline.refusal import Refusal, Works
from onnxremat.pipeline.time_left import no_time
from onnxremat.pipeline.unsplit import peak_of
from onnxremat.pipeline.within_budget import smallest
from onnxremat.planner.options import PlanOptions
from onnxremat.schedule.simulate import simulate
from onnxremat.schedule.updates import written_over
from onnxremat.session.measure import profiled
from onnxremat.session.process import UPDATES, updates_words
from onnxremat.units import Budget

SECONDS = 4.0  # for a plan, at most
SESSIONS = 2  # of the model: the original again, and the plan
LEANER = 0.98  # share of a budget that works anyway from which another is worth a word


def for_a_trainer(
    prepared: Prepared, refused: Refusal, budget: Budget, options: PlanOptions, log: Phases
) -> str:
    """What to try where a trainer runs the step: "" where that gains nothing."""
    state = prepared.everything_in(prepared.graph).state
    said = updates_words(state, prepared.baseline_peak, prepared.settings.not_counted)
    if not said or options.stopped or not options.method.ladder:
        return said
    if no_time(prepared, log, SESSIONS, options.least):
        return said
    with suppress(OnnxrematError):  # a refusal stays one
        written = _written_over(prepared, budget, log)
        known = _least(written, budget, options, log)
        if refused.works is not None and known.works > LEANER * refused.works.size:
            return ""
        keep(written, known, budget.of_peak)
        works = Works.found(known.works, fits=known.fits)
        named = replace(refused, works=works).in_unit(
            budget, written.baseline_peak, written.beside.total
        )
        return f"{said}, with {named.works}"
    return said


def _least(written: Prepared, budget: Budget, options: PlanOptions, log: Phases) -> Known:
    """The smallest plan that is found."""
    seconds = min(SECONDS, max(options.least, log.left - SESSIONS * written.passing))
    asked = options if options.work is not None else replace(options, until=options.now() + seconds)
    return smallest(written, asked, log, limit_of(written, budget)).known


def _written_over(prepared: Prepared, budget: Budget, log: Phases) -> Prepared:
    """The same step prepared for a budget that leaves new values out.

    A share is one of the original's weights and values, of which they are none then: it is run
    again where one was asked for.
    """
    settings = replace(prepared.settings, not_counted=(*prepared.settings.not_counted, UPDATES))
    unsplit = prepared.unsplit
    updates = tuple(in_place(prepared.original, settings.not_counted).values())
    source = written_over(unsplit.source, updates)
    baseline, peak = unsplit.baseline, unsplit.measured
    if budget.of_peak and unsplit.feeds is not None:
        with log.phase(MEASURE):
            baseline = profiled(
                prepared.original, unsplit.feeds, prepared.default, unsplit.home, updates
            )
        baseline = replace(baseline, fused=None)
        peak = peak_of(source, baseline, unsplit.home)
    graph = written_over(prepared.graph, updates)
    store_all = simulate(graph, scratch=prepared.costs.scratch, weight_bytes=prepared.weights).peak
    changed = replace(
        unsplit, source=source, baseline=baseline, measured=peak,
        graph=written_over(unsplit.graph, updates), listed=written_over(unsplit.listed, updates),
    )  # fmt: skip
    return replace(
        prepared, unsplit=changed, graph=graph, store_all_peak=store_all, settings=settings
    )
