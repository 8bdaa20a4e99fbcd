"""Fused operators of onnxruntime's tools, written out, against onnxruntime's own kernels."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxremat.errors import UnsupportedError
from onnxremat.grad.forward import read_forward
from onnxremat.graph.onnx_io import to_model
from onnxremat.ort.session import Options, open_session, session_options
from tests.grad.cases import CASES
from tests.grad.checking import Case, build
from tests.toolbox import parse

FUSED = [case for case in CASES if case.domain == "com.microsoft"]


def run(model: onnx.ModelProto, values: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = open_session(model, session_options(Options(level="disable", threads=1)))
    return session.run(None, values)


@pytest.mark.parametrize("case", FUSED, ids=Case.label)
def test_written_out_equals_the_kernel(case: Case) -> None:
    model, values = build(case, 18, np.dtype(np.float32))
    model.graph.output.extend(onnx.ValueInfoProto(name=f"y{k}") for k in case.used)
    written_out = to_model(read_forward(model, None))
    kernel, ours = run(model, values), run(written_out, values)
    assert len(kernel) == len(ours) == 1 + len(case.used)
    for k, (one, two) in enumerate(zip(kernel, ours, strict=True)):
        np.testing.assert_allclose(two, one, rtol=1e-5, atol=1e-5, err_msg=str(k))


def test_padded_sequences_of_grouped_attention() -> None:
    """Lengths come at run time; rows within them are as the kernel's, with and without rotation."""
    rng = np.random.default_rng(0)
    shapes = {"q": (2, 4, 32), "k": (2, 4, 16), "v": (2, 4, 16)}
    values = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    ends = np.array([3, 1], np.int32)
    tensor = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node(
                "GroupQueryAttention", ["q", "k", "v", "", "", "ends", "total"], ["y", "pk", "pv"],
                domain="com.microsoft", num_heads=4, kv_num_heads=2,
            )
        ],
        "g",
        [*(tensor(n, 1, s) for n, s in shapes.items()), tensor("ends", 6, [2])],
        [tensor("y", 1, shapes["q"])],
        [numpy_helper.from_array(np.array(4, np.int32), "total")],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    written_out = to_model(read_forward(model, None))
    (kernel,), (ours,) = (run(m, {**values, "ends": ends}) for m in (model, written_out))
    for row, end in enumerate(ends):
        np.testing.assert_allclose(ours[row, : end + 1], kernel[row, : end + 1], atol=1e-5)


@pytest.mark.parametrize("form", ["qkv", "kv"])
def test_packed_inputs_are_the_separate_ones(form: str) -> None:
    """The CPU provider has no kernel for packed inputs, so they are compared with separate ones."""
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal((2, 5, 2, 4)).astype(np.float32) for _ in range(3)]  # N, S, heads
    flat = [part.reshape(2, 5, 8) for part in parts]
    packed = (
        {"q": np.stack(parts, 3)} if form == "qkv" else {"q": flat[0], "k": np.stack(parts[1:], 3)}
    )

    def result(values: dict[str, np.ndarray]) -> np.ndarray:
        node = helper.make_node(
            "MultiHeadAttention", list(values), ["y"], domain="com.microsoft", num_heads=2
        )
        tensors = [helper.make_tensor_value_info(n, 1, v.shape) for n, v in values.items()]
        out = helper.make_tensor_value_info("y", 1, [2, 5, 8])
        graph = helper.make_graph([node], "g", tensors, [out])
        opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
        return run(to_model(read_forward(model, None)), values)[0]

    wanted = result(dict(zip("qkv", flat, strict=True)))
    np.testing.assert_allclose(result(packed), wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("op", "inputs", "settings", "part"),
    [
        ("MultiHeadAttention", ["x", "x", "x", "", "", "", "past", "past"], {"num_heads": 2},
         "its input 'past_key'"),
        ("Attention", ["x", "w", "", "", "pair"], {"num_heads": 2}, "its input 'past'"),
        ("GroupQueryAttention", ["x", "x", "x", "past", "past", "ends", "total"],
         {"num_heads": 2, "kv_num_heads": 2}, "its input 'past_key'"),
        ("Attention", ["x", "w"], {"num_heads": 2, "do_rotary": 1}, "'do_rotary' = 1"),
        ("FusedConv", ["m", "f"], {"activation": "Selu"}, "'activation' = Selu"),
        ("MultiHeadAttention", ["x", "long", "long"], {"num_heads": 2, "unidirectional": 1},
         "4 queries for 6 keys"),
        ("GroupQueryAttention", ["x", "x", "x", "", "", "ends", "total"],
         {"num_heads": 2, "kv_num_heads": 2, "local_window_size": 0}, "lets no query see a key"),
    ],
    ids=["mha-past", "attention-past", "gqa-past", "attention-rotary", "conv-activation",
         "mha-more-keys", "gqa-no-window"],
)  # fmt: skip
def test_what_is_not_written_out_is_named(
    op: str, inputs: list[str], settings: dict, part: str
) -> None:
    shapes = {
        "x": (1, 4, 8), "long": (1, 6, 8), "w": (8, 24), "past": (1, 2, 3, 4),
        "pair": (2, 1, 2, 3, 4), "m": (1, 1, 4, 4), "f": (1, 1, 3, 3),
    }  # fmt: skip
    values = {n: np.ones(s, np.float32) for n, s in shapes.items()}
    values |= {"ends": np.array([6], np.int32), "total": np.array(7, np.int32)}
    node = helper.make_node(op, inputs, ["y"], name="the_node", domain="com.microsoft", **settings)
    out = onnx.ValueInfoProto(name="y")
    stored = [numpy_helper.from_array(v, n) for n, v in values.items() if n in inputs]
    graph = helper.make_graph([node], "g", [], [out], stored)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    with pytest.raises(UnsupportedError) as caught:
        read_forward(model, None)
    assert part in str(caught.value)
    assert "the_node" in str(caught.value)


