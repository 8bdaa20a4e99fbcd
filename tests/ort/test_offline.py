"""What is optimised offline is a model that onnxruntime opens, and that holds all it reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import models
from onnxremat.errors import ModelError
from onnxremat.graph.order import without_dead_ops
from onnxremat.ort import offline
from onnxremat.ort.feeds import seeded_feeds
from onnxremat.ort.infer import build_graph
from onnxremat.ort.offline import optimise, optimised_for
from onnxremat.ort.profile import named_outputs, run_session
from onnxremat.ort.session import DEFAULT, TUNED, open_session, session_options
from onnxremat.pipeline.prepare import prepare
from onnxremat.pipeline.settings import Settings
from onnxremat.schedule.plan import graph_hash
from tests.toolbox import ONE, graph_of, names, parse, run

W1, W2, W3 = (", ".join("1" if i % 9 == k else "0.5" for i in range(64)) for k in range(3))
# z is fused at the lowest level, into a Gemm between Reshapes whose shapes are new constants. q, k
# and v look like the projections of an attention, so they are left to a higher level, which finds
# no attention and fuses them likewise: with constants of the same names.
ATTENTION_LIKE = f"""g (float[2, 4, 8] x) => (float[2, 4, 8] y, float[2, 4, 8] z)
    <float[8] s = {{1, 2, 1, 2, 1, 2, 1, 2}}, float[8] b = {{0, 1, 0, 1, 0, 1, 0, 1}},
     float[8, 8] w = {{{W1}}}, float[8, 8] u = {{{W2}}}, float[8, 8] t = {{{W3}}}> {{
    zm = MatMul(x, w)
    z = Add(zm, b)
    n = LayerNormalization(x, s, b)
    qm = MatMul(n, w)
    q = Add(qm, b)
    km = MatMul(n, u)
    k = Sub(km, b)
    vm = MatMul(n, t)
    v = Mul(vm, b)
    qk = Mul(q, k)
    qkv = Mul(qk, v)
    om = MatMul(qkv, w)
    o = Add(om, b)
    y = Add(n, o)
}}"""
# The weight is read by the branches alone, one of them with an operator of onnxruntime's.
CAPTURED = """<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1]>
g (float[2] x, bool c) => (float[2] y) <float[2] w = {1, 2}> {
    y = If(c) <
        then_branch = yes () => (float[2] p) { h = com.microsoft.Gelu(x)  p = Mul(h, w) },
        else_branch = no () => (float[2] q) { q = Sub(x, w) }
    >
}"""

# Casts to float32 of one value, outside and in the branches.
HALF = """g (float16[4] x, bool c) => (float16[4] y, float16[4] z) {
    a = Sin(x)
    z = Cos(a)
    y = If(c) <
        then_branch = yes () => (float16[4] p) { b = Exp(a)  p = Sin(b) },
        else_branch = no () => (float16[4] q) { q = If(c) <
            then_branch = deep () => (float16[4] r) { r = Cos(a) },
            else_branch = deeper () => (float16[4] s) { s = Sin(a) }
        > }
    >
}"""


@pytest.mark.parametrize("text", [ATTENTION_LIKE, HALF], ids=["fused", "half precision"])
@pytest.mark.parametrize("target", ["portable", "onnxruntime", "host"])
def test_what_is_saved_opens_again(target: str, text: str) -> None:
    model = parse(text)
    found = optimised_for(model, target, None)
    assert (found.target, found.why) == (target, "")
    feeds = seeded_feeds(build_graph(model))
    wanted = named_outputs(model, feeds, None)
    for options in (TUNED, DEFAULT):
        session = open_session(found.model, session_options(options))
        for name, value in zip(("y", "z"), run_session(session, feeds), strict=True):
            np.testing.assert_allclose(
                value, wanted[name], rtol=1e-5 if value.itemsize > 2 else 1e-2
            )


def test_what_was_optimised_is_optimised_again() -> None:
    once = optimised_for(parse(ATTENTION_LIKE), "portable", None)
    again = optimised_for(once.model, "onnxruntime", None)
    assert (again.target, again.why) == ("onnxruntime", "")


def test_the_next_lower_level_where_one_does_not_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fusion that makes a model onnxruntime refuses: here one that is said to."""
    bad = {"host": "it is cursed", "onnxruntime": "so is this"}
    plain = offline._optimise

    def cursed(model: onnx.ModelProto, target: str, *more: Any) -> Any:
        if target in bad:
            raise ModelError("onnxruntime refuses the model", why=bad[target])
        return plain(model, target, *more)

    monkeypatch.setattr(offline, "_optimise", cursed)
    prepared = prepare(parse(ATTENTION_LIKE), Settings(threads=1, target="host"))
    assert prepared.settings.target == "portable"
    (note,) = prepared.notes
    assert "--target portable, not host" in note
    assert "it is cursed" in note
    bad["portable"] = "and this"
    prepared = prepare(parse(ATTENTION_LIKE), Settings(threads=1, target="portable"))
    assert prepared.settings.target == "none"
    assert [op.op_type for op in prepared.graph.ops].count("MatMul") == 5


