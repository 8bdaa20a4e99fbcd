"""Work that is counted: same seed and limit, same plan, and no clock is looked at."""

from __future__ import annotations

import time
from typing import Any

import pytest

from onnxremat.errors import UsageError
from onnxremat.planner import Problem, peak, smallest_budget, solve
from onnxremat.planner import clock as clocks
from onnxremat.planner.clock import WorkClock
from onnxremat.planner.options import Method, PlanOptions
from tests.planner.graphs import skip_chain, small_transformer
from tests.planner.test_device_planner import two_devices

PROBLEM = small_transformer(3)
BUDGET = int(0.5 * peak(PROBLEM, PROBLEM.store_all()))


def counted(work: int, **options: Any) -> PlanOptions:
    return PlanOptions(work=work, gap=1e-7, **options)


@pytest.fixture(params=["quick", "slow"])
def pace(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which no time passes, and one on which hours do."""
    begin = time.monotonic()
    step = 0.0 if request.param == "quick" else 3600.0
    passed = iter(range(10**9))
    monkeypatch.setattr(clocks, "monotonic", lambda: begin + step * next(passed))


ANSWERS: dict[Any, list[Any]] = {}


@pytest.mark.parametrize("rung", ["auto", "cuts", "search"])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_pace_of_the_machine_changes_nothing(
    rung: str, seed: int, pace: None, warm: None
) -> None:
    options = counted(600, seed=seed, method=Method(rung), threads=2)
    found = solve(PROBLEM, BUDGET, options)
    told = ANSWERS.setdefault(("one", rung, seed), [])
    told.append((found.sequence, found.certificate, found.plan_seconds, found.trace))
    assert told[0] == told[-1]


def test_several_devices_too(pace: None) -> None:
    problem: Any = two_devices(skip_chain(30, 1))
    for objective in ("time", "makespan"):
        found = solve(problem, [20, 20], counted(300, objective=objective, threads=2))
        told = ANSWERS.setdefault(("several", objective), [])
        told.append((found.schedule, found.certificate, found.plan_seconds))
        assert told[0] == told[-1]


def test_the_smallest_budget_too(pace: None) -> None:
    told = ANSWERS.setdefault("smallest", [])
    told.append(smallest_budget(PROBLEM, counted(400)))
    assert told[0] == told[-1]


def test_more_work_is_no_worse(warm: None) -> None:
    problem: Problem = skip_chain(80, 4, skip=0.3)
    budget = int(0.45 * peak(problem, problem.store_all()))
    times = [solve(problem, budget, counted(work)).time for work in (50, 500, 2500)]
    assert times == sorted(times, reverse=True)


def test_a_part_of_the_time_is_that_share_of_the_work() -> None:
    options = PlanOptions(time_limit=10.0, work=1000)
    assert options.lasting(2.5).work == 250
    assert options.lasting(100.0).work == 1000
    assert options.seconds == 1.0
    assert options.begun().left == 10.0  # no clock runs
    assert not options.beside
    assert isinstance(options.clock(), WorkClock)


def test_no_work_is_refused() -> None:
    with pytest.raises(UsageError, match="0 units of work"):
        PlanOptions(work=0)
