"""What a search among regions, parts and kept rows finds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest

from onnxremat.cost.analytic import analytic_costs
from onnxremat.fission.candidates import Regions
from onnxremat.fission.choose import COUNTS, Chooser
from onnxremat.fission.paper import Paper
from onnxremat.fission.pricing import Whole
from onnxremat.fission.split import split
from onnxremat.graph.ir import Graph
from onnxremat.ort.infer import build_graph
from tests.fission.drawn import Drawn
from tests.toolbox import run


def bottlenecks(rows: int = 96, wide: int = 96) -> onnx.ModelProto:
    """Blocks of MobileNetV2: narrow values, and wide ones between two of them."""
    g = Drawn(0)
    g.shapes["x"], x = (1, 8, rows, 32), "x"
    shape = (1, wide, rows, 32)
    for _ in range(3):
        y = g.op("Relu", [g.op("Conv", [x, g.weight(wide, 8, 1, 1)], shape)], shape)
        y = g.op("Conv", [y, g.weight(wide, 1, 3, 3)], shape, pads=[1] * 4, group=wide)
        x = g.op("Conv", [y, g.weight(8, wide, 1, 1)], (1, 8, rows, 32))
    return g.model("x", [x])


@pytest.fixture(scope="module")
def graph() -> Graph:
    """Those blocks."""
    return build_graph(bottlenecks())


def test_rows_are_kept_where_that_is_quickest_value_by_value(graph: Graph) -> None:
    """Those of narrow values are, those of the wide ones that they are made into are made again."""
    chooser = Chooser(Whole(graph, analytic_costs(graph).seconds, {}))
    limit = int(0.3 * chooser.whole.peak)
    found = chooser.within(limit)
    (region,) = found.regions
    narrow = {op.outputs[0] for op in graph.ops if graph.tensors[op.outputs[0]].shape[1] == 8}
    first = next(op.outputs[0] for op in graph.ops)
    assert narrow - set(graph.outputs) <= region.kept
    assert first not in region.kept
    for kept in chooser.able.policies(region):
        for parts in COUNTS:
            alike = chooser.prices.priced((replace(region, kept=kept, parts=(1,) * parts),))
            assert alike.peak > limit or alike.seconds > found.seconds
    made = run(split(graph, found.regions, 1)).outputs
    for name, values in run(graph).outputs.items():
        np.testing.assert_array_equal(made[name], values)


def test_ways_to_treat_rows_do_not_depend_on_what_is_kept_now(graph: Graph) -> None:
    able = Regions(Paper(graph))
    region = able.within(0, len(graph.ops), 0)[0]
    values = frozenset(name for op in graph.ops for name in op.writes)
    assert able.policies(replace(region, kept=values)) == able.policies(region)
    assert len(able.policies(region)) == 3
