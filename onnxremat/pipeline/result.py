"""A finished optimisation: checked, timed, ready to be written."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

import onnx

from onnxremat.errors import VerificationError
from onnxremat.execute.deployment import Deployment
from onnxremat.execute.device_memory import Resident
from onnxremat.graph.atomic import check_writable
from onnxremat.graph.onnx_io import write_model
from onnxremat.graph.unforeseen import SHOWN
from onnxremat.ort.offline import HOST
from onnxremat.pipeline.artifact import Check, Kind, Verified
from onnxremat.pipeline.asked import opening
from onnxremat.pipeline.bench import Timing, bench
from onnxremat.pipeline.closed_loop import Candidate
from onnxremat.pipeline.devices.device_plan import transfers
from onnxremat.pipeline.devices.over_devices import DevicesRun, OverDevices
from onnxremat.pipeline.in_session import InOneSession
from onnxremat.pipeline.limits import on_top
from onnxremat.pipeline.phases import TIME, VERIFY, Phases
from onnxremat.pipeline.prepared import Prepared
from onnxremat.pipeline.session_run import SessionRun
from onnxremat.pipeline.time_left import for_timing, no_time, said_of_short
from onnxremat.pipeline.verify import bytes_checks
from onnxremat.rewrite.pins import is_added
from onnxremat.schedule.plan import Plan
from onnxremat.session.compare import Difference, compare
from onnxremat.session.load import options_beside, options_path
from onnxremat.session.process import Beside


@dataclass(frozen=True)
class Result:
    """A model within its budget, with everything that is known about it.

    Attributes:
        candidate: the plan, carried out and measured.
        verified: what its run showed, None where nothing was run.
        against_original: outputs against the original under default options, likewise.
        timings: paired; empty when not timed.
        absent: why it was not run, per device that is not here.
        written: figures of the formulation that was written, empty for none.
        phases: seconds per phase so far.
        command: the line of a shell that asked for it, without folders; "" where none did.
    """

    candidate: Candidate
    verified: Verified | None = None
    against_original: Difference | None = None
    timings: tuple[Timing, ...] = ()
    absent: Mapping[str, str] = field(default_factory=dict)
    written: Mapping[str, Any] = field(default_factory=dict)
    phases: Mapping[str, float] = field(default_factory=dict)
    command: str = ""

    @property
    def prepared(self) -> Prepared:
        """The model as it was planned, in parts where that is quicker."""
        return self.candidate.prepared

    @property
    def plan(self) -> Plan:
        """The plan that was carried out."""
        return self.candidate.plan

    @property
    def checks(self) -> tuple[Check, ...]:
        """What was verified."""
        return self.verified.checks if self.verified else ()

    @property
    def deployment(self) -> Deployment:
        """The partitions, of a model for several devices."""
        assert isinstance(self.candidate.artifact, OverDevices)
        return self.candidate.artifact.made

    @property
    def model(self) -> onnx.ModelProto:
        """The ONNX model, its plan and options in the metadata."""
        return self.candidate.artifact.model(self.facts())

    def facts(self) -> dict[str, Any]:
        """All figures as plain data; overheads, bound and gap are fractions of the store-all time
        (of the graph that was planned: in parts where it is), sizes are bytes, times seconds.
        ``overhead_to_whole`` is of the whole graph's. What was not measured is None."""
        artifact, plan = self.candidate.artifact, self.plan.provenance
        about = {
            "model": self.prepared.name,
            "command": self.command,
            "status": plan.status,
            "planner": plan.planner,
            "plan_seconds": plan.plan_seconds,
            "bound_kind": plan.bound_kind,
            "bound_staged": plan.staged,
            "rounds": self.candidate.rounds + 1,
            "baseline_peak_bytes": self.prepared.baseline_peak,
            "split_batch": list(self.prepared.settings.split_batch or ()),
            "fission": [region.to_json() for region in self.prepared.settings.fission or ()],
            "not_counted": list(self.prepared.settings.not_counted),
            "target": self.prepared.settings.target,
            **self._of_outputs(),
            "written_model": dict(self.written),
            "seconds_by_phase": dict(self.phases),
            "notes": list(plan.notes),
        }
        if isinstance(artifact, OverDevices):
            return about | self._of_devices(artifact)
        assert isinstance(artifact, InOneSession)
        return about | self._of_session(artifact)

    def _of_outputs(self) -> dict[str, Any]:
        """Outputs against the original's; no difference in numbers where one has infinities, or a
        shape, that the other has not."""
        found = self.against_original
        return {
            "difference_to_original": found.worst if found and isfinite(found.worst) else None,
            "bit_equal_to_original": found.bit_equal if found else None,
            "same_as_original": self.candidate.artifact.allows(found) if found else None,
        }

    @cached_property
    def _beside(self) -> Beside:
        """Everything beside weights and values of one session, counted or not."""
        artifact = self.candidate.artifact
        assert isinstance(artifact, InOneSession)
        return self.prepared.everything_in(artifact.graph)

    def _of_session(self, artifact: InOneSession) -> dict[str, Any]:
        """Figures of one session."""
        prepared, plan, run = self.prepared, self.plan.provenance, self.candidate.measured
        found = run.tuned if isinstance(run, SessionRun) else None
        plain = run.plain if isinstance(run, SessionRun) else None
        whole = prepared.outputs is not None or not (isinstance(run, SessionRun) and run.short)
        timing = {t.name: t for t in self.timings}
        result, original = timing.get("result"), timing.get("original")
        parts = self._beside
        return {
            "budget_bytes": self.candidate.budget,
            "limit_bytes": self.candidate.limit - artifact.unused,
            "beside_bytes": artifact.beside + artifact.unused,
            "baseline_beside_bytes": prepared.beside_in(prepared.whole or prepared.graph).total,
            "store_all_beside_bytes": prepared.beside.total,
            "state_bytes": parts.state,
            "session_bytes": parts.session,
            "update_bytes": parts.update,
            "unused_bytes": artifact.unused,
            "process_bytes": self.candidate.process,
            "store_all_peak_bytes": prepared.store_all_peak,
            "peak_predicted_bytes": artifact.timeline.peak,
            "peak_measured_bytes": found.peak if found else None,
            "peak_default_options_bytes": plain.peak if plain else None,
            "arena_bytes": found.arena_bytes if found else None,
            "arena_default_options_bytes": plain.arena_bytes if plain else None,
            "weight_bytes": artifact.timeline.weight_bytes,
            "input_bytes": prepared.graph.input_bytes,
            "overhead_planned": plan.overhead,
            "overhead_to_whole": plan.seconds / prepared.whole_seconds - 1
            if prepared.whole_seconds
            else None,
            "overhead_measured": result.ratio - 1 if result else None,
            "overhead_spread": result.spread if result else None,
            "original_time_ratio": original.ratio if original else None,
            "original_spread": original.spread if original else None,
            "overhead_to_original": result.ratio / original.ratio - 1
            if result and original
            else None,
            "step_seconds": result.seconds if result else None,
            "bound": plan.bound_overhead,
            "bound_any_order": plan.any_order,
            "gap": plan.gap,
            "ops": len(prepared.graph.ops),
            "recomputed_ops": self.plan.recomputations,
            "added_ops": sum(is_added(op.name) for op in artifact.graph.ops),
            "order_kept": found.order_kept if found else None,
            "order_kept_default_options": plain.order_kept and not plain.merged if plain else None,
            "bit_equal": self.verified.same.bit_equal if self.verified and whole else None,
            "changing_outputs": (self.verified and self.verified.changing) or None,
            "cost_source": prepared.costs.source,
        }

    def _of_devices(self, artifact: OverDevices) -> dict[str, Any]:
        """Figures of partitions over devices."""
        made, run = artifact.made, self.candidate.measured
        measured = run.recorded.bytes if isinstance(run, DevicesRun) else {}
        peaks = run.peaks if isinstance(run, DevicesRun) else {}
        predicted = artifact.predict()
        first = {other: name for name, others in made.replicas.items() for other in others}
        parts = {
            name: [p for p in made.parts.partitions if p.device == first.get(name, name)]
            for name in made.machine.names
        }
        beside = on_top(self.prepared, made.machine, made.parts.counted)
        rows = [
            {
                "device": name,
                "budget_bytes": made.limits.get(name),
                "beside_bytes": beside[name],
                **_parts_of(made.predicted[name].stays),
                "peak_predicted_bytes": predicted[name],
                "peak_worst_case_bytes": made.worst[name],
                "peak_measured_bytes": peaks.get(name),
                "measured_how": measured[name].how if name in measured else None,
                "cost_source": artifact.tables[name].source if name in artifact.tables else None,
                "precision": made.machine.device(name).precision,
                "partitions": len(parts[name]),
                "ops": sum(len(part.graph.ops) for part in parts[name]),
            }
            for name in made.machine.names
        ]
        return {
            **artifact.planned(),
            "bound_any_order": self.plan.provenance.any_order,
            "machine": made.machine.name,
            "devices": rows,
            "partitions": len(made.parts.partitions),
            "copies": len(made.parts.copies),
            "moves": transfers(made.plan),
            "recomputed_ops": sum(1 for op in made.parts.graph.ops if op.origin),
            "timings": [vars(timing) for timing in self.timings],
            "checks": [vars(check) for check in self.checks],
            "not_here": dict(self.absent),
        }

    def save(self, path: str | os.PathLike[str]) -> list[Path]:
        """Check and write the model, its external weights where it has any, and for one session
        its options (``<path>.options.json``); returns the files written.

        Raises:
            UsageError: the folder is not writable, or the path is that of what was read.
        """
        target, artifact = Path(path), self.candidate.artifact
        keep = self.prepared.unsplit.files
        if not isinstance(artifact, InOneSession):
            check_writable(target)
            written = write_model(self.model, target, self.prepared.folder, keep)
            options_path(target).unlink(missing_ok=True)  # of a model that was there before
            return written
        check_writable(options_path(target))
        with options_beside(target, artifact.options, self.facts()) as beside:
            return [*write_model(self.model, target, artifact.folder, keep), beside]


