"""Forms chosen for speed: they compute the same, and they are really what is emitted."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import models
from onnxremat.errors import ModelError
from onnxremat.grad import Settings, differentiate
from onnxremat.grad.forward import read_forward
from onnxremat.grad.rules.conv_weight import Filters, weight_cotangent
from onnxremat.grad.rules.geometry import Window
from onnxremat.grad.tape import Tape
from onnxremat.graph.onnx_io import to_model
from onnxremat.ort.blocks import DOMAIN, KEY, block_size
from onnxremat.ort.session import Options, open_session, session_options
from onnxremat.training.trainer import Trainer
from tests.toolbox import parse

F = onnx.TensorProto.FLOAT
DRAW = np.random.default_rng(0)


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray], level: str = "all") -> list:
    session = open_session(model, session_options(Options(level=level, threads=1)))
    return session.run(None, feeds)


def emitted(shapes: dict[str, tuple[int, ...]], emit, block: int = 0) -> onnx.ModelProto:
    """A model of what ``emit`` puts on a tape; its result is the output."""
    tape = Tape({}, 18, [], block)
    for name, shape in shapes.items():
        tape.declare(name, F, shape)
    result = emit(tape)
    nodes = []
    for op in tape.ops:
        op.node.input[:], op.node.output[:] = op.inputs, op.outputs
        nodes.append(op.node)
    infos = [helper.make_tensor_value_info(name, F, shape) for name, shape in shapes.items()]
    out = helper.make_tensor_value_info(result, F, tape.shape(result))
    graph = helper.make_graph(nodes, "tape", infos, [out], tape.initializers)
    opsets = [helper.make_opsetid("", 18), *([helper.make_opsetid(DOMAIN, 1)] if block else [])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def types(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def data(*shape: int) -> np.ndarray:
    return DRAW.standard_normal(shape).astype(np.float32)


# ---- forward ops ---------------------------------------------------------------------------------

POOLED = """g (float[2,3,8,8] x) => (float[2,3,4,4] y) <float lo = {0}, float hi = {6}> {
    r = %s
    y = MaxPool<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>(r)
}"""


@pytest.mark.parametrize("rectifier", ["Relu(x)", "Clip(x, lo, hi)"])
def test_the_pool_comes_before_the_rectifier(rectifier: str) -> None:
    model = parse(POOLED % rectifier)
    moved = to_model(read_forward(model, None))
    assert types(moved) == ["MaxPool", rectifier.partition("(")[0]]
    x = {"x": 5 * data(2, 3, 8, 8)}
    np.testing.assert_array_equal(run(moved, x)[0], run(model, x)[0])


@pytest.mark.parametrize(
    "body",
    [
        "r = Relu(x) y = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(r) z = Neg(r)",
        "r = Sigmoid(x) y = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(r) z = Neg(y)",
        "r = Relu(x) y, z = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(r)",
    ],
)
def test_the_pool_stays_where_moving_it_would_change_something(body: str) -> None:
    kind = "int64" if "y, z" in body else "float"
    model = parse(f"g (float[1,1,4,4] x) => (float[1,1,2,2] y, {kind}[N,M,K,L] z) {{ {body} }}")
    assert types(to_model(read_forward(model, None)))[1] == "MaxPool"


def fused(model: onnx.ModelProto) -> list[str]:
    """Operators that are left when onnxruntime has loaded a model with its default options."""
    with tempfile.TemporaryDirectory() as folder:
        made = session_options(Options(threads=1))
        made.optimized_model_filepath = str(Path(folder) / "model.onnx")
        open_session(model, made)
        return types(onnx.load(made.optimized_model_filepath))


@pytest.mark.parametrize(("rows", "apart"), [(64, True), (4, False)])
def test_a_large_linear_layer_keeps_its_bias_apart(rows: int, apart: bool) -> None:
    model = parse(
        f"g (float[{rows},64,32] x, float[32,128] w, float[128] b) => (float[{rows},64,128] y) "
        "{ p = MatMul(x, w) y = Add(b, p) }"
    )
    moved = to_model(read_forward(model, None))
    assert ("Gemm" not in fused(moved)) == apart
    assert "Gemm" in fused(model)  # what happens without
    feeds = {"x": data(rows, 64, 32), "w": data(32, 128), "b": data(128)}
    np.testing.assert_allclose(run(moved, feeds)[0], run(model, feeds)[0], rtol=1e-5, atol=1e-5)


# ---- what rules emit -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "axes", "steps"),
    [
        ((8, 32, 9, 9), (0, 2, 3), 2),
        ((8, 1, 60, 60), (0, 2, 3), 2),
        ((96, 8, 40), (0, 1), 2),
        ((1024, 32), (0,), 2),
        ((1031, 32), (0,), 1),  # a prime number of rows
        ((1, 32, 30, 30), (0, 2, 3), 1),
        ((8, 4, 8, 4), (0, 2, 3), 1),  # small
        ((64, 64, 8), (1, 2), 1),
        ((64, 64, 8), (0, 2), 2),
        ((64, 64, 8), (0, 1, 2), 1),
    ],
)
@pytest.mark.parametrize("keep", [True, False])
def test_sums_in_two_steps(
    shape: tuple[int, ...], axes: tuple[int, ...], steps: int, keep: bool
) -> None:
    model = emitted({"a": shape}, lambda t: t.sum("a", axes, keep))
    assert types(model).count("ReduceSum") == steps
    a = data(*shape)
    want = a.sum(axes, keepdims=keep, dtype=np.float64)
    np.testing.assert_allclose(run(model, {"a": a})[0], want, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("op", ["MatMul", "Gemm"])
@pytest.mark.parametrize(("inner", "columns"), [(8, 640), (640, 8), (8, 8)])
def test_gradients_of_wide_weights(op: str, inner: int, columns: int) -> None:
    """The narrow factor is transposed by an op of its own, which onnxruntime leaves alone."""
    w = data(columns, inner) if op == "Gemm" else data(inner, columns)
    node = helper.make_node(op, ["x", "w"], ["y"], **({"transB": 1} if op == "Gemm" else {}))
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", F, (1024, inner))],
        [helper.make_tensor_value_info("y", F, (1024, columns))], [numpy_helper.from_array(w, "w")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    step = differentiate(model, loss="mse", optimizer=None)
    assert ("Transpose" in fused(step)) == (max(inner, columns) == 640)
    x, z = data(1024, inner), data(1024, columns)
    _, found = run(step, {"x": x, "labels": z, "w": w})
    dy = 2 * (x @ (w.T if op == "Gemm" else w) - z) / z.size
    want = dy.T @ x if op == "Gemm" else x.T @ dy
    np.testing.assert_allclose(found, want, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("block", [0, None])
@pytest.mark.parametrize(
    ("images", "channels", "outputs", "kernel", "strides", "down", "pads"),
    [
        (2, 32, 6, (3, 3), (1, 1), 1, (1, 1, 1, 1)),
        (5, 16, 6, (3, 3), (2, 2), 1, (1, 1, 1, 1)),
        (1, 16, 6, (5, 2), (1, 3), 1, (0, 2, 1, 0)),  # other zeros, and strides, on each side
        (2, 32, 6, (2, 2), (2, 2), 1, (0, 0, 0, 0)),  # no window reaches the last row
        (2, 16, 6, (3, 3), (1, 1), 2, (2, 1, 2, 1)),  # dilated rows
        (3, 3, 6, (7, 7), (2, 2), 1, (3, 3, 3, 3)),  # few channels, all of them innermost
        (2, 48, 16, (3, 2), (1, 1), 2, (3, 1, 0, 0)),  # x is the kernel
        (3, 19, 3, (3, 3), (1, 1), 1, (1, 1, 1, 1)),
        (2, 20, 16, (3, 3), (2, 1), 1, (1, 1, 1, 1)),  # neither
        (9, 1, 6, (3, 3), (1, 1), 1, (1, 1, 1, 1)),
    ],
)
def test_filters_by_one_convolution(
    images: int, channels: int, outputs: int, kernel: tuple, strides: tuple, down: int,
    pads: tuple, block: int | None,
) -> None:  # fmt: skip
    try:
        block = block_size() if block is None else block
    except ModelError:
        pytest.skip("this onnxruntime has no blocked convolutions")
    size, filters = (11, 13), (outputs, channels, *kernel)
    made = [
        (n + p + q - d * (k - 1) - 1) // s + 1
        for n, p, q, d, k, s in zip(
            size, pads[:2], pads[2:], (down, 1), kernel, strides, strict=True
        )
    ]
    window = Window(size, tuple(made), kernel, strides, (down, 1), pads[:2], pads[2:])
    shapes = {"x": (images, channels, *size), "dy": (images, outputs, *made)}
    model = emitted(
        shapes, lambda t: weight_cotangent(t, "x", "dy", Filters(filters, 1), window), block
    )
    few = channels <= 8 or (outputs <= 8 and strides == (1, 1))
    assert types(model).count("Conv") == (few or bool(block and channels != 20))
    feeds = {name: data(*shape) for name, shape in shapes.items()}
    around = ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3]))
    x = np.pad(feeds["x"].astype(np.float64), around)
    want = np.zeros(filters)
    for i, j in np.ndindex(*kernel):
        rows, columns = (slice(f, f + s * (n - 1) + 1, s) for f, s, n in
                         zip((i * down, j), strides, made, strict=True))  # fmt: skip
        want[:, :, i, j] = np.einsum("nkpq,ncpq->kc", feeds["dy"], x[:, :, rows, columns])
    for level in ("disable", "all"):
        np.testing.assert_allclose(run(model, feeds, level)[0], want, rtol=1e-4, atol=1e-4)


def test_attention_moves_no_single_elements() -> None:
    """Every Transpose that is left in a transformer's backward pass moves whole rows."""
    model = models.build("bert", batch=2, sequence=16, hidden=32, layers=1, heads=4, vocab=64)
    step = differentiate(model, optimizer=None, dropout=False)
    with tempfile.TemporaryDirectory() as folder:
        made = session_options(Options(threads=1))
        made.optimized_model_filepath = str(Path(folder) / "model.onnx")
        open_session(step, made)
        left = onnx.load(made.optimized_model_filepath).graph.node
    perms = [
        list(node.attribute[0].ints)
        for node in left
        if node.op_type == "Transpose" and node.name.startswith("grad/")
    ]
    assert perms
    assert all(perm[-1] == len(perm) - 1 for perm in perms)


