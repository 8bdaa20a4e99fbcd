"""Plan over several devices, cut to partitions, measure; again with the excess taken off."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite
from pathlib import Path
from typing import Any

from onnxremat.cost.devices import device_costs
from onnxremat.cost.table import CostTable
from onnxremat.device.machine import Machine
from onnxremat.errors import (
    InfeasibleError,
    NoPlanError,
    OverBudgetError,
    UsageError,
    VerificationError,
)
from onnxremat.graph.onnx_io import write_model
from onnxremat.ort.providers import missing
from onnxremat.plan.devices import DeviceProblem, DeviceSolution, solve_devices
from onnxremat.plan.devices.bounds import NO_LIMIT
from onnxremat.plan.devices.exact import solve_device_formulation
from onnxremat.plan.devices.problem import first_runs, least_seconds
from onnxremat.plan.devices.steps import provenance_of
from onnxremat.plan.formulate import check_for_devices
from onnxremat.plan.methods import Method
from onnxremat.plan.problem import Certificate, Status
from onnxremat.run.bench import Timing
from onnxremat.run.bench_devices import bench_devices
from onnxremat.run.closed_loop import PlanOptions
from onnxremat.run.deployment import Deployment, deploy
from onnxremat.run.device_memory import DeviceBytes
from onnxremat.run.device_plan import DeviceModel, device_model, transfers
from onnxremat.run.exchange import (
    model_words,
    read_device_formulation,
    write_device_formulation,
)
from onnxremat.run.prepare import Prepared
from onnxremat.run.verify_devices import DeviceVerification, verify_devices
from onnxremat.units import Budget, format_bytes

ROUNDS = 6


@dataclass(frozen=True)
class DeviceResult:
    """A model on several devices, within the budget of each.

    Attributes:
        tables: costs per device.
        verification, timings: None and empty where a device is not here.
        absent: why it was not run, per device that is not here.
        written: figures of the model that was written, empty for none.
    """

    prepared: Prepared
    deployment: Deployment
    solution: DeviceSolution
    tables: Mapping[str, CostTable]
    verification: DeviceVerification | None
    timings: tuple[Timing, ...]
    absent: Mapping[str, str] = field(default_factory=dict)
    written: Mapping[str, Any] = field(default_factory=dict)

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
            "makespan_predicted": made.makespan,
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
            "notes": list(found.notes),
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

    Raises:
        UsageError: wrong budgets, pins or method, or a formulation whose model is too large.
        InfeasibleError, NoPlanError, OverBudgetError: the budgets cannot be kept.
        VerificationError: the result computes something else, or not where it was planned.
    """
    say = say or (lambda _: None)
    files = [path for path in (write_model, read_solution) if path is not None]
    objective = _objective(machine, options.method, objective, files)
    tables = device_costs(
        prepared.graph, machine, prepared.feeds, folder=prepared.folder,
        fresh=prepared.settings.fresh, say=say,
    )  # fmt: skip
    peaks = dict.fromkeys(machine.names, prepared.baseline_peak)
    limits = machine.limits(budgets, peaks)
    model = device_model(
        prepared.graph, machine, tables, pins, pairs=prepared.in_place, limits=limits
    )
    written: dict[str, Any] = {}
    aims = [limits.get(name, NO_LIMIT) for name in machine.names]
    if write_model is not None:
        say("writing the model")
        written = write_device_formulation(
            model.problem, aims, options.method.formulation, write_model,
            most_columns=options.method.most_columns,
        )  # fmt: skip
        say(model_words(written, write_model))
    absent = _absent(machine)
    runnable = prepared.feeds is not None and not absent
    given = None
    if read_solution is not None:
        say("replaying the solution")
        given = read_device_formulation(
            model.problem, aims, options.method.formulation, read_solution,
            most_columns=options.method.most_columns,
        )  # fmt: skip
    found = _loop(prepared, model, tables, limits, options, objective, runnable, given, say)
    solution, made, verification = found
    timings: list[Timing] = []
    if verification is not None:
        _refuse_wrong(verification)
        if bench_seconds > 0 and prepared.feeds is not None:
            say("timing")
            timings = bench_devices(made, prepared.feeds, seconds=bench_seconds, stop=options.stop)
    return DeviceResult(
        prepared, made, solution, tables, verification, tuple(timings), absent, written
    )


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


