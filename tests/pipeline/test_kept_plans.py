"""A budget that a refusal names is kept when it is asked for, whatever the planner finds then."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from onnxremat.cost.analytic import analytic_costs
from onnxremat.errors import NO_FIT, InfeasibleError, NoPlanError
from onnxremat.fission import choose
from onnxremat.fission.training import BATCH, StepParts
from onnxremat.pipeline import kept_plans
from onnxremat.pipeline.in_parts.step_in_parts import prepare_step
from onnxremat.pipeline.kept_plans import FOLDER, Known, keep, kept_plan, plan_of
from onnxremat.pipeline.phases import Phases
from onnxremat.pipeline.prepare import prepare
from onnxremat.pipeline.prepared import Prepared
from onnxremat.pipeline.result import Result, Timed, finish
from onnxremat.pipeline.settings import Settings
from onnxremat.pipeline.study_problem import Subject
from onnxremat.pipeline.ways import Ways, plan_within_budget
from onnxremat.pipeline.within_budget import applied
from onnxremat.planner import smallest_budget
from onnxremat.planner.options import PlanOptions
from onnxremat.planner.problem import Problem
from onnxremat.planner.semantics import peak
from onnxremat.planner.solution import Certificate, Solution, Status, unsolved
from onnxremat.session.process import PARTS
from onnxremat.studies import graph_file
from onnxremat.units import parse_budget
from tests.fission.test_training import FROZEN, images
from tests.pipeline.test_fission import chain
from tests.toolbox import wide_chain

ASKED = Settings(threads=1, target="portable", costs=analytic_costs)
WORK = PlanOptions(work=300, threads=1)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where plans are kept."""
    monkeypatch.setenv("ONNXREMAT_CACHE", str(tmp_path))
    monkeypatch.setattr(kept_plans, "MODELS", 9)
    monkeypatch.setattr(choose, "WORK", 10_000)  # some regions, not the best
    return tmp_path / FOLDER


def _works(prepared: Prepared, works: int, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planner that finds nothing gives a plan for these bytes, and none for less."""

    def nothing(*_: Any) -> None:
        raise NoPlanError("none in time")

    monkeypatch.setattr(Ways, "_found", nothing)
    soon, log = PlanOptions(time_limit=0.1, threads=1), Phases()
    found = plan_within_budget(prepared, parse_budget(works), soon, log)
    assert found.held + found.artifact.beside <= works
    assert found.plan.provenance.budget == works
    verified = finish(Result, found, Timed(0.0), log).verified
    assert verified is not None
    assert verified.same.ok
    with pytest.raises(NoPlanError):
        plan_within_budget(prepared, parse_budget(works - 1), soon)
    for damaged in (path.read_text().replace('"ops": ["', '"ops": ["no such op'), "[1", "{}"):
        path.write_text(damaged)
        with pytest.raises(NoPlanError):
            plan_within_budget(prepared, parse_budget(works), soon)


@pytest.mark.parametrize(
    ("make", "settings", "parts"),
    [
        (wide_chain, replace(ASKED, fission=(), split_batch=()), '{}, "'),
        (wide_chain, ASKED, '{"split_batch": [8'),
        (chain, replace(ASKED, not_counted=PARTS), '{"fission": [{'),
    ],
    ids=["whole", "batch", "regions"],
)
def test_the_budget_of_a_refusal(
    make: Callable[[], onnx.ModelProto],
    settings: Settings,
    parts: str,
    kept: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepared = prepare(make(), settings)
    least = prepared.beside.total + prepared.weights + prepared.graph.result_bytes
    with pytest.raises(NO_FIT) as refused:
        plan_within_budget(prepared, parse_budget(least + 1), WORK)
    (path,) = kept.iterdir()
    assert f'"parts": {parts}' in path.read_text()
    assert isinstance(refused.value, InfeasibleError | NoPlanError)
    assert refused.value.smallest
    _works(prepared, refused.value.smallest, path, monkeypatch)


def test_a_step_in_parts(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = prepare(images(), replace(ASKED, train=FROZEN))
    split = prepare_step(prepared, StepParts(BATCH, 2))
    known = applied(split, plan_of(split, [op.name for op in split.graph.ops]), Phases()).kept
    keep(prepared, known)
    more = replace(known, held=known.held + 1, ops=())  # one of less is there already
    keep(prepared, more)
    (path,) = kept.iterdir()
    _works(prepared, known.works, path, monkeypatch)


def test_the_oldest_are_forgotten(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_plans, "MODELS", 2)
    prepared = prepare(wide_chain(), ASKED)
    for threads in (1, 2, 3):
        asked = replace(prepared, settings=replace(ASKED, threads=threads))
        keep(asked, Known(asked, 1, 0, ["a"]))
        path = kept_plans._path(asked)
        os.utime(path, (threads, threads))
    assert len(list(kept.iterdir())) == 2
    assert kept_plan(asked) is not None


def test_a_graph_file(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long chains of which every value is read again: less than all of them only with repeats."""
    count = 12
    reads = [[i - 1] if i else [] for i in range(count)]
    reads += [[count + i - 1, count - 1 - i] if i else [count - 1] for i in range(count)]
    problem = Problem.plain([10] * 2 * count, [1.0] * 2 * count, reads)
    subject = Subject("g", problem, 1000, None, False)
    soon = PlanOptions(time_limit=0.5, threads=1)
    answers = [
        smallest_budget(problem, PlanOptions(work=500, threads=1)),
        *[(subject.store_all_peak, list(range(2 * count)), 0, "")] * 4,
    ]

    def nothing(*_: Any, **__: Any) -> Solution:
        return unsolved(Status.UNKNOWN, Certificate(0.0, "store-all", True))

    monkeypatch.setattr(graph_file, "plan_by", nothing)
    monkeypatch.setattr(graph_file, "smallest_budget", lambda *_: answers.pop(0))
    with pytest.raises(NO_FIT) as refused:
        graph_file.plan_graph(subject, parse_budget(15), soon)
    works = refused.value.smallest
    assert works < subject.store_all_peak
    found = graph_file.plan_graph(subject, parse_budget(works), soon)
    assert found["peak_predicted_bytes"] == peak(problem, found["sequence"]) == works
    with pytest.raises(NoPlanError) as again:
        graph_file.plan_graph(subject, parse_budget(works - 1), soon)
    assert again.value.smallest == works
    (path,) = kept.iterdir()
    path.write_text(path.read_text().replace('"ops": ["0"', '"ops": ["1"'))
    with pytest.raises(NoPlanError):
        graph_file.plan_graph(subject, parse_budget(works), soon)
