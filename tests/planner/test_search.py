"""The compiled search agrees with the reference semantics to the byte."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxremat.planner.search import Search
from onnxremat.planner.semantics import occupancy, seconds
from tests.planner.oracle import random_problem, random_sequence


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 14), st.integers(0, 10**6), st.booleans())
def test_evaluator_equals_occupancy(seed: int, ops: int, which: int, fixed: bool) -> None:
    problem = random_problem(seed, ops)
    sequence = random_sequence(problem, which, fixed_order=fixed)
    search = Search(problem, 20, free_order=not fixed)
    use = occupancy(problem, sequence)[0]
    allowed = all(
        problem.recompute[op] and not all(problem.keep[problem.writes[op]])
        for op in set(sequence)
        if sequence.count(op) > 1
    )
    replay = search.replay(sequence)
    assert (replay is not None) == allowed
    if replay is not None:
        assert search.usage(sequence).tolist() == use.tolist()
        assert replay[0] == pytest.approx(seconds(problem, sequence))
        assert replay[1] == use.max()
        assert replay[2] == np.maximum(use - 20, 0).sum()


def test_evaluator_refuses_bad_sequences() -> None:
    problem = random_problem(3, 6, plain=True)
    search = Search(problem, 10)
    assert search.replay([0, 1, 2]) is None
    assert search.replay([5, 4, 3, 2, 1, 0]) is None
    with pytest.raises(ValueError, match="valid"):
        search.usage([0])


@pytest.mark.parametrize("seed", range(12))
def test_greedy_and_annealing_stay_valid_and_within_budget(seed: int) -> None:
    problem = random_problem(seed, 30)
    store_all = problem.store_all()
    top = int(occupancy(problem, store_all).max())
    for share in (0.9, 0.75):
        search = Search(problem, int(share * top), free_order=bool(seed % 2), seed=seed)
        kept: list[list[int]] = []
        found = search.fit(store_all, time.monotonic() + 1, lambda: False, 2, 1.0)
        if found is not None:
            kept.append(found)
        search.anneal(
            found or store_all, 0.1, lambda: False, lambda s, _, kept=kept: kept.append(s)
        )
        for sequence in kept:
            assert occupancy(problem, sequence).max() <= share * top
