"""Rows lie in blocks where that gains, and gradients are the same whatever lies in blocks."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import models
from onnxremat.errors import ModelError
from onnxremat.grad import differentiate
from onnxremat.grad.host import block_choice, blocked_rows
from onnxremat.ort.blocks import DOMAIN, block_size
from onnxremat.ort.session import Options, open_session, session_options
from onnxremat.training.trainer import Trainer
from tests.toolbox import parse

SIZES = {"w": (32, 64), "b": (64,), "v": (64, 32), "c": (32,)}
# Both kinds of Gelu, an elementwise op of two wide tensors, and one of a number.
BENT = {
    "erf": "r = Gelu(h)",
    "tanh": 'r = Gelu<approximate="tanh">(h)',
    "gated": "s = Sigmoid(h)\n p = Mul(h, s)\n r = Mul(p, two)",
    "rectified": "q = Relu(h)\n r = Mul(q, q)",
    "shifted": "k = Add(h, two)\n r = Mul(k, k)",
}


def net(bent: str, tokens: int = 16) -> onnx.ModelProto:
    """A layer of a transformer, and the mean square of what it makes as the loss."""
    model = parse(
        f"""g (float[4, {tokens}, 32] x, float[4, {tokens}, 32] y, float[4, {tokens}, 64] wide)
        => (float loss)
        <float two = {{2}}, int64[1] one = {{1}}, int64[2] flat = {{64, 64}},
         int64[3] column = {{4, 16, 1}}> {{
        m = MatMul(x, w)
        h = Add(b, m)
        {bent}
        n = MatMul(r, v)
        z = Add(n, c)
        d = Sub(z, y)
        e = Mul(d, d)
        loss = ReduceMean<keepdims = 0>(e)
    }}""",
        opset=20,
    )
    return with_weights(model, SIZES, 0.25)


def with_weights(
    model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]], scale: float = 1.0
) -> onnx.ModelProto:
    """The model with normal numbers stored in it."""
    for k, (name, shape) in enumerate(shapes.items()):
        value = scale * np.random.default_rng(k).standard_normal(shape)
        model.graph.initializer.append(numpy_helper.from_array(value.astype(np.float32), name))
    return model


def prices(monkeypatch: pytest.MonkeyPatch, copy: float) -> None:
    """What a copy costs in each direction, where a product gains 50 per element and feature."""
    for name, value in {
        "GAIN": 50.0, "GAIN_OVER_ROWS": 50.0, "COPY": copy, "COPY_BACK": copy,
    }.items():  # fmt: skip
        monkeypatch.setattr(block_choice, name, value)


@pytest.fixture
def block(monkeypatch: pytest.MonkeyPatch) -> int:
    """A processor that gains, from rows of 64 features on."""
    monkeypatch.setattr(blocked_rows, "made_by_intel", lambda: True)
    monkeypatch.setattr(block_choice, "ROWS", 64)
    monkeypatch.setattr(block_choice, "FEATURES", 32)
    monkeypatch.setattr(block_choice, "CALL", 0)
    prices(monkeypatch, copy=500.0)
    try:
        return block_size()
    except ModelError:
        pytest.skip("this onnxruntime has no blocked convolutions")


def gradients(model: onnx.ModelProto, **options: object) -> tuple[onnx.ModelProto, dict]:
    step = differentiate(model, loss_output="loss", optimizer=None, **options)
    session = open_session(step, session_options(Options(threads=1)))
    values = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    feeds = models.feeds(model)
    wanted = {i.name for i in session.get_inputs()}
    results = session.run(None, {n: v for n, v in (feeds | values).items() if n in wanted})
    return step, dict(zip([o.name for o in session.get_outputs()], results, strict=True))


def kinds(step: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in step.graph.node if node.domain == DOMAIN]


@pytest.mark.parametrize("tokens", [16, 17])  # 17: rows that fill no whole number of blocks
@pytest.mark.parametrize("bent", BENT)
def test_gradients_are_the_same(bent: str, tokens: int, block: int) -> None:
    """x gets no gradient: five products, all of them in blocks; one convolution more that adds up
    the slope of a Gelu."""
    model = net(BENT[bent], tokens)
    _, expected = gradients(model)
    step, found = gradients(model, blocked=block)
    more = (tokens == 17) + (bent == "erf")
    assert kinds(step).count("Conv") == 5 + more, "a sum over filled rows is one, too"
    assert not {"MatMul", "Gemm"} & {node.op_type for node in step.graph.node}
    assert found.keys() == expected.keys() >= {"w.grad", "b.grad", "v.grad", "c.grad"}
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    ("product", "shape", "weight"),
    [("Gemm<alpha = 0.5>(x, w)", "64, 32", (32, 64)),
     ("Gemm<alpha = 0.5, transB = 1>(x, w)", "64, 32", (64, 32)),
     ("MatMul(x, w)", "4, 16, 32", (4, 32, 64))],
)  # fmt: skip
def test_a_bias_follows_a_product_that_stays(
    product: str, shape: str, weight: tuple[int, ...], block: int
) -> None:
    """The product was made in blocks with it, without its factor."""
    model = with_weights(
        parse(f"""g (float[{shape}] x, float[{shape}] y) => (float loss) {{
            m = {product} h = Add(m, b) r = Relu(h) n = MatMul(r, v) z = Add(n, c) d = Sub(z, y)
            e = Mul(d, d) loss = ReduceMean<keepdims = 0>(e) }}"""),
        {**SIZES, "w": weight}, 0.25,
    )  # fmt: skip
    _, expected = gradients(model)
    step, found = gradients(model, blocked=block)
    assert kinds(step)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-4, atol=1e-6, err_msg=name)


def drawn(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Any ops that can may work on blocks, as it comes; a bias is added to a product in blocks."""
    draw = Random(seed)

    def some(rows: block_choice.Rows) -> set[str]:
        able = block_choice._Choice(rows).able
        found = {op.name for op in rows.ops if op.name in able and draw.random() < 0.7}
        bound = {op.name: biased[0].name for op in rows.ops if (biased := rows.biased(op))}
        return {name for name in found if bound.get(name, name) in found}

    monkeypatch.setattr(blocked_rows, "chosen", some)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("tokens", [16, 17])
