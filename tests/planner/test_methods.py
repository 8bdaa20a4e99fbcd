"""Planners by name: all answer alike, formulations say what their bound is worth, solvers fail."""

from __future__ import annotations

import time
from dataclasses import replace
from math import inf

import pytest

from onnxremat import api
from onnxremat.errors import UsageError
from onnxremat.planner import Problem, Status, peak, seconds, solve
from onnxremat.planner.baselines import BASELINES
from onnxremat.planner.baselines.checkpoints import articulation, chen_sqrt, recompute_all
from onnxremat.planner.exact import solve_formulation
from onnxremat.planner.formulate import columns, formulate, staged_runs
from onnxremat.planner.lineup import method_of
from onnxremat.planner.methods import plan_by
from onnxremat.planner.options import FORMULATIONS, PLANNERS, PUBLISHED, SOLVER_NAMES, Method
from onnxremat.planner.problem_lists import ProblemLists
from onnxremat.planner.solvers import SOLVERS, Limits, Outcome, Result, refused
from tests.limits import LONG, Planned, work
from tests.planner.asking import asked
from tests.planner.graphs import skip_chain, small_transformer
from tests.planner.oracle import optimum, random_problem, staged_optimum
from tests.toolbox import parse

STAGED = [name for name in FORMULATIONS if name != "cuts"]
TIGHT = random_problem(196, 6), 29  # best 13.0, best staged 14.5, store all 11.0
ONLY_FREE = random_problem(99, 7, plain=True), 32  # best 25.5, no staged sequence at all


@pytest.fixture(autouse=True)
def _warm(warm: None) -> None:
    """The compiled search is ready, so that none of the work counted is spent on compiling."""


def share(problem: Problem, part: float) -> int:
    return int(part * peak(problem, problem.store_all()))


@pytest.mark.parametrize("name", [*PLANNERS, *STAGED])
def test_every_planner_is_judged_alike(name: str) -> None:
    problem = skip_chain(24, 1)
    budget = share(problem, 0.7)
    seen = Planned(looks=20)  # the search proves nothing: it would go on
    found = plan_by(
        problem,
        budget,
        asked(
            method=method_of(name, 10**6),
            time_limit=LONG,
            gap=1e-4,
            progress=seen.progress,
            stop=seen.stop if name == "search" else None,
        ),
    )
    best = optimum_of(problem, budget)
    assert found.certificate.bound <= best + 1e-6
    if found.sequence is None:
        assert name in ("order", "store-all", "articulation", "chen-sqrt")
        assert found.notes
        return
    assert peak(problem, found.sequence) == found.peak <= budget
    assert seconds(problem, found.sequence) == pytest.approx(found.time)
    assert found.time >= best - 1e-6
    if name not in BASELINES and name != "search":
        assert found.time == pytest.approx(best, rel=1e-3)


def optimum_of(problem: Problem, budget: int) -> float:
    found = solve(problem, budget, asked(time_limit=LONG, gap=1e-6))
    assert found.status is Status.OPTIMAL
    return found.time


@pytest.mark.parametrize("solver", ["highs", "scip"])
@pytest.mark.parametrize("warm_start", [True, False])
@pytest.mark.parametrize("name", STAGED)
def test_staged_formulations_answer_for_their_class(
    name: str, warm_start: bool, solver: str
) -> None:
    """Where a quicker sequence exists outside the class, neither plan nor bound mixes the two."""
    problem, budget = TIGHT
    best, staged = optimum(problem, budget, fixed_order=True), staged_optimum(problem, budget)
    assert best == 13.0 < staged == 14.5
    found = solve_formulation(
        problem,
        budget,
        asked(
            method=Method(formulation=name, warm_start=warm_start), time_limit=LONG, solver=solver
        ),
    )
    assert found.status is Status.OPTIMAL
    assert found.time == pytest.approx(staged)
    assert found.planner == found.certificate.kind == name
    assert found.certificate.staged
    assert not found.certificate.any_order
    assert found.certificate.bound == pytest.approx(staged)


