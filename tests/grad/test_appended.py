"""Lists that loops append to, tensors that they make longer, and slices at computed places."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onnxremat.errors import OnnxrematError
from onnxremat.grad import differentiate
from onnxremat.graph.ir import all_nodes
from tests.grad import judge
from tests.toolbox import parse

rng = np.random.default_rng(3)
X, W = (rng.standard_normal((2, 2)).astype(np.float32) for _ in range(2))
ROWS = rng.standard_normal((6, 2)).astype(np.float32)


def verdict(made: onnx.ModelProto, *given: object) -> str:
    return judge.verdict(judge.judged(made, [np.asarray(each) for each in given], stored=False))


def listed(
    tail: str, shape: str = "[2, 2]", add: str = "c = SequenceInsert(q, m)"
) -> onnx.ModelProto:
    """A Loop that appends to a list, and what becomes of the list."""
    return parse(f"""g (float[2, 2] x, float[2, 2] w, int64 n) => (float{shape} y)
        <bool go = {{1}}, int64 one = {{1}}, int64 last = {{-1}}> {{
      s = SequenceEmpty()
      r, t = Loop(n, go, s, x) <body = b (int64 i, bool k, seq(float[2, 2]) q, float[2, 2] a)
        => (bool l, seq(float[2, 2]) c, float[2, 2] d) {{
          l = Identity(k) m = MatMul(a, w) d = Tanh(m) {add} }}>
      {tail} }}""")


@pytest.mark.parametrize("axis", [-3, -2, -1, 0, 1, 2])
@pytest.mark.parametrize("new", [0, 1])
def test_a_list_as_one_tensor(axis: int, new: int) -> None:
    if not new and axis in (-3, 2):
        pytest.skip("rows have two axes")
    made = listed(f"""f = ConcatFromSequence <axis = {axis}, new_axis = {new}> (r)
        v = Transpose(f) p = Mul(f, f) e = Exp(p) b = ReduceSum <keepdims = 0> (v)
        h = ReduceSum <keepdims = 0> (e) y = Mul(h, b)""", "")  # fmt: skip
    assert verdict(made, X, W, 3) == judge.RIGHT


LOOKED_INTO = {
    "first": "e = SequenceAt(r, one) y = Mul(e, e)",
    "last": "e = SequenceAt(r, last) y = Mul(e, t)",
    "length": "e = SequenceAt(r, one) l = SequenceLength(r) f = Cast <to = 1> (l) y = Mul(e, f)",
    "in a body": """y = Loop(n, go, x) <body = b (int64 i, bool k, float[2, 2] a)
        => (bool l, float[2, 2] c) { l = Identity(k) e = SequenceAt(r, i) c = Mul(e, a) }>""",
    "twice": """e = ConcatFromSequence <axis = 0, new_axis = 1> (r) z = SequenceAt(r, last)
        f = Mul(e, z) g = ReduceSum <keepdims = 0> (f) y = Mul(g, z)""",
}


@pytest.mark.parametrize("tail", LOOKED_INTO.values(), ids=LOOKED_INTO)
def test_what_looks_into_a_list(tail: str) -> None:
    assert verdict(listed(tail), X, W, 3) == judge.RIGHT


def test_several_tensors_in_each_run() -> None:
    tail = "f = ConcatFromSequence <axis = 1> (r) e = Exp(f) y = ReduceSum <keepdims = 0> (e)"
    made = listed(tail, "", "o = SequenceInsert(q, m) c = SequenceInsert(o, d)")
    assert verdict(made, X, W, 3) == judge.RIGHT


LONGER = """g (float[2, 2] x, float[2, 2] w, int64 n) => (float y)
    <bool go = {1}, float[AXES] e = {}> {
  h, u = Loop(n, go, e, x) <body = b (int64 i, bool k, float[p, q] a, float[2, 2] z)
      => (bool l, float[r, s] c, float[2, 2] v) {
    l = Identity(k) m = MatMul(z, w) v = Sin(m) c = Concat <axis = AXIS> (a, m, v) }>
  f = Exp(h) y = ReduceSum <keepdims = 0> (f) }"""


@pytest.mark.parametrize(("axis", "axes"), [(0, "0, 2"), (1, "2, 0"), (-1, "2, 0")])
def test_a_tensor_that_grows(axis: int, axes: str) -> None:
    made = parse(LONGER.replace("AXIS", str(axis)).replace("AXES", axes))
    assert verdict(made, X, W, 3) == judge.RIGHT


LISTS = {
    "split": "s = SplitToSequence <axis = 0, keepdims = 0> (x)",
    "kept": "o = Unsqueeze(x, zero) p = Transpose <perm = [1, 2, 0]> (o) q = SplitToSequence (p) "
            "s = SplitToSequence <axis = 0, keepdims = 0> (x) z = SequenceLength(q)",
    "columns": "s = SplitToSequence <axis = 1, keepdims = 0> (x)",
    "made": "f = MatMul(x, v) a = Sin(f) b = Cos(v) c = Mul(f, v) s = SequenceConstruct(a, b, c)",
}  # fmt: skip


@pytest.mark.parametrize("text", LISTS.values(), ids=LISTS)
def test_an_element_that_data_name(text: str) -> None:
    made = parse(f"""g (float[2, 2] x, float[2] v, int64 n, int64 at) => (float[2] y)
        <bool go = {{1}}, int64[1] zero = {{0}}, int64 two = {{2}}> {{ {text}
      y = Loop(n, go, v) <body = b (int64 i, bool k, float[2] a) => (bool l, float[2] d) {{
        l = Identity(k) j = Add(i, at) g = Mod(j, two) e = SequenceAt(s, g) d = Mul(e, a) }}> }}""")
    assert verdict(made, X, W[0], 3, 1) == judge.RIGHT


KEPT = {
    "read in the loop": ("g = SequenceAt(q, i) c = SequenceInsert(q, g)", False),
    "returned": ("c = SequenceInsert(q, m)", True),
    "in front": ("c = SequenceInsert(q, m, i)", False),
}


@pytest.mark.parametrize(("add", "more"), KEPT.values(), ids=KEPT)
def test_other_lists_are_refused(add: str, more: bool) -> None:
    made = listed("y = ConcatFromSequence <axis = 0> (r)", "[4, 2]", add)
    if more:
        made.graph.output.append(onnx.helper.make_tensor_sequence_value_info("r", 1, [2, 2]))
    kept = ["r"] if more else []
    with pytest.raises(OnnxrematError, match="is not known"):
        differentiate(made, loss="mse", optimizer=None, trainable=["w"], outputs=kept)


# ---- slices ----------------------------------------------------------------------------------

SLICED = """g (float[2, 2] h0, float[3, 2, 2] x, float[2, 2] w, int64 n) => (float[2, 2] h)
    <bool go = {1}, int64[1] one = {1}, int64[1] z = {0}> {
  h = Loop(n, go, h0) <body = b (int64 i, bool k, float[2, 2] a) => (bool l, float[2, 2] c) {
    l = Identity(k) s = Unsqueeze(i, z) e = Add(s, one) r = Slice(x, s, e, z) q = Squeeze(r, z)
    m = MatMul(a, w) c = Add(m, q) }> }"""


@pytest.mark.parametrize("runs", [0, 1, 3])
def test_a_slice_at_the_number_of_the_run(runs: int) -> None:
    rows = ROWS.reshape(3, 2, 2)
    assert verdict(parse(SLICED), X, rows, W, runs) == judge.RIGHT


TEXTS = {
    "both": "s = Unsqueeze(n, z) e = Add(s, two) r = Slice(x, s, e, z)",
    "steps": "s = Unsqueeze(n, z) e = Add(s, three) r = Slice(x, s, e, z, two)",
    "twice": "k = Mul(n, t) s = Unsqueeze(k, z) j = Mul(n, t) f = Add(j, t) e = Unsqueeze(f, z) "
             "r = Slice(x, s, e, z)",
    "of more": "s = Unsqueeze(n, z) c = Concat <axis = 0> (s, z) f = Add(c, two) "
               "r = Slice(x, c, f)",
    "range": "e = Add(n, t) o = Range(n, e, i) r = Gather(x, o)",
}  # fmt: skip


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("at", [0, 2, -6, -4])
def test_slices_at_computed_places(text: str, at: int) -> None:
    at = at if "Mul(n" not in text else max(at, -3)
    made = parse(f"""g (float[6, 2] x, int64 n) => (float[2, 2] y) <int64[1] two = {{2}},
        int64 t = {{2}}, int64 i = {{1}}, int64[1] three = {{3}}, int64[1] z = {{0}}> {{
      {text} y = Sin(r) }}""")
    assert verdict(made, ROWS, at) == judge.RIGHT


@pytest.mark.parametrize("at", [5, 6, -1, -2, -7, -9])
def test_a_slice_that_is_cut_off_ends_the_run(at: int) -> None:
    """It would have another size, which nothing in a step may have."""
    made = parse("""g (float[6, 2] x, int64 n, float[2, 2] w) => (float[2, 2] y)
        <int64[1] two = {2}, int64[1] z = {0}> {
      s = Unsqueeze(n, z) e = Add(s, two) r = Slice(x, s, e, z) y = MatMul(r, w) }""")
    step = differentiate(made, loss="mse", optimizer=None, trainable=["w"])
    session = judge.opened_session(step)
    feeds = {"x": ROWS, "n": np.array(at), "w": W, "labels": X}
    with pytest.raises(Exception, match="indices"):
        session.run(None, feeds)


def test_a_slice_of_a_size_that_data_say_is_refused() -> None:
    made = parse("""g (float[6, 2] x, int64 n, float[2, 2] w) => (float[m, 2] y)
        <int64[1] two = {2}, int64[1] z = {0}> {
      s = Unsqueeze(n, z) e = Mul(s, two) r = Slice(x, s, e, z) y = MatMul(r, w) }""")
    with pytest.raises(OnnxrematError, match="is not known"):
        differentiate(made, loss="mse", optimizer=None, trainable=["w"])


def test_no_sequence_is_left() -> None:
    made = listed("f = ConcatFromSequence <axis = 0> (r) y = ReduceMax <keepdims = 0> (f)", "")
    step = differentiate(made, loss="mse", optimizer=None, trainable=["w"])
    assert not [n.op_type for n in all_nodes(step.graph) if "Sequence" in n.op_type]


def test_a_target_of_a_size_that_data_say_is_refused_by_name() -> None:
    made = listed("y = ConcatFromSequence <axis = 0> (r)", "[m, 2]")
    with pytest.raises(OnnxrematError, match="input labels") as told:
        differentiate(made, loss="mse", optimizer=None, trainable=["w"])
    assert "--prediction" in str(told.value)