def _parts_of(stays: Resident) -> dict[str, int]:
    """What is on a device all the time, part by part."""
    return {
        "weight_bytes": stays.weights,
        "input_bytes": stays.inputs + stays.given,
        "session_bytes": stays.session,
    }


R = TypeVar("R", bound=Result)


@dataclass(frozen=True)
class Timed:
    """How a result is timed.

    Attributes:
        seconds: to spend, 0 for none; None for what the time limit leaves.
        during: entered while it is timed.
    """

    seconds: float | None = None
    stop: Callable[[], bool] | None = None
    during: Callable[[], AbstractContextManager[object]] = nullcontext


def _opening(run: SessionRun) -> float:
    """Seconds that opening a session with default options takes longer, where it is to be run."""
    return opening(run.artifact.graph) if run.artifact.ran is None else 0.0


def finish(kind: type[R], candidate: Candidate, timed: Timed, log: Phases, **more: Any) -> R:
    """Verify what ran, and time it.

    Args:
        kind: of the result.
        more: further fields of it.

    Raises:
        VerificationError: outputs, order or placement are not as planned.
    """
    prepared, run = candidate.prepared, candidate.measured
    if run is None or prepared.baseline is None or prepared.feeds is None:
        return kind(candidate, phases=dict(log.seconds), **more)
    with log.phase(VERIFY, "verifying"):
        if isinstance(run, SessionRun) and no_time(prepared, log, more=_opening(run)):
            hides = SHOWN in run.artifact.graph.tensors
            run = run.shortened()
            candidate = replace(candidate.noted(said_of_short(prepared, hides)), measured=run)
        verified = candidate.artifact.verified(prepared, run)
        _refuse_wrong(verified, prepared)
        made = candidate.artifact
        bytes_ = bytes_checks(made.predict(), run, candidate.limits, made.beside)
        close = compare(next(iter(run.outputs.values())), prepared.baseline.outputs)
        if not (made.allows(close) or verified.changing):
            candidate = candidate.noted(_said_of_other(close, prepared))
    timings: list[Timing] = []
    seconds = for_timing(prepared, log) if timed.seconds is None else timed.seconds
    if seconds > 0 and not (timed.stop and timed.stop()):
        with log.phase(TIME, "timing"), timed.during():
            contenders = candidate.artifact.contenders(prepared)
            timings = bench(contenders, prepared.feeds, seconds=seconds, stop=timed.stop)
    return kind(
        candidate,
        Verified(verified.same, (*verified.checks, *bytes_), verified.changing),
        close,
        tuple(timings),
        phases=dict(log.seconds),
        **more,
    )


