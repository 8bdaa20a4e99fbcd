"""Sequences written as plain tensors: the same values, and only where that is exact."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import onnxremat
from onnxremat.grad import differentiate
from onnxremat.grad.constants import Constants
from onnxremat.graph.sequences import without_sequences
from onnxremat.ort.infer import build_graph
from tests.toolbox import parse

X = "float[2,7] x"
# Body of a graph whose sequences are all known.
KNOWN = {
    "scalar split": f"""g ({X}) => (float[2,5] y)
        <int64 s = {{3}}, int64 a = {{0}}, int64 c = {{-1}}>
        {{ q = SplitToSequence<axis=1>(x, s) u = SequenceAt(q, a) v = SequenceAt(q, c)
           w = Mul(v, v) z = Pad(w, p) p = Constant<value_ints=[0,0,0,2]>()
           t = Add(u, z) r = Constant<value_ints=[0,0,0,2]>() y = Pad(t, r) }}""",
    "sizes": f"""g ({X}) => (float[2,2] y) 
        <int64[3] s = {{2, 3, 2}}, int64 a = {{0}}, int64 c = {{2}}>
        {{ q = SplitToSequence<axis=-1>(x, s) u = SequenceAt(q, a) v = SequenceAt(q, c)
           y = Sub(u, v) }}""",
    "sizes through arithmetic": f"""g ({X}) => (float[2,4] y) <int64 one = {{1}}, int64 two = {{2}}>
        {{ h = Shape(x) d = Gather(h, one) e = Add(d, one) s = Div(e, two)
           q = SplitToSequence<axis=1>(x, s) zero = Sub(one, one) y = SequenceAt(q, zero) }}""",
    "ones kept": f"""g ({X}) => (float[2,1] y) <int64 a = {{3}}>
        {{ q = SplitToSequence<axis=1>(x) y = SequenceAt(q, a) }}""",
    "ones squeezed": f"""g ({X}) => (float[7] y) <int64 a = {{1}}>
        {{ q = SplitToSequence<axis=0, keepdims=0>(x) y = SequenceAt(q, a) }}""",
    "one part": f"""g ({X}) => (float[2,7] y) <int64 s = {{7}}, int64 a = {{0}}>
        {{ q = SplitToSequence<axis=1>(x, s) y = SequenceAt(q, a) }}""",
    "unbound": f"""g ({X}) => (float[2] y) <int64 s = {{1}}, int64 a = {{6}}>
        {{ q = SplitToSequence<axis=1, keepdims=0>(x, s) y = SequenceAt(q, a) }}""",
    "concatenated": f"""g ({X}) => (float[4,7] y)
        {{ e = Exp(x) q = SequenceConstruct(x, e) y = ConcatFromSequence<axis=0>(q) }}""",
    "stacked": f"""g ({X}) => (float[2,7,2] y)
        {{ e = Exp(x) q = SequenceConstruct(x, e)
           y = ConcatFromSequence<axis=-1, new_axis=1>(q) }}""",
    "changed": f"""g ({X}) => (float[6,7] y) <int64 a = {{0}}, int64 c = {{-1}}>
        {{ e = Exp(x) n = Neg(x) q = SequenceEmpty<dtype=1>() q1 = SequenceInsert(q, x)
           q2 = SequenceInsert(q1, e, a) q3 = SequenceInsert(q2, n, c) q4 = Identity(q3)
           q5 = SequenceErase(q4, a) q6 = SequenceInsert(q5, e)
           y = ConcatFromSequence<axis=0>(q6) }}""",
    "length": f"""g ({X}) => (float[2,7] y) <int64 s = {{2}}>
        {{ q = SplitToSequence<axis=1>(x, s) n = SequenceLength(q) f = Cast<to=1>(n)
           y = Mul(x, f) }}""",
    "read in a body": f"""g ({X}) => (float[2,4] y)
        <bool b = {{1}}, int64 s = {{4}}, int64 a = {{0}}>
        {{ q = SplitToSequence<axis=1>(x, s) u = SequenceAt(q, a)
           y = If(b) <then_branch = t () => (float[2,4] k) {{ k = Exp(u) }},
                      else_branch = f () => (float[2,4] k) {{ k = Neg(u) }}> }}""",
}  # fmt: skip
# Body of a graph whose sequences have to stay.
UNKNOWN = {
    "position of the run": f"""g ({X}, int64 a) => (float[2,3] y) <int64 s = {{3}}>
        {{ q = SplitToSequence<axis=1>(x, s) y = SequenceAt(q, a) }}""",
    "sizes of the run": f"""g ({X}, int64 s) => (float[2,N] y) <int64 a = {{0}}>
        {{ q = SplitToSequence<axis=1>(x, s) y = SequenceAt(q, a) }}""",
    "length of the run": f"""g ({X}) => (float[1,N] y) <int64 s = {{1}}, int64 a = {{0}}>
        {{ k = NonZero(x) q = SplitToSequence<axis=0>(k, s) i = SequenceAt(q, a)
           y = Cast<to=1>(i) }}""",
    "another reader": f"""g ({X}, int64 a) => (float[2,3] y) <int64 s = {{3}}, int64 c = {{1}}>
        {{ q = SplitToSequence<axis=1>(x, s) q1 = Identity(q) u = SequenceAt(q1, c)
           v = SequenceAt(q, a) y = Add(u, v) }}""",
    "an output": f"""g ({X}) => (seq(float[2,N]) q, float[2,3] y) <int64 s = {{3}}, int64 a = {{0}}>
        {{ q = SplitToSequence<axis=1>(x, s) y = SequenceAt(q, a) }}""",
    "in a body": f"""g ({X}, bool b) => (float[2,3] y)
        <int64 s = {{3}}, int64 a = {{0}}, int64 c = {{1}}>
        {{ q = SplitToSequence<axis=1>(x, s) u = SequenceAt(q, a)
           v = If(b) <then_branch = t () => (float[2,3] k) {{ k = SequenceAt(q, a) }},
                      else_branch = f () => (float[2,3] k) {{ k = SequenceAt(q, c) }}>
           y = Add(u, v) }}""",
}  # fmt: skip
DATA = np.random.default_rng(0).standard_normal((2, 7)).astype(np.float32)


def _rewritten(model: onnx.ModelProto) -> onnx.ModelProto | None:
    graph = build_graph(model)
    return without_sequences(graph, Constants(graph))


def _run(model: onnx.ModelProto) -> np.ndarray:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(["y"], {"x": DATA})[0])


@pytest.mark.parametrize("opset", [11, 13, 18])
@pytest.mark.parametrize("kind", KNOWN)
def test_known_sequences_become_tensors_of_the_same_values(kind: str, opset: int) -> None:
    if opset < {"scalar split": 13, "changed": 14}.get(kind, 11):
        pytest.skip("its other operators are of a later opset")
    model = parse(KNOWN[kind], opset)
    found = _rewritten(model)
    assert found is not None
    assert not [node.op_type for node in found.graph.node if "Sequence" in node.op_type]
    onnx.checker.check_model(found)
    assert np.array_equal(_run(found), _run(model))


@pytest.mark.parametrize("kind", UNKNOWN)
def test_other_sequences_stay(kind: str) -> None:
    assert _rewritten(parse(UNKNOWN[kind])) is None


def test_known_ones_are_rewritten_beside_others() -> None:
    body = f"""g ({X}, int64 a) => (float[2,3] y) <int64 s = {{3}}, int64 c = {{1}}>
        {{ q = SplitToSequence<axis=1>(x, s) u = SequenceAt(q, a) e = Exp(x)
           p = SplitToSequence<axis=1>(e, s) v = SequenceAt(p, c) y = Add(u, v) }}"""
    found = _rewritten(parse(body))
    assert found is not None
    kinds = sorted(n.op_type for n in found.graph.node)
    assert kinds == ["Add", "Exp", "SequenceAt", "Split", "SplitToSequence"]


def test_known_sequences_are_differentiated() -> None:
    """y = w[0:3] * w[3:6] of a parameter that is split as exporters do it."""
    body = """g (float[3] x) => (float y) <float[7] w, int64 s = {3}, int64 a = {0}, int64 c = {1}>
        { q = SplitToSequence<axis=0>(w, s) u = SequenceAt(q, a) v = SequenceAt(q, c)
          m = Mul(u, v) z = Mul(m, x) y = ReduceSum<keepdims=0>(z) }"""
    model = parse(body)
    del model.graph.initializer[:]
    w = np.arange(1, 8, dtype=np.float32)
    for name, value in (("w", w), ("s", np.int64(3)), ("a", np.int64(0)), ("c", np.int64(1))):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), name))
    graph = differentiate(model, loss_output="y", optimizer=None, trainable=["w"])
    x = np.array([2, 3, 5], np.float32)
    session = ort.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    (gradient,) = session.run(["w.grad"], {"x": x, "w": w})
    assert gradient.tolist() == [*(w[3:6] * x), *(w[:3] * x), 0.0]


def test_a_model_with_sequences_is_optimised_like_one_without(tmp_path: Path) -> None:
    """Every value is planned: the model that comes out holds no sequence, and the same bits."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [64, 96])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    nodes = [helper.make_node("SplitToSequence", ["h", "s"], ["q"], axis=1)]
    nodes += [helper.make_node("SequenceAt", ["q", f"k{k}"], [f"p{k}"]) for k in range(3)]
    nodes += [helper.make_node("Exp", [f"p{k}"], [f"e{k}"]) for k in range(3)]
    nodes += [helper.make_node("SequenceConstruct", ["e0", "e1", "e2"], ["r"])]
    nodes += [helper.make_node("ConcatFromSequence", ["r"], ["z"], axis=1)]
    nodes = [
        helper.make_node("Sin", ["x"], ["h"]),
        *nodes,
        helper.make_node("Mul", ["z", "h"], ["y"]),
    ]
    stored = [onnx.numpy_helper.from_array(np.asarray(v, np.int64), n)
              for n, v in (("s", 32), ("k0", 0), ("k1", 1), ("k2", 2))]  # fmt: skip
    made = helper.make_graph(nodes, "g", [x], [y], stored)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    result = onnxremat.optimize(model, budget="1.0x")
    assert not [n.op_type for n in result.model.graph.node if "Sequence" in n.op_type]


def test_sizes_that_a_run_shows_do_not_make_a_sequence_known() -> None:
    """How many elements of x are not 0 is seen when the model is measured, and may be another
    number in the next run."""
    body = """g (float[2,7] x) => (float[2,N] y) <int64 s = {4}, int64 a = {0}>
        { k = NonZero(x) f = Cast<to=1>(k) q = SplitToSequence<axis=1>(f, s) i = SequenceAt(q, a)
          j = Exp(i) y = Neg(j) }"""
    result = onnxremat.optimize(parse(body), budget="2.0x")
    assert "SplitToSequence" in [node.op_type for node in result.model.graph.node]
