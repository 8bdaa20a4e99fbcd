"""Regions of an inference's graph in parts, in the loop of planning and measuring."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from models import build
from onnxremat import api
from onnxremat.cli.args import parse_overhead
from onnxremat.cost.analytic import analytic_costs
from onnxremat.cost.table import CostTable
from onnxremat.errors import InfeasibleError, NoPlanError, UnsupportedError, UsageError
from onnxremat.fission.choosers import Choosers
from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import write_model
from onnxremat.pipeline import priced, ways
from onnxremat.pipeline.artifact import Kind
from onnxremat.pipeline.closed_loop import Candidate
from onnxremat.pipeline.in_parts import fission_ways
from onnxremat.pipeline.in_parts.fission_ways import RegionsInParts
from onnxremat.pipeline.planned import plan_of_model, read_planned
from onnxremat.pipeline.prepared import Prepared
from onnxremat.pipeline.settings import Settings
from onnxremat.pipeline.ways import plan_within_budget
from onnxremat.planner.options import PlanOptions
from onnxremat.report.pages.carried import of_model
from onnxremat.session.process import PARTS
from tests.fission.drawn import Drawn
from tests.fission.test_sums_and_norms import normed
from tests.toolbox import parse, wide_chain

# Budgets of weights and values alone.
SETTINGS = Settings(threads=1, target="portable", costs=analytic_costs, not_counted=PARTS)
OPTIONS = PlanOptions(work=2000, threads=1)
WHOLE = 2 * 8 * 64 * 64 * 4  # bytes of two images of eight channels


def chain() -> onnx.ModelProto:
    """Three convolutions of an image; the outer images are small, those between are not."""
    g = Drawn(0)
    g.shapes["x"] = (1, 1, 64, 64)
    x = "x"
    for before, after in ((1, 8), (8, 8), (8, 1)):
        x = g.op("Conv", [x, g.weight(after, before, 3, 3)], (1, after, 64, 64), pads=[1] * 4)
        x = g.op("Softsign", [x], g.shapes[x])
    return g.model("x", [x])


def _optimised(budget: str | int, settings: Settings = SETTINGS) -> api.OptimizeResult:
    return api.optimize(chain(), budget=budget, settings=settings, options=OPTIONS, bench_seconds=0)


def test_a_budget_that_no_plan_of_the_whole_keeps(tmp_path: Path) -> None:
    limit = WHOLE // 2
    with pytest.raises(InfeasibleError):
        _optimised(limit, replace(SETTINGS, fission=()))
    result = _optimised(limit)
    facts = result.facts()
    assert facts["peak_measured_bytes"] <= limit
    assert facts["bit_equal"]
    assert result.against_original is not None
    assert result.against_original.ok
    (region,) = facts["fission"]
    assert sum(region["parts"]) > 1
    assert any("parts along axis 2" in note for note in facts["notes"])
    # The plan names its regions: it is carried out again from the file of the original.
    write_model(chain(), tmp_path / "in.onnx")
    (tmp_path / "plan.json").write_text(result.plan.dumps())
    plan = api.read_plan(tmp_path / "plan.json")
    again = api.apply(tmp_path / "in.onnx", plan, settings=SETTINGS)
    assert again.plan.sequence == result.plan.sequence
    # The file is shown with the bytes that it was planned for, though no shape in it is known.
    result.save(tmp_path / "out.onnx")
    told = read_planned(tmp_path / "out.onnx")
    assert max(told.bytes.values()) == facts["peak_predicted_bytes"]
    # A report of the plan by itself carries its regions out as well.
    shown = plan_of_model(plan, tmp_path / "in.onnx")
    # But for what finds shapes as it runs, for sessions with default options.
    assert 0 <= facts["peak_predicted_bytes"] - max(shown.bytes.values()) < 64
    of_model(plan, tmp_path / "in.onnx")
    checks = api.verify(tmp_path / "in.onnx", _saved(again, tmp_path)).checks
    assert all(check.ok for check in checks if check.kind in (Kind.OUTPUTS, Kind.ORDER))


def test_regions_that_surely_need_less_come_before_the_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For the least memory: plans of the whole, and a batch in parts, may take all the time."""

    def planned(*_: object) -> NoReturn:
        pytest.fail("the whole was planned")

    monkeypatch.setattr(ways, "plan_best", planned)
    result = _optimised("min")
    assert result.facts()["fission"]
    assert result.candidate.held < WHOLE


