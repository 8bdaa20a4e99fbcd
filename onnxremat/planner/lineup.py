"""Planners side by side on one problem and several budgets."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

from onnxremat.planner.methods import plan_by
from onnxremat.planner.options import FORMULATIONS, Method, PlanOptions, Stop
from onnxremat.planner.problem import Problem
from onnxremat.planner.solution import Solution
from onnxremat.planner.workers import Failure, run_tasks

STARTING = 10.0  # seconds that a process may take to start, beyond its limit


@dataclass(frozen=True)
class Entry:
    """What one planner answered for one budget in bytes: a solution, or why there is none.

    Attributes:
        late: it had not answered when its time was over.
    """

    planner: str
    budget: int
    solution: Solution | None
    why: str = ""
    late: bool = False

    @property
    def found(self) -> bool:
        """True when there is a plan."""
        return self.solution is not None and self.solution.sequence is not None


def method_of(name: str, most_columns: int) -> Method:
    """A planner or a formulation by its name.

    Raises:
        UsageError: neither.
    """
    if name in FORMULATIONS and name != "cuts":  # both are called cuts and are the same
        return Method(formulation=name, most_columns=most_columns)
    return Method(name, most_columns=most_columns)


def line_up(
    problem: Problem,
    budgets: Sequence[int],
    planners: Sequence[str],
    options: PlanOptions,
    *,
    jobs: int = 1,
    done: Callable[[Entry], None] | None = None,
) -> list[Entry]:
    """An entry per budget and planner, in that order; those done by then when stopped.

    Every planner runs in a process of its own that is ended when its time is over, because
    published rules look at no clock.

    Args:
        options: for each; the method is that of the planner.
    """
    from onnxremat.planner.search import warm_up

    warm_up()  # compiled once, here, and not in every process
    tasks = [(name, budget) for budget in budgets for name in planners]
    function = _Runner(problem, replace(options.quiet(), threads=max(1, options.threads // jobs)))
    seconds = options.time_limit + STARTING
    found: dict[tuple[str, int], Entry] = {}
    for task, answer in run_tasks(function, tasks, jobs=jobs, seconds=seconds, stop=options.stop):
        name, budget = task
        failed = isinstance(answer, Failure)
        entry = Entry(name, budget, None, answer.why, answer.late) if failed else answer
        found[task] = entry
        if done is not None:
            done(entry)
    return [found[task] for task in tasks if task in found]


@dataclass(frozen=True)
class _Runner:
    """The function of a process: one planner on one budget."""

    problem: Problem
    options: PlanOptions

    def __call__(self, task: tuple[str, int], stop: Stop) -> Entry:
        name, budget = task
        method = method_of(name, self.options.method.most_columns)
        if not method.published:  # loading compiled code is no part of planning
            from onnxremat.planner.search import warm_up

            warm_up()
        begin = time.monotonic()
        options = replace(self.options, method=method, stop=stop)
        solution = plan_by(self.problem, budget, options)
        solution = replace(solution, trace=(), plan_seconds=time.monotonic() - begin)
        return Entry(name, budget, solution, "; ".join(solution.notes))


def beaten(entries: Sequence[Entry], ours: str, noise: float) -> Iterator[tuple[Entry, Entry]]:
    """(faster entry, ours) wherever another planner is faster by more than ``noise`` seconds, or
    found a plan where ours found none: a defect of ours. Of one that was ended before it could
    answer, on a busy machine, nothing is known."""
    by_budget = {entry.budget: entry for entry in entries if entry.planner == ours}
    for entry in entries:
        best = by_budget.get(entry.budget)
        if best is None or best is entry or best.late:
            continue
        if entry.solution is None or not entry.found:
            continue
        known = best.solution.time if best.solution is not None and best.found else inf
        if entry.solution.time < known - noise:
            yield entry, best
