"""The smallest budget: a sequence for it and a proven lower bound with the reason."""

from __future__ import annotations

import time

from onnxremat.plan.bounds import largest_need
from onnxremat.plan.order import best_order
from onnxremat.plan.problem import Problem, occupancy
from onnxremat.plan.record import Stop
from onnxremat.plan.search import Search
from onnxremat.plan.wiring import Wiring, reordered


def smallest_budget(
    problem: Problem,
    *,
    time_limit: float = 20,
    fixed_order: bool = False,
    seed: int = 0,
    stop: Stop | None = None,
) -> tuple[int, list[int], int, str]:
    """Smallest budget at which a sequence is found.

    Returns:
        (bytes, sequence, proven lower bound in bytes, one sentence that says why the bound holds).
    """
    until = time.monotonic() + time_limit
    wiring = Wiring(problem)
    need = largest_need(wiring, fixed_order=fixed_order)

    def halted() -> bool:
        return time.monotonic() > until or (stop is not None and stop())

    orders = [problem.store_all()]
    if not fixed_order:
        found = best_order(wiring, 0.2 * time_limit, enough=need.bytes, stop=halted)
        if found.order != orders[0]:
            orders.insert(0, found.order)
    best, sequence = None, orders[0]
    for order in orders:
        if best is not None and best <= need.bytes:
            break
        descent = _Descent(problem, order, need.bytes, seed)
        bytes_, steps = descent.run(until, halted)
        if best is None or bytes_ < best:
            best, sequence = bytes_, steps
    assert best is not None
    return best, sequence, need.bytes, need.why


class _Descent:
    """Bisection on the budget in one order, with greedy insertion and short annealing."""

    def __init__(self, problem: Problem, order: list[int], floor: int, seed: int) -> None:
        self.order, self.floor, self.seed = order, floor, seed
        self.problem = reordered(problem, order)
        self.sequence = self.problem.store_all()
        self.peak = int(occupancy(self.problem, self.sequence).max())
        self.search = Search(self.problem, self.peak, seed=seed)

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
                self.sequence, self.peak = found, replay[1]
            else:
                low = budget + 1
            if low >= self.peak or self.peak - low < 0.002 * self.peak:
                low = self.floor
                patience *= 4
                if patience > 5:
                    break
        return self.peak, [self.order[op] for op in self.sequence]

    def _within(self, budget: int, patience: float, until: float, halted: Stop) -> list[int] | None:
        self.search.budget = budget
        lefts = []
        for start in (self.problem.store_all(), self.sequence):
            for depth in (2, 6, 12):
                found = self.search.fit(start, until, halted, depth, 0.5)
                if found is not None:
                    return found
                lefts.append(list(self.search.left))
        areas = [(self.search.replay(left) or (0, 0, float("inf")))[2] for left in lefts]
        start = lefts[areas.index(min(areas))]
        seconds = min(patience * (1 + self.problem.ops / 300), until - time.monotonic())
        met: list[list[int]] = []
        if seconds > 0:
            self.search.anneal(
                start, seconds, lambda: bool(met) or halted(), lambda found, _: met.append(found)
            )
        return met[-1] if met else None
