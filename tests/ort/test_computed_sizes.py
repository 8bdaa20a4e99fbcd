"""Sizes are those of a run where onnxruntime infers others."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onnxremat.graph.onnx_io import to_model
from onnxremat.ort.infer import build_graph
from onnxremat.ort.profile import named_outputs
from tests.toolbox import parse

NODES = [
    ("MaxPool", "ceil_mode = 1, kernel_shape = [1, 2], strides = [3, 3]"),
    (
        "MaxPool",
        "auto_pad = 'SAME_UPPER', dilations = [1, 2], kernel_shape = [1, 3], strides = [1, 3]",
    ),
    ("AveragePool", "ceil_mode = 1, kernel_shape = [2, 2], pads = [1, 0, 0, 1], strides = [3, 2]"),
    ("LpPool", "ceil_mode = 1, kernel_shape = [4, 1], strides = [2, 3], p = 1"),
    ("ConvTranspose", "output_shape = [6, 5], strides = [1, 1]"),
    ("ConvTranspose", "auto_pad = 'SAME_LOWER', output_padding = [0, 1], strides = [1, 2]"),
]


def model(kind: str, attributes: str) -> onnx.ModelProto:
    """The node between two others; the weight is used by ConvTranspose alone."""
    weight = ", w" if kind == "ConvTranspose" else ""
    attributes = attributes.replace("'", '"')
    made = parse(f"""g (float[1, 2, 8, 7] x) => (float[a, b, c, d] y)
        {{ r = Relu(x) p = {kind} <{attributes}> (r{weight}) y = Sigmoid(p) }}""")
    weights = np.random.default_rng(0).normal(size=(2, 2, 3, 3)).astype(np.float32)
    if weight:
        made.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return made


@pytest.mark.parametrize(("kind", "attributes"), NODES)
def test_sizes_are_those_of_a_run(kind: str, attributes: str) -> None:
    """And of what is made of them; what is written again computes the same."""
    made = model(kind, attributes)
    x = {"x": np.random.default_rng(1).normal(size=(1, 2, 8, 7)).astype(np.float32)}
    wanted = named_outputs(made, x, None)["y"]
    graph = build_graph(made)
    assert graph.tensors["p"].shape == graph.tensors["y"].shape == wanted.shape
    np.testing.assert_array_equal(named_outputs(to_model(graph), x, None)["y"], wanted)


def test_a_large_token_for_every_image_has_a_size() -> None:
    """onnxruntime computes small ones as it reads the model; of large ones it says nothing."""
    made = parse("""g (float[64, 196, 768] x) => (float[a, b, c] y) <int64[2] rest = {1, 768}> {
        n = Shape<start = 0, end = 1>(x)
        shape = Concat<axis = 0>(n, rest)
        all = Expand(token, shape)
        y = Concat<axis = 1>(all, x) }""")
    token = onnx.numpy_helper.from_array(np.zeros((1, 1, 768), np.float32), "token")
    made.graph.initializer.append(token)
    graph = build_graph(made)
    assert graph.tensors["all"].shape == (64, 1, 768)
    assert graph.tensors["y"].shape == (64, 197, 768)


@pytest.mark.parametrize("shapes", [((1, 3, 1), (2, 2, 4)), ((2, 3, 2), (1, 1, 4))])
def test_letters_of_one_and_more(shapes: tuple[tuple[int, ...], ...]) -> None:
    """Whichever operand has more."""
    first, second = (", ".join(map(str, shape)) for shape in shapes)
    made = parse(f"""g (float[{first}] a, float[{second}] b) => (float[m, n, k] y) {{
        p = Einsum<equation = "bik,bkj->bij">(a, b) y = Sigmoid(p) }}""")
    drawn = np.random.default_rng(1)
    feeds = dict(zip("ab", (drawn.random(shape, np.float32) for shape in shapes), strict=True))
    wanted = named_outputs(made, feeds, None)["y"]
    graph = build_graph(made)
    assert graph.tensors["p"].shape == graph.tensors["y"].shape == wanted.shape == (2, 3, 4)
    np.testing.assert_array_equal(named_outputs(to_model(graph), feeds, None)["y"], wanted)


def test_a_scalar_behind_an_operator_of_onnxruntimes_own_is_one() -> None:
    """onnxruntime shows what is of unknown rank like a scalar, and ONNX knows no QuickGelu."""
    made = parse("""g (float[2, 3] x) => (float[] y)
        { r = com.microsoft.QuickGelu(x) s = ReduceSum<keepdims = 0>(r) e = Exp(s) y = Neg(e) }""")
    made.opset_import.add(domain="com.microsoft", version=1)
    del made.graph.output[0].type.tensor_type.shape.dim[:]
    graph = build_graph(made)
    assert [graph.tensors[name].shape for name in "rsey"] == [(2, 3), (), (), ()]


def test_what_is_as_large_as_a_computed_shape_says_is_known() -> None:
    """onnxruntime does not follow sizes through a Gather of several, as its transposer writes."""
    made = parse("""g (float[2, 3] x) => (float[a, b] y) <int64[2] turned = {1, 0}>
        { s = Shape(x) g = Gather(s, turned) r = Reshape(x, g) z = ConstantOfShape(g)
          y = Add(r, z) }""")
    graph = build_graph(made)
    assert [graph.tensors[name].shape for name in "rzy"] == 3 * [(3, 2)]
