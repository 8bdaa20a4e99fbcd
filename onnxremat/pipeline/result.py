"""A finished optimisation: checked, timed, ready to be written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from onnxremat.errors import VerificationError
from onnxremat.graph.onnx_io import check_writable, write_model
from onnxremat.ort.profile import run_session
from onnxremat.ort.session import open_session, session_options
from onnxremat.pipeline.bench import InSession, Timing, bench
from onnxremat.pipeline.closed_loop import Outcome
from onnxremat.pipeline.prepare import Prepared, inputs_bytes
from onnxremat.rewrite.emit import Rewritten, rewrite
from onnxremat.rewrite.pins import is_added
from onnxremat.schedule.plan import Plan
from onnxremat.session.compare import Difference, compare
from onnxremat.session.load import options_path, write_options
from onnxremat.session.repeats import Repeats, repeats, why


@dataclass(frozen=True)
class Finished:
    """A model within its budget, with everything that is known about it.

    Attributes:
        prepared: the model as planned.
        outcome: plan, rewritten graph, prediction and measurement.
        against_original: outputs against the original under default options.
        against_store_all: outputs against the same graph without recomputation: bit-equal, or
            the result is refused.
        timings: store-all, result, original; paired; empty when not timed.
        changing: what changes from run to run in the graph without recomputation already, "" for
            nothing; such outputs may differ as much as between two runs.
    """

    prepared: Prepared
    outcome: Outcome
    against_original: Difference | None
    against_store_all: Difference | None
    timings: tuple[Timing, ...]
    changing: str = ""

    @property
    def plan(self) -> Plan:
        """The plan that was carried out."""
        return self.outcome.plan

    @property
    def model(self) -> onnx.ModelProto:
        """The ONNX model, its plan and options in the metadata."""
        options = json.dumps(self.prepared.tuned.to_json() | {"threads": 0})
        scratch = {op: size for op, size in self.prepared.costs.scratch.items() if size}
        facts = {"options": options, "facts": json.dumps(self.facts()), "scratch": scratch}
        return self.outcome.rewritten.model(facts)

    def facts(self) -> dict[str, Any]:
        """All figures as plain data; overheads, bound and gap are fractions of the store-all
        time, sizes are bytes, times seconds. What was not measured is None."""
        made, found = self.outcome, self.outcome.measured
        plain, facts = self.outcome.measured_default, self.plan.provenance
        added = [op for op in made.rewritten.graph.ops if is_added(op.name)]
        timing = {t.name: t for t in self.timings}
        return {
            "model": self.prepared.name,
            "status": facts.status,
            "budget_bytes": made.budget,
            "baseline_peak_bytes": self.prepared.baseline_peak,
            "store_all_peak_bytes": self.prepared.store_all_peak,
            "peak_predicted_bytes": made.predicted.peak,
            "peak_measured_bytes": found.peak if found else None,
            "peak_default_options_bytes": plain.peak if plain else None,
            "arena_bytes": found.arena_bytes if found else None,
            "arena_default_options_bytes": plain.arena_bytes if plain else None,
            "weight_bytes": made.predicted.weight_bytes,
            "input_bytes": inputs_bytes(self.prepared.graph),
            "overhead_planned": facts.overhead,
            "overhead_measured": timing["result"].ratio - 1 if "result" in timing else None,
            "overhead_spread": timing["result"].spread if "result" in timing else None,
            "original_time_ratio": timing["original"].ratio if "original" in timing else None,
            "overhead_to_original": timing["result"].ratio / timing["original"].ratio - 1
            if "original" in timing
            else None,
            "step_seconds": timing["result"].seconds if "result" in timing else None,
            "bound": facts.bound_overhead,
            "bound_kind": facts.bound_kind,
            "bound_any_order": facts.any_order,
            "bound_staged": facts.staged,
            "gap": facts.gap,
            "planner": facts.planner,
            "plan_seconds": facts.plan_seconds,
            "rounds": made.rounds + 1,
            "ops": len(self.prepared.graph.ops),
            "recomputed_ops": self.plan.recomputations,
            "added_ops": len(added),
            "order_kept": found.order_kept if found else None,
            "order_kept_default_options": plain.order_kept and not plain.merged if plain else None,
            "bit_equal": self.against_store_all.bit_equal if self.against_store_all else None,
            "difference_to_original": self.against_original.worst
            if self.against_original
            else None,
            "target": self.prepared.settings.target,
            "cost_source": self.prepared.costs.source,
            "changing_outputs": self.changing or None,
            "notes": list(facts.notes),
        }

    def save(self, path: str | os.PathLike[str]) -> list[Path]:
        """Check and write the model, its external weights where it has any, and the session
        options (``<path>.options.json``); returns the files written.

        Raises:
            UsageError: the folder is not writable.
        """
        target = Path(path)
        check_writable(options_path(target))
        written = write_model(self.model, target, self.prepared.folder)
        return [*written, write_options(target, self.prepared.tuned, self.facts())]


def finish(
    prepared: Prepared,
    outcome: Outcome,
    bench_seconds: float,
    say: Callable[[str], None],
    stop: Callable[[], bool] | None = None,
) -> Finished:
    """Verify outputs and order, and time the result.

    Raises:
        VerificationError: outputs or executed order are not as planned.
    """
    if outcome.measured is None or prepared.baseline is None or prepared.feeds is None:
        return Finished(prepared, outcome, None, None, ())
    say("verifying")
    store_all = rewrite(prepared.graph, Plan.of(prepared.graph, _base(prepared)))
    session = open_session(store_all.model(), session_options(prepared.tuned), prepared.folder)
    names = [value.name for value in session.get_outputs()]
    reference = dict(zip(names, run_session(session, prepared.feeds), strict=True))
    same = compare(outcome.measured.outputs, reference)
    close = compare(outcome.measured.outputs, prepared.baseline.outputs)
    own = Repeats("", 0.0) if same.bit_equal else repeats(session, prepared.feeds)
    del session
    if not (same.bit_equal or same.ok or own.allows(same.worst)):
        raise VerificationError(
            "the planned model computes something else",
            where=f"output {same.output}",
            why=f"it differs by {same.worst:.2g} from the same graph without recomputation",
            hint="please report this model; nothing was written",
        )
    if not outcome.measured.order_kept:
        raise VerificationError(
            "onnxruntime ran the planned model in another order",
            hint="please report this model and the onnxruntime version; nothing was written",
        )
    timings: list[Timing] = []
    if bench_seconds > 0:
        say("timing")
        timings = _bench(prepared, store_all, outcome, bench_seconds, stop)
    changing = (
        "" if own.same else f"'{own.output}' by up to {own.spread:.1e}: {why(prepared.graph)}"
    )
    return Finished(prepared, outcome, close, same, tuple(timings), changing)


def _base(prepared: Prepared) -> list[str]:
    return [op.name for op in prepared.graph.ops]


def _bench(
    prepared: Prepared,
    store_all: Rewritten,
    outcome: Outcome,
    bench_seconds: float,
    stop: Callable[[], bool] | None,
) -> list[Timing]:
    assert prepared.feeds is not None
    folder = prepared.folder
    contenders = [
        InSession("store-all", store_all.model(), prepared.tuned, folder),
        InSession("result", outcome.rewritten.model(), prepared.tuned, folder),
        InSession("original", prepared.original, prepared.default, folder),
    ]
    return bench(contenders, prepared.feeds, seconds=bench_seconds, stop=stop)
