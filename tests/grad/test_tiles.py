"""Chains of the backward pass are computed over tiles where that gains, with the same bits and no
more memory."""

from __future__ import annotations

from random import Random

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import models
from onnxremat.errors import ModelError
from onnxremat.grad import differentiate, finished
from onnxremat.grad.host import chains, tile_choice
from onnxremat.graph.ir import subgraphs
from onnxremat.ort.blocks import block_size
from onnxremat.ort.infer import build_graph
from onnxremat.ort.session import Options, open_session, session_options
from onnxremat.schedule.simulate import simulate
from tests.toolbox import parse

SHAPES = {"w": (32, 64), "b": (64,), "v": (64, 32), "k": (64, 64, 3, 3)}
NETS = {
    "erf": "m = MatMul(x, w)\n h = Add(m, b)\n z = Gelu(h)",
    "tanh": 'm = MatMul(x, w)\n h = Add(m, b)\n z = Gelu<approximate="tanh">(h)',
    "gated": "h = MatMul(x, w)\n s = Sigmoid(h)\n z = Mul(h, s)",
    "softmax": "m = MatMul(x, w)\n h = Softmax<axis = -1>(m)\n z = Mul(h, b)",
    "normalised": "h = MatMul(x, w)\n n = LayerNormalization(h, b, b)\n z = Add(n, h)",
    "two": "m = MatMul(x, w)\n h = Gelu(m)\n n = MatMul(h, v)\n q = Gelu(n)\n r = MatMul(q, w)\n"
    " z = Add(r, h)",
    "reshaped": "m = MatMul(x, w)\n h = Gelu(m)\n f = Reshape(h, flat)\n e = Exp(f)\n"
    " z = Reshape(e, back)",
    "images": "m = MatMul(x, w)\n h = Reshape(m, image)\n c = Conv<pads = [1, 1, 1, 1]>(h, k)\n"
    " n = BatchNormalization(c, b, b, b, b)\n t = Clip(n, zero, six)\n z = Reshape(t, back)",
}


def net(lines: str) -> onnx.ModelProto:
    """Sixteen times sixteen rows of 32 numbers, and the mean square of what becomes of them."""
    model = parse(
        f"""g (float[16, 16, 32] x) => (float loss)
        <float zero = {{0}}, float six = {{6}}, int64[2] flat = {{4, 4096}},
         int64[3] back = {{16, 16, 64}}, int64[4] image = {{4, 64, 8, 8}}> {{
        {lines}
        d = Mul(z, z)
        loss = ReduceMean<keepdims = 0>(d)
    }}""",
        opset=20,
    )
    for seed, (name, shape) in enumerate(SHAPES.items()):
        value = 0.3 + 0.2 * np.random.default_rng(seed).standard_normal(shape)
        if any(name in node.input for node in model.graph.node):
            stored = numpy_helper.from_array(value.astype(np.float32), name)
            model.graph.initializer.append(stored)
    return model


@pytest.fixture
def block(monkeypatch: pytest.MonkeyPatch) -> int:
    """Tensors of 4 KiB are large, and tiles of 2 KiB cost nothing."""
    monkeypatch.setattr(chains, "LEAST", 4 << 10)
    monkeypatch.setattr(tile_choice, "TILE", 2 << 10)
    monkeypatch.setattr(tile_choice, "FAR", 1)
    monkeypatch.setattr(tile_choice, "RUN", 0.0)
    monkeypatch.setattr(tile_choice, "CALL", 0.0)
    return blocks()


def blocks() -> int:
    """Of this processor."""
    try:
        return block_size()
    except ModelError:
        pytest.skip("this onnxruntime has no blocked convolutions")


def step_of(model: onnx.ModelProto, block: int) -> onnx.ModelProto:
    return differentiate(model, loss_output="loss", optimizer=None, blocked=block)


def whole(model: onnx.ModelProto, block: int) -> onnx.ModelProto:
    """The same step without tiles."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finished, "in_tiles", lambda t, ops, outputs: ops)
        return step_of(model, block)


def gradients(step: onnx.ModelProto, model: onnx.ModelProto, threads: int = 1) -> list[np.ndarray]:
    session = open_session(step, session_options(Options(threads=threads)))
    feeds = models.feeds(model) | {
        t.name: numpy_helper.to_array(t) for t in model.graph.initializer
    }
    return session.run(None, {i.name: feeds[i.name] for i in session.get_inputs()})


def scans(step: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for node in step.graph.node if node.op_type == "Scan"]


def largest_need(step: onnx.ModelProto) -> int:
    """Bytes that some op reads and writes, at most: no plan needs less."""
    graph = build_graph(step)
    made = (sum(graph.tensors[n].bytes for n in {*op.reads, *op.writes}) for op in graph.ops)
    return max(made)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", NETS)
def test_the_same_bits_in_no_more_memory(name: str, threads: int, block: int) -> None:
    model = net(NETS[name])
    plain, tiled = whole(model, block), step_of(model, block)
    assert scans(tiled)
    assert not scans(plain)
    for a, b in zip(
        gradients(plain, model, threads), gradients(tiled, model, threads), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    before, after = (simulate(build_graph(step)).live_peak for step in (plain, tiled))
    # Sums of rows and of parts, an eighth of a tensor here, may wait a little longer.
    assert after <= 1.04 * before


def drawn(seed: int) -> str:
    """Ops of earlier values, as they come; some of them products, which no tile holds."""
    draw, names, lines = Random(seed), ["h"], ["h = MatMul(x, w)"]
    for k in range(12):
        a, b = draw.choices(names[-5:], k=2)
        lines.append(
            draw.choice([
                f"u{k} = Mul({a}, {b})", f"u{k} = Add({a}, {b})", f"u{k} = Tanh({a})",
                f"u{k} = Gelu({a})", f"u{k} = Softmax({a})", f"u{k} = Sub({a}, b)",
                f"p{k} = MatMul({a}, v)\n u{k} = MatMul(p{k}, w)",
            ])
        )  # fmt: skip
        names.append(f"u{k}")
    used = "\n".join(lines)
    ends = [n for n in names if used.count(n) == 1] + ["h"]
    lines.append(f"z = Sum({', '.join(ends)})")
    return "\n".join(lines)


@pytest.mark.parametrize("seed", range(12))
def test_drawn_nets_have_the_same_bits(seed: int, block: int) -> None:
    """Chains that wait for each other by way of products are never computed at once."""
    model = net(drawn(seed))
    plain, tiled = whole(model, block), step_of(model, block)
    assert scans(tiled)
    assert largest_need(tiled) <= tile_choice.LARGEST * largest_need(plain)
    for a, b in zip(gradients(plain, model), gradients(tiled, model), strict=True):
        np.testing.assert_array_equal(a, b)


def test_sums_are_made_in_tiles(block: int) -> None:
    """With the slope of a Gelu the first sum over rows of what it makes, for the bias."""
    (scan,) = scans(step_of(net(NETS["erf"]), block))
    (body,) = subgraphs(scan)
    assert {"Erf", "Exp", "ReduceSum"} <= {node.op_type for node in body.node}


def test_small_tensors_stay_as_they_are() -> None:
    assert not scans(step_of(net(NETS["erf"]), blocks()))


def test_steps_for_any_processor_have_no_tiles(block: int) -> None:
    assert not scans(step_of(net(NETS["erf"]), 0))


def test_tiles_that_take_more_than_they_save_are_not_made(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tile_choice, "RUN", 1e12)
    assert not scans(step_of(net(NETS["erf"]), block))