def _loop(
    prepared: Prepared,
    model: DeviceModel,
    tables: Mapping[str, CostTable],
    limits: Mapping[str, int],
    options: PlanOptions,
    objective: str,
    runnable: bool,
    given: DeviceSolution | None,
    say: Callable[[str], None],
) -> tuple[DeviceSolution, Deployment, DeviceVerification | None]:
    aims = {name: float(limits.get(name, inf)) for name in model.machine.names}
    left, first, over = options.time_limit, None, {}
    fixed_order = prepared.settings.fixed_order
    for _ in range(1 if given else ROUNDS):
        if given is None:
            say("planning")
        solution = given or _solved(model, aims, options, objective, left, fixed_order)
        if solution.schedule is None:
            if first is not None:
                break
            raise _refusal(prepared, model, solution, limits)
        first = first or solution
        solution = _proven(model.problem, solution, first, options.gap)
        made = _deployed(prepared, model, tables, solution, aims, limits)
        over = _excess(made.predicted, limits)
        if not over:
            if not runnable or prepared.feeds is None:
                return solution, made, None
            say("running the partitions")
            checked = verify_devices(made, prepared.feeds)
            over = _excess(checked.measured, limits)
            if not over:
                return solution, made, checked
        for name, excess in over.items():
            peak = solution.peaks[model.machine.names.index(name)]
            aims[name] = min(aims[name], float(peak)) - excess - 256
        left = min(options.time_limit, max(5.0, first.plan_seconds / 4))
    worst = max(over, key=over.__getitem__)
    raise OverBudgetError(
        f"no plan keeps device '{worst}' within {format_bytes(limits[worst])} when carried out",
        why=f"the last one needs {format_bytes(limits[worst] + over[worst])}: partitions hold "
        "their inputs until they are done",
        hint=f"--budget {worst}={limits[worst] + over[worst]}",
        excess=over[worst],
    )


def _excess(found: Mapping[str, DeviceBytes], limits: Mapping[str, int]) -> dict[str, int]:
    """Bytes by which each device that is over its limit is over it."""
    return {
        name: found[name].peak - limit for name, limit in limits.items() if found[name].peak > limit
    }


def _proven(
    problem: DeviceProblem, solution: DeviceSolution, first: DeviceSolution, gap: float
) -> DeviceSolution:
    """The solution with what is proven of the whole budgets: a later round had smaller ones."""
    if solution is first or first.schedule is None or solution.schedule is None:
        return solution
    proof = first.certificate
    if not proof.any_order and first_runs(first.schedule) != first_runs(solution.schedule):
        proof = Certificate(least_seconds(problem), "least run", True)
    found = replace(
        solution,
        certificate=replace(proof, bound=min(proof.bound, solution.value)),
        makespan_bound=min(first.makespan_bound, solution.makespan),
        plan_seconds=first.plan_seconds + solution.plan_seconds,
        notes=(*first.notes, "carried out, that plan took more than a budget: planned for less"),
    )
    return replace(found, status=Status.OPTIMAL if found.gap <= gap else Status.FEASIBLE)


def _solved(
    model: DeviceModel,
    aims: Mapping[str, float],
    options: PlanOptions,
    objective: str,
    seconds: float,
    fixed_order: bool,
) -> DeviceSolution:
    budgets, method = [aims[name] for name in model.machine.names], options.method
    if method.formulation:
        return solve_device_formulation(
            model.problem, budgets, method.formulation, time_limit=seconds, gap=options.gap,
            seed=options.seed, threads=options.threads, solver=options.solver,
            warm_start=method.warm_start, most_columns=method.most_columns,
            progress=options.progress, stop=options.stop,
        )  # fmt: skip
    return solve_devices(
        model.problem, budgets, objective=objective, time_limit=seconds, gap=options.gap,
        seed=options.seed, threads=options.threads, solver=options.solver, fixed_order=fixed_order,
        progress=options.progress, stop=options.stop,
    )  # fmt: skip


def _deployed(
    prepared: Prepared,
    model: DeviceModel,
    tables: Mapping[str, CostTable],
    solution: DeviceSolution,
    aims: Mapping[str, float],
    limits: Mapping[str, int],
) -> Deployment:
    assert solution.schedule is not None
    numbers = [int(a) if isfinite(a) else NO_LIMIT for a in aims.values()]
    provenance = replace(
        provenance_of(solution),
        cost_source="; ".join(f"{name}: {t.source}" for name, t in tables.items()),
        settings=prepared.settings.to_json(),
    )
    plan = model.plan(solution.schedule, provenance, numbers)
    return deploy(
        prepared.graph, plan, model.machine, tables, limits=limits, pairs=prepared.in_place,
        folder=prepared.folder, insist=False,
    )  # fmt: skip


def _refusal(
    prepared: Prepared, model: DeviceModel, solution: DeviceSolution, limits: Mapping[str, int]
) -> InfeasibleError | NoPlanError:
    text = ", ".join(f"{name}={format_bytes(size)}" for name, size in limits.items())
    why = "; ".join(solution.notes) or "no placement, order, recomputation or move fits"
    why = re.sub(r"\bop (\d+)", lambda found: f"op '{model.names.ops[int(found[1])]}'", why)
    hint = "give one of the devices more, or add a device"
    if solution.status is Status.INFEASIBLE:
        return InfeasibleError(f"{prepared.name} cannot run within {text}", why=why, hint=hint)
    return NoPlanError(
        f"no plan found for {prepared.name} within {text}", why=why,
        hint=f"{hint}, or more time: --time-limit",
    )  # fmt: skip


def _refuse_wrong(found: DeviceVerification) -> None:
    wrong = [check for check in found.checks if not check.ok and "predicted" not in check.name]
    if wrong:
        raise VerificationError(
            "the planned model does not pass",
            why="; ".join(f"{check.name}: {check.text}" for check in wrong),
            hint="please report this model; nothing was written",
        )