def _said_of_other(found: Difference, prepared: Prepared) -> str:
    """That outputs are not those of the original: it is no fault of the plan, whose outputs are
    those of the graph that it is a plan of."""
    by = f"by {found.worst:.2g} of its largest value" if isfinite(found.worst) else (
        "in what is infinite or no number, or in its shape"
    )  # fmt: skip
    said = (
        f"output '{found.output}' is not the original's: it differs {by} (allowed "
        f"{found.tolerance:.0e}), and verify will say so. onnxruntime computes the original with "
        "ops that it fuses, which round elsewhere"
    )
    host = prepared.settings.target == HOST
    return said if host else f"{said}; --target host plans these"


def _refuse_wrong(verified: Verified, prepared: Prepared) -> None:
    failed = [check for check in verified.checks if not check.ok]
    if not failed:
        return
    what = "the planned model computes something else"
    hint = "please report this model and the onnxruntime version; nothing was written"
    if all(check.kind is not Kind.OUTPUTS for check in failed):
        what = "onnxruntime ran the planned model otherwise than planned"
        if prepared.settings.target == "none":
            hint = "--target portable, or another way to compute it in parts; nothing was written"
    raise VerificationError(
        what, why="; ".join(f"{check.name}: {check.text}" for check in failed), hint=hint
    )
