"""Rounds of cuts that no longer pay are given up, and both threads walk then."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from onnxremat.planner import lazy_cuts, portfolio
from onnxremat.planner.incumbent import Incumbent
from onnxremat.planner.lazy_cuts import LazyCuts
from onnxremat.planner.options import PlanOptions
from onnxremat.planner.portfolio import Portfolio
from onnxremat.planner.semantics import peak
from onnxremat.planner.walks import Walks
from tests.planner.graphs import small_transformer


@pytest.mark.parametrize(
    ("begin", "taken", "bound", "slow"),
    [
        (50.0, 49.0, 1.0, False),  # not yet as long as all before it
        (50.0, 51.0, 9.9, True),  # behind what is known
        (50.0, 51.0, 10.1, False),
        (50.0, 100.0, 10.1, True),  # twice as long: a twentieth of the gap of 10 is wanted
        (50.0, 100.0, 10.6, False),
        (1.0, 19.0, 1.0, False),  # a fifth of the limit at least
        (1.0, 21.0, 1.0, True),
        (50.0, 80.0, float("-inf"), False),  # nothing is known of it yet
    ],
)
def test_a_round_must_earn_its_time(begin: float, taken: float, bound: float, slow: bool) -> None:
    known: Any = SimpleNamespace(
        elapsed=begin, limit=100.0, bound=10.0, open_gap=10.0, best=object(), over=lambda: False
    )
    made: Any = SimpleNamespace(seconds=lambda objective: objective)
    round_ = lazy_cuts.Crawl(made, known, lazy_cuts.TUNING)
    known.elapsed += taken
    round_.see(0.0, bound)
    assert round_.slow() == slow == round_.over()


def test_both_threads_walk_once_cuts_have_ended(
    monkeypatch: pytest.MonkeyPatch, warm: None
) -> None:
    problem = small_transformer(9)
    walking, seen = threading.Barrier(2, timeout=60.0), set[int]()

    def run(walks: Walks, *_: Any) -> None:
        if threading.get_ident() not in seen:
            seen.add(threading.get_ident())
            walking.wait()  # for the other one
        walks.portfolio.incumbent.begin -= 1e9  # time is up

    monkeypatch.setattr(LazyCuts, "round", lambda _: False)
    monkeypatch.setattr(portfolio.Walks, "_run", run)
    budget = peak(problem, problem.store_all()) // 3
    options = PlanOptions(threads=2, gap=0.0, time_limit=1e6)
    incumbent = Incumbent.of(problem, budget, options)
    Portfolio.of(incumbent, list(range(problem.ops)), options).run()
    assert len(seen) == 2
