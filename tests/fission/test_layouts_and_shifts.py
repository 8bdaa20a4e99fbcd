"""Images that are shifted, cut into windows, or enlarged before their channels are put in order."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onnxremat.cost.analytic import analytic_costs
from onnxremat.fission.choosers import Choosers
from onnxremat.fission.in_order import ORDERED
from onnxremat.fission.shifted import SHIFTED, shifted
from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import to_model
from onnxremat.ort.infer import build_graph
from onnxremat.ort.offline import optimised_for
from onnxremat.ort.profile import named_outputs
from onnxremat.pipeline.in_parts.in_regions import wholes_of, written
from onnxremat.schedule.simulate import simulate
from tests.fission.drawn import Drawn

ROWS, WIDE = 28, 8  # of an image, and its channels; windows of 7


def windows() -> onnx.ModelProto:
    """Attention within each window of a wide image."""
    g = Drawn(0)
    g.shapes["x"], each, wide = (1, ROWS, ROWS, WIDE), ROWS // 7, 8 * WIDE
    image, apart = (1, ROWS, ROWS, wide), (1, each, 7, each, 7, wide)
    back, tokens = (1, each, each, 7, 7, wide), (each * each, 49, wide)
    y = g.op("MatMul", ["x", g.weight(WIDE, wide)], image)
    y = g.op("Reshape", [y, g.constant(apart, "i8")], apart)
    y = g.op("Transpose", [y], back, perm=[0, 1, 3, 2, 4, 5])
    y = g.op("Reshape", [y, g.constant(tokens, "i8")], tokens)
    turned, scores = (each * each, wide, 49), (each * each, 49, 49)
    keys = g.op("Transpose", [y], turned, perm=[0, 2, 1])
    weights = g.op("Softmax", [g.op("MatMul", [y, keys], scores)], scores, axis=-1)
    y = g.op("MatMul", [weights, y], tokens)
    y = g.op("Reshape", [y, g.constant(back, "i8")], back)
    y = g.op("Transpose", [y], apart, perm=[0, 1, 3, 2, 4, 5])
    y = g.op("Reshape", [y, g.constant(image, "i8")], image)
    return g.model("x", [g.op("MatMul", [y, g.weight(wide, WIDE)], g.shapes["x"])])


def rolled(times: int = 1) -> onnx.ModelProto:
    """A wide image that is shifted by three rows."""
    g = Drawn(0)
    g.shapes["x"], wide = (1, ROWS, ROWS, WIDE), (1, ROWS, ROWS, 8 * WIDE)
    y = g.op("Tanh", [g.op("MatMul", ["x", g.weight(WIDE, 8 * WIDE)], wide)], wide)
    for _ in range(times):
        y = g.op("Tanh", [_rolled(g, y, 3)], wide)
    return g.model("x", [g.op("MatMul", [y, g.weight(8 * WIDE, WIDE)], g.shapes["x"])])


def _rolled(g: Drawn, x: str, by: int) -> str:
    """Rows from ``by`` on, then those before."""
    first, second = f"v{len(g.nodes)}a", f"v{len(g.nodes)}b"
    sizes = g.constant([by, ROWS - by], "i8")
    g.nodes.append(onnx.helper.make_node("Split", [x, sizes], [first, second], first, axis=1))
    return g.op("Concat", [second, first], g.shapes[x], axis=1)


def _least(graph: Graph) -> tuple[Graph, float]:
    """The graph in the regions that need least, and their share of its bytes, as simulated."""
    costs = analytic_costs(graph)
    choosers = Choosers(wholes_of(graph, costs, None))
    found = choosers.within(0)
    made = written(graph, found.regions, None)
    whole = simulate(graph, weight_bytes=0).peak
    assert simulate(made, weight_bytes=0).peak <= found.peak
    return made, found.peak / whole


def _same(graph: Graph, made: Graph, feeds: dict[str, np.ndarray]) -> None:
    one, other = (named_outputs(to_model(each), feeds, None) for each in (graph, made))
    for name in one:
        np.testing.assert_allclose(other[name], one[name], rtol=0, atol=2e-6)


FEEDS = {"x": np.random.default_rng(0).normal(size=(1, ROWS, ROWS, WIDE)).astype("f4")}


def test_windows_go_in_parts() -> None:
    """Bounds lie where windows do: at seven rows of the image, or at a row of windows."""
    graph = build_graph(windows())
    made, share = _least(graph)
    _same(graph, made, FEEDS)
    assert share < 0.4


def test_a_shifted_image_goes_in_parts() -> None:
    """As Slices, the rows of a part are taken out of what makes them."""
    graph = build_graph(rolled())
    made, share = _least(graph)
    _same(graph, made, FEEDS)
    assert share < 0.4
    assert any(SHIFTED in op.name for op in made.ops)


def test_a_graph_with_one_image_shifted_so_is_planned_again() -> None:
    """Numbers that its Slices read are there already, and are stored once."""
    graph = build_graph(rolled(times=2))
    first = next(op.name for op in graph.ops if op.op_type == "Split")
    again = shifted(shifted(graph, {first}))
    assert not any(op.op_type == "Split" for op in again.ops)
    stored = [tensor.name for tensor in again.model.graph.initializer]
    assert len(stored) == len(set(stored))
    _same(graph, again, FEEDS)


def test_what_is_not_shifted_stays_split() -> None:
    """Nothing reads the outputs but a product: rows of one are no rows of the other."""
    g = Drawn(0)
    g.shapes |= {"x": (2, 8), "a": (1, 8), "b": (1, 8)}
    g.nodes.append(onnx.helper.make_node("Split", ["x"], ["a", "b"], "s", axis=0, num_outputs=2))
    graph = build_graph(g.model("x", [g.op("Mul", ["a", "b"], (1, 8))]))
    assert shifted(graph) is graph


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_an_enlarged_image_is_made_with_its_channels_in_order(mode: str) -> None:
    """Three of sixteen channels are handed out, and no image of sixteen is made."""
    g = Drawn(0)
    g.shapes["x"] = (1, 16, 12, 12)
    small, large = (1, 3, 12, 12), (1, 3, 96, 96)
    y = g.op("Conv", ["x", g.weight(16, 16, 3, 3)], g.shapes["x"], pads=[1] * 4)
    y = g.op("Conv", [y, g.weight(3, 16, 1, 1)], small)
    how = {"coordinate_transformation_mode": "half_pixel", "mode": mode}
    if mode == "nearest":
        how = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    y = g.op("Resize", [y, "", g.constant([1, 1, 8, 8])], large, **how)
    graph = optimised_for(g.model("x", [y]), "host", None).graph
    if not any(op.op_type == "ReorderOutput" for op in graph.ops):
        pytest.skip("onnxruntime has no blocked layout on this processor")
    made, share = _least(graph)
    image = np.random.default_rng(0).normal(size=(1, 16, 12, 12)).astype("f4")
    _same(graph, made, {"x": image})
    output = graph.tensors[graph.outputs[0]].bytes
    peak = simulate(made, weight_bytes=0).peak
    assert share < 0.5
    assert peak < 1.5 * output
    assert any(op.name.endswith(ORDERED) for op in made.ops)
