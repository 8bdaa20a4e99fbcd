"""Training steps whose forward pass is in parts: the same results, less memory, refusals."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import onnx
import pytest

from models import build
from onnxremat import api
from onnxremat.cost.analytic import analytic_costs
from onnxremat.errors import NO_FIT, UnsupportedError, UsageError
from onnxremat.fission.training import BATCH, ROWS, StepParts
from onnxremat.grad import CrossEntropy, MeanSquaredError, Settings, differentiate
from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import to_model
from onnxremat.graph.order import priority_order, reordered
from onnxremat.ort.feeds import seeded_feeds
from onnxremat.ort.infer import build_graph
from onnxremat.ort.profile import named_outputs
from onnxremat.pipeline import prepare as preparing
from onnxremat.pipeline.in_parts.step_in_parts import prepare_step
from onnxremat.pipeline.ways import plan_within_budget
from onnxremat.planner.options import PlanOptions
from onnxremat.schedule.simulate import simulate
from onnxremat.session.process import PARTS
from onnxremat.units import parse_budget
from tests.fission.drawn import Drawn

FROZEN = Settings(batch_norm="frozen")
WEIGHTED = CrossEntropy(
    ignore_index=1, class_weights=[0.5, 2.0], label_smoothing=0.1, axis=1
)  # whose mean is over labels that count
LANGUAGE = {"layers": 1, "batch": 3, "sequence": 8, "hidden": 32, "heads": 2}


def images(side: int = 8) -> onnx.ModelProto:
    """Four images through an encoder, a decoder, and what joins them beside these."""
    g = Drawn(0)
    size, small = (2 * side, side), (side, side // 2)
    g.shapes["x"], full, half = (4, 3, *size), (4, 8, *size), (4, 8, *small)
    ones, zeros = (g.constant(make(8)) for make in (np.ones, np.zeros))

    def convolved(x: str, shape: tuple[int, ...], channels: int) -> str:
        x = g.op("Conv", [x, g.weight(shape[1], channels, 3, 3)], shape, pads=[1] * 4)
        return g.op("Relu", [x], shape)

    x = g.op("Conv", ["x", g.weight(8, 3, 3, 3)], full, pads=[1] * 4)
    beside = g.op("BatchNormalization", [x, g.weight(8), g.weight(8), zeros, ones], full)
    x = g.op("MaxPool", [beside], half, kernel_shape=[2, 2], strides=[2, 2])
    x = g.op("ConvTranspose", [convolved(x, half, 8), g.weight(8, 8, 2, 2)], full, strides=[2, 2])
    x = convolved(g.op("Concat", [beside, x], (4, 16, *size), axis=1), full, 16)
    x = g.op("Conv", [convolved(x, full, 8), g.weight(2, 8, 1, 1)], (4, 2, *size))
    return g.model("x", [x])


def _step(model: onnx.ModelProto, settings: Settings, parts: StepParts | None = None) -> Graph:
    return build_graph(differentiate(model, settings=settings, parting=parts), None)


def _peak(step: Graph) -> int:
    return simulate(reordered(step, priority_order(step)), weight_bytes=0).peak


def _check(model: onnx.ModelProto, settings: Settings, parts: StepParts) -> tuple[Graph, Graph]:
    """Whole and in parts, which compute the same."""
    whole, made = _step(model, settings), _step(model, settings, parts)
    feeds = seeded_feeds(whole, 0)
    wanted = named_outputs(to_model(whole), feeds, None)
    found = named_outputs(to_model(made), feeds, None)
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        least = 1e-5 * max(np.abs(array).max(), 1e-3)
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=least, err_msg=name)
    return whole, made


@pytest.mark.parametrize(
    "parts",
    [
        StepParts(BATCH, 3),
        pytest.param(StepParts(ROWS, 2, 0.75), marks=pytest.mark.slow),
        StepParts(ROWS, 3, 0.4),
    ],
    ids=str,
)
def test_images(parts: StepParts) -> None:
    whole, made = _check(images(), FROZEN, parts)
    assert _peak(made) < 0.95 * _peak(whole)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_parts_of_a_batch_are_there_one_after_the_other(precision: str) -> None:
    """What a part stores for its way back is gone before the next begins: a quarter of all of it,
    and little else. In mixed precision with a loss scale that adapts itself."""
    settings = replace(FROZEN, precision=precision)
    whole, made = _check(images(), settings, StepParts(BATCH, 4))
    assert _peak(made) < 0.4 * _peak(whole)


@pytest.mark.parametrize(
    "loss", [WEIGHTED, MeanSquaredError()], ids=lambda each: type(each).__name__
)
def test_losses(loss: CrossEntropy | MeanSquaredError) -> None:
    """Means over labels that count, and over elements, are those of the whole batch."""
    _check(images(), replace(FROZEN, loss=loss, optimizer=None), StepParts(BATCH, 2))


def test_what_a_step_returns_besides() -> None:
    """A value of the forward pass; not the prediction, which nobody joins."""
    model = images()
    (relu, *_), y = [op for op in model.graph.node if op.op_type == "Relu"], model.graph.output[0]
    model.graph.output.append(onnx.ValueInfoProto(name=relu.output[0]))
    _check(model, replace(FROZEN, outputs=[relu.output[0]]), StepParts(BATCH, 2))
    with pytest.raises(UnsupportedError, match="does not return"):
        _step(model, replace(FROZEN, outputs=[y.name]), StepParts(BATCH, 2))


@pytest.mark.parametrize("name", ["gpt2", pytest.param("bert", marks=pytest.mark.slow)])
def test_language(name: str) -> None:
    """With tied embeddings, whose gradient has two terms in every part."""
    _check(build(name, **LANGUAGE), Settings(optimizer=None), StepParts(BATCH, 3))


def test_gradients_do_not_pile_up() -> None:
    """Each part's are added to those before it at once: a net that is all weights takes no more
    in four parts than in two."""
    g = Drawn(0)
    g.shapes["x"], x = (4, 64), "x"
    for _ in range(6):
        x = g.op("MatMul", [x, g.weight(64, 64)], (4, 64))
        x = g.op("Softsign", [x], (4, 64))
    model = g.model("x", [x])
    settings = Settings(loss="mse", optimizer=None)
    two, four = (_peak(_step(model, settings, StepParts(BATCH, n))) for n in (2, 4))
    weights = 6 * 64 * 64 * 4
    assert four <= two < 1.5 * weights


def test_statistics_of_the_whole_batch_are_not_those_of_parts() -> None:
    """What they are made of stays whole."""
    _, made = _check(images(), Settings(batch_norm="train"), StepParts(BATCH, 2))
    norms = [op for op in made.ops if op.op_type == "BatchNormalization"]
    assert len(norms) == 1
    assert sum(op.op_type == "Relu" for op in made.ops) == 6  # of all three, which are behind it


def test_more_parts_than_rows() -> None:
    with pytest.raises(UnsupportedError, match="8 parts"):
        _step(images(), FROZEN, StepParts(BATCH, 8))


SETTINGS = preparing.Settings(
    threads=1, target="portable", costs=analytic_costs, not_counted=(*PARTS, "updates"),
    train=FROZEN,
)  # fmt: skip


def test_a_step_that_was_read_stays_whole() -> None:
    step = differentiate(images(), settings=FROZEN)
    prepared = preparing.prepare(step, replace(SETTINGS, train=None))
    with pytest.raises(UsageError, match="made here"):
        prepare_step(prepared, StepParts(BATCH, 2))


@pytest.mark.parametrize(
    ("short", "train", "why"),
    [
        (1, None, "the file holds a step already"),
        (0, None, ""),
    ],
)
def test_it_is_told_why_a_step_stays_whole(short: int, train: Settings | None, why: str) -> None:
    """Where its order alone is so many bytes short of the budget; in a refusal, too."""
    model = images() if train else differentiate(images(), settings=FROZEN)
    prepared = preparing.prepare(model, replace(SETTINGS, train=train))
    budget = parse_budget(prepared.store_all_peak - short)
    try:
        found = plan_within_budget(prepared, budget, PlanOptions(work=200, threads=1))
        notes = found.plan.provenance.notes
    except NO_FIT as error:
        notes = (error.hint,)
    told = [note for note in notes if "planned whole, not in parts" in note]
    assert len(told) == bool(why)
    assert all(why in note for note in told)


def _optimised(budget: str, settings: preparing.Settings = SETTINGS) -> api.OptimizeResult:
    return api.optimize(
        images(32), budget=budget, settings=settings,
        options=PlanOptions(work=500, threads=1), bench_seconds=0,
    )  # fmt: skip


def test_a_step_within_a_budget() -> None:
    facts = _optimised("0.4x").facts()
    assert facts["peak_measured_bytes"] <= facts["limit_bytes"]
    assert facts["difference_to_original"] < 1e-5
    assert facts["recomputed_ops"] == 0
    assert any("the batch in" in note for note in facts["notes"])


@pytest.mark.parametrize(("budget", "fission"), [("1.0x", None), ("0.9x", ())])
def test_a_step_that_stays_whole(budget: str, fission: tuple[()] | None) -> None:
    """Where its order alone keeps the budget, and with --fission off."""
    facts = _optimised(budget, replace(SETTINGS, fission=fission)).facts()
    assert not any("in parts" in note for note in facts["notes"])
    assert math.isclose(facts["difference_to_original"], 0, abs_tol=1e-5)
