"""Rows of a batch that depend on each other where a run on small numbers shows nothing of it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onnxremat.errors import UnsupportedError
from onnxremat.graph.ir import Graph
from onnxremat.ort.feeds import seeded_feeds
from onnxremat.ort.infer import build_graph
from onnxremat.pipeline.in_parts.batch_slices import in_parts
from onnxremat.rewrite.own_rows import require_own_rows
from tests.toolbox import graph_of, run

ONES = ", ".join(["1"] * 16)
NILS = ", ".join(["0"] * 16)


def _net(body: str) -> Graph:
    """Of a batch of 8 rows; ``a`` is made of each alone."""
    return graph_of(f"""g (float[8, 16] x, bool c) => (float[8, 16] y)
        <float hundred = {{100}}, float nil = {{0}}, int64[1] rows = {{0}},
         int64[1] entries = {{1}}, int64[2] both = {{1, 2}}, int64 twice = {{2}}, bool on = {{1}},
         float[16] zeros = {{{NILS}}}, float[1, 1, 16] wide = {{{ONES}}},
         float[1, 1, 1] one = {{1}}, float[1, 2] low = {{-1000, 0}}>
        {{ a = Sin(x) {body} }}""")  # fmt: skip


@pytest.mark.parametrize("body", [
    # A window that reaches into the rows beside.
    """k = Sub(x, hundred) p = Relu(k) t = Transpose<perm = [1, 0]>(p) u = Unsqueeze(t, rows)
    w = MaxPool<kernel_shape = [3], pads = [1, 1]>(u) v = Squeeze(w, rows)
    b = Transpose<perm = [1, 0]>(v) y = Add(a, b)""",
    # As many numbers of all rows as two for each would be, read by an operator without a rule.
    """m = ReduceMax<keepdims = 0>(x, rows) k = Max(m, hundred)
    y = Einsum<equation = "bi,i->bi">(a, k)""",
    # What is added to the first row.
    """k = Sub(x, hundred) p = Relu(k) n = Mul(x, nil) i = Cast<to = 7>(n)
    y = ScatterElements<axis = 0, reduction = "add">(a, i, p)""",
    # Entries of what has one for each row, and no other axis.
    """s = ReduceSum<keepdims = 0>(x, entries) first = Constant<value_int = 0>()
    t = CumSum(s, first) big = Greater(t, hundred) u = Unsqueeze(big, entries) y = Where(u, nil, a)
    """,
    # A recurrence from row to row.
    """u = Unsqueeze(x, entries) r = RNN<hidden_size = 1, activations = ["Relu"]>(u, wide, one, low)
    q = Squeeze(r, both) y = Add(a, q)""",
    # The largest row so far.
    """m, y = Scan<num_scan_inputs = 1, body = to (float[16] s, float[16] r)
        => (float[16] t, float[16] o) {
        t = Max(s, r) l = ReduceMax<keepdims = 0>(t) big = Greater(l, hundred)
        o = Where(big, zeros, r)
    }>(zeros, a)""",
    # A largest value inside of a body.
    """y = Loop(twice, on, a) <body = once (int64 i, bool go, float[8, 16] v)
        => (bool g, float[8, 16] o) {
        g = Identity(go) m = ReduceMax<keepdims = 0>(v) big = Greater(m, hundred)
        o = Where(big, nil, v)
    }>""",
    # A state that is of all rows from the second time on.
    """z, y = Loop(twice, on, nil, a) <body = later (int64 i, bool go, float s, float[8, 16] v)
        => (bool g, float t, float[8, 16] o) {
        g = Identity(go) t = ReduceMax<keepdims = 0>(x) big = Greater(s, hundred)
        o = Where(big, nil, v)
    }>""",
    # In one branch alone, in an If of a Loop.
    """y = Loop(twice, on, a) <body = once (int64 i, bool go, float[8, 16] v)
        => (bool g, float[8, 16] o) {
        g = Identity(go)
        o = If(c) <
            then_branch = yes () => (float[8, 16] p) {
                m = ReduceMax<keepdims = 0>(v) big = Greater(m, hundred) p = Where(big, nil, v)
            },
            else_branch = no () => (float[8, 16] q) { q = Neg(v) }
        >
    }>""",
])  # fmt: skip
def test_rows_that_depend_on_others_stay_together(body: str) -> None:
    graph = _net(body)
    with pytest.raises(UnsupportedError, match=r"rows of the batch (may )?depend on each other"):
        in_parts(graph, (2,), seeded_feeds(graph), None)


@pytest.mark.parametrize("body", [
    # A product and a softmax of each row, in a body.
    """d = MatMul(a, square) b = Loop(twice, on, d) <body = once (int64 i, bool go, float[8, 16] v)
        => (bool g, float[8, 16] o) {
        g = Identity(go) w = MatMul(v, square) s = Softmax<axis = 1>(w)
        m = ReduceMax<keepdims = 1>(s, entries) o = Div(s, m)
    }> y = Reshape(b, shape)""",
    # From entry to entry of each row, which takes them as its sequence.
    """f = ReduceMin<keepdims = 0>(a, entries) d = Transpose<perm = [1, 0]>(a)
    l, e = Scan<num_scan_inputs = 1, body = to (float[8] s, float[8] r)
        => (float[8] t, float[8] o) { t = Max(s, r) o = Identity(t) }>(f, d)
    y = Transpose<perm = [1, 0]>(e)""",
    # From row to row, with nothing taken along.
    """y = Scan<num_scan_inputs = 1, body = to (float[16] r)
        => (float[16] o) { m = ReduceMax<keepdims = 0>(r) o = Sub(r, m) }>(a)""",
    # The largest number of each row.
    "m = ReduceMax<keepdims = 0>(a, entries) u = Unsqueeze(m, entries) y = Sub(a, u)",
])  # fmt: skip
def test_rows_that_depend_on_themselves_go_in_parts(body: str) -> None:
    square = ", ".join(str((i * 7) % 5) for i in range(256))
    graph = graph_of(f"""g (float[8, 16] x) => (float[8, 16] y)
        <float[16, 16] square = {{{square}}}, int64[1] entries = {{1}}, int64 twice = {{2}},
         bool on = {{1}}, int64[2] shape = {{8, 16}}>
        {{ a = Sin(x) {body} }}""")  # fmt: skip
    made = in_parts(graph, (2,), seeded_feeds(graph), None)
    for seed in range(2):
        wanted = run(graph, seed=seed).outputs["y"]
        np.testing.assert_allclose(run(made, seed=seed).outputs["y"], wanted, rtol=1e-5)


@pytest.mark.parametrize(("body", "said"), [
    ("y = com.microsoft.Inverse(a)", "no rule says what an entry of a result of Inverse reads"),
    ("n = NonZero(a) k = ReduceMax<keepdims = 0>(n) f = Cast<to = 1>(k) y = Add(a, f)",
     "no rule says what an entry of a result of NonZero reads"),
])  # fmt: skip
def test_an_operator_that_no_rule_knows_is_named(body: str, said: str) -> None:
    text = f"g (float[16, 16] x) => (float[16, 16] y) {{ a = Sin(x) {body} }}"
    opsets = '<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1]>'
    graph = build_graph(onnx.parser.parse_model(f"{opsets} {text}"))
    with pytest.raises(UnsupportedError, match="rows of the batch may depend") as told:
        require_own_rows(graph, ["x"], 16, hint="")
    assert told.value.why == said


def test_rows_of_parts_and_of_heads_are_known() -> None:
    """Slices of the batch that are joined again; heads that are merged into it, and parted."""
    graph = graph_of("""g (float[4, 6] x) => (float[4, 6] y)
        <int64[1] axis = {0}, int64[1] nil = {0}, int64[1] one = {1}, int64[1] four = {4},
         int64[2] heads = {8, 3}, int64[2] all = {4, 6}> {
        a = Slice(x, nil, one, axis) b = Slice(x, one, four, axis)
        m = ReduceMax<keepdims = 1>(a, nil) p = Sub(a, m)
        c = Concat<axis = 0>(p, b)
        h = Reshape(c, heads) s = Softmax<axis = 1>(h) y = Reshape(s, all) }""")
    require_own_rows(graph, ["x"], 4, hint="")


@pytest.mark.parametrize(("place", "whole"), [(0, True), (1, False)])
def test_a_number_of_rows_is_another_one_in_parts(place: int, whole: bool) -> None:
    """Below its bound on the numbers that a run is tried with."""
    graph = graph_of(f"""g (float[8, 4] x) => (float[8, 4] y)
        <float each = {{25}}, float nil = {{0}}, int64 place = {{{place}}}> {{
        s = Shape(x) n = Gather(s, place) f = Cast<to = 1>(n) b = Mul(f, each)
        c = Greater(x, b) y = Where(c, nil, x) }}""")
    if not whole:
        require_own_rows(graph, ["x"], 8, hint="")
        return
    with pytest.raises(UnsupportedError, match="may depend") as told:
        require_own_rows(graph, ["x"], 8, hint="")
    assert "a number of rows" in told.value.why
