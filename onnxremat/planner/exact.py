"""One formulation, solved as it is written: the published models, from a warm start.

The answer's certificate is the stronger of two bounds: the model's own, which for the staged models
holds for staged schedules only (``Certificate.staged``), and the one that came with the warm start,
which holds for every schedule in base order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

from onnxremat.planner.bounds import misfit
from onnxremat.planner.clock import UNITS
from onnxremat.planner.formulate import Formulated, formulate
from onnxremat.planner.formulations.stages import SCALE
from onnxremat.planner.incumbent import Incumbent
from onnxremat.planner.ladder import solve
from onnxremat.planner.options import AUTO, PlanOptions, Progress
from onnxremat.planner.problem import Floats, Problem
from onnxremat.planner.problem_lists import ProblemLists
from onnxremat.planner.schedule import Schedule
from onnxremat.planner.solution import Certificate, Solution, Status
from onnxremat.planner.solvers import Limits, Outcome, Result, minimise

UNKNOWN = 1e19  # solvers write numbers beyond this for none
CLOSE = 4e-9  # relative rounding of bounds and sums of seconds


@dataclass(frozen=True)
class Tuning:
    """Constants of the warm start: shares of the limit, seconds.

    Attributes:
        first, shortest, longest: share of the time for it, at least and at most; the least is kept
            on several devices only, where the first plan takes longer, up to half of the time.
    """

    first: float = 0.15
    shortest: float = 3.0
    longest: float = 10.0


TUNING = Tuning()


def solve_formulation(
    problem: Problem,
    budgets: int | Sequence[float],
    options: PlanOptions,
    warm: Schedule | Sequence[int] | None = None,
) -> Solution:
    """Solve the formulation of ``options.method`` in base order, as ``solve`` does, for the sum of
    all runs and copies.

    Raises:
        UsageError: a formulation that is not for several devices, or the model is too large.
        ValueError: not one budget per device.
    """
    options = replace(options, fixed_order=True, objective="time")
    incumbent, lists = Incumbent.of(problem, budgets, options), ProblemLists(problem)
    found = misfit(lists, incumbent.budgets)
    if found is not None:
        incumbent.notes.append(found.why)
        incumbent.raise_bound(inf, "largest op", any_order=True)
        return incumbent.solution()
    method = options.method
    made = formulate(lists, incumbent.budgets, method.formulation, most_columns=method.most_columns)
    incumbent.progress = None  # the solver tells, in the model's terms
    first = begun = None
    if method.warm_start:
        first = _first(incumbent, options, warm)
        if incumbent.infeasible:
            return incumbent.solution()
        begun = _point(made, incumbent, first, options)
        if _nothing_left(made, incumbent, first, begun):
            return incumbent.solution()
    solver = "scip" if options.solver == "auto" and made.model.quadratic else options.solver
    limits = Limits(
        seconds=max(0.1, incumbent.left), gap=options.gap * SCALE, threads=options.solver_threads,
        seed=options.seed, warm=begun, stop=incumbent.stop, clock=incumbent.clock,
        progress=in_seconds(options.progress, made.unit, made.name, incumbent.bound),
    )  # fmt: skip
    result, notes = minimise(made.model, limits, solver)
    incumbent.notes.extend(notes)
    _take(made, incumbent, result, first)
    return _answer(made, incumbent, result)


def _seconds(incumbent: Incumbent) -> float:
    """For each part of the warm start."""
    limit = incumbent.limit
    wanted = min(TUNING.longest, TUNING.first * limit)
    if incumbent.problem.devices > 1:
        wanted = min(TUNING.longest, max(TUNING.shortest, TUNING.first * limit), 0.5 * limit)
    return wanted


def _first(
    incumbent: Incumbent, options: PlanOptions, warm: Schedule | Sequence[int] | None
) -> Solution:
    """The ladder's answer in base order; its bound is the incumbent's from here on."""
    share = _seconds(incumbent) / max(1e-9, incumbent.limit)
    quick = replace(options.lasting(share * options.time_limit), method=AUTO)
    found = solve(incumbent.problem, incumbent.budgets, quick, warm)
    incumbent.clock.spend(UNITS * found.plan_seconds)
    proof = found.certificate
    bound = proof.bound * (1 + CLOSE / 4)  # it was lowered for rounding once already
    incumbent.raise_bound(bound, proof.kind, any_order=proof.any_order)
    return found


def _point(
    made: Formulated, incumbent: Incumbent, first: Solution, options: PlanOptions
) -> Floats | None:
    """The warm start as a point of the model: what it says is fixed, a solver fills in the rest."""
    if first.schedule is None or incumbent.stopped():
        return None
    model, point = made.model, None
    chosen = made.fixed(first.schedule)
    if chosen is not None:
        lower, upper = list(model.lower), list(model.upper)
        for column, value in chosen.items():
            lower[column] = upper[column] = value
        fixed = replace(model, lower=lower, upper=upper)
        if all(column in chosen for column, whole in enumerate(model.integer) if whole):
            fixed = replace(fixed, integer=[False] * model.columns, quadratic_cost=[])
        limits = Limits(
            seconds=min(_seconds(incumbent), incumbent.left), gap=SCALE, stop=incumbent.stop,
            threads=options.solver_threads, clock=incumbent.clock,
        )  # fmt: skip
        solver = options.solver if fixed.integer != [False] * model.columns else "highs"
        point = minimise(fixed, limits, solver)[0].point
    if point is None:
        incumbent.notes.append(
            f"the quick plan ({first.planner}) did not become a point of the {made.name} model: "
            "the solver started cold"
        )
    return point


def _nothing_left(
    made: Formulated, incumbent: Incumbent, first: Solution, begun: Floats | None
) -> bool:
    """On several devices: the quick plan is a point of the model and proven optimal."""
    if begun is None or incumbent.problem.devices == 1:
        return False
    schedule = made.schedule(begun)
    if schedule is None or not incumbent.offer(schedule, made.name) or not incumbent.closed:
        return False
    incumbent.notes.append(
        f"the quick plan ({first.planner}) is a point of the {made.name} model and proven "
        "optimal: the solver had nothing left to do (--no-warm-start starts it cold)"
    )
    return True


def in_seconds(
    progress: Progress | None, unit: float, name: str, known: float
) -> Callable[[float, float], None] | None:
    """The caller's progress hook for a solver that counts in units of ``unit`` seconds; called when
    either number moved. ``known``: bound so far, in seconds."""
    if progress is None:
        return None
    last = [inf, known]

    def told(objective: float, bound: float) -> None:
        found = objective * unit if objective < UNKNOWN else inf
        now = [min(found, last[0]), max(bound * unit, last[1])]
        if now != last and abs(bound) < UNKNOWN:
            last[:] = now
            progress(now[0], now[1], name)

    return told


def _take(made: Formulated, incumbent: Incumbent, result: Result, first: Solution | None) -> None:
    """The schedule of the model's best point; without one, the quick plan it was started from."""
    schedule = None if result.point is None else made.schedule(result.point)
    if schedule is not None:
        incumbent.offer(schedule, made.name)
    if incumbent.best is not None:
        if first is not None and first.time < incumbent.value - incumbent.gap * incumbent.total:
            how = "--planner auto" if incumbent.problem.devices == 1 else "leave out --formulation"
            incumbent.notes.append(
                f"a quicker plan, which the {made.name} model cannot say, is known "
                f"({first.planner}): {how}"
            )
    elif result.outcome is Outcome.INFEASIBLE:
        incumbent.notes.append(
            f"the {made.name} model has no solution: no staged schedule fits the budgets, though "
            "others may"
        )
    elif first is not None and first.schedule is not None:
        incumbent.offer(first.schedule, first.planner)
        incumbent.notes.append(f"{made.name} gave no plan in time: this one is {first.planner}'s")
    else:
        incumbent.notes.append(f"{made.name} gave no plan in time")


def _answer(made: Formulated, incumbent: Incumbent, result: Result) -> Solution:
    """The incumbent's solution, with the model's bound where it is the stronger one."""
    found = incumbent.solution()
    known, bound = incumbent.bound, result.bound * made.unit * (1 - CLOSE)
    if found.schedule is None or found.planner != made.name:
        return found
    if not known * (1 + CLOSE) < bound < inf:
        return found
    proof = Certificate(min(bound, found.time), made.name, any_order=False, staged=True)
    closed = found.time - proof.bound <= incumbent.gap * incumbent.total
    notes = found.notes
    if incumbent.problem.devices > 1:
        notes = (
            *notes, f"the bound of {made.name} holds for staged schedules: each op at most once "
            "per stage and device, in the order of the graph",
        )  # fmt: skip
    return replace(
        found, certificate=proof, status=Status.OPTIMAL if closed else Status.FEASIBLE, notes=notes
    )
