"""Every row of the table of axes: split an operator, run the parts, compare with the whole."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto as T
from onnx import helper

from onnxremat.fission.region import Region
from onnxremat.fission.rows import rows_of
from onnxremat.fission.split import split
from onnxremat.graph.axes import BLOCKED, TABLE, piece_of, row_of
from onnxremat.graph.axis_sums import TOTALS
from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import to_model
from onnxremat.graph.spans import CannotSplitError, Facts, Span
from onnxremat.ort.blocks import block_size
from onnxremat.ort.infer import build_graph
from onnxremat.ort.offline import optimised_for
from onnxremat.ort.profile import named_outputs
from tests.conftest import ROOT
from tests.graph.axis_cases import CASES, Case, blocked_net, feeds_of
from tests.toolbox import graph_of
from tools.axis_table import axis_table

GRAINS = (1, 2, 3, 4, 8)


def _regions(graph: Graph, name: str) -> dict[int, Region]:
    """The op in two uneven parts, per axis along which that goes."""
    facts, found = Facts(graph), {}
    (op,) = [op for op in graph.ops if op.name == name]
    for axis, size in enumerate(graph.tensors[op.outputs[0]].shape or ()):
        for grain in (g for g in GRAINS if 2 * g <= size):
            results = dict.fromkeys(op.outputs, axis)
            region = Region((name,), results, (2, 1), dict.fromkeys(op.outputs, grain))
            try:
                rows_of(graph, facts, region)
            except CannotSplitError:
                continue
            found[axis] = region
            break
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.kind)
def test_parts_make_the_whole(case: Case) -> None:
    graph = build_graph(case.model())
    found = _regions(graph, "op")
    assert set(found) == case.axes
    _same(graph, list(found.values()), 1)


MOVES = [case for case in CASES if case.kind in ("Concat", "Pad", "QLinearConcat", "Slice")]


@pytest.mark.parametrize("case", MOVES, ids=lambda case: case.kind)
def test_as_many_parts_as_there_are_rows(case: Case) -> None:
    """Some of padding alone, or of one input of several."""
    graph = build_graph(case.model())
    every = [
        replace(region, parts=(1,) * graph.tensors["y0"].shape[axis])
        for axis, region in _regions(graph, "op").items()
    ]
    _same(graph, [region for region in every if len(region.parts) > 1], 1)


def _sums(graph: Graph, name: str) -> list[Region]:
    """The op as a sum over two uneven parts of its input, per axis along which that goes."""
    facts, found = Facts(graph), []
    (op,) = [op for op in graph.ops if op.name == name]
    for axis, size in enumerate(graph.tensors[op.inputs[0]].shape or ()):
        region = Region((name,), {}, (2, 1), {}, sums={op.outputs[0]: axis})
        try:
            rows_of(graph, facts, region)
        except CannotSplitError:
            continue
        if size > 1:
            found.append(region)
    return found


SUMS = [case for case in CASES if (case.domain, case.kind) in TOTALS]


@pytest.mark.parametrize("case", SUMS, ids=lambda case: case.kind)
def test_sums_of_parts_make_the_whole(case: Case) -> None:
    graph = build_graph(case.model())
    found = _sums(graph, "op")
    assert found
    _same(graph, found, 1)


@pytest.mark.parametrize(
    ("kind", "dtype", "opset", "goes"),
    [
        ("ReduceMax", T.DOUBLE, 7, False), ("ReduceMax", T.DOUBLE, 8, True),
        ("ReduceMin", T.INT32, 11, False), ("ReduceMin", T.INT32, 12, True),
        ("ReduceMax", T.UINT8, 13, True), ("ReduceMax", T.BOOL, 20, False),
        ("ReduceMean", T.INT32, 13, False), ("ReduceMean", T.DOUBLE, 7, True),
        ("ReduceProd", T.INT64, 7, True),
    ],
)  # fmt: skip
def test_sums_that_nothing_puts_together(kind: str, dtype: int, opset: int, goes: bool) -> None:
    """Zeros came of the shares of a mean of integers, and models that onnxruntime does not open."""
    ends = [helper.make_tensor_value_info("x", dtype, [6, 4]),
            helper.make_tensor_value_info("y", dtype, [])]  # fmt: skip
    node = helper.make_node(kind, ["x"], ["y"], "op", keepdims=0)
    model = helper.make_model(
        helper.make_graph([node], "g", ends[:1], ends[1:]),
        opset_imports=[helper.make_opsetid("", opset)], ir_version=8,
    )  # fmt: skip
    graph = build_graph(model)
    found = _sums(graph, "op")
    assert bool(found) == goes
    _same(graph, found, 1)


def test_every_sum_has_a_case() -> None:
    kinds = {(case.domain, case.kind) for case in SUMS}
    assert kinds == {key for key in TOTALS if key[0] != BLOCKED}


def _same(graph: Graph, regions: list[Region], block: int) -> None:
    feeds = feeds_of(graph)
    whole = named_outputs(to_model(graph), feeds, None)
    for region in regions:
        made = split(graph, [region], block)
        assert len(made.ops) > len(graph.ops)
        model = to_model(made)
        parts = named_outputs(model, feeds, None)
        for name in whole:
            assert parts[name].shape == whole[name].shape
            least = 2e-6 * max(1, np.abs(whole[name]).max())
            np.testing.assert_allclose(parts[name], whole[name], rtol=2e-6, atol=least)
        _same_sizes(made, build_graph(model))


def _same_sizes(made: Graph, known: Graph) -> None:
    """What is said of shapes is what onnxruntime infers."""
    for op in made.ops:
        for name in op.writes:
            assert made.tensors[name].shape == known.tensors[name].shape, name


def test_every_row_has_a_case() -> None:
    assert {(case.domain, case.kind) for case in CASES} == {k for k in TABLE if k[0] != BLOCKED}


def test_blocks_of_channels() -> None:
    graph = optimised_for(blocked_net(), "host", None).graph
    if not any(op.domain == BLOCKED for op in graph.ops):
        pytest.skip("onnxruntime has no blocked layout on this processor")
    kinds = {op.op_type for op in graph.ops if op.domain == BLOCKED}
    assert {(BLOCKED, kind) for kind in kinds} == {key for key in TABLE if key[0] == BLOCKED}
    for op in graph.ops:
        if op.domain == BLOCKED:
            found = _regions(graph, op.name)
            spatial = {2, 3} if max(graph.tensors[op.outputs[0]].shape[2:]) > 1 else set()
            assert set(found) == {0} | spatial, op.name
            _same(graph, list(found.values()), block_size())
            if (BLOCKED, op.op_type) in TOTALS:
                assert _sums(graph, op.name)
                _same(graph, _sums(graph, op.name), block_size())


def test_the_page_shows_the_table() -> None:
    assert axis_table() in (ROOT / "docs" / "fission.md").read_text()


def test_what_has_no_row_is_left_whole() -> None:
    graph = build_graph(Case("NonZero", [(4, 3, 3)], frozenset()).model())
    assert row_of(graph.ops[0]) is None
    assert not _regions(graph, "op")


def test_a_reshape_of_no_elements() -> None:
    graph = graph_of(
        "g (float[0,5,0] x) => (float[0,5] y) <int64[2] s = {0, 5}> "
        "{ y = Reshape<allowzero = 1>(x, s) }"
    )
    with pytest.raises(CannotSplitError, match="no elements"):
        piece_of(graph.ops[0], Facts(graph), Span(1, 0, 2))
