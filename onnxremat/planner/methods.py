"""Every way to plan by its name: our ladder, its rungs alone, formulations, published rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from onnxremat.errors import UsageError
from onnxremat.planner.baselines import BASELINES
from onnxremat.planner.exact import solve_formulation
from onnxremat.planner.formulate import FORMULATIONS, MOST_COLUMNS
from onnxremat.planner.ladder import solve
from onnxremat.planner.problem import Problem, Solution, Status
from onnxremat.planner.record import Progress, Stop
from onnxremat.planner.solvers import SOLVERS

RUNGS = ("cuts", "search", "order")
PLANNERS = ("auto", *RUNGS, *BASELINES)


@dataclass(frozen=True)
class Method:
    """How to plan.

    Attributes:
        planner: one of :data:`PLANNERS`.
        formulation: one of ``FORMULATIONS``, solved as it is written; empty for none.
        warm_start: give a formulation's solver the ladder's sequence to start from.
        most_columns: formulations with larger models are refused.

    Raises:
        UsageError: unknown name, or both a planner and a formulation.
    """

    planner: str = "auto"
    formulation: str = ""
    warm_start: bool = True
    most_columns: int = MOST_COLUMNS

    def __post_init__(self) -> None:
        if self.planner not in PLANNERS:
            raise UsageError(
                f"unknown planner '{self.planner}'", hint="one of " + ", ".join(PLANNERS)
            )
        if self.formulation and self.formulation not in FORMULATIONS:
            raise UsageError(
                f"unknown formulation '{self.formulation}'",
                hint="one of " + ", ".join(FORMULATIONS),
            )
        if self.formulation and self.planner != "auto":
            raise UsageError(
                f"--planner {self.planner} and --formulation {self.formulation} exclude each other",
                hint="a formulation is a planner of its own",
            )

    @property
    def name(self) -> str:
        """What the user chose."""
        return self.formulation or self.planner

    @property
    def published(self) -> bool:
        """A baseline: it runs to its end, keeps the base order and proves nothing."""
        return self.planner in BASELINES


AUTO = Method()


def plan_by(
    method: Method,
    problem: Problem,
    budget: int,
    *,
    time_limit: float = 60,
    gap: float = 1e-5,
    seed: int = 0,
    threads: int = 1,
    solver: str = "auto",
    fixed_order: bool = False,
    warm: Sequence[int] | None = None,
    progress: Progress | None = None,
    stop: Stop | None = None,
) -> Solution:
    """Plan as the method says; the other arguments are those of ``solve``.

    Staged formulations and baselines keep the base order of first runs; baselines take no notice of
    the time limit.

    Raises:
        UsageError: unknown solver, or a formulation whose model is too large.
    """
    if solver != "auto" and solver not in SOLVERS:
        raise UsageError(f"unknown solver '{solver}'", hint="one of auto, " + ", ".join(SOLVERS))
    if method.published:
        return BASELINES[method.planner](problem, budget)
    if method.formulation not in ("", "cuts"):
        return solve_formulation(
            problem, budget, method.formulation, time_limit=time_limit, gap=gap, seed=seed,
            threads=threads, solver=solver, warm_start=method.warm_start,
            most_columns=method.most_columns, warm=warm, progress=progress, stop=stop,
        )  # fmt: skip
    only = method.formulation or ("" if method.planner == "auto" else method.planner)
    found = solve(
        problem, budget, time_limit=time_limit, gap=gap, seed=seed, threads=threads, solver=solver,
        fixed_order=fixed_order, warm=warm, progress=progress, stop=stop, only=only,
    )  # fmt: skip
    if only == "order" and found.status is Status.UNKNOWN:
        note = "no order was found that fits the budget without recomputation"
        return replace(found, notes=(*found.notes, note))
    return found