def test_no_staged_sequence_is_no_proof_for_others() -> None:
    problem, budget = ONLY_FREE
    assert staged_optimum(problem, budget) == inf
    found = solve_formulation(
        problem, budget, asked(method=Method(formulation="checkmate"), time_limit=LONG)
    )
    assert found.status is Status.UNKNOWN
    assert any("no solution" in note for note in found.notes)
    assert found.certificate.bound <= optimum(problem, budget, fixed_order=True) + 1e-9


@pytest.mark.parametrize("name", STAGED)
def test_the_warm_start_is_a_point_of_the_model(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = skip_chain(24, 1)
    given: list[Limits] = []
    plain = SOLVERS["highs"].solve

    def watch(model: object, limits: Limits) -> Result:
        given.append(limits)
        return plain(model, limits)

    monkeypatch.setattr(SOLVERS["highs"], "solve", watch)
    budget = share(problem, 0.7)
    solve_formulation(
        problem, budget, asked(method=Method(formulation=name), time_limit=LONG, solver="highs")
    )
    made = formulate(ProblemLists(problem), [budget], name)
    warm = given[-1].warm
    assert warm is not None
    assert made.model.violation(warm) < 1e-6
    quick = made.schedule(warm)
    assert quick is not None
    assert peak(problem, quick) <= budget


def test_staged_runs() -> None:
    assert staged_runs([0, 1, 0, 1, 2, 0, 3]) == {
        (0, 0), (1, 1), (2, 0), (2, 1), (2, 2), (3, 0), (3, 3)
    }  # fmt: skip


@pytest.mark.parametrize("name", STAGED)
@pytest.mark.parametrize("seed", range(6))
def test_sizes_are_known_before_building(name: str, seed: int) -> None:
    problem = random_problem(seed, 6 + seed % 3)
    lists = ProblemLists(problem)
    model = formulate(lists, [share(problem, 1.0)], name).model
    assert columns(lists, [share(problem, 1.0)], name) == model.columns


def test_large_models_are_refused_before_they_are_built() -> None:
    problem = small_transformer(60)
    for name in STAGED:
        with work(1.0), pytest.raises(UsageError, match="columns") as refused_:
            plan_by(
                problem,
                share(problem, 0.8),
                asked(method=Method(formulation=name, warm_start=False)),
            )
        assert "--formulation cuts" in refused_.value.hint
        assert f"n = {problem.ops}" in refused_.value.why


def test_every_planner_takes_a_problem_without_ops() -> None:
    """onnxruntime computes a graph of constants when it loads it: nothing is left to plan."""
    nothing = Problem.plain([], [], [])
    for name in (*PLANNERS, *FORMULATIONS):
        answer = plan_by(nothing, 9, asked(time_limit=0.1, method=method_of(name, 10**5)))
        assert answer.sequence == (), name
    for rule in (articulation, chen_sqrt, recompute_all):  # as ``explain`` asks them
        assert rule(nothing, 9).peaks == (0,)


def test_names_that_are_none() -> None:
    with pytest.raises(UsageError, match="unknown planner 'best'") as error:
        Method("best")
    for name in PLANNERS:
        assert name in error.value.hint
    with pytest.raises(UsageError, match="unknown formulation 'x'"):
        Method(formulation="x")
    with pytest.raises(UsageError, match="exclude each other"):
        Method("dtr", "checkmate")
    with pytest.raises(UsageError, match="unknown solver"):
        plan_by(skip_chain(8, 1), 100, asked(solver="cplex"))


def test_options_of_formulations_go_with_one() -> None:
    """Also where no command was typed."""
    with pytest.raises(UsageError, match="--no-warm-start goes with --formulation"):
        Method(warm_start=False)
    few = Method(most_columns=9)
    with pytest.raises(UsageError, match="--max-columns goes with --formulation"):
        few.heeded()
    assert few.heeded(written=True) is few
    model = parse("g (float[8] x) => (float[8] y) { y = Sin(x) }")
    for call in (api.plan, api.optimize):
        with pytest.raises(UsageError, match="--max-columns goes with --formulation"):
            call(model, budget=99, options=asked(method=few))
    with pytest.raises(UsageError, match="--max-columns goes with --formulation"):
        api.sweep(model, options=asked(method=few))
    assert (
        Method(formulation="checkmate", warm_start=False, most_columns=9).heeded().ladder is False
    )


def test_the_names_of_the_options_are_those_of_the_planners() -> None:
    assert tuple(BASELINES) == PUBLISHED
    assert {"auto", *SOLVERS} == set(SOLVER_NAMES)


# Solvers that are missing or fail


@pytest.mark.parametrize("planner", ["auto", "cuts"])
def test_without_any_solver_there_is_still_a_plan(
    planner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, solver in SOLVERS.items():
        monkeypatch.setattr(solver, "unavailable", lambda name=name: f"{name} is not installed")
    problem = skip_chain(40, 1)
    seen = Planned(looks=20)
    found = plan_by(
        problem,
        share(problem, 0.7),
        asked(method=Method(planner), time_limit=LONG, progress=seen.progress, stop=seen.stop),
    )
    assert "highs is not installed" in found.notes
    assert "scip is not installed" in found.notes
    if planner == "auto":  # the search alone
        assert found.sequence is not None
    assert found.certificate.kind == "store-all"


@pytest.mark.parametrize("name", ["checkmate", "cuts"])
def test_a_crashing_solver_is_replaced(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(model: object, limits: Limits) -> Result:
        return refused("HiGHS failed: segmentation fault")

    monkeypatch.setattr(SOLVERS["highs"], "solve", crash)
    problem = skip_chain(16, 1)
    found = plan_by(
        problem,
        share(problem, 0.7),
        asked(method=Method(formulation=name, warm_start=False), solver="highs", time_limit=LONG),
    )
    assert "HiGHS failed: segmentation fault" in found.notes
    assert found.status is Status.OPTIMAL


def test_formulations_tell_incumbent_and_bound() -> None:
    problem = small_transformer(1)
    told: list[tuple[float, float, str]] = []
    found = solve_formulation(
        problem,
        share(problem, 0.9),
        asked(
            method=Method(formulation="checkmate", warm_start=False),
            time_limit=LONG,
            solver="highs",
            progress=lambda best, bound, stage: told.append((best, bound, stage)),
        ),
    )
    mine = [(best, bound) for best, bound, stage in told if stage == "checkmate"]
    assert mine
    assert [best for best, _ in mine] == sorted((best for best, _ in mine), reverse=True)
    assert [bound for _, bound in mine] == sorted(bound for _, bound in mine)
    assert found.sequence is not None
    assert min(best for best, _ in mine) <= found.time * (1 + 1e-6)


def test_interrupted_formulations_keep_what_there_is() -> None:
    problem = small_transformer(4)
    stages: set[str] = set()
    begin = time.monotonic()
    found = solve_formulation(
        problem,
        share(problem, 0.5),
        asked(
            method=Method(formulation="checkmate"),
            time_limit=5 * LONG,
            progress=lambda _best, _bound, stage: stages.add(stage),
            stop=lambda: "checkmate" in stages,
        ),
    )
    assert time.monotonic() - begin < 5 * LONG  # busy machines took more than half of LONG
    assert found.sequence is not None
    assert found.certificate.bound <= found.time


def test_products_fall_back_from_solvers_that_take_none() -> None:
    from onnxremat.planner.formulations import xengine
    from onnxremat.planner.solvers import minimise
    from tests.planner.test_formulations import budget_of, two_devices

    problem = random_problem(1, 4)
    model = xengine.build(two_devices(problem, 1), [budget_of(problem, 1)] * 2).model
    result, notes = minimise(model, Limits(LONG), "highs")
    assert notes == ["HiGHS takes no quadratic terms of binaries"]
    assert result.outcome is Outcome.OPTIMAL
    linear = replace(model, quadratic_cost=[])
    assert minimise(linear, Limits(LONG), "highs")[1] == []