def test_moments_that_are_outputs_are_those_of_the_kernel() -> None:
    model = parse("""g (float[2, 3, 4] x, float[2, 3, 4] s, float[4] scale)
        => (float[2, 3, 4] y, float[2, 3, 1] mean, float[2, 3, 1] inverse)
        { y, mean, inverse = com.microsoft.SkipLayerNormalization(x, s, scale) }""")
    rng = np.random.default_rng(0)
    shapes = {"x": (2, 3, 4), "s": (2, 3, 4), "scale": (4,)}
    values = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    written_out = to_model(read_forward(model, None))
    for kernel, ours in zip(run(model, values), run(written_out, values), strict=True):
        np.testing.assert_allclose(ours, kernel, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("kind", "given"), [("Attention", "xwb"), ("MultiHeadAttention", "xxx")])
def test_more_heads_than_numbers_of_a_row_are_refused(kind: str, given: str) -> None:
    inputs = {"x": [1, 2, 3], "w": [3, 9], "b": [9]}
    values = [helper.make_tensor_value_info(name, 1, shape) for name, shape in inputs.items()]
    result = helper.make_tensor_value_info("y", 1, [1, 2, 3])
    node = helper.make_node(kind, list(given), ["y"], "n", domain="com.microsoft", num_heads=12)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "g", values, [result])
    with pytest.raises(UnsupportedError, match="more heads"):
        read_forward(helper.make_model(graph, ir_version=9, opset_imports=opsets), None)


def test_the_lowest_number_hides_keys_in_halves() -> None:
    """onnxruntime's optimizer writes it as what masks add."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 4, 8)).astype(np.float16)
    look = np.array([[1, 1, 0, 1], [1, 1, 1, 0]], np.int32)
    results = []
    for kind in (np.float32, np.float16):
        node = helper.make_node(
            "MultiHeadAttention", ["x", "x", "x", "", "look"], ["y"], domain="com.microsoft",
            num_heads=2, mask_filter_value=float(np.finfo(np.float32).min),
        )  # fmt: skip
        given = helper.make_tensor_value_info(
            "x", helper.np_dtype_to_tensor_dtype(np.dtype(kind)), x.shape
        )
        mask = helper.make_tensor_value_info("look", onnx.TensorProto.INT32, look.shape)
        graph = helper.make_graph([node], "g", [given, mask], [onnx.ValueInfoProto(name="y")])
        opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
        values = {"x": x.astype(kind), "look": look}
        results += run(to_model(read_forward(model, None)), values)
    np.testing.assert_allclose(results[1], results[0], rtol=1e-2, atol=2e-3)
