"""One loop for one session and several devices: rounds, time, one device where it is no slower."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onnxremat.cost.table import CostTable
from onnxremat.errors import NoPlanError, OverBudgetError, UsageError
from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import to_model
from onnxremat.pipeline import closed_loop
from onnxremat.pipeline.bench import Contender, Timing
from onnxremat.pipeline.closed_loop import Candidate, attempt
from onnxremat.pipeline.devices import device_plan, device_ways, several_devices
from onnxremat.pipeline.in_session import OneSession
from onnxremat.pipeline.limits import Limit
from onnxremat.pipeline.optimize import Request, optimize
from onnxremat.pipeline.phases import Phases
from onnxremat.pipeline.prepare import prepare
from onnxremat.pipeline.prepared import Prepared
from onnxremat.pipeline.settings import Settings
from onnxremat.planner.methods import plan_by
from onnxremat.planner.options import PlanOptions
from onnxremat.planner.reasons import Reason, named
from onnxremat.planner.search import warm_up
from tests.devices.plans import ANY, optimized, processors
from tests.toolbox import graph_of, training_chain

BEST = PlanOptions(work=1000, gap=0.2, threads=1)  # the same on any machine


@pytest.fixture(scope="module")
def chain(warm: None) -> Prepared:
    warm_up(2)
    return prepare(to_model(training_chain(4, 16, 64)), Settings(threads=1, target="none"))


def millisecond(graph: Graph) -> CostTable:
    return CostTable({op.name: 1e-3 for op in graph.ops}, {}, "given")


@pytest.fixture(scope="module")
def branches(warm: None) -> Prepared:
    """Two chains of five ops that run side by side, each op for a millisecond, as it is said."""
    warm_up(2)
    rows = [
        f"{v}{i + 1} = {op}({v}{i})" for v, op in (("a", "Sin"), ("b", "Cos")) for i in range(5)
    ]
    graph = graph_of(f"""g (float[64, 64] a0, float[64, 64] b0) => (float[64, 64] y) {{
        {" ".join(rows)}  y = Add(a5, b5)
    }}""")
    settings = Settings(threads=1, target="none", split_batch=(), costs=millisecond)
    return prepare(to_model(graph), settings)


def test_the_smallest_plan_of_a_loop_is_a_candidate(chain: Prepared) -> None:
    """Predicted and measured bytes of both kinds of artefact are within what was asked for."""
    one = attempt(OneSession(chain, Limit(2 * chain.baseline_peak), Phases()), ANY)
    assert isinstance(one, Candidate)
    several = optimized(chain, processors(2), "2x").candidate
    for candidate in (one, several):
        assert candidate.measured is not None
        for name, limit in candidate.limits.items():
            assert candidate.artifact.predict()[name] <= limit
            assert candidate.measured.peaks[name] <= limit
        assert candidate.artifact.model().graph.node


def test_a_round_plans_for_less_by_what_the_last_one_took_too_much(
    chain: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    aims: list[float] = []

    class Counting(OneSession):
        def solve(self, aim: Any, options: Any, warm: Any = None) -> Any:
            aims.append(aim.limits["cpu"])
            return super().solve(aim, options, warm)

    real = closed_loop.carried_out
    over = iter([{"cpu": 1000}, {"cpu": 10}, {}])
    monkeypatch.setattr(closed_loop, "carried_out", lambda *a: (real(*a)[0], next(over)))
    limit = 2 * chain.baseline_peak
    found = attempt(Counting(chain, Limit(limit), Phases()), ANY)
    assert isinstance(found, Candidate)
    assert found.rounds == 2
    assert aims[0] == limit
    assert aims[1] <= limit - 1000
    assert aims[2] <= aims[1] - 20  # what was taken off did not do


@pytest.mark.parametrize(("part", "made"), [(0.005, True), (0.5, False)])
def test_a_plan_that_nearly_fits_is_made_to_fit_however_late(
    chain: Prepared, part: float, made: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 2 * chain.baseline_peak
    real = closed_loop.carried_out
    over = iter([{"cpu": int(part * limit)}, {}])
    monkeypatch.setattr(closed_loop, "carried_out", lambda *a: (real(*a)[0], next(over)))
    log = Phases()
    log.end_within(0)
    assert isinstance(attempt(OneSession(chain, Limit(limit), log), ANY), Candidate) is made


def test_devices_are_planned_within_one_time_limit(
    branches: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a clock that planning alone moves, by all that each call is given: whatever fails, and
    however many ways are tried."""
    now, given = [0.0], []

    def planned(problem: Any, budgets: Any, options: PlanOptions, warm: Any = None) -> Any:
        now[0] += options.time_limit
        given.append(options.time_limit)
        return plan_by(problem, budgets, options.lasting(3.0), warm)

    monkeypatch.setattr(several_devices, "plan_by", planned)
    limit = 20.0
    options = PlanOptions(time_limit=limit, gap=0.2, threads=1, now=lambda: now[0])
    optimized(branches, processors(2), "4x", options)
    assert len(given) > 1
    assert sum(given) <= 1.5 * limit
    given.clear()
    real = closed_loop.carried_out
    monkeypatch.setattr(closed_loop, "carried_out", lambda *a: (real(*a)[0], {"cpu:0": 1}))
    with pytest.raises(OverBudgetError, match=r"device 'cpu:0' within .* when carried out"):
        optimized(branches, processors(2), "4x", options)
    assert len(given) > 1
    assert sum(given) <= 1.5 * limit


