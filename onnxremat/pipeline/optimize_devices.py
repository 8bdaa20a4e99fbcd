"""A model planned over several devices, carried out, verified, timed: all a caller needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onnxremat.cost.table import CostTable
from onnxremat.device.machine import Machine
from onnxremat.errors import (
    UsageError,
    VerificationError,
)
from onnxremat.execute.deployment import Deployment
from onnxremat.graph.onnx_io import write_model
from onnxremat.ort.providers import missing
from onnxremat.pipeline.bench import Timing
from onnxremat.pipeline.bench_devices import bench_devices
from onnxremat.pipeline.device_plan import transfers
from onnxremat.pipeline.device_rounds import DeviceRounds
from onnxremat.pipeline.device_slices import Costs, may_split, measured_on, whole_or_in_parts
from onnxremat.pipeline.model_files import (
    model_words,
    read_device_formulation,
    write_device_formulation,
)
from onnxremat.pipeline.prepare import Prepared
from onnxremat.pipeline.verify_devices import DeviceVerification
from onnxremat.planner.formulate import check_for_devices
from onnxremat.planner.incumbent import NO_LIMIT
from onnxremat.planner.options import Method, PlanOptions
from onnxremat.planner.solution import Solution
from onnxremat.units import Budget


@dataclass(frozen=True)
class DeviceResult:
    """A model on several devices, within the budget of each.

    Attributes:
        prepared: the model as it was planned, in parts where that is quicker.
        tables: costs per device.
        verification, timings: None and empty where a device is not here.
        absent: why it was not run, per device that is not here.
        written: figures of the model that was written, empty for none.
        notes: what a user should know of how it was prepared.
    """

    prepared: Prepared
    deployment: Deployment
    solution: Solution
    tables: Mapping[str, CostTable]
    verification: DeviceVerification | None
    timings: tuple[Timing, ...]
    absent: Mapping[str, str] = field(default_factory=dict)
    written: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def facts(self) -> dict[str, Any]:
        """All figures as plain data: bytes, seconds, shares."""
        made, found = self.deployment, self.solution
        measured = self.verification.measured if self.verification else {}
        rows = [
            {
                "device": name,
                "budget_bytes": made.limits.get(name),
                "peak_predicted_bytes": made.predicted[name].peak,
                "peak_worst_case_bytes": made.worst[name],
                "peak_measured_bytes": measured[name].peak if name in measured else None,
                "measured_how": measured[name].how if name in measured else None,
                "cost_source": self.tables[name].source if name in self.tables else None,
                "partitions": sum(part.device == name for part in made.parts.partitions),
                "ops": sum(len(p.graph.ops) for p in made.parts.partitions if p.device == name),
            }
            for name in made.machine.names
        ]
        return {
            "model": self.prepared.name,
            "split_batch": list(self.prepared.settings.split_batch or ()),
            "status": found.status.value,
            "objective": found.objective,
            "machine": made.machine.name,
            "devices": rows,
            "partitions": len(made.parts.partitions),
            "copies": len(made.parts.copies),
            "moves": transfers(made.plan),
            "recomputed_ops": sum(1 for op in made.parts.graph.ops if op.origin),
            "seconds_planned": found.time,
            "makespan_planned": found.makespan,
            "makespan_of_costs": made.makespan_of_costs,
            "makespan_predicted": made.makespan,
            "tried": bool(made.tried),
            "bound_seconds": found.certificate.bound,
            "bound_kind": found.certificate.kind,
            "bound_staged": found.certificate.staged,
            "planner": found.planner,
            "gap": found.gap,
            "best_single_device_seconds": found.reference,
            "plan_seconds": found.plan_seconds,
            "timings": [vars(timing) for timing in self.timings],
            "checks": [vars(check) for check in self.verification.checks]
            if self.verification
            else [],
            "not_here": dict(self.absent),
            "written_model": dict(self.written),
            "notes": [*self.notes, *found.notes],
        }

    def save(self, path: str | Path) -> list[Path]:
        """Write the one model that carries it all.

        Raises:
            UsageError: the folder is not writable.
        """
        return write_model(self.deployment.model(self.facts()), path, self.prepared.folder)


def optimize_devices(
    prepared: Prepared,
    machine: Machine,
    budgets: Mapping[str, Budget],
    options: PlanOptions,
    *,
    pins: Sequence[tuple[str, str]] = (),
    objective: str = "auto",
    bench_seconds: float = 6.0,
    write_model: Path | None = None,
    read_solution: Path | None = None,
    costs: Costs | None = None,
    during: Callable[[], AbstractContextManager[object]] = nullcontext,
    say: Callable[[str], None] | None = None,
) -> DeviceResult:
    """Find where and when every op runs, so that each device keeps its budget, and prove it.

    Args:
        budgets: by device name; a device without one may use its memory.
        pins: (pattern of op names or types, device).
        objective: ``time`` (sum of all runs and copies), ``makespan`` (devices side by side), or
            ``auto``: makespan where more than one device computes. A formulation
            (``options.method``) minimises the time.
        write_model: write the formulation as ``.mps`` or ``.lp`` before it is solved.
        read_solution: take the plan from a solution of the formulation instead of solving it.
        costs: prices the ops of a prepared model on every device, instead of measuring them.
        during: entered while something is timed (to keep other work away, say).

    Raises:
        UsageError: wrong budgets, pins or method, or a formulation whose model is too large.
        InfeasibleError, NoPlanError, OverBudgetError: the budgets cannot be kept.
        VerificationError: the result computes something else, or not where it was planned.
    """
    say = say or (lambda _: None)
    files = [path for path in (write_model, read_solution) if path is not None]
    objective = _objective(machine, options.method, objective, files)
    costs = costs or measured_on(machine, say)
    tables = costs(prepared)
    peaks = dict.fromkeys(machine.names, prepared.baseline_peak)
    limits = machine.limits(budgets, peaks)
    absent = _absent(machine)
    rounds = DeviceRounds(
        prepared, machine, pins, limits, options, objective,
        prepared.feeds is not None and not absent, say, during,
    )  # fmt: skip
    written, given = _exchanged(rounds, tables, write_model, read_solution)
    notes: tuple[str, ...] = ()
    if files or not may_split(rounds):
        found = rounds.best(tables, given)
    else:
        rounds, found, notes = whole_or_in_parts(rounds, tables, costs)
    timings: list[Timing] = []
    if found.verification is not None:
        _refuse_wrong(found.verification)
        if bench_seconds > 0 and prepared.feeds is not None:
            say("timing")
            with during():
                timings = bench_devices(
                    found.made, prepared.feeds, whole=prepared.graph, seconds=bench_seconds,
                    stop=options.stop,
                )  # fmt: skip
    return DeviceResult(
        rounds.prepared, found.made, found.solution, found.tables, found.verification,
        tuple(timings), absent, written, notes,
    )  # fmt: skip


def _exchanged(
    rounds: DeviceRounds,
    tables: Mapping[str, CostTable],
    write_model: Path | None,
    read_solution: Path | None,
) -> tuple[dict[str, Any], Solution | None]:
    """Figures of the formulation that was written, and the solution of it that was read."""
    method, say = rounds.options.method, rounds.say
    problem = rounds.model(tables).problem
    aims = [rounds.limits.get(name, NO_LIMIT) for name in rounds.machine.names]
    written: dict[str, Any] = {}
    given = None
    if write_model is not None:
        say("writing the model")
        written = write_device_formulation(
            problem, aims, method.formulation, write_model, most_columns=method.most_columns
        )
        say(model_words(written, write_model))
    if read_solution is not None:
        say("replaying the solution")
        given = read_device_formulation(
            problem, aims, method.formulation, read_solution, most_columns=method.most_columns
        )
    return written, given


def _objective(machine: Machine, method: Method, objective: str, files: Sequence[Path]) -> str:
    """What to minimise.

    Raises:
        UsageError: a method that does not plan for several devices, or not for that objective.
    """
    if method.planner != "auto":
        raise UsageError(
            f"--planner {method.planner} plans for one device",
            hint="leave it out, or give --formulation xengine-miqp",
        )
    if method.formulation:
        check_for_devices(method.formulation)
        if objective == "makespan":
            raise UsageError(
                f"{method.formulation} minimises the time of all runs and copies together",
                hint="--objective time; or leave out --formulation",
            )
        return "time"
    if files:
        raise UsageError(
            f"{files[0]} needs a formulation", why="it holds one's model or solution",
            hint="--formulation xengine-miqp or xengine-linear",
        )  # fmt: skip
    if objective != "auto":
        return objective
    return "makespan" if sum(device.computes for device in machine.devices) > 1 else "time"


def _absent(machine: Machine) -> dict[str, str]:
    """Why nothing can be run on a device here, for each such device."""
    if machine.elsewhere:
        return dict.fromkeys(machine.names, "the machine file says that it is elsewhere")
    return {d.name: reason for d in machine.devices if (reason := missing(d))}


def _refuse_wrong(found: DeviceVerification) -> None:
    wrong = [check for check in found.checks if not check.ok and "predicted" not in check.name]
    if wrong:
        raise VerificationError(
            "the planned model does not pass",
            why="; ".join(f"{check.name}: {check.text}" for check in wrong),
            hint="please report this model; nothing was written",
        )