# ---- files for one kind of processor -------------------------------------------------------------


def test_a_file_for_other_processors_is_refused() -> None:
    try:
        block = block_size()
    except ModelError:
        pytest.skip("this onnxruntime has no blocked convolutions")
    model = models.build("mobilenetv2", batch=1, size=32, classes=4)
    settings = Settings(optimizer="sgd").on_this_machine()
    assert settings.blocked == block
    step = differentiate(model, settings=settings)
    assert DOMAIN in {node.domain for node in step.graph.node}
    entry = next(entry for entry in step.metadata_props if entry.key == KEY)
    Trainer(step, model, threads=1)
    entry.value = str(24 - block)
    with pytest.raises(ModelError, match="another kind of processor"):
        Trainer(step, model, threads=1)


def test_portable_settings_stay_portable() -> None:
    assert Settings(portable=True).on_this_machine().blocked == 0


def test_a_bias_of_zeros_that_is_no_vector_goes() -> None:
    """PyTorch 2.13 writes one of [channels, 2] for Conv3d(bias=False), which does not run."""
    model = parse("""g (float[1, 2, 4, 4, 4] x) => (float[1, 3, 2, 2, 2] y)
        <float[3, 2, 3, 3, 3] w, int64[1] two = {2}, float zero = {0}> {
        channels = Shape<end = 1>(w)
        shape = Concat<axis = 0>(channels, two)
        like = CastLike(zero, x)
        bias = Expand(like, shape)
        y = Conv(x, w, bias)
    }""")
    value = DRAW.standard_normal((3, 2, 3, 3, 3)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(value, "w"))
    step = differentiate(model, optimizer=None, loss="mse")
    x, target = np.ones((1, 2, 4, 4, 4), np.float32), np.zeros((1, 3, 2, 2, 2), np.float32)
    loss = run(step, {"x": x, "w": value, "labels": target})[0]
    assert loss == pytest.approx(np.square(value.sum((1, 2, 3, 4))).mean(), rel=1e-5)