def test_gradients_are_the_same_whatever_lies_in_blocks(
    tokens: int, seed: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every op beside neighbours in the other layout; three products of the same rows, whose
    gradients are added, and rows that are added to what they were made of."""
    model = net("k = MatMul(x, w)\n q = MatMul(x, w)\n f = Mul(k, q)\n e1 = Gelu(h)\n"
                " g1 = Add(e1, f)\n g2 = Tanh(g1)\n r = Add(g2, h)", tokens)  # fmt: skip
    model.graph.node[0].input[0] = "x0"
    for node in model.graph.node:
        node.input[:] = ["x0" if name == "x" else name for name in node.input]
    model.graph.node.insert(0, onnx.helper.make_node("Mul", ["x", "s"], ["x0"], "scaled"))
    value = np.random.default_rng(5).uniform(0.5, 1.5, 32).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(value, "s"))
    _, expected = gradients(model)
    drawn(monkeypatch, seed)
    step, found = gradients(model, blocked=block)
    assert kinds(step)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=5e-4, atol=2e-5, err_msg=name)


def test_sums_of_products_are_made_by_convolutions(block: int) -> None:
    """Gradients of rows that three products read: each is added to those before it."""
    model = parse("""g (float[4, 16, 32] x) => (float[4, 16, 32] z) {
        h = Mul(x, s)
        a = MatMul(h, u)
        b = MatMul(h, v)
        c = MatMul(h, w)
        d = Mul(a, b)
        e = Mul(d, c)
        z = Softmax(e)
    }""")
    with_weights(model, {"s": (32,), **dict.fromkeys("uvw", (32, 32))})
    step = differentiate(model, optimizer=None, blocked=block)
    added = [n for n in step.graph.node if n.op_type == "Conv" and len(n.input) == 4]
    assert len(added) == 2
    plain = differentiate(model, optimizer=None)
    found, expected = (
        open_session(each, session_options(Options(threads=1))).run(
            ["s.grad", "u.grad", "v.grad", "w.grad"], _feeds(model, each)
        )
        for each in (step, plain)
    )
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=5e-4, atol=1e-6)


def test_rows_in_another_shape_are_the_same_rows(block: int) -> None:
    """The gradient of a sum goes to a product, as a matrix, and is added to what comes back: one
    copy of it into blocks, at a price that the second reader alone would not pay."""
    model = parse("""g (float[4, 16, 32] x) => (float[4, 16, 32] z) {
        h = Mul(x, s)
        a = MatMul(h, w)
        b = Gelu(a)
        c = MatMul(b, v)
        d = Add(c, h)
        e = Mul(d, q)
        z = Softmax(e)
    }""", opset=20)  # fmt: skip
    with_weights(model, {"s": (32,), "q": (32,), "w": (32, 64), "v": (64, 32)}, 0.25)
    assert block_choice.COPY > block_choice.GAIN_BIAS
    step = differentiate(model, optimizer=None, blocked=block)
    added = [n for n in step.graph.node if n.name.startswith("grad/") and n.op_type == "Conv"]
    dense = [n for n in added if not any(a.name == "group" for a in n.attribute)]
    assert [len(n.input) for n in dense].count(4) == 1
    plain = differentiate(model, optimizer=None)
    for name in ("s.grad", "w.grad", "v.grad", "q.grad"):
        found, expected = (
            open_session(each, session_options(Options(threads=1))).run(
                [name], _feeds(model, each)
            )[0]
            for each in (step, plain)
        )
        np.testing.assert_allclose(found, expected, rtol=5e-4, atol=1e-6, err_msg=name)


def _feeds(model: onnx.ModelProto, step: onnx.ModelProto) -> dict[str, np.ndarray]:
    values = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    target = {"labels": np.arange(64).reshape(4, 16) % 32}
    every = models.feeds(model) | values | target
    return {i.name: every[i.name] for i in step.graph.input}


def test_rows_of_zeros_make_nothing_infinite(block: int) -> None:
    """A logarithm of rows that are not there is not asked for."""
    bent = "a = Exp(h)\n l = Log(a)\n r = Mul(l, two)"
    for tokens in (16, 17):
        step, _ = gradients(net(bent, tokens), blocked=block)
        logs = [node for node in step.graph.node if node.op_type == "Log"]
        assert ["blocked" in node.name for node in logs] == [tokens == 16]


def test_no_wide_tensor_is_copied(block: int) -> None:
    step, _ = gradients(net(BENT["erf"]), blocked=block)
    shape = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim]
             for v in step.graph.value_info}  # fmt: skip
    copies = [node for node in step.graph.node if node.op_type.startswith("Reorder")]
    sizes = [np.prod(shape[name]) for n in copies for name in (n.input[0], n.output[0])
             if name in shape]  # fmt: skip
    assert sizes
    assert max(sizes) <= 64 * 32


@pytest.mark.parametrize(
    "change",
    [
        "r = Softmax(h)",  # an op that knows no blocks
        "t = Transpose<perm = [1, 0, 2]>(h)\n r = Transpose<perm = [1, 0, 2]>(t)",
        "f = Mul(h, b)\n r = Gelu(f)",  # a number per feature, not behind a product
        "g = Gelu(wide)\n r = Mul(h, g)",  # wide rows that no op made
        # A sum of each row, of which there are as many as features.
        "f = Reshape(h, flat)\n q = ReduceSum<keepdims = 0>(f, one)\n"
        " k = Reshape(q, column)\n r = Mul(h, k)",
    ],
)
def test_what_knows_no_blocks_keeps_rows_as_they_are(change: str, block: int) -> None:
    model = net(change)
    _, expected = gradients(model)
    step, found = gradients(model, blocked=block)
    assert kinds(step).count("Conv") == 5, "copied, at a price that is worth it"
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-4, atol=1e-6, err_msg=name)


def test_a_wide_result_of_the_step_stays_as_it_is(block: int) -> None:
    model = net(BENT["erf"])
    model.graph.output.add(name="r").type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    step, found = gradients(model, blocked=block, outputs=["r"])
    assert kinds(step)
    _, expected = gradients(model, outputs=["r"])
    np.testing.assert_allclose(found["r"], expected["r"], rtol=1e-5, atol=1e-6)


def test_copies_that_cost_more_than_they_gain_are_not_made(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    prices(monkeypatch, copy=1500.0)
    softmax = gradients(net("r = Softmax(h)"), blocked=block)[0]
    assert not kinds(softmax), "every wide tensor would be copied"
    assert kinds(gradients(net(BENT["gated"]), blocked=block)[0]).count("Conv") == 5


@pytest.mark.parametrize(("classes", "made"), [(128, 3), (144, 0)])
def test_wide_logits_are_not_copied(classes: int, made: int, block: int) -> None:
    """The gradient of a language model's logits is the largest tensor of its step."""
    model = parse(f"""g (float[4, 16, 32] x) => (float[4, 16, {classes}] z) {{
        h = Mul(x, s)
        z = MatMul(h, w)
    }}""")
    with_weights(model, {"s": (32,), "w": (32, classes)})
    step = differentiate(model, optimizer=None, blocked=block)
    assert kinds(step).count("Conv") == made


def test_other_makers_processors_keep_products(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocked_rows, "made_by_intel", lambda: False)
    step, _ = gradients(net(BENT["erf"]), blocked=block)
    assert not kinds(step)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_transformer_trains_alike(optimizer: str, block: int) -> None:
    """Updates in place wait for the copies of weights, too."""
    model = models.build("bert", batch=4, sequence=16, hidden=32, layers=2, heads=2, vocab=64)
    feeds = models.feeds(model)
    losses = []
    for options in ({}, {"blocked": block}):
        step = differentiate(model, optimizer=optimizer, dropout=False, **options)
        assert bool(kinds(step)) == bool(options)
        trainer = Trainer(step, model, rate=0.05, threads=1)
        batch = {**feeds, trainer.training.target: np.arange(64).reshape(4, 16) % 32}
        losses.append([trainer.step(batch) for _ in range(5)])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    assert losses[0][-1] < losses[0][0]
