"""Regions of random graphs in parts: the same results, the bytes that are predicted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onnxremat.errors import UsageError
from onnxremat.fission.candidates import Regions
from onnxremat.fission.paper import Paper
from onnxremat.fission.pricing import Prices, Whole
from onnxremat.fission.region import Region
from onnxremat.fission.rows import rows_of
from onnxremat.fission.split import split
from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import to_model
from onnxremat.graph.spans import CannotSplitError, Facts
from onnxremat.ort.infer import build_graph
from onnxremat.schedule.simulate import simulate
from tests.fission.drawn import image_net, moving_net, token_net
from tests.toolbox import graph_of, run

NETS = (image_net, moving_net, token_net)
CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large]


def _regions(graph: Graph, draw: Random) -> list[Region]:
    """Up to three regions, each drawn from a stretch of the order without the ops of the others, as
    its kept rows and parts are."""
    able, count = Regions(Paper(graph)), len(graph.ops)
    chosen: list[Region] = []
    for _ in range(draw.randint(1, 3)):
        first = draw.randrange(count)
        end = draw.randint(first + 1, count)
        taken = {name for region in chosen for name in region.ops}
        found = able.within(first, end, draw.randrange(first, end), taken)
        if not found:
            continue
        region = draw.choice(found)
        values = sorted(n for op in graph.ops if op.name in region.ops for n in op.writes)
        kept = draw.choice([[], values, draw.sample(values, len(values) // 2)])
        parts = tuple(draw.choice([1, 1, 2]) for _ in range(draw.randint(2, 5)))
        chosen.append(replace(region, parts=parts, kept=frozenset(kept)))
    return chosen


def _is_the_same(net: Callable[[int], onnx.ModelProto], seed: int) -> bool:
    """Draw, split, run and compare; whether there was something to split."""
    graph = build_graph(net(seed))
    regions = _regions(graph, Random(seed))
    if not regions:
        return False
    try:
        made = split(graph, regions, 1)
    except CannotSplitError:  # each needs what the other makes
        assert len(regions) > 1
        return False
    model = to_model(made)
    known = build_graph(model)
    assert all(
        made.tensors[n].shape == known.tensors[n].shape for op in made.ops for n in op.writes
    )
    whole, parts = run(graph), run(made)
    for name, values in whole.outputs.items():
        np.testing.assert_allclose(parts.outputs[name], values, rtol=1e-4, atol=1e-5)
    live = max(kernel.live for kernel in parts.kernels)
    assert max(simulate(made).live) == pytest.approx(live, rel=0.02, abs=512)
    priced = Prices(Whole(graph, {}, {})).priced(tuple(regions))
    assert priced.peak - priced.beside == max(simulate(made).live)
    assert made.weight_bytes - graph.weight_bytes <= priced.beside
    return True


@pytest.mark.parametrize("net", NETS)
def test_parts_of_random_graphs_make_the_whole(net: Callable[[int], onnx.ModelProto]) -> None:
    assert sum(_is_the_same(net, seed) for seed in range(12)) > 5


@pytest.mark.slow
@pytest.mark.parametrize("net", NETS)
@settings(max_examples=250, deadline=None, suppress_health_check=CHECKS)
@given(seed=st.integers(0, 2**32))
def test_parts_of_many_graphs_make_the_whole(
    net: Callable[[int], onnx.ModelProto], seed: int
) -> None:
    _is_the_same(net, seed)


CHAIN = """g (float[1, 2, 32, 8] x) => (float[1, 2, 32, 8] y)
<float[2, 2, 3, 3] w = {0, 1, 2, 3, 4, 5, 6, 7, 8, 8, 7, 6, 5, 4, 3, 2, 1, 0,
                        1, 0, 1, 0, 1, 0, 1, 0, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2}> {
    a = Conv <pads = [1, 1, 1, 1]> (x, w)
    b = Relu (a)
    c = Conv <pads = [1, 1, 1, 1]> (b, w)
    y = Relu (c)
}"""


def _chain(kept: frozenset[str], parts: tuple[int, ...] = (1, 1, 1, 1)) -> Graph:
    graph = graph_of(CHAIN)
    names = tuple(op.name for op in graph.ops)
    return split(graph, [Region(names, {"y": 2}, parts, {}, kept)], 1)


def _rows(graph: Graph, kind: str) -> int:
    """Rows that all pieces of an operator make."""
    return sum(graph.tensors[op.outputs[0]].shape[2] for op in graph.ops if op.op_type == kind)


def test_rows_that_two_parts_need_are_computed_in_both() -> None:
    # Each of three borders: the first convolution and the Relu make one row more on either side.
    assert _rows(_chain(frozenset()), "Conv") == 2 * 32 + 3 * 2


def test_kept_rows_are_computed_once() -> None:
    assert _rows(_chain(frozenset("abcy")), "Conv") == 2 * 32


def test_values_that_only_regions_read_stay_in_parts() -> None:
    graph = graph_of(CHAIN)
    one, two = (tuple(op.name for op in graph.ops[i : i + 2]) for i in (0, 2))
    regions = [Region(one, {"b": 2}, (1, 1, 1), {}), Region(two, {"y": 2}, (1, 1), {})]
    made = split(graph, regions, 1)
    joined = [op for op in made.ops if op.op_type == "Concat"]
    # b is read across the borders of its parts, but never put together as a whole.
    assert all(made.tensors[op.outputs[0]].shape[2] < 32 for op in joined[:-1])
    np.testing.assert_array_equal(run(made).outputs["y"], run(graph).outputs["y"])


def test_a_region_goes_through_a_file() -> None:
    region = Region(("a", "b"), {"y": 2}, (2, 1), {"y": 4}, frozenset("ab"))
    assert Region.from_json(region.to_json()) == region
    assert [span.end for span in region.spans("y", 16)] == [8, 16]


@pytest.mark.parametrize(
    "said",
    [{"parts": []}, {"parts": [0, 1]}, {"parts": [2, -1]}, {"grain": {"y": 0}},
     {"again": {"y": -1}}, {"until": {"y": -4}}, {"ops": ["a", "a"]}],
)  # fmt: skip
def test_a_region_of_a_damaged_plan(said: dict[str, object]) -> None:
    region = Region(("a", "b"), {"y": 2}, (2, 1), {"y": 4})
    with pytest.raises(UsageError, match="cannot be read"):
        Region.from_json({**region.to_json(), **said})
    graph = graph_of(CHAIN)
    with pytest.raises(CannotSplitError, match="nothing makes 'z'"):
        rows_of(graph, Facts(graph), replace(region, results={"z": 2}))


def test_a_region_may_wait_for_a_long_chain() -> None:
    """Longer than calls may be nested."""
    chain = "".join(f"c{i + 1} = Trilu(c{i}) " for i in range(1200))
    body = f"c0 = Sin(s) a = Sin(x) {chain} y = Add(a, c1200)"
    graph = graph_of(f"g (float[8, 4] x, float[1, 4] s) => (float[8, 4] y) {{ {body} }}")
    ends = tuple(graph.ops[graph.producer[name]].name for name in ("a", "y"))
    made = split(graph, [Region(ends, {"y": 0}, (1, 1), {})], 1)
    assert [op.op_type for op in made.ops].count("Add") == 2


def test_what_is_in_parts_goes_in_parts_again() -> None:
    """Where parts were joined: names are others."""
    body = "a = Sin(x) b = Cos(a) c = CumSum(b, k) y = Exp(c)"
    whole = graph_of(f"g (float[8, 4] x) => (float[8, 4] y) <int64 k = {{0}}> {{ {body} }}")
    first = Region(tuple(op.name for op in whole.ops[:2]), {"b": 0}, (1, 1), {})
    once = build_graph(to_model(split(whole, [first], 1)))
    joined = once.ops[once.producer["b"]].name
    again = build_graph(to_model(split(once, [Region((joined,), {"b": 1}, (1, 1), {})], 1)))
    assert len(again.ops) > len(once.ops)
    np.testing.assert_array_equal(run(again).outputs["y"], run(whole).outputs["y"])


def test_names_of_parts_are_those_of_no_region_before() -> None:
    """The first region of all had a single part, and so left no names."""
    whole = graph_of(
        "g (float[8,4] x) => (float[8,4] z) "
        "{ a = Relu(x) b = Sigmoid(a) c = Tanh(b) z = Exp(c) }"
    )  # fmt: skip
    relu, sigmoid, tanh, exp = (op.name for op in whole.ops)
    first = Region((relu,), {"a": 0}, (1,), {}), Region((sigmoid,), {"b": 0}, (1, 1), {})
    once = build_graph(to_model(split(whole, first, 1)))
    (joined,) = [op.name for op in once.ops if op.op_type == "Concat"]
    then = Region((exp,), {"z": 0}, (1, 1), {}), Region((joined, tanh), {"c": 0}, (1, 1), {})
    again = build_graph(to_model(split(once, then, 1)))
    np.testing.assert_allclose(run(again).outputs["z"], run(whole).outputs["z"], rtol=1e-6)


@pytest.mark.parametrize("axis", [2, -1])
def test_a_region_along_an_axis_that_is_not_there(axis: int) -> None:
    graph = graph_of("g (float[4, 4] x) => (float[4, 4] y) { a = Relu(x) y = Sin(a) }")
    region = Region(tuple(op.name for op in graph.ops), {"y": axis}, (1, 1), {})
    with pytest.raises(CannotSplitError, match="no axis"):
        rows_of(graph, Facts(graph), region)


def test_outputs_of_one_op_are_kept_each_by_itself() -> None:
    """A part that reads one of them alone leaves no rows of the other: here the first part makes
    none of `y`, whose bounds are coarser."""
    graph = graph_of(
        "g (float[1,16,4] x) => (float[1,16,2] y, float[1,16,2] z) <int64[2] s = {2, 2}> "
        "{ a, b = Split<axis = 2>(x, s) y = Relu(a) z = Neg(b) }"
    )
    names = tuple(op.name for op in graph.ops)
    region = Region(names, {"y": 1, "z": 1}, (1, 1, 1), {"y": 8}, frozenset("ab"))
    made = split(graph, [region], 1)
    for name, values in run(graph).outputs.items():
        np.testing.assert_array_equal(run(made).outputs[name], values)
