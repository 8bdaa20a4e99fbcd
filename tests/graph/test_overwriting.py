"""What is read after a new value is written over it: by the graph, as listed, by a run."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import parser

from onnxremat.graph.onnx_io import to_ops
from onnxremat.graph.overwriting import late_as_listed, late_in_any_order
from onnxremat.ort.infer import build_graph
from onnxremat.pipeline.original.shared_buffers import buffers_check
from onnxremat.schedule.updates import updates_last
from onnxremat.session.sharing import shared_and_apart

STEP = "g (float[4, 4] w, float[4, 4] x, float[4, 4] d) => (float[4, 4] n, float[4, 4] y) {{ {} }}"


def step(nodes: str) -> onnx.ModelProto:
    """w is a parameter, n its new value, x and d data."""
    text = '<ir_version: 8, opset_import: ["" : 18]> ' + STEP.format(nodes)
    return parser.parse_model(text)


BODY = (
    "c = Constant<value_int = 1>() t = Cast<to = 9>(c) y = If(t) <"
    "then_branch = a () => (float[4, 4] p) { p = MatMul(x, w) },"
    "else_branch = b () => (float[4, 4] q) { q = Identity(x) }> "
)


@pytest.mark.parametrize(
    ("nodes", "any_order", "listed"),
    [
        ("y = MatMul(x, w) n = Sub(w, d)", ["y"], []),
        ("n = Sub(w, d) y = MatMul(x, w)", ["y"], ["y"]),
        # the new value waits, or is what is read
        ("y = MatMul(x, w) n = Sub(w, y)", [], []),
        ("n = Sub(w, d) y = MatMul(x, n)", [], []),
        # fused into the product: that reads w; as listed, a Transpose is a copy
        ("v = Transpose(w) s = Add(v, d) n = Sub(w, s) y = MatMul(x, v)", ["y"], []),
        (
            "f = Constant<value_float = 2.0>() v = Mul(w, f) n = Sub(w, d) y = MatMul(x, v)",
            ["v", "y"],
            [],
        ),
        # what is computed of it is another tensor
        ("s = Sum(w) y = MatMul(x, s) n = Sub(s, d)", [], []),
        # a view has the same memory
        ("z = Shape(x) v = Reshape(w, z) n = Sub(w, d) y = MatMul(x, v)", ["v", "y"], ["y"]),
        # a body captures w
        (BODY + "n = Sub(w, d)", ["y"], []),
        ("n = Sub(w, d) " + BODY, ["y"], ["y"]),
        # each element of n depends on many of w
        ("n = MatMul(w, d) y = Identity(x)", ["n"], ["n"]),
        ("n = Gemm(w, d, x) y = Identity(x)", ["n"], ["n"]),
        # onnxruntime makes this of a sum of gradients: the kernel begins with w
        ("n = Gemm(x, d, w) y = Identity(x)", [], []),
        ("v = Flatten(w) n = Sub(w, d) z = Size(v) t = Cast<to = 1>(z) y = Mul(x, t)", ["v"], []),
    ],
)
def test_finds_what_is_read_too_late(nodes: str, any_order: list[str], listed: list[str]) -> None:
    ops = to_ops(step(nodes))
    written = {op.name: op.writes[0] for op in ops}
    assert [written[one.reader] for one in late_in_any_order(ops, {"w": "n"}, ())] == any_order
    assert [written[one.reader] for one in late_as_listed(ops, {"w": "n"})] == listed


def test_updates_wait_for_recomputations_that_read_a_view() -> None:
    nodes = "z = Shape(x) v = Reshape(w, z) a = MatMul(x, v) n = Sub(w, a) y = Mul(a, d)"
    graph = build_graph(step(nodes))
    *first, view, product, update, last = [op.name for op in graph.ops]
    late = [*first, view, product, update, product, last]
    assert updates_last(graph, late, [("w", "n")]) == [
        *first, view, product, product, update, last,
    ]  # fmt: skip


@pytest.mark.parametrize(("read", "right"), [("x", True), ("w", False)])
def test_a_run_shows_what_is_read_too_late(read: str, right: bool) -> None:
    model = step(f"n = Sub(w, d) y = Mul(n, {read})")
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    random = np.random.default_rng(0)
    feeds = {name: random.standard_normal((4, 4)).astype(np.float32) for name in "wxd"}
    kept = {name: value.copy() for name, value in feeds.items()}
    check = buffers_check(shared_and_apart(session, feeds, {"w": "n"}), 1)
    assert check.ok == right
    assert right or "'y'" in check.text
    assert all((feeds[name] == kept[name]).all() for name in feeds)
