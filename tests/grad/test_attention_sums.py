"""Attention's gradients are the same with sums of short rows and with products scaled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import models
from onnxremat.grad import differentiate
from onnxremat.grad import finished as builder
from onnxremat.ort.session import Options, open_session, session_options
from tests.toolbox import parse

WEIGHTS = ("wq", "wk", "wv", "wo")
SCORES = "s = MatMul(q, kt) scaled = Div(s, root) bent = Add(scaled, bias)"


def net(tokens: int = 20, scores: str = SCORES) -> onnx.ModelProto:
    """Attention with two heads of 8 features, and the mean square of what it makes as the loss."""
    heads = "Transpose<perm = [0, 2, 1, 3]>"
    model = parse(
        f"""g (float[2, {tokens}, 16] x) => (float loss)
        <int64[4] apart = {{2, {tokens}, 2, 8}}, int64[3] together = {{2, {tokens}, 16}},
         float root = {{2.5}}, float[1, 1, 1, {tokens}] bias = {{{", ".join(["0.5"] * tokens)}}}> {{
        qm = MatMul(x, wq) km = MatMul(x, wk) vm = MatMul(x, wv)
        qr = Reshape(qm, apart) kr = Reshape(km, apart) vr = Reshape(vm, apart)
        q = {heads}(qr) kh = {heads}(kr) v = {heads}(vr)
        kt = Transpose<perm = [0, 1, 3, 2]>(kh)
        {scores}
        p = Softmax(bent)
        o = MatMul(p, v)
        put = {heads}(o) rows = Reshape(put, together) y = MatMul(rows, wo)
        e = Mul(y, y)
        loss = ReduceMean<keepdims = 0>(e)
    }}""",
        opset=20,
    )
    for k, name in enumerate(WEIGHTS):
        value = 0.25 * np.random.default_rng(k).standard_normal((16, 16))
        model.graph.initializer.append(numpy_helper.from_array(value.astype(np.float32), name))
    return model


def gradients(
    model: onnx.ModelProto, trained: Sequence[str]
) -> tuple[onnx.ModelProto, Mapping[str, np.ndarray]]:
    step = differentiate(model, loss_output="loss", optimizer=None, trainable=trained)
    session = open_session(step, session_options(Options(threads=1)))
    values = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    feeds = models.feeds(model) | values
    wanted = {i.name for i in session.get_inputs()}
    results = session.run(None, {n: v for n, v in feeds.items() if n in wanted})
    return step, dict(zip([o.name for o in session.get_outputs()], results, strict=True))


def passes(step: onnx.ModelProto, kind: str, size: int) -> int:
    """Ops of the backward pass of a kind that read so many elements."""
    sizes = {
        v.name: int(np.prod([d.dim_value for d in v.type.tensor_type.shape.dim]))
        for v in step.graph.value_info
    }
    return sum(
        node.op_type == kind and node.name.startswith("grad/") and sizes.get(node.input[0]) == size
        for node in step.graph.node
    )


@pytest.mark.parametrize(
    ("model", "trained", "sums", "scales"),
    [
        pytest.param(net(), WEIGHTS, 0, 1, id="all that is left is the product with P"),
        pytest.param(net(tokens=6), WEIGHTS, 1, 3, id="rows longer than scores"),
        pytest.param(net(), WEIGHTS[:3], 1, 2, id="nothing keeps what attention makes"),
        pytest.param(
            net(scores="s = MatMul(q, kt) bent = Mul(s, root)"), WEIGHTS, 0, 1,
            id="by a number of the model",
        ),
        pytest.param(
            net(scores="s = MatMul(q, kt) moved = Add(s, bias) bent = Div(moved, root)"),
            (*WEIGHTS, "bias"), 1, 2, id="the gradient of a bias reads scaled scores",
        ),
        pytest.param(
            net(scores="s = MatMul(q, kt) bent = Mul(s, root)"), (*WEIGHTS, "root"), 1, 3,
            id="by a number that is trained",
        ),
    ],
)  # fmt: skip
def test_gradients_are_the_same(
    model: onnx.ModelProto, trained: Sequence[str], sums: int, scales: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """``sums``, ``scales``: ReduceSum and Mul of tensors as large as scores, in the backward pass:
    those of the gradients of a bias or a number included."""
    tokens = model.graph.input[0].type.tensor_type.shape.dim[1].dim_value
    step, found = gradients(model, trained)
    monkeypatch.setattr(builder, "with_short_sums", lambda t, ops, outputs, constants: list(ops))
    _, expected = gradients(model, trained)
    assert found.keys() == expected.keys() >= {f"{name}.grad" for name in trained}
    for name, value in expected.items():
        np.testing.assert_allclose(
            found[name], value, rtol=1e-4, atol=1e-5 * np.abs(value).max(), err_msg=name
        )
    assert passes(step, "ReduceSum", 4 * tokens * tokens) == sums
    assert passes(step, "Mul", 4 * tokens * tokens) == scales
