"""The smallest budget: a sequence for it and a proven lower bound with the reason."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from onnxremat.planner.bounds import largest_need
from onnxremat.planner.clock import UNITS, Clock
from onnxremat.planner.ladder import solve
from onnxremat.planner.options import AUTO, PlanOptions, Stop
from onnxremat.planner.order import best_order
from onnxremat.planner.problem import Problem
from onnxremat.planner.problem_lists import ProblemLists, reordered
from onnxremat.planner.schedule import Schedule
from onnxremat.planner.semantics import peak
from onnxremat.planner.solution import Solution, Status


@dataclass(frozen=True)
class Tuning:
    """Constants of the descent.

    Attributes:
        quick: share of the time for orders, greedy insertion and annealing.
        probes: budgets that the whole ladder is asked about, at least, in the time that is left.
        close: share of the budget at which bisection stops.
    """

    quick: float = 0.3
    probes: int = 5
    close: float = 0.002


TUNING = Tuning()


def smallest_budget(
    problem: Problem, options: PlanOptions | None = None
) -> tuple[int, list[int], int, str]:
    """Smallest budget at which a sequence is found, whatever the method of the options.

    First the search alone, bisecting on the budget; then the whole ladder, which finds plans at
    budgets where greedy insertion fails and may prove others infeasible.

    Returns:
        (bytes, sequence, proven lower bound in bytes, one sentence that says why the bound holds).
    """
    options = options or PlanOptions()
    time_limit, fixed_order, stop = options.seconds, options.fixed_order, options.stop
    clock = options.clock()
    begin = clock.now()
    lists = ProblemLists(problem)
    need = largest_need(lists, fixed_order=fixed_order)

    def halted(share: float = 1.0) -> bool:
        late = clock.now() > begin + share * time_limit
        return late or (stop is not None and stop())

    def early() -> bool:
        return halted(TUNING.quick)

    best, sequence = peak(problem, problem.store_all()), problem.store_all()
    orders = [sequence]
    if not fixed_order and best > need.bytes:
        found = best_order(lists, 0.1 * time_limit, enough=need.bytes, stop=halted, clock=clock)
        if found.order != sequence:
            orders.insert(0, found.order)
    for order in orders:
        if best <= need.bytes:
            break
        descent = _Descent(problem, order, need.bytes, options.seed, clock)
        bytes_, steps = descent.run(begin + TUNING.quick * time_limit, early)
        if bytes_ < best:
            best, sequence = bytes_, steps
    low, why = need.bytes, need.why
    tried = low
    while best > low and best - tried > TUNING.close * best and not halted():
        middle = best - max(1, (best - tried) // 3)
        share = max(0.3 / max(0.3, time_limit), (1 - TUNING.quick) / TUNING.probes)
        answer = _first_within(problem, middle, options.lasting(share * options.time_limit))
        clock.spend(UNITS * answer.plan_seconds)
        if answer.sequence is not None:
            best, sequence = answer.peak, list(answer.sequence)
            continue
        tried = middle + 1
        if answer.status is Status.INFEASIBLE:
            low = middle + 1
            why = (
                f"at {middle} bytes the cut relaxation ({answer.certificate.kind}) has no solution"
            )
    return best, sequence, low, why


def _first_within(problem: Problem, budget: int, options: PlanOptions) -> Solution:
    """Any sequence within the budget, as soon as one is found."""
    found: list[float] = []

    def note(best: float, _bound: float, _stage: str) -> None:
        if best < inf:
            found.append(best)

    asked = replace(
        options, gap=1e-3, method=AUTO, threads=1, progress=note,
        stop=lambda: bool(found) or options.stopped,
    )  # fmt: skip
    return solve(problem, budget, asked)


class _Descent:
    """Bisection on the budget in one order, with greedy insertion and short annealing."""

    def __init__(
        self, problem: Problem, order: list[int], floor: int, seed: int, clock: Clock
    ) -> None:
        from onnxremat.planner.search.session import Search  # compiled: loaded when it is needed

        self.order, self.floor, self.seed = order, floor, seed
        self.problem = reordered(problem, order)
        self.schedule = Schedule.of(self.problem, self.problem.store_all())
        self.peak = peak(self.problem, self.schedule)
        lists = ProblemLists(self.problem)
        self.search = Search(lists, [self.peak], seed=seed, clock=clock)
        self.clock = clock

    def run(self, until: float, halted: Stop) -> tuple[int, list[int]]:
        """(bytes, sequence in the caller's numbers)."""
        low = self.floor
        patience = 0.05
        while self.peak > low and not halted():
            budget = (self.peak + low) // 2
            found = self._within(budget, patience, until, halted)
            if found is not None:
                replay = self.search.replay(found)
                assert replay is not None
                self.schedule, self.peak = found, replay.peaks[0]
            else:
                low = budget + 1
            if low >= self.peak or self.peak - low < 0.002 * self.peak:
                low = self.floor
                patience *= 4
                if patience > 5:
                    break
        return self.peak, [self.order[op] for op in self.schedule.sequence]

    def _within(self, budget: int, patience: float, until: float, halted: Stop) -> Schedule | None:
        self.search.allow([budget])
        lefts: list[Schedule] = []
        everything = Schedule.of(self.problem, self.problem.store_all())
        for start in (everything, self.schedule):
            for depth in (2, 6, 12):
                found = self.search.fit(start, until, halted, depth, 0.5)
                if found is not None:
                    return found
                if self.search.left is not None:
                    lefts.append(self.search.left)
        replays = [self.search.replay(left) for left in lefts]
        areas = [inf if replay is None else replay.area for replay in replays]
        if not lefts:
            return None
        start = lefts[areas.index(min(areas))]
        seconds = min(patience * (1 + self.problem.ops / 300), until - self.clock.now())
        met: list[Schedule] = []
        if seconds > 0:
            self.search.anneal(start, seconds, lambda: bool(met) or halted(), met.append)
        return met[-1] if met else None