def test_a_busy_moment_does_not_choose_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph in parts costs what it does by the whole's clock, however busy the machine was
    while it was measured; and what it takes is said of the whole, too."""
    calls = count()

    def measured(graph: Graph, *args: object, **more: object) -> tuple[CostTable, None]:
        made, busy = analytic_costs(graph), 5.0 if next(calls) else 1.0
        seconds = {name: busy * each for name, each in made.seconds.items()}
        return replace(made, seconds=seconds, source="measured"), None

    monkeypatch.setattr(priced, "measure_costs", measured)
    model = chain()
    for at in range(64):  # ops that are whole, whatever is in parts
        model.graph.node.append(helper.make_node("Sin", [f"y{at}"], [f"y{at + 1}"]))
    for values, name in ((model.graph.input, "y0"), (model.graph.output, "y64")):
        values.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]))
    settings = replace(SETTINGS, costs=None)
    result = api.optimize(
        model, budget=WHOLE // 2, settings=settings, options=OPTIONS, bench_seconds=0
    )
    assert next(calls) > 1
    facts, parts = result.facts(), result.prepared
    assert facts["fission"]
    assert parts.costs.total == pytest.approx(analytic_costs(parts.graph).total)
    more = result.plan.provenance.seconds / parts.whole_seconds - 1
    assert facts["overhead_to_whole"] == pytest.approx(more)
    assert facts["overhead_to_whole"] > facts["overhead_planned"] - 1e-9
    assert _optimised("1.0x").facts()["overhead_to_whole"] is None


def test_a_share_that_a_refusal_names_works() -> None:
    with pytest.raises((InfeasibleError, NoPlanError)) as refused:
        _optimised("0.02x")
    named = re.search(r"--budget (0\.\d+x) \(", refused.value.hint)
    assert named is not None
    assert _optimised(named[1]).facts()["peak_measured_bytes"] <= refused.value.smallest


def _saved(result: api.OptimizeResult, folder: Path) -> Path:
    result.save(folder / "out.onnx")
    return folder / "out.onnx"


def test_a_budget_that_the_whole_keeps_stays_whole() -> None:
    assert _optimised("1.0x").facts()["fission"] == []


@pytest.mark.slow
def test_the_least_memory() -> None:
    whole = _optimised("min", replace(SETTINGS, fission=()))
    parts = _optimised("min")
    assert parts.candidate.held < whole.candidate.held / 2
    np.testing.assert_equal(parts.facts()["bit_equal"], True)


def test_where_regions_give_another_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the class of a pixel, which the last bit may decide: then nothing is written out as other
    operators, and where that does not help either, it is why there is no plan."""
    made, ways_of = fission_ways.prepare_fission, fission_ways.choosers_for
    refusals, plain = [True], list[bool]()

    def prepare(*given: Any) -> Prepared:
        if refusals and refusals.pop():
            raise UnsupportedError("output 'y' is another one", why="it differs by 1e-6")
        return made(*given)

    def choosers(*given: Any, as_it_is: bool, **more: Any) -> Choosers:
        plain.append(as_it_is)
        return ways_of(*given, as_it_is=as_it_is, **more)

    monkeypatch.setattr(fission_ways, "prepare_fission", prepare)
    monkeypatch.setattr(fission_ways, "choosers_for", choosers)
    assert _optimised(WHOLE * 5 // 8).facts()["fission"]
    assert plain[-1]
    assert plain.count(True) == 1
    refusals += [True] * 9
    with pytest.raises(NoPlanError, match=r"output 'y' is another one \(it differs by 1e-6\)"):
        _optimised(WHOLE * 5 // 8)


def test_the_least_memory_without_time_for_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is proven of the whole is not said of parts, which nobody tried."""
    monkeypatch.setattr(RegionsInParts, "surely_leanest", lambda *_: None)  # else late or not
    monkeypatch.setattr(RegionsInParts, "_no_time", lambda _: "no time for parts")
    notes = _optimised("min").facts()["notes"]
    assert any("can work for the model as a whole" in note for note in notes)
    assert any("no time for parts" in note for note in notes)
    assert not any("can work:" in note for note in notes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "budget", "whole"), [(wide_chain, 16, 3 << 20), (chain, 4096, WHOLE)]
)
def test_a_budget_below_weights_and_results_is_refused(
    make: Callable[[], onnx.ModelProto], budget: int, whole: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the bound that holds whatever is computed in parts, and a budget below the whole's;
    nothing is timed for it."""

    def timed(*_: object, **__: object) -> NoReturn:
        raise AssertionError("sizes need no costs")

    monkeypatch.setattr(priced, "measure_costs", timed)
    settings = replace(SETTINGS, costs=None)
    with pytest.raises(InfeasibleError, match="fits") as refused:
        api.optimize(make(), budget=budget, settings=settings)
    assert "weights and results" in refused.value.why
    assert budget < refused.value.lower_bound < whole // 2
    assert refused.value.smallest
    assert refused.value.smallest < whole


@pytest.mark.slow
def test_the_smallest_budget_of_a_refusal_works() -> None:
    with pytest.raises(NoPlanError) as refused:
        _optimised(64 * 64 * 4 + 8000)
    assert refused.value.smallest
    assert _optimised(refused.value.smallest).candidate.held <= refused.value.smallest


def test_a_plan_of_another_model_is_refused(tmp_path: Path) -> None:
    g = Drawn(1)
    g.shapes["x"] = (1, 64)
    write_model(g.model("x", [g.op("Exp", ["x"], (1, 64))]), tmp_path / "in.onnx")
    plan = _optimised(WHOLE // 2).plan
    with pytest.raises(UsageError, match="region"):
        api.apply(tmp_path / "in.onnx", plan, settings=SETTINGS)


@pytest.mark.slow
def test_the_least_memory_within_a_limit_of_time() -> None:
    def within(overhead: float, settings: Settings = SETTINGS) -> api.OptimizeResult:
        return api.optimize(
            chain(), max_overhead=overhead, settings=settings, options=OPTIONS, bench_seconds=0
        )

    kept = replace(SETTINGS, fission=())
    found, whole = within(0.5), within(0.5, kept)
    assert found.candidate.artifact.seconds <= 1.5 * whole.prepared.costs.total
    assert found.candidate.held < whole.candidate.held
    assert any("at most 50% longer" in note for note in found.facts()["notes"])


def test_storing_everything_fits_in_a_limit_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the pins of its order, on a net whose largest op needs all that is there at its peak."""
    planned: list[object] = []

    def plan(*given: Any) -> Candidate:
        planned.append(given)
        return plan_within_budget(*given)

    monkeypatch.setattr("onnxremat.pipeline.within_time.plan_within_budget", plan)
    model = build("squeezenet", batch=1, size=64)
    settings = replace(SETTINGS, target="host", fission=())
    found = api.optimize(
        model, max_overhead=0.005, settings=settings, options=PlanOptions(work=200, threads=1),
        bench_seconds=0,
    ).candidate  # fmt: skip
    told = f"found in {len(planned)} budgets that takes at most 0.5% longer"
    assert any(told in note for note in found.plan.provenance.notes)
    assert found.held <= found.prepared.store_all_peak + 64 * (1 + len(found.prepared.graph.ops))


@pytest.mark.parametrize(
    "given", [{"budget": "0.5x"}, {"devices": "cpu-cuda"}, {"write_model": "cuts.lp"}]
)
def test_a_limit_of_time_stands_alone(given: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="exclude each other"):
        api.optimize(chain(), max_overhead=0.1, settings=SETTINGS, options=OPTIONS, **given)


@pytest.mark.parametrize("text", ["ten", "-5%", "10%%", "inf"])
def test_a_limit_of_time_is_a_share(text: str) -> None:
    with pytest.raises(UsageError, match="max-overhead"):
        parse_overhead(text)
    assert parse_overhead("10%") == parse_overhead("0.1") == 0.1


@pytest.mark.slow
def test_a_normalised_image_within_a_budget_that_holds_it_once(tmp_path: Path) -> None:
    model, image = normed(2, rows=2048), 8 * 2048 * 6 * 4
    limit = int(1.5 * image)  # the whole needs two and the workspace of a convolution
    result = api.optimize(
        model, budget=limit, settings=SETTINGS, options=PlanOptions(work=300, threads=1),
        bench_seconds=0,
    )  # fmt: skip
    assert result.facts()["peak_measured_bytes"] <= limit
    assert any(region["sums"] for region in result.facts()["fission"])
    write_model(model, tmp_path / "in.onnx")
    again = api.apply(tmp_path / "in.onnx", result.plan, settings=SETTINGS)
    assert again.plan.sequence == result.plan.sequence


def test_inputs_of_half_precision_alone() -> None:
    """Size has no kernel for them: onnxruntime would run it on a copy of all as float32."""
    half = parse(
        "g (float16[1, 16, 32, 4] a, float16[1, 16, 32, 4] b) => (float[1, 16, 32, 4] y) {"
        " s = Add(a, b)  y = LayerNormalization<axis: int = -1>(s, w) }", 12
    )  # fmt: skip
    half.graph.initializer.append(numpy_helper.from_array(np.ones(4, np.float32), "w"))
    host = replace(SETTINGS, target="host", not_counted=())
    made = api.optimize(half, budget="0.8x", settings=host, options=OPTIONS, bench_seconds=0)
    facts = made.facts()
    assert facts["fission"]
    assert facts["order_kept"]
    assert facts["peak_measured_bytes"] <= facts["budget_bytes"]
