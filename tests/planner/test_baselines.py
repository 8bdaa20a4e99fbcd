"""Baselines return what they claim, and none beats the planner or its bound."""

from __future__ import annotations

import pytest

from onnxremat.planner import Status, occupancy, peak, seconds, solve
from onnxremat.planner.baselines import BASELINES
from onnxremat.planner.baselines.revolve import _split
from onnxremat.planner.problem import Problem
from tests.limits import LONG, Planned
from tests.planner.asking import asked
from tests.planner.graphs import skip_chain, small_transformer
from tests.planner.oracle import random_problem

GRAPHS = {"chain": skip_chain(40, 1), "transformer": small_transformer(2)}


@pytest.mark.parametrize("name", list(BASELINES))
@pytest.mark.parametrize("graph", list(GRAPHS))
@pytest.mark.parametrize("share", [1.0, 0.8, 0.6])
def test_baseline_is_valid_and_above_the_bound(name: str, graph: str, share: float) -> None:
    problem = GRAPHS[graph]
    budget = int(share * peak(problem, problem.store_all()))
    found = BASELINES[name](problem, budget)
    assert found.planner == name
    if found.sequence is None:
        assert found.status is Status.UNKNOWN
        assert found.notes
        return
    assert occupancy(problem, found.sequence).max() == found.peak <= budget
    assert seconds(problem, found.sequence) == pytest.approx(found.time)
    seen = Planned(found.time + 1e-9)  # it may stop where it is as good
    best = solve(problem, budget, asked(time_limit=LONG, progress=seen.progress, stop=seen.stop))
    assert best.time <= found.time + 1e-9
    assert best.certificate.bound <= found.time + 1e-9


@pytest.mark.parametrize("seed", range(20))
def test_baselines_survive_odd_graphs(seed: int) -> None:
    problem = random_problem(seed, 10)
    budget = peak(problem, problem.store_all())
    for name, planner in BASELINES.items():
        found = planner(problem, budget)
        if found.sequence is not None:
            assert peak(problem, found.sequence) <= budget, name
            for op in range(problem.ops):
                assert problem.recompute[op] or found.sequence.count(op) == 1, name


def works(name: str, problem: Problem, share: float) -> bool:
    budget = int(share * peak(problem, problem.store_all()))
    return BASELINES[name](problem, budget).sequence is not None


def test_rules_do_recompute_where_they_should() -> None:
    """Each rule meets a budget below the store-all peak where it applies."""
    assert works("articulation", small_transformer(3), 0.8)
    for name in sorted(set(BASELINES) - {"store-all", "articulation"}):
        assert works(name, skip_chain(40, 1), 0.8), name
    assert not works("store-all", skip_chain(40, 1), 0.99)


def test_revolve_splits_as_its_recursion_says() -> None:
    """Also chains so long that Python recurses no further."""

    def steps(length: int, slots: int) -> int:
        if length <= 1 or not slots:
            return length * (length - 1) // 2
        return min(j + steps(length - j, slots - 1) + steps(j, slots) for j in range(1, length))

    for length in range(9):
        for slots in range(10):
            assert _split(length, slots)[0] == steps(length, slots)
    assert _split(400, 400) == (399, 1)
