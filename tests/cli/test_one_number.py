"""What one command prints is what another one means: the same words for the same bytes, and a
number that one prints is kept when another is given it as a budget."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import pytest

import onnxremat
from onnxremat.errors import InfeasibleError
from onnxremat.pipeline.prepare import prepare
from onnxremat.report.explanation import Explanation
from onnxremat.units import format_bytes, parse_bytes
from tests.cli.conftest import Command
from tests.limits import LONG
from tests.toolbox import parse

MIB = 1 << 20
# Weights, and recomputation that pays: what a plan adds to the session counts, too.
CHAIN = """g (float[b, 256] x) => (float[b, 256] y) {
  a = MatMul(x, w) b = Sin(a) c = Cos(b) d = Add(b, c) e = Exp(d) f = Mul(b, e)
  g1 = Add(f, c) h = MatMul(g1, w) i = Add(h, b) y = Sin(i) }"""
SETTINGS = onnxremat.Settings(threads=1, target="none", split_batch=(), fission=())
OPTIONS = onnxremat.PlanOptions(time_limit=LONG, gap=0.05)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = parse(CHAIN)
    weight = np.random.default_rng(0).normal(0, 0.04, (256, 256)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    path = tmp_path_factory.mktemp("one") / "chain.onnx"
    onnx.save(model, path)
    return path


SIZED = onnxremat.Settings(**{**vars(SETTINGS), "dims": {"b": 256}})


def kept(source: Path, budget: str | int) -> dict[str, Any]:
    """What `optimize` says of a budget that must be kept."""
    made = onnxremat.optimize(
        source, budget=budget, settings=SIZED, options=OPTIONS, bench_seconds=0
    )
    facts = made.facts()
    assert (
        facts["process_bytes"]
        <= facts["budget_bytes"]
        == (facts["limit_bytes"] + facts["beside_bytes"])
    )
    return facts


@pytest.mark.parametrize("count", [1, 999, 1000, 1023, 1025, 10_239, 60 * MIB + 1, 2**40 - 1])
def test_a_budget_that_is_printed_is_enough(count: int) -> None:
    assert parse_bytes(format_bytes(count, up=True)) >= count


def test_a_curve(source: Path, warm: None) -> None:
    found = onnxremat.sweep(source, points=3, settings=SIZED, options=OPTIONS)
    planned = [point for point in found.points if point.peak is not None]
    assert len(planned) >= 3
    for point in planned:
        assert point.process == point.peak + point.budget - point.limit
        assert kept(source, point.budget)["budget_bytes"] == point.budget
    smallest = min(point.budget for point in planned)
    assert smallest >= found.infeasible_below > found.subject.beside
    with pytest.raises(InfeasibleError):
        kept(source, found.infeasible_below - 1)
    asked = onnxremat.sweep(
        source, budgets=[str(smallest), "0.9x"], settings=SIZED, options=OPTIONS
    )
    assert smallest in [point.budget for point in asked.points]
    share = next(point for point in asked.points if point.budget != smallest)
    assert share.limit == int(0.9 * found.subject.baseline_peak)


def test_planners_side_by_side(source: Path, warm: None) -> None:
    found = onnxremat.compare(
        source, budgets=["0.9x", "min"], planners=["auto"], settings=SIZED, options=OPTIONS
    )
    for row in found.standings:
        assert row.process <= row.budget
        assert kept(source, row.process)["budget_bytes"] == row.process


def test_an_explanation(source: Path, warm: None) -> None:
    told = Explanation.of(prepare(source, SIZED), "chain.onnx")
    for way in told.ways:
        if way.known in ("predicted", "found"):
            kept(source, told.process(way))
    assert "--not-counted" not in " ".join(told.facts()["commands"])


def test_the_largest_batch(source: Path, warm: None) -> None:
    budget = kept(source, "0.9x")["budget_bytes"]
    found = onnxremat.max_batch(source, budget=budget, settings=SETTINGS, options=OPTIONS, most=256)
    assert found.best.batch >= 256
    assert found.best.process <= budget == found.budget


def test_commands_about_a_file(source: Path, tmp_path: Path, cli: Command, warm: None) -> None:
    out = tmp_path / "out.onnx"
    made = onnxremat.optimize(
        source, budget="0.9x", settings=SIZED, options=OPTIONS, bench_seconds=0
    )
    made.save(out)
    facts = made.facts()
    beside = json.loads(out.with_name("out.onnx.options.json").read_text())["plan"]
    for told in (
        beside,
        cli("inspect", out, "--json").facts,
        cli("run", out, "--threads", 1, "--json").facts,
        cli("verify", source, out, "--threads", 1, "--seeds", 1, "--json").facts,
    ):
        for key in ("process_bytes", "beside_bytes", "peak_measured_bytes"):
            assert told[key] == facts[key], key
        if "weight_bytes" in told:
            assert told["weight_bytes"] == facts["weight_bytes"]
    plain = cli("run", source, "--dim", "b=256", "--threads", 1, "--json").facts
    assert plain["peak_measured_bytes"] == facts["baseline_peak_bytes"]
