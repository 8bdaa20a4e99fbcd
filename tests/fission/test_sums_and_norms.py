"""Sums over parts, normalisations written out, and keys that a causal mask hides."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxremat.cost.analytic import analytic_costs
from onnxremat.fission.candidates import Regions
from onnxremat.fission.choose import Chooser
from onnxremat.fission.choosers import Choosers
from onnxremat.fission.masked import reach_of
from onnxremat.fission.opened import norms_of, opened, opened_for
from onnxremat.fission.paper import Paper
from onnxremat.fission.pricing import Prices, Whole
from onnxremat.fission.region import Region
from onnxremat.fission.remade import remade
from onnxremat.fission.split import split
from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import to_model
from onnxremat.graph.spans import CannotSplitError
from onnxremat.ort.infer import build_graph
from onnxremat.pipeline.in_parts.in_regions import wholes_of, written
from onnxremat.planner.reduce import reduce
from onnxremat.planner.semantics import peak
from onnxremat.schedule.expand import expand
from onnxremat.schedule.simulate import simulate
from tests.fission.drawn import Drawn
from tests.toolbox import graph_of, run

MEAN = """g (float[1, 12, 8] x) => (float[1, 8] y)
<int64[1] axis = {1}> {
    a = Exp (x)
    m = ReduceMean <keepdims = 0> (a, axis)
    y = Neg (m)
}"""


def test_a_mean_over_uneven_parts() -> None:
    graph = graph_of(MEAN)
    names = tuple(op.name for op in graph.ops[:2])
    region = Region(names, {}, (2, 1, 1), {}, sums={"m": 1})
    made = split(graph, [region], 1)
    assert max(made.tensors[op.outputs[0]].bytes for op in made.ops) < 12 * 8 * 4
    np.testing.assert_allclose(run(made).outputs["y"], run(graph).outputs["y"], rtol=1e-6)
    assert Region.from_json(region.to_json()) == region


def test_a_sum_of_one_part_is_refused() -> None:
    graph = graph_of(MEAN)
    names = tuple(op.name for op in graph.ops[:2])
    with pytest.raises(CannotSplitError, match="no sum of several parts"):
        split(graph, [Region(names, {}, (1,), {}, sums={"m": 1})], 1)


def test_a_sum_ends_a_region_where_it_is_looked_for() -> None:
    graph = graph_of(MEAN)
    (by_rows, *_) = [r for r in Regions(Paper(graph)).within(0, 2, 0) if r.sums]
    assert by_rows.sums == {"m": 1}
    assert not by_rows.results


def normed(groups: int, rows: int = 12) -> onnx.ModelProto:
    """A convolution, a normalisation of groups of channels as PyTorch writes it, and a product."""
    g = Drawn(groups)
    shape = (1, 8, rows, 6)
    g.shapes["x"] = (1, 3, rows, 6)
    x = g.op("Conv", ["x", g.weight(8, 3, 3, 3)], shape, pads=[1] * 4)
    x = g.op("Add", [x, g.constant(np.float32(30))], shape)  # a mean far from zero
    flat = (1, groups, 8 * rows * 6 // groups)
    y = g.op("Reshape", [x, g.constant(flat, "i8")], flat)
    ones, bias = g.constant(np.full(groups, 0.5)), g.constant(np.arange(groups) / 10)
    y = g.op("InstanceNormalization", [y, ones, bias], flat, epsilon=1e-6)
    y = g.op("Reshape", [y, g.constant(shape, "i8")], shape)
    y = g.op("Mul", [y, g.weight(1, 8, 1, 1)], shape)
    return g.model("x", [g.op("Conv", [y, g.weight(1, 8, 1, 1)], (1, 1, rows, 6))])


def same_written_out(graph: Graph, near: float) -> None:
    """All normalisations of a graph written out: the same shapes and, so near, results."""
    made = opened(graph, [norm.name for norm in norms_of(graph)])
    assert "InstanceNormalization" not in {op.op_type for op in made.ops}
    known = build_graph(to_model(made))
    assert all(
        made.tensors[n].shape == known.tensors[n].shape for op in made.ops for n in op.writes
    )
    (name,) = graph.outputs
    np.testing.assert_allclose(run(made).outputs[name], run(graph).outputs[name], atol=near)


@pytest.mark.parametrize("groups", [2, 8])
def test_a_normalisation_written_out_is_the_same(groups: int) -> None:
    graph = build_graph(normed(groups))
    (_,) = norms_of(graph)
    same_written_out(graph, 2e-5)
    assert opened_for(graph, ["x"]) is graph


def line(length: int, groups: int = 8) -> onnx.ModelProto:
    """The same of sound: eight channels along one axis."""
    g = Drawn(groups)
    shape, flat = (1, 8, length), (1, groups, 8 * length // groups)
    g.shapes["x"] = (1, 1, length)
    x = g.op("Conv", ["x", g.weight(8, 1, 3)], shape, pads=[1] * 2)
    y = x = g.op("Add", [x, g.constant(np.float32(30))], shape)
    if groups < 8:
        y = g.op("Reshape", [y, g.constant(flat, "i8")], flat)
    y = g.op("InstanceNormalization", [y, *[g.constant(np.ones(groups))] * 2], flat)
    if groups < 8:
        y = g.op("Reshape", [y, g.constant(shape, "i8")], shape)
    return g.model("x", [g.op("Conv", [y, g.weight(1, 8, 1)], (1, 1, length))])


@pytest.mark.parametrize(("length", "groups"), [(64, 8), (75, 8), (75, 2), (5, 8)])
def test_a_normalisation_of_a_line_written_out_is_the_same(length: int, groups: int) -> None:
    """Rows of 32 numbers, the last filled up; a mean far from zero costs no digits."""
    same_written_out(build_graph(line(length, groups)), 3e-5)


def test_a_line_that_is_normalised_is_never_there_as_a_whole() -> None:
    """It is made twice: once for its sums, once in parts (sound nets were held at their peak)."""
    graph = build_graph(line(20_000))
    costs, (name,) = analytic_costs(graph), graph.outputs
    found = Choosers(wholes_of(graph, costs, None)).within(4 * 20_000 * 4)
    assert found.peak < 4 * 20_000 * 4  # half of it
    parts = run(written(graph, found.regions, None)).outputs[name]
    np.testing.assert_allclose(parts, run(graph).outputs[name], atol=3e-5)


@pytest.mark.parametrize("opset", [18, 21])
def test_group_normalization_written_out_is_the_same(opset: int) -> None:
    draw = np.random.default_rng(0)
    size = 2 if opset < 21 else 4
    weights = [
        numpy_helper.from_array(draw.normal(size=size).astype("f4"), name) for name in ("s", "b")
    ]
    image = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, (2, 4, 5, 6)) for name in ("x", "y")
    ]
    node = helper.make_node("GroupNormalization", ["x", "s", "b"], ["y"], "norm", num_groups=2)
    frame = helper.make_graph([node], "g", image[:1], image[1:], weights)
    opsets = [helper.make_opsetid("", opset)]
    graph = build_graph(helper.make_model(frame, opset_imports=opsets, ir_version=9))
    if not norms_of(graph):
        pytest.skip("onnxruntime has written it out itself")
    made = opened(graph, ["norm"])
    np.testing.assert_allclose(run(made).outputs["y"], run(graph).outputs["y"], atol=1e-5)


def test_an_image_that_is_normalised_is_never_there_twice() -> None:
    graph = build_graph(normed(2, rows=64))
    image = 8 * 64 * 6 * 4
    wide = opened(graph, [norm.name for norm in norms_of(graph)])
    found = Chooser(Whole(wide, {}, {})).within(int(1.4 * image))
    assert found.peak <= 1.4 * image
    (name,) = graph.outputs
    parts = run(split(wide, found.regions, 1)).outputs[name]
    np.testing.assert_allclose(parts, run(graph).outputs[name], atol=2e-5)


def causal(how: str, tokens: int = 16) -> onnx.ModelProto:
    """Attention in which a token sees none behind it."""
    g = Drawn(0)
    g.shapes["x"] = (8, tokens, 4)
    scores = (8, tokens, tokens)
    keys = g.op("Transpose", [g.op("Neg", ["x"], g.shapes["x"])], (8, 4, tokens), perm=[0, 2, 1])
    y = g.op("MatMul", ["x", keys], scores)
    y = g.op("Div", [y, g.constant(np.float32(2))], scores)
    seen = np.tril(np.ones((1, tokens, tokens), bool))
    if how == "where":
        y = g.op("Where", [g.constant(seen, "?"), y, g.constant(np.float32(-3e38))], scores)
    else:
        y = g.op("Add", [y, g.constant(np.where(seen, 0, -1e9))], scores)
    y = g.op("Softmax", [y], scores, axis=-1)
    return g.model("x", [g.op("MatMul", [y, "x"], g.shapes["x"])])


def _in_parts(graph: Graph, reach: dict[str, np.ndarray] | None, count: int = 4) -> Graph:
    return split(graph, [_region(graph, count)], 1, reach)


def _region(graph: Graph, count: int) -> Region:
    names = tuple(op.name for op in graph.ops if op.op_type not in ("Neg", "Transpose"))
    (name,) = graph.outputs
    return Region(names, {name: 1}, (1,) * count, {})


@pytest.mark.parametrize("how", ["where", "add"])
def test_hidden_keys_are_left_out(how: str) -> None:
    graph = build_graph(causal(how))
    reach = reach_of(graph, None)
    (seen,) = reach.values()
    assert seen.tolist() == list(range(1, 17))
    made = _in_parts(graph, reach)
    widths = [made.tensors[op.outputs[0]].shape[-1] for op in made.ops if op.op_type == "Softmax"]
    assert widths == [4, 8, 12, 16]
    # Of eight heads that share a mask; the mask alone is chosen by.
    chosen = [op.outputs[0] for op in made.ops if op.op_type == "Where"]
    assert [made.tensors[name].shape[0] for name in chosen] == [1] * (4 if how == "where" else 0)
    known = build_graph(to_model(made))
    assert all(
        made.tensors[n].shape == known.tensors[n].shape for op in made.ops for n in op.writes
    )
    (name,) = graph.outputs
    np.testing.assert_allclose(run(made).outputs[name], run(graph).outputs[name], rtol=1e-5)
    levels = Prices(Whole(graph, {}, {}, reach=reach)).priced((_region(graph, 4),))
    assert levels.peak - levels.beside == max(simulate(made).live)


def test_without_a_mask_every_key_is_seen() -> None:
    graph = build_graph(causal("where"))
    made = _in_parts(graph, None)
    widths = [made.tensors[op.outputs[0]].shape[-1] for op in made.ops if op.op_type == "Softmax"]
    assert widths == [16] * 4


def test_a_row_that_sees_nothing_keeps_all_keys() -> None:
    # Its softmax is the mean over all of them.
    model = causal("where")
    mask = next(t for t in model.graph.initializer if t.data_type == TensorProto.BOOL)
    values = numpy_helper.to_array(mask).copy()
    values[:, 3] = False
    mask.CopyFrom(numpy_helper.from_array(values, mask.name))
    assert not reach_of(build_graph(model), None)


def test_pieces_are_made_again_where_all_are_held_until_their_sum_is_known() -> None:
    count, each = 8, 4 * 256
    body = [f"n{i} = Neg (x{i})\n v{i} = Exp (n{i})\n m{i} = ReduceMean (v{i})" for i in range(8)]
    body.append(f"m = Sum ({', '.join(f'm{i}' for i in range(count))})")
    body += [f"w{i} = Mul (v{i}, m)\n r{i} = ReduceMean (w{i})" for i in range(count)]
    body.append(f"y = Sum ({', '.join(f'r{i}' for i in range(count))})")
    inputs = ", ".join(f"float[1, 256] x{i}" for i in range(count))
    graph = graph_of(f"g ({inputs}) => (float[1, 1] y) {{ {chr(10).join(body)} }}")
    reduced = reduce(graph, analytic_costs(graph), 0)
    problem = reduced.problem
    assert peak(problem, range(problem.ops)) > count * each
    order = remade(problem, 5 * each, lambda: False)
    assert order is not None
    assert peak(problem, order) <= 5 * each
    assert set(order) == set(range(problem.ops))
    again = [op for op in set(order) if list(order).count(op) > 1]
    assert {graph.ops[reduced.index[op]].op_type for op in again} == {"Neg", "Exp"}
    assert len(order) - problem.ops == 2 * 5  # of no more pieces than need be
    ran = expand(graph, reduced.lift(order))
    assert max(simulate(ran, weight_bytes=0).live) <= 5 * each
    np.testing.assert_array_equal(run(ran).outputs["y"], run(graph).outputs["y"])
    assert remade(problem, each, lambda: False) is None
    assert remade(problem, 5 * each, lambda: True) is None
