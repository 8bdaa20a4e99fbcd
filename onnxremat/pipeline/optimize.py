"""A prepared model to a finished one: the plan in one session or over devices, then verified."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from onnxremat.device.machine import Machine
from onnxremat.errors import NO_FIT, UsageError
from onnxremat.graph.onnx_io import missing_file
from onnxremat.limits import SAMPLES, at_least, check
from onnxremat.ort.offline import HOST, PORTABLE, optimised_for, weight_bytes
from onnxremat.ort.weights import held_by
from onnxremat.pipeline.closed_loop import Candidate, load_search
from onnxremat.pipeline.devices.device_ways import (
    Costs,
    During,
    Trials,
    given,
    measured_on,
    quickest,
)
from onnxremat.pipeline.devices.several_devices import SeveralDevices
from onnxremat.pipeline.devices.site import Site, require_values
from onnxremat.pipeline.for_a_trainer import for_a_trainer
from onnxremat.pipeline.limits import counted_on, device_limits, limit_of, on_top
from onnxremat.pipeline.model_files import (
    SOLUTION,
    read_device_formulation,
    write_device_formulation,
    write_prepared,
)
from onnxremat.pipeline.original.unchanged import OPENING, as_it_ran, opens, unchanged
from onnxremat.pipeline.phases import COSTS, MEASURE, WRITE, Phases
from onnxremat.pipeline.prepared import Prepared
from onnxremat.pipeline.refusal import Refusal
from onnxremat.pipeline.result import R, Result, Timed, finish
from onnxremat.pipeline.ways import plan_within_budget
from onnxremat.pipeline.within_time import plan_within_time
from onnxremat.planner.formulate import check_for_devices
from onnxremat.planner.incumbent import NO_LIMIT
from onnxremat.planner.options import OBJECTIVES, PlanOptions
from onnxremat.session.process import SESSION
from onnxremat.units import Budget, format_bytes, one_budget

THROUGHPUT = "throughput"
HALF = 0.5  # of the time, for a share of all of the original as it was asked for
MORE = 1.01  # of a share of all of the original, for a file that opens within it


@dataclass(frozen=True)
class Request:
    """What is asked of an optimisation, beside how the model is prepared.

    Attributes:
        budget: ``2GiB``, bytes, ``60%`` (of this machine's memory), ``0.6x`` (of the unoptimised
            peak), ``min``; for several devices ``cpu=1GiB,cuda:0=6GiB``, one for all, or "" for
            the memories that the machine file gives.
        machine: devices to plan for, None for one session on the processor.
        options: how to search.
        pins: (pattern of op names or types, device).
        objective: ``time`` of all runs and copies, ``makespan`` with devices side by side,
            ``throughput`` of samples one after the other, or ``auto``: makespan where more than
            one device computes. A formulation minimises the time.
        bench_seconds: time to spend on timing the result, 0 for none; None for a few seconds, or
            what the time limit leaves.
        write_model: write the formulation (of ``options``, else ``cuts``) as ``.mps`` or ``.lp``
            before it is solved.
        read_solution: take the plan from a solution of the formulation instead of solving it.
        costs: prices the ops of a prepared model on every device, instead of measuring them.
        during: entered while something is timed (to keep other work away, say).
        in_flight: for the throughput: samples inside at most; None for as many as are of use and
            fit.
        replicas: for the throughput: devices at most that take the samples of one stage in turn;
            None for as many as are of use and fit.
        contiguous: for the throughput: True for a chain of stages, False for a placement of any
            shape, None for the quicker one.
        max_overhead: instead of a budget: the least memory within this share of time more than
            storing everything takes.

    Raises:
        UsageError: what does not go together.
    """

    budget: str | int = ""
    machine: Machine | None = None
    options: PlanOptions = field(default_factory=PlanOptions)
    pins: Sequence[tuple[str, str]] = ()
    objective: str = "auto"
    bench_seconds: float | None = None
    write_model: Path | None = None
    read_solution: Path | None = None
    costs: Costs | None = None
    during: During = nullcontext
    in_flight: int | None = None
    replicas: int | None = None
    contiguous: bool | None = None
    max_overhead: float | None = None

    def __post_init__(self) -> None:
        self.options.method.heeded(written=self.write_model is not None)
        known = ("auto", *OBJECTIVES, THROUGHPUT)
        if self.objective not in known:
            raise UsageError(
                f"unknown objective '{self.objective}'", hint="one of " + ", ".join(known)
            )
        if self.in_flight is not None and self.objective != THROUGHPUT:
            raise UsageError(
                "--in-flight goes with --objective throughput",
                why="other plans take one sample after the other",
            )
        hint = "leave it out for as many as are of use and fit"
        check(self.in_flight or 0, SAMPLES, "samples in flight", hint=hint, kind=UsageError)
        if self.replicas is not None and self.objective != THROUGHPUT:
            raise UsageError(
                "--replicas goes with --objective throughput",
                why="other plans have no stages that several devices could share",
            )
        if self.contiguous is not None and self.objective != THROUGHPUT:
            raise UsageError(
                f"{'--contiguous' if self.contiguous else '--any'} goes with --objective "
                "throughput",
                why="other plans are no pipelines",
            )
        for name in ("in_flight", "replicas"):
            if (count := getattr(self, name)) is not None:
                at_least(count, 1, name)
        if self.read_solution is not None and not self.read_solution.is_file():
            raise missing_file(self.read_solution, ".sol", make=SOLUTION)
        at_least(self.bench_seconds or 0.0, 0.0, "bench_seconds")
        if self.max_overhead is not None:
            self._check_for_time(self.max_overhead)
        if self.machine is None:
            self._check_for_one()
        else:
            self._check_for(self.machine)

    @property
    def files(self) -> list[Path]:
        """Where a formulation is written, and a solution of it read."""
        return [path for path in (self.write_model, self.read_solution) if path is not None]

    @property
    def minimised(self) -> str:
        """The objective over several devices."""
        if self.options.method.formulation or self.objective == THROUGHPUT:
            return "time"
        if self.objective != "auto" or self.machine is None:
            return self.objective
        several = sum(device.computes for device in self.machine.devices) > 1
        return "makespan" if several else "time"

    def _check_for_time(self, overhead: float) -> None:
        if isinstance(overhead, str) or not 0 <= overhead < math.inf:
            raise UsageError(
                f"max_overhead {overhead} is no limit of time", hint="a share, say 0.1 for 10%"
            )
        method = self.options.method
        given = {
            "--budget": bool(self.budget), "--devices": self.machine is not None,
            "--planner": method.planner != "auto", "--formulation": bool(method.formulation),
            "--write-model": self.write_model is not None,
        }  # fmt: skip
        for name, there in given.items():
            if there:
                raise UsageError(
                    f"--max-overhead and {name} exclude each other",
                    why="it looks for the least memory of one session within a limit of time",
                    hint="leave one of them out",
                )

    def _check_for_one(self) -> None:
        if self.max_overhead is None:
            one_budget(self.budget)
        given = {
            "--pin": bool(self.pins), "--objective": self.objective != "auto",
            "--read-solution": self.read_solution is not None,
        }  # fmt: skip
        for name, there in given.items():
            if there:
                why = "one session runs all ops on the processor, one after the other"
                hint = "add --devices MACHINE (onnxremat devices lists them), or leave it out"
                if name == "--read-solution":
                    why = "for one session a solution is read into a plan first"
                    hint = "onnxremat plan IN --read-solution F.sol -o plan.json, then apply"
                raise UsageError(f"{name} goes with --devices here", why=why, hint=hint)

    def _check_for(self, machine: Machine) -> None:
        method = self.options.method
        if self.budget:
            machine.budgets(self.budget)
        for _, device in self.pins:
            machine.device(device)
        if method.planner != "auto":
            raise UsageError(
                f"--planner {method.planner} plans for one device",
                hint="leave it out, or give --formulation xengine-miqp",
            )
        if method.formulation:
            check_for_devices(method.formulation)
            if self.objective == "makespan":
                raise UsageError(
                    f"{method.formulation} minimises the time of all runs and copies together",
                    hint="--objective time; or leave out --formulation",
                )
        elif self.files:
            raise UsageError(
                f"{self.files[0]} needs a formulation", why="it holds one's model or solution",
                hint="--formulation xengine-miqp or xengine-linear",
            )  # fmt: skip


def optimize(
    prepared: Prepared,
    request: Request,
    log: Phases | None = None,
    kind: type[R] = Result,  # type: ignore[assignment]  # where a caller asks for no other
) -> R:
    """Plan, carry out, measure, verify, time.

    Args:
        kind: of the result.

    Raises:
        UsageError: wrong budgets or pins, or a formulation whose model is too large.
        InfeasibleError, NoPlanError, OverBudgetError: the budget cannot be kept.
        VerificationError: the result computes something else, or not as it was planned.
    """
    log = log or Phases()
    timed = Timed(request.bench_seconds, request.options.stop, request.during)
    log("planning")
    if request.machine is None:
        candidate, written = _in_one_session(prepared, request, log)
        return finish(kind, candidate, timed, log, written=written)
    target = site_of(prepared, request, request.machine, log)
    candidate, written = (
        (_in_pipeline(target, request), {})
        if request.objective == THROUGHPUT
        else _over_devices(target, request)
    )
    return finish(kind, candidate, timed, log, written=written, absent=target.site.absent)


def _in_one_session(
    prepared: Prepared, request: Request, log: Phases
) -> tuple[Candidate, Mapping[str, Any]]:
    """The plan, and the figures of the formulation that was written."""
    if request.max_overhead is not None:
        return plan_within_time(prepared, request.max_overhead, request.options, log), {}
    limit = one_budget(request.budget)
    if request.write_model is None and request.options.method.ladder:
        size = limit_of(prepared, limit)
        found = None if size is None else unchanged(prepared, size.planned, log)
        if found is not None:
            return _as_it_is(found, limit, request, log), {}
    written: Mapping[str, Any] = {}
    if request.write_model is not None:
        with log.phase(WRITE, "writing the model"):  # one of the whole
            written = write_prepared(prepared, limit, request.options.method, request.write_model)
    try:
        made = plan_within_budget(prepared, limit, request.options, log)
        return _in_all(_or_original(made, prepared, limit, request, log), prepared, limit), written
    except NO_FIT as error:
        peak, beside = prepared.baseline_peak, prepared.beside.total
        known = other = Refusal.of(error)
        here = prepared.unsplit.came is None  # else no file that is written is the original
        if here and request.options.method.ladder and as_it_ran(prepared):
            share = peak if limit.of_peak else 0
            other = known.or_original(peak + beside, OPENING * prepared.weights <= peak, share)
        other = other.in_unit(limit, peak, beside)
        other = other.also(for_a_trainer(prepared, other, limit, request.options, log))
        other = other.also(_for_no_processor(prepared))
        if other is not known:
            raise other.error() from None
        raise


def _in_all(made: Candidate, prepared: Prepared, limit: Budget) -> Candidate:
    """With a note where a share of weights and values is kept by a graph of so many more nodes that
    all in all the process takes more than for the original."""
    before = prepared.baseline_peak + prepared.beside.total
    if not limit.of_peak or made.process <= before + SESSION:
        return made
    more = made.process - made.held - prepared.beside.total
    return made.noted(
        f"in all the process takes {format_bytes(made.process)}, more than for the original "
        f"({format_bytes(before)}): a session keeps {format_bytes(more)} of the nodes of the parts "
        "(a budget in bytes counts them, a share of the original's weights and values does not)"
    )


def _or_original(
    made: Candidate, prepared: Prepared, limit: Budget, request: Request, log: Phases
) -> Candidate:
    """The least that was found; the original where the least is asked for and that takes less (a
    gate is a value more), and it is known to the byte what that takes (not so with bodies)."""
    least = limit.kind == "min" and request.options.method.ladder and request.write_model is None
    if not least or prepared.unsplit.peak + prepared.beside.total >= made.process:
        return made
    found = unchanged(prepared, prepared.unsplit.peak, log)
    if found is None or found.peak < found.held or not opens(found):
        return made
    asked = made.prepared.settings
    if not (asked.split_batch or asked.fission):  # why it is whole, say
        for note in made.plan.provenance.notes:
            if note not in found.plan.provenance.notes:
                found = found.noted(note)
    known = made.lower <= found.process  # else it is of the graph as it is optimised
    return replace(found, lower=made.lower if known else 0, why=made.why if known else "")


def _for_no_processor(prepared: Prepared) -> str:
    """What to try where constants are laid out anew for this processor as the model is opened."""
    least = prepared.baseline_peak // 10  # bytes that are worth a word
    more = prepared.weights - weight_bytes(prepared.original)
    if prepared.settings.target != HOST or more < least:
        return ""
    # What standard operators fold (a weight's transpose), and what kernels pack, stays.
    portable = optimised_for(prepared.original, PORTABLE, prepared.home, to_write=False)
    more = prepared.weights - held_by(portable.graph)
    if more < least:
        return ""
    return (
        f"--target portable, where {format_bytes(more)} of constants that this processor's graph "
        "holds all along are made as they are needed"
    )


def _as_it_is(found: Candidate, limit: Budget, request: Request, log: Phases) -> Candidate:
    """The original; or, where opening it takes more than the budget, a plan of what onnxruntime
    makes of it, which is opened as it lies.

    Bytes of the process are a limit: without a plan they are refused. A share of the original's is
    kept by the original, which nobody who asks for all of it wants to be slower: where only a
    slower plan keeps it, or none, one as quick that takes a hundredth more is written, and where
    there is none, the original; both are said.
    """
    with log.phase(MEASURE):
        if opens(found):
            return found
    if not limit.of_peak:
        return plan_within_budget(found.prepared, limit, request.options, log)
    why = "none was found that takes no more when it runs"
    load_search(1, log)
    options = request.options.begun()  # both share the time
    for share, budget in ((HALF, limit), (1.0, replace(limit, value=MORE * limit.value))):
        try:
            made = plan_within_budget(found.prepared, budget, options.within(share), log)
        except NO_FIT:
            continue
        asked = made.prepared.settings
        if asked.split_batch or asked.fission or made.plan.provenance.overhead:
            why = "those that keep the budget are slower"
        elif budget is limit:
            return made
        else:
            return made.noted(
                f"the budget is taken as {MORE:.2f} of what was asked for: the original keeps that "
                "as it runs, but takes more to be opened, since onnxruntime lays out its weights "
                "then; this file needs none of that"
            )
    return found.noted(
        "opening it takes more than the budget for a moment: onnxruntime lays out its weights "
        f"then; of files that need none of that {why}"
    )


def site_of(prepared: Prepared, request: Request, machine: Machine, log: Phases) -> SeveralDevices:
    """The model on the machine, its ops priced.

    Raises:
        UnsupportedError: see :func:`require_values`.
    """
    require_values(prepared.graph, prepared.original)
    costs = request.costs or measured_on(machine, log)
    with log.phase(COSTS):
        tables = costs(prepared)
    budgets = machine.budgets(request.budget) if request.budget else {}
    peak = prepared.baseline_peak
    counted = counted_on(prepared, machine, device_limits(machine, budgets, peak, {}))
    limits = device_limits(machine, budgets, peak, on_top(prepared, machine, counted))
    shares = frozenset(name for name, budget in budgets.items() if budget.of_peak)
    site = Site(machine, limits, shares, request.pins, request.minimised, counted)
    return SeveralDevices(prepared, site, tables, log, request.options.gap)


def _in_pipeline(target: SeveralDevices, request: Request) -> Candidate:
    from onnxremat.pipeline.devices.placed import Wanted
    from onnxremat.pipeline.devices.throughput import fullest  # compiled: loaded when it is needed

    costs = request.costs or measured_on(target.site.machine, target.log)
    wanted = Wanted(request.in_flight, request.replicas, request.contiguous)
    return fullest(target, Trials(request.options, costs, request.during), wanted)


def _over_devices(target: SeveralDevices, request: Request) -> tuple[Candidate, Mapping[str, Any]]:
    """The plan, and the figures of the formulation that was written."""
    method, log = request.options.method, target.log
    costs = request.costs or measured_on(target.site.machine, log)
    trials = Trials(request.options, costs, request.during)
    if not request.files:
        return quickest(target, trials), {}
    aims = [target.limits.get(name, NO_LIMIT) for name in target.site.machine.names]
    written: dict[str, Any] = {}
    if request.write_model is not None:
        with log.phase(WRITE, "writing the model"):
            written = write_device_formulation(
                target.model.problem, aims, method, request.write_model
            )
    if request.read_solution is None:
        return quickest(target, trials), written
    log("replaying the solution")
    solution = read_device_formulation(target.model.problem, aims, method, request.read_solution)
    return given(target, solution, trials), written
