"""Planners side by side: nobody beats ours, and it would be said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from onnxremat.errors import InfeasibleError, NoPlanError
from onnxremat.pipeline.study_problem import Subject
from onnxremat.planner import Certificate, Problem, Solution, Status, lineup, peak
from onnxremat.planner.baselines import BASELINES
from onnxremat.planner.lineup import Entry, beaten, line_up
from onnxremat.planner.methods import plan_by
from onnxremat.planner.options import Method
from onnxremat.planner.schedule import Schedule, Step
from onnxremat.studies.planners import Comparison, Standing
from tests.limits import LONG, Planned
from tests.planner.asking import asked
from tests.planner.graphs import skip_chain, small_transformer
from tests.planner.oracle import random_problem

GIVEN = asked(time_limit=LONG, gap=1e-4, method=Method(most_columns=10**5))
GRAPHS = {
    "chain": skip_chain(60, 1),
    "skips": skip_chain(60, 2, skip=0.3),
    "transformer": small_transformer(3),
    "random": random_problem(7, 24, plain=True),
}


@pytest.mark.parametrize("part", [0.9, 0.7, 0.5])
@pytest.mark.parametrize("graph", list(GRAPHS))
def test_no_published_rule_beats_ours(graph: str, part: float, warm: None) -> None:
    problem = GRAPHS[graph]
    budget = int(part * peak(problem, problem.store_all()))
    entries = [Entry(name, budget, planner(problem, budget)) for name, planner in BASELINES.items()]
    noise = 1e-4 * float(problem.cost.sum())
    best = min(entry.solution.time for entry in entries if entry.solution is not None)
    seen = Planned(best + noise)  # it may stop where nobody beats it any more
    ours = plan_by(
        problem, budget, asked(time_limit=LONG, gap=1e-4, progress=seen.progress, stop=seen.stop)
    )
    entries.append(Entry("auto", budget, ours))
    assert list(beaten(entries, "auto", noise)) == []


def test_every_planner_answers_in_its_turn() -> None:
    problem = skip_chain(24, 1)
    top = peak(problem, problem.store_all())
    names = ["auto", "store-all", "dtr", "checkmate"]
    said: list[Entry] = []
    entries = line_up(problem, [top, top // 2], names, GIVEN, jobs=2, done=said.append)
    assert [(entry.budget, entry.planner) for entry in entries] == [
        (budget, name) for budget in (top, top // 2) for name in names
    ]
    assert len(said) == 8
    found = {(entry.budget, entry.planner): entry for entry in entries}
    assert found[top, "store-all"].found
    assert not found[top // 2, "store-all"].found
    assert "needs at least" in found[top // 2, "store-all"].why
    best, dtr = found[top // 2, "auto"].solution, found[top // 2, "dtr"].solution
    assert best is not None
    assert dtr is not None
    assert best.time <= dtr.time


def test_a_planner_that_fails_is_an_entry_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lineup, "STARTING", LONG)  # whatever else the machine does
    tight = asked(time_limit=1.0, method=Method(most_columns=10))
    problem: Problem = GRAPHS["chain"]
    (entry,) = line_up(problem, [100], ["checkmate"], tight)
    assert entry.solution is None
    assert "columns" in entry.why


def test_being_beaten_is_seen() -> None:
    def entry(name: str, time: float | None) -> Entry:
        proof = Certificate(0.0, "none", any_order=True)
        found = None if time is None else Schedule((Step(0, 0),), (-1,))
        status = Status.FEASIBLE if found else Status.UNKNOWN
        return Entry(name, 1, Solution(status, found, time or 9e9, (1,), proof, name))

    ours, close, better, none = (
        entry("auto", 2.0), entry("a", 1.99), entry("b", 1.0), entry("c", None)
    )  # fmt: skip
    assert list(beaten([ours, close, none], "auto", 0.1)) == []
    assert list(beaten([close, better, ours], "auto", 0.1)) == [(better, ours)]
    lost = entry("auto", None)
    assert list(beaten([lost, close], "auto", 0.1)) == [(close, lost)]
    assert list(beaten([Entry("auto", 1, None, "failed"), none], "auto", 0.1)) == []
    crashed = Entry("auto", 1, None, "failed")
    assert list(beaten([crashed, close], "auto", 0.1)) == [(close, crashed)]
    late = Entry("auto", 1, None, "no answer in 15 s", late=True)  # on a busy machine
    assert list(beaten([late, close], "auto", 0.1)) == []


def test_what_is_proven_in_one_order_is_no_proof_for_all_planners() -> None:
    """A formulation proves that nothing fits in the order of the graph; another order may."""
    problem = skip_chain(4, 1)
    row = Standing(
        "checkmate", 9, 9, None, None, None, 0.1, None, None, False, Status.INFEASIBLE.value, ""
    )  # fmt: skip
    subject = Subject("graph", problem, 9, None, fixed_order=False)
    with pytest.raises(NoPlanError):
        Comparison(subject, [row], []).require_a_plan()
    for proven, held in (
        (replace(row, any_order=True), subject),
        (row, replace(subject, fixed_order=True)),
    ):
        with pytest.raises(InfeasibleError):
            Comparison(held, [proven], []).require_a_plan()
