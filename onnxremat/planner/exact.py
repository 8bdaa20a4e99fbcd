"""One formulation, solved as it is written: the published models, from a warm start.

The answer's certificate is the stronger of two bounds: the model's own, which for the staged models
holds for staged sequences only (``Certificate.staged``), and the one that came with the warm start,
which holds for every sequence in base order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf

from onnxremat.planner.bounds import largest_need
from onnxremat.planner.clock import UNITS
from onnxremat.planner.formulate import Formulated, formulate
from onnxremat.planner.formulations.stages import SCALE
from onnxremat.planner.ladder import solve
from onnxremat.planner.options import AUTO, PlanOptions, Progress
from onnxremat.planner.problem import Certificate, Floats, Problem, Solution, Status
from onnxremat.planner.record import SLACK, Record
from onnxremat.planner.solvers import Limits, Outcome, Result, minimise
from onnxremat.planner.wiring import Wiring

FIRST = 0.15  # share of the time for the warm start
LONGEST_FIRST = 10.0  # seconds
UNKNOWN = 1e19  # solvers write numbers beyond this for none
CLOSE = 4e-9  # relative rounding of bounds and sums of seconds


def solve_formulation(
    problem: Problem,
    budget: int,
    options: PlanOptions,
    warm: Sequence[int] | None = None,
) -> Solution:
    """Solve the staged formulation of ``options.method`` in base order, as ``solve`` does.

    Raises:
        UsageError: the model is too large.
    """
    wiring, method = Wiring(problem), options.method
    record = Record(
        problem,
        budget,
        options.seconds,
        options.gap,
        None,
        options.stop,
        fixed_order=True,
        clock=options.clock(),
    )
    record.order = tuple(range(problem.ops))
    need = largest_need(wiring)
    if need.bytes > budget:
        record.notes.append(need.why)
        record.raise_bound(inf, "largest op", any_order=True)
        return record.solution()
    first = _first(record, options, warm) if method.warm_start else None
    if record.bound == inf:
        return record.solution()
    made = formulate(wiring, budget, method.formulation, most_columns=method.most_columns)
    begun = _point(made, record, first, options)
    limits = Limits(
        seconds=max(0.1, record.left),
        gap=options.gap * SCALE,
        threads=options.solver_threads,
        seed=options.seed,
        warm=begun,
        stop=record.stop,
        clock=record.clock,
        progress=in_seconds(options.progress, made.unit, made.name, record.bound),
    )
    result, notes = minimise(made.model, limits, options.solver)
    record.notes.extend(notes)
    _take(record, made, result, first)
    return _answer(record, made, result)


def _first(record: Record, options: PlanOptions, warm: Sequence[int] | None) -> Solution:
    """The ladder's answer in base order; its bound is the record's from here on."""
    share = min(FIRST, LONGEST_FIRST / max(LONGEST_FIRST, record.limit))
    quick = options.lasting(share * options.time_limit)
    quick = replace(quick, method=AUTO, fixed_order=True)
    found = solve(record.problem, record.budget, quick, warm)
    record.clock.spend(UNITS * found.plan_seconds)
    proof = found.certificate
    bound = proof.bound * (1 + SLACK)  # it was lowered for rounding once already
    record.raise_bound(bound, proof.kind, any_order=proof.any_order)
    return found


def _point(
    made: Formulated, record: Record, first: Solution | None, options: PlanOptions
) -> Floats | None:
    """The warm start as a point of the model: its runs are fixed, a solver fills in the rest."""
    if first is None or first.sequence is None or record.stopped():
        return None
    wanted = staged_runs(first.sequence)
    model, point = made.model, None
    if wanted <= made.runs.keys():
        lower, upper = list(model.lower), list(model.upper)
        for key, column in made.runs.items():
            lower[column] = upper[column] = float(key in wanted)
        most = min(LONGEST_FIRST, FIRST * record.limit, record.left)
        fixed = replace(model, lower=lower, upper=upper)
        limits = Limits(
            seconds=most,
            gap=SCALE,
            threads=options.solver_threads,
            stop=record.stop,
            clock=record.clock,
        )
        point = minimise(fixed, limits, options.solver)[0].point
    if point is None:
        record.notes.append(
            f"the quick plan ({first.planner}) did not become a point of the {made.name} model: "
            "the solver started cold"
        )
    return point


def staged_runs(sequence: Sequence[int]) -> set[tuple[int, int]]:
    """(stage, op) of every run; stage t ends with the first run of op t."""
    seen: set[int] = set()
    runs: set[tuple[int, int]] = set()
    waiting: list[int] = []
    for op in sequence:
        waiting.append(op)
        if op not in seen:
            runs.update((op, again) for again in waiting)
            waiting = []
        seen.add(op)
    return runs


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


def staged_proof(
    result: Result, unit: float, name: str, known: float, time: float
) -> Certificate | None:
    """The model's bound for a plan of ``time`` seconds, None unless it beats the ``known`` one."""
    bound = result.bound * unit * (1 - CLOSE)
    if not known * (1 + CLOSE) < bound < inf:
        return None
    return Certificate(min(bound, time), name, any_order=False, staged=True)


def _take(record: Record, made: Formulated, result: Result, first: Solution | None) -> None:
    """The sequence of the model's best point; without one, the quick plan it was started from."""
    sequence = None if result.point is None else made.sequence(result.point)
    quick = None if first is None else first.sequence
    if sequence is not None and record.offer(sequence, made.name):
        if first is not None and first.time < record.time - record.gap * record.total:
            record.notes.append(
                f"a quicker plan, of no staged sequence, is known ({first.planner}): --planner auto"
            )
        return
    if result.outcome is Outcome.INFEASIBLE:
        record.notes.append(
            f"the {made.name} model has no solution: no staged sequence fits the budget, though "
            "others may"
        )
    elif first is not None and quick is not None:
        record.offer(quick, first.planner)
        record.notes.append(f"{made.name} gave no plan in time: this one is {first.planner}'s")


def _answer(record: Record, made: Formulated, result: Result) -> Solution:
    """The record's solution, with the model's bound where it is the stronger one."""
    found = record.solution()
    proof = staged_proof(result, made.unit, made.name, record.bound, found.time)
    if proof is None or found.sequence is None or found.planner != made.name:
        return found
    closed = found.time - proof.bound <= record.gap * record.total
    status = Status.OPTIMAL if closed else Status.FEASIBLE
    return replace(found, certificate=proof, status=status)