def with_ratio(ratio: float) -> Any:
    """Timings in which every contender but the first takes so many times as long."""

    def bench(contenders: list[Contender], *_: object, **__: object) -> list[Timing]:
        times = [1.0, *[ratio] * (len(contenders) - 1)]
        rows = zip(contenders, times, strict=True)
        return [Timing(one.name, time, time, 0.0, 5) for one, time in rows]

    return bench


@pytest.mark.parametrize(("ratio", "alone"), [(0.9, True), (1.0, True), (1.1, False)])
def test_one_device_is_written_where_it_is_measured_to_be_no_slower(
    branches: Prepared, monkeypatch: pytest.MonkeyPatch, ratio: float, alone: bool
) -> None:
    monkeypatch.setattr(device_ways, "bench", with_ratio(ratio))
    monkeypatch.setattr(device_ways, "tried", lambda made, *_, **__: made)
    monkeypatch.setattr(device_ways, "WORTH", 100.0)
    result = optimized(branches, processors(2), "4x", BEST, objective="makespan")
    used = {part.device for part in result.deployment.parts.partitions}
    assert (len(used) == 1) == alone
    said = [note for note in result.facts()["notes"] if "alone keeps its budget" in note]
    assert bool(said) == alone
    assert all(check.ok for check in result.checks)


def test_a_device_that_does_not_keep_its_budget_is_no_match(
    branches: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_ways, "bench", with_ratio(0.5))
    monkeypatch.setattr(device_ways, "tried", lambda made, *_, **__: made)
    monkeypatch.setattr(device_ways, "_singles", lambda *_: ([], None))
    result = optimized(branches, processors(2), "4x", BEST, objective="makespan")
    assert len({part.device for part in result.deployment.parts.partitions}) == 2


def test_ctrl_c_keeps_the_plan_at_hand(branches: Prepared) -> None:
    """Stopped as soon as there is a plan: no further way is looked at, and the plan is given."""
    machine, stopped = processors(2), [False]

    def progress(best: float, bound: float, stage: str) -> None:
        stopped[0] = stopped[0] or best < float("inf")

    options = replace(BEST, progress=progress, stop=lambda: stopped[0])
    result = optimized(branches, machine, "4x", options)
    assert all(check.ok for check in result.checks)
    with pytest.raises(NoPlanError, match="stopped before planning"):
        optimized(branches, machine, "4x", replace(ANY, stop=lambda: True))


def test_the_numbers_of_devices_are_made_once_for_every_table_of_costs(
    branches: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not once more to look whether a formulation is to be written; one reduction for each."""
    made, reductions = [], []
    real, reduce = several_devices.device_model, device_plan.reduce
    monkeypatch.setattr(device_ways, "tried", lambda made, *_, **__: made)
    monkeypatch.setattr(device_ways, "_singles", lambda *_: ([], None))
    monkeypatch.setattr(device_ways, "never_slower", lambda target, best, *_: best)
    monkeypatch.setattr(
        several_devices, "device_model", lambda *a, **k: made.append(1) or real(*a, **k)
    )
    monkeypatch.setattr(
        device_plan, "reduce", lambda *a, **k: reductions.append(1) or reduce(*a, **k)
    )
    optimized(branches, processors(3), "4x")
    assert len(made) == len(reductions) == 1


def test_what_does_not_apply_to_one_session_is_refused(branches: Prepared) -> None:
    with pytest.raises(UsageError, match="--pin goes with --devices"):
        optimize(branches, Request("2x", pins=[("Sin", "cpu")]))
    with pytest.raises(UsageError, match="--objective goes with --devices"):
        Request("2x", objective="makespan")
    with pytest.raises(UsageError, match="no such file"):
        Request("2x", read_solution=Path("gone.sol"))
    with pytest.raises(UsageError, match="has no device 'gpu'"):
        Request("2x", processors(2), pins=[("Sin", "gpu")])


def test_a_reason_keeps_its_op() -> None:
    why = Reason("{op} needs 5 bytes at once (op 3 makes them)", 7)
    assert why == "op 7 needs 5 bytes at once (op 3 makes them)"
    names = [f"op{i}" for i in range(8)]
    assert named(why, names) == "op7 needs 5 bytes at once (op 3 makes them)"
    assert named("op 7 is a word here", names) == "op 7 is a word here"
    again = pickle.loads(pickle.dumps(why))
    assert (again, again.op, again.text) == (why, why.op, why.text)
    braced = Reason("{op} needs 5 bytes on a{0}", 7)  # as a machine file may call a device
    assert named(braced, names) == "op7 needs 5 bytes on a{0}"
