"""An inference within a budget: its batch whole, or in parts where that is quicker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from onnxremat.errors import NO_FIT, UnsupportedError, UsageError
from onnxremat.plan.methods import AUTO
from onnxremat.run.closed_loop import Outcome, PlanOptions, plan_within
from onnxremat.run.prepare import Prepared, prepare_split
from onnxremat.units import Budget

LITTLE = 0.01  # overhead of the whole batch up to which parts are not tried


def plan_best(
    prepared: Prepared,
    budget: Budget,
    options: PlanOptions,
    device_bytes: int,
    say: Callable[[str], None] | None = None,
) -> tuple[Prepared, Outcome]:
    """The quicker of two plans that keep the budget: of the whole batch, and of as few parts of it
    as fit without recomputation. Training steps, and what was asked for as it is, stay whole.

    Raises:
        As :func:`plan_within`, of the whole batch.
    """
    limit = budget.resolve(device_bytes=device_bytes, peak_bytes=prepared.baseline_peak)
    batch = _batch(prepared, options)
    if limit is None or batch < 2:
        return prepared, plan_within(prepared, budget, options, device_bytes)
    whole: Outcome | None = None
    try:
        whole = plan_within(prepared, budget, options, device_bytes, explain=False)
        if whole.plan.provenance.overhead <= LITTLE or options.stopped:
            return prepared, whole
    except NO_FIT:
        if options.stopped:
            raise
    found = _in_parts(prepared, budget, limit, batch, options, device_bytes, whole, say)
    if found and (whole is None or _seconds(found[1]) < _seconds(whole)):
        return found
    if whole:
        return prepared, whole
    return prepared, plan_within(prepared, budget, options, device_bytes)  # with the reason


def _in_parts(
    prepared: Prepared,
    budget: Budget,
    limit: int,
    batch: int,
    options: PlanOptions,
    device_bytes: int,
    whole: Outcome | None,
    say: Callable[[str], None] | None,
) -> tuple[Prepared, Outcome] | None:
    """A plan of as few parts as need no recomputation, or of the most there can be."""
    room = limit - prepared.weights
    if room <= 0:
        return None
    parts = 2
    while parts * room < prepared.store_all_peak - prepared.weights and 2 * parts <= batch:
        parts *= 2
    try:
        split = prepare_split(prepared, (parts,), say)
        while split.store_all_peak > limit and 2 * parts <= batch and not options.stopped:
            parts *= 2
            split = prepare_split(prepared, (parts,), say)
    except (UsageError, UnsupportedError):  # rows depend on each other, no output has a batch
        return None
    why = f"recomputing takes {whole.plan.provenance.overhead:+.1%}" if whole else "does not fit"
    note = f"the batch is computed in {parts} parts (whole: {why}; --split-batch 1 keeps it whole)"
    split = replace(split, notes=(*split.notes, note))
    try:
        return split, plan_within(split, budget, options, device_bytes, explain=False)
    except NO_FIT:
        return None


def _batch(prepared: Prepared, options: PlanOptions) -> int:
    """Rows that may be computed in parts, 0 for none."""
    settings = prepared.settings
    asked = settings.split_batch is not None or settings.fixed_order or options.method != AUTO
    return 0 if asked or prepared.in_place or prepared.feeds is None else prepared.batch


def _seconds(outcome: Outcome) -> float:
    return outcome.plan.provenance.seconds
