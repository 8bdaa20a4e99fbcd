"""A model that keeps its budget already is written as it is."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

import onnxremat
from models import build
from onnxremat.errors import NoPlanError
from onnxremat.graph.order import reordered
from onnxremat.ort.feeds import seeded_feeds
from onnxremat.ort.infer import build_graph
from onnxremat.pipeline import optimize
from onnxremat.pipeline.closed_loop import Candidate
from onnxremat.pipeline.original.unchanged import Unchanged
from onnxremat.pipeline.phases import Phases
from onnxremat.pipeline.planned import read_planned
from onnxremat.pipeline.prepared import Prepared
from onnxremat.pipeline.verify import verify
from onnxremat.planner.options import PlanOptions
from onnxremat.rewrite.emit import metadata
from onnxremat.schedule.plan import Plan, Provenance
from onnxremat.session.resident import NO_LIMIT, Rise
from onnxremat.units import Budget
from tests.toolbox import parse

QUICK = onnxremat.PlanOptions(time_limit=20)


MODELS = {
    "squeezenet": {},
    "mlp": {"batch": 8, "width": 64},
    "unet": {"batch": 2, "size": 32, "width": 8},
}


@pytest.fixture(
    scope="module",
    params=[pytest.param(n, marks=[pytest.mark.slow] * (n == "unet")) for n in MODELS],
)
def model(request: pytest.FixtureRequest) -> onnx.ModelProto:
    """One that onnxruntime lays out in blocks, one that it only fuses, and one whose copies between
    layouts it numbers in another order at every level."""
    return build(request.param, **MODELS[request.param])


def optimised(
    model: onnx.ModelProto, budget: str, target: str = "auto"
) -> onnxremat.OptimizeResult:
    settings = onnxremat.Settings(target=target)
    return onnxremat.optimize(
        model, budget=budget, settings=settings, options=QUICK, bench_seconds=0
    )


def test_the_file_is_the_original(model: onnx.ModelProto, tmp_path: Path) -> None:
    result = optimised(model, "1.0x")
    assert isinstance(result.candidate.artifact, Unchanged)
    assert result.plan.provenance.overhead == 0
    assert result.plan.recomputations == 0
    facts = result.facts()
    assert facts["order_kept"]
    assert facts["bit_equal"]
    assert facts["peak_predicted_bytes"] == facts["peak_measured_bytes"]
    assert facts["peak_measured_bytes"] <= facts["budget_bytes"]

    path = tmp_path / "out.onnx"
    result.save(path)
    written = onnx.load(path)
    assert [n.op_type for n in written.graph.node] == [n.op_type for n in model.graph.node]
    assert {t.name for t in written.graph.initializer} == {t.name for t in model.graph.initializer}
    feeds = seeded_feeds(build_graph(model, None), 3)
    plain = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for session in (onnxremat.load(path), ort.InferenceSession(str(path))):
        for mine, theirs in zip(session.run(None, feeds), plain.run(None, feeds), strict=True):
            assert np.array_equal(mine, theirs)


def test_it_can_be_verified_shown_and_planned_again(model: onnx.ModelProto, tmp_path: Path) -> None:
    path = tmp_path / "out.onnx"
    result = optimised(model, "1.5x")
    result.save(path)
    found = verify(model, path)
    assert found.ok, found.checks
    assert read_planned(path).plan.sequence == result.plan.sequence
    again = optimised(onnx.load(path), "1.0x")
    assert isinstance(again.candidate.artifact, Unchanged)
    applied = onnxremat.apply(model, result.plan, bench_seconds=0)  # the same plan, written out
    assert not isinstance(applied.candidate.artifact, Unchanged)
    assert applied.facts()["order_kept"]


def test_its_order_is_onnxruntimes_own() -> None:
    """Which may be another at the next load."""
    model = parse("g (float[8, 64] x) => (float[8, 64] y) { a = Sin(x) b = Cos(x) y = Add(a, b) }")
    found = optimised(model, "1.0x").candidate
    feeds, artifact = found.prepared.feeds, found.artifact
    assert isinstance(artifact, Unchanged)
    assert feeds is not None

    def checks(places: list[int]) -> list[bool]:
        graph = reordered(artifact.graph, places)
        plan = Plan.of(graph, [op.name for op in graph.ops])
        rewritten = replace(artifact.rewritten, graph=graph, plan=plan)
        run = replace(artifact, rewritten=rewritten, ran=None).measure(feeds)
        return [check.ok for check in run.checks]

    assert checks([0, 1, 2]) == checks([1, 0, 2]) == [True, True, True]


@pytest.mark.parametrize(("budget", "target"), [("0.9x", "auto"), ("1.5x", "portable")])
def test_else_it_is_planned(budget: str, target: str) -> None:
    """A lower budget, or a target that was asked for."""
    result = optimised(build("unet", **MODELS["unet"]), budget, target)
    assert not isinstance(result.candidate.artifact, Unchanged)
    assert "options" in metadata(result.model)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs /proc")
def test_a_share_of_all_of_it_has_room_for_a_plan_that_adds_nothing() -> None:
    """What is added for default sessions alone takes a few bytes, and is left out where they are
    missing."""
    model = parse("g (float[8, 64] x) => (float[8, 64] y) { p = MatMul(x, w) y = MatMul(p, w) }")
    model.graph.initializer.append(numpy_helper.from_array(np.eye(64, dtype=np.float32), "w"))
    made = optimised(model, "1.0x", "portable")
    facts = made.facts()
    assert facts["peak_measured_bytes"] == facts["limit_bytes"]
    assert [tensor.name for tensor in made.model.graph.initializer] == ["w"]
    more = optimised(model, "1.1x", "portable")
    assert len(more.model.graph.initializer) > 1


def test_opening_keeps_the_budget_too(tmp_path: Path) -> None:
    """Where weights are most of it, the original keeps the budget once it is open, and not before:
    a file that is opened as it lies is written instead."""
    model = build("resnet18", batch=1, size=32)
    settings = onnxremat.Settings(threads=1)
    result = onnxremat.optimize(
        model, budget="1.01x", settings=settings, options=QUICK, bench_seconds=0
    )
    assert not isinstance(result.candidate.artifact, Unchanged)
    path = tmp_path / "out.onnx"
    result.save(path)
    checks = verify(model, path, settings=settings, seeds=1).checks
    assert any("fresh process" in check.name for check in checks)
    assert all(check.ok for check in checks), checks
    exact = onnxremat.optimize(
        model, budget="1.0x", settings=settings, options=QUICK, bench_seconds=0
    )
    if isinstance(exact.candidate.artifact, Unchanged):  # else as above
        assert any("opening it takes more" in note for note in exact.facts()["notes"])


@pytest.mark.parametrize(
    ("rise", "opened"),
    [
        (Rise(1, False, "no memory"), False),  # its pages were few enough, its addresses were not
        (Rise(1, True), True),
        (Rise(1, None, NO_LIMIT), True),
        (Rise(1 << 40, None, NO_LIMIT), False),
        (Rise(None, None, "died"), False),
    ],
)
def test_what_is_opened_is_what_verify_will_ask(
    monkeypatch: pytest.MonkeyPatch, rise: Rise, opened: bool
) -> None:
    monkeypatch.setattr(
        "onnxremat.pipeline.original.unchanged.resident_rise", lambda *_, **__: rise
    )
    monkeypatch.setattr("onnxremat.pipeline.original.unchanged.OPENING", 1 << 30)
    result = optimised(build("mlp", batch=8, width=64), "1.5x")
    assert isinstance(result.candidate.artifact, Unchanged) == opened


@pytest.mark.parametrize(("budget", "as_it_is"), [("1.0x", True), ("64MiB", False)])
def test_a_share_of_all_of_it_makes_nothing_slower(
    monkeypatch: pytest.MonkeyPatch, budget: str, as_it_is: bool
) -> None:
    """Where only a slower plan keeps the budget while it is opened, as in parts of the batch:
    bytes of the process are a limit, the original's own share is not."""
    monkeypatch.setattr("onnxremat.pipeline.optimize.opens", lambda found: False)
    monkeypatch.setattr(Provenance, "overhead", property(lambda self: 0.06))
    result = optimised(build("mlp", batch=8, width=64), budget)
    assert isinstance(result.candidate.artifact, Unchanged) == as_it_is
    notes = result.candidate.plan.provenance.notes
    assert any("are slower" in note for note in notes) == as_it_is