def test_what_does_not_open_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of constants as onnxruntime gives them: the file as it was saved."""
    monkeypatch.setattr(offline, "_name_apart", lambda *names: None)
    found = optimised_for(parse(ATTENTION_LIKE), "portable", None)
    assert found.target == "none"
    assert "replace the existing tensor" in found.why


def test_weights_and_operators_that_bodies_alone_read() -> None:
    model = onnx.parser.parse_model(CAPTURED)
    found = optimise(model, "portable", None)
    assert [t.name for t in found.graph.initializer] == ["w"]
    graph = build_graph(found)
    feeds = seeded_feeds(graph)
    np.testing.assert_array_equal(
        named_outputs(found, feeds, None)["y"], named_outputs(model, feeds, None)["y"]
    )


def test_constants_are_weights_in_every_target() -> None:
    """A session has no Constant: what reads it is not kept waiting by where it is listed."""
    model = parse("""g (float[4] x) => (float[4] y, int64[2] z) {
        a = Sin(x)
        c = Constant<value_floats: floats = [1.0, 2.0, 3.0, 4.0]>()
        t = Constant<value: tensor = float[2, 2] {1, 2, 3, 4}>()
        one = Constant<value_int: int = 1>()
        b = Mul(a, c)
        y = Cos(b)
        s = Shape(t)
        z = Mul(s, one)
    }""")
    graph = without_dead_ops(build_graph(optimised_for(model, "none", None).model))
    assert "Constant" not in [op.op_type for op in graph.ops]
    assert graph.weight_bytes == 4 * 4 + 4 * 4 + 8
    assert sorted(names(run(graph, ONE))) == sorted(op.name for op in graph.ops)


def test_labels_of_a_loss_on_data_of_unknown_shape() -> None:
    graph = graph_of("""g (float[4, 5] x, int64[4] labels) => (float loss)
        <int64 once = {1}, bool go = {1}> {
        data = Loop(once, go, x) <body = b (int64 i, bool on, float[4, 5] seen)
            => (bool still, float[4, 5] more) { still = Identity(on)  more = Sin(seen) }>
        loss = SoftmaxCrossEntropyLoss(data, labels)
    }""")
    assert graph.tensors["data"].shape is None
    labels = seeded_feeds(graph)["labels"]
    assert set(labels.tolist()) <= {0, 1}


def test_rows_of_indices_stay_in_every_axis_they_go_into() -> None:
    graph = graph_of("""g (float[9, 3] x, int64[50, 2] i) => (float[50] y) {
        y = GatherND(x, i)
    }""")
    assert seeded_feeds(graph)["i"].max() < 3


def test_the_same_model_is_optimised_alike_each_time() -> None:
    """onnxruntime numbers copies out of blocks by chance: a plan would be for another graph. What a
    run of the original saved is the same."""
    model = models.build("unet", batch=1, size=32, width=8)
    made = [optimised_for(model, "host", None).graph for _ in range(3)]
    made.append(prepare(model, Settings(threads=2, target="host")).unsplit.made.graph)
    assert len({graph_hash(graph) for graph in made}) == 1
