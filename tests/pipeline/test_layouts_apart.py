"""Large values that are read in two layouts: held once, and what is written is the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from onnxremat.cost.analytic import analytic_costs
from onnxremat.fission.apart import APART, PRODUCT, apart
from onnxremat.fission.choose import Chooser
from onnxremat.fission.pricing import Prices
from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import to_model
from onnxremat.ort.profile import named_outputs
from onnxremat.pipeline.in_parts import against_whole
from onnxremat.pipeline.in_parts.in_regions import in_regions, wholes_of
from onnxremat.pipeline.prepare import prepare
from onnxremat.pipeline.prepared import Prepared
from onnxremat.pipeline.settings import Settings
from onnxremat.schedule.simulate import simulate
from tests.fission.drawn import Drawn

IMAGE = 32 * 48 * 48 * 4  # bytes of the value that is read in two layouts


def residual() -> onnx.ModelProto:
    """A block of a decoder: what a convolution makes is normalised, and read by a shortcut behind
    all else."""
    g, rows = Drawn(0), 48
    wide, narrow = (1, 32, rows, rows), (1, 16, rows, rows)
    g.shapes["x"] = (1, 16, rows, rows)
    x = g.op("Conv", ["x", g.weight(32, 16, 3, 3)], wide, pads=[1] * 4)
    y = g.op("InstanceNormalization", [x, g.constant(np.ones(32)), g.constant(np.ones(32))], wide)
    y = g.op("Mul", [y, g.op("Sigmoid", [y], wide)], wide)
    y = g.op("Conv", [y, g.weight(16, 32, 3, 3)], narrow, pads=[1] * 4)
    y = g.op("Conv", [y, g.weight(16, 16, 3, 3)], narrow, pads=[1] * 4)
    shortcut = g.op("Conv", [x, g.weight(16, 32, 1, 1)], narrow)
    y = g.op("Add", [shortcut, y], narrow)
    return g.model("x", [g.op("Conv", [y, g.weight(3, 16, 1, 1)], (1, 3, rows, rows))])


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    settings = Settings(threads=1, target="host", costs=analytic_costs)
    found = prepare(residual(), settings)
    if not any(op.op_type == "ReorderOutput" for op in found.graph.ops):
        pytest.skip("this processor has no convolutions in blocks of channels")
    return found


def _wide(prepared: Prepared) -> Graph:
    return wholes_of(prepared.graph, prepared.costs, prepared.folder)[-1].graph


def test_layouts_apart_give_the_same(prepared: Prepared) -> None:
    wide = apart(prepared.graph)
    assert any(APART in op.name for op in wide.ops)
    parts = named_outputs(to_model(wide), prepared.feeds, None)
    whole = named_outputs(to_model(prepared.graph), prepared.feeds, None)
    for name, values in whole.items():
        np.testing.assert_allclose(parts[name], values, atol=1e-5)


def test_a_value_read_in_two_layouts_is_held_once(prepared: Prepared) -> None:
    way = wholes_of(prepared.graph, prepared.costs, prepared.folder)[-1]
    found = Chooser(way).within(int(1.6 * IMAGE))
    assert found.peak <= 1.6 * IMAGE < simulate(prepared.graph, weight_bytes=0).live_peak / 1.8
    # Carried out, and compared with the whole: anything else is refused.
    made = in_regions(prepared.graph, found.regions, prepared.feeds, prepared.folder)
    live = simulate(made, scratch=way.scratch, weight_bytes=0).live_peak
    assert live <= found.peak + 512  # and bounds, which are found as it runs


@pytest.mark.parametrize("known", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_whole_is_not_run_where_parts_give_what_the_original_does(
    prepared: Prepared, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Chooser(wholes_of(prepared.graph, prepared.costs, prepared.folder)[-1]).within(IMAGE)
    runs = []

    def counted(*given: Any) -> dict[str, Any]:
        runs.append(given)
        return named_outputs(*given)

    monkeypatch.setattr(against_whole, "named_outputs", counted)
    assert prepared.baseline is not None
    original = {n: each + (not known) for n, each in prepared.baseline.outputs.items()}
    in_regions(prepared.graph, found.regions, prepared.feeds, prepared.folder, original=original)
    assert len(runs) == 2 - known  # the parts, and the whole


def test_constants_are_priced(prepared: Prepared) -> None:
    """Weights of what is written out, and where parts begin and end."""
    way = wholes_of(prepared.graph, prepared.costs, prepared.folder)[-1]
    found = Chooser(way).within(int(1.6 * IMAGE))
    made = in_regions(prepared.graph, found.regions, prepared.feeds, prepared.folder)
    live = simulate(made, scratch=way.scratch, weight_bytes=0).live_peak
    assert live + made.weight_bytes - prepared.graph.weight_bytes <= found.peak


def test_a_shortcut_goes_where_its_value_dies(prepared: Prepared) -> None:
    wide = _wide(prepared)
    (product,) = [op for op in wide.ops if op.name.endswith(PRODUCT)]
    readers = wide.readers[product.inputs[0]]
    assert wide.ops[readers[-1]] is product
    assert Prices(wholes_of(prepared.graph, prepared.costs, None)[-1]).priced(()).seconds > 0