def test_a_hundredth_more_is_taken_where_the_original_does_not_open_within_its_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The file of what onnxruntime makes of a model takes a few bytes more than the model as it
    runs, and half of what that takes to be opened. Both are planned in one time limit."""
    monkeypatch.setattr("onnxremat.pipeline.optimize.opens", lambda found: False)
    planned, asked, ends = optimize.plan_within_budget, [], []

    def narrow(prepared: Prepared, budget: Budget, options: PlanOptions, log: Phases) -> Candidate:
        asked.append(budget.value)
        ends.append(options.until)
        if budget.value <= 1:
            raise NoPlanError("no plan fits")
        return planned(prepared, budget, options, log)

    monkeypatch.setattr(optimize, "plan_within_budget", narrow)
    result = optimised(build("mlp", batch=8, width=64), "1.0x")
    assert asked == [1.0, optimize.MORE]
    assert max(ends) < inf
    assert not isinstance(result.candidate.artifact, Unchanged)
    assert any("taken as 1.01" in note for note in result.candidate.plan.provenance.notes)


def test_the_least_is_no_more_than_the_original_takes() -> None:
    """Every result is kept to the end: a plan could only add to what the original takes."""
    chain = "a = Sin(x) b = Exp(a) c = Cos(b) d = Add(a, c) y = Add(d, b)"
    rows = "float[64, 1024]"
    made = optimised(parse(f"g ({rows} x) => ({rows} y, {rows} a, {rows} b) {{ {chain} }}"), "min")
    facts = made.facts()
    assert facts["planner"] == "unchanged"
    assert facts["peak_measured_bytes"] == facts["baseline_peak_bytes"]
