"""Variants of rules are chosen by what is kept anyway."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxremat.errors import UsageError
from onnxremat.grad import differentiate
from onnxremat.graph.order import default_order, reordered
from onnxremat.ort.infer import build_graph
from onnxremat.ort.session import Options, open_session, session_options
from onnxremat.schedule.simulate import simulate

RNG = np.random.default_rng(0)


def net(nodes: list[tuple[str, str, str]], shape: list[int], **weights: Any) -> onnx.ModelProto:
    """x [4, 8] through nodes ("Op", "inputs", "output") to y."""
    stored = {n: RNG.standard_normal(s).astype(np.float32) for n, s in weights.items()}
    made = [helper.make_node(op, i.split(), [o], name=f"the_{o}") for op, i, o in nodes]
    graph = helper.make_graph(
        made, "net", [helper.make_tensor_value_info("x", 1, [4, 8])],
        [helper.make_tensor_value_info("y", 1, shape)],
        [numpy_helper.from_array(v, n) for n, v in stored.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def read_backward(model: onnx.ModelProto, of: str, **options: Any) -> set[str]:
    """What the backward ops of a node read of the forward pass."""
    graph = differentiate(model, loss="mse", optimizer=None, **options)
    forward = {n for node in graph.graph.node if node.name.startswith("the_") for n in node.output}
    backward = [n for n in graph.graph.node if n.name.startswith(f"grad/the_{of}/")]
    assert backward
    return {name for node in backward for name in node.input} & forward


def test_activation_reads_the_side_that_something_else_keeps() -> None:
    """h is kept by the product with it, the result of Tanh by nothing; and the other way round."""
    keeps_input = [
        ("MatMul", "x a", "h"), ("Tanh", "h", "t"), ("MatMul", "h b", "u"), ("Add", "t u", "y")
    ]  # fmt: skip
    keeps_output = [("MatMul", "x a", "h"), ("Tanh", "h", "t"), ("MatMul", "t b", "y")]
    sizes = {"a": (8, 8), "b": (8, 8)}
    assert read_backward(net(keeps_input, [4, 8], **sizes), "t") == {"h"}
    assert read_backward(net(keeps_output, [4, 8], **sizes), "t") == {"t"}


def test_a_view_counts_as_what_it_shows() -> None:
    """The product keeps a Reshape of h, which is h's memory."""
    nodes = [
        ("MatMul", "x a", "h"), ("Tanh", "h", "t"), ("Flatten", "h", "f"),
        ("MatMul", "f b", "u"), ("Add", "t u", "y"),
    ]  # fmt: skip
    assert read_backward(net(nodes, [4, 8], a=(8, 8), b=(8, 8)), "t") == {"h"}


def test_frozen_neighbours_keep_nothing() -> None:
    """The product with h needs h for the gradient of b only."""
    nodes = [
        ("MatMul", "x a", "h"), ("Tanh", "h", "t"), ("MatMul", "h b", "u"), ("Add", "t u", "y")
    ]  # fmt: skip
    model = net(nodes, [4, 8], a=(8, 8), b=(8, 8))
    assert read_backward(model, "t", freeze=["b"]) == {"t"}


def test_what_the_caller_asks_for_is_done() -> None:
    nodes = [("MatMul", "x a", "h"), ("Tanh", "h", "t"), ("MatMul", "t b", "y")]
    model = net(nodes, [4, 8], a=(8, 8), b=(8, 8))
    assert read_backward(model, "t", variants={"Tanh": "input"}) == {"h"}
    with pytest.raises(UsageError, match="no rule variant 'sideways'"):
        differentiate(model, loss="mse", variants={"Tanh": "sideways"})


def test_inexact_variants_are_never_chosen() -> None:
    """From its result LayerNormalization would keep nothing here, but it loses digits."""
    nodes = [("MatMul", "x a", "h"), ("LayerNormalization", "h s c", "n"), ("MatMul", "n b", "y")]
    model = net(nodes, [4, 8], a=(8, 8), b=(8, 8), s=(8,), c=(8,))
    assert "h" in read_backward(model, "n")
    asked = read_backward(model, "n", variants={"LayerNormalization": "output"})
    assert "h" not in asked
    assert "n" in asked


def pools_beside_convolutions(blocks: int = 8) -> onnx.ModelProto:
    """Blocks of x' = conv(x) + max pool of x, as in inception nets."""
    nodes, stored = [], {}
    for k in range(blocks):
        stored[f"w{k}"] = RNG.standard_normal((4, 4, 1, 1)).astype(np.float32) / 2
        window = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
        nodes += [
            helper.make_node("Conv", [f"x{k}", f"w{k}"], [f"c{k}"]),
            helper.make_node("MaxPool", [f"x{k}"], [f"p{k}"], name=f"pool{k}", **window),
            helper.make_node("Add", [f"c{k}", f"p{k}"], [f"x{k + 1}"]),
        ]
    shape = [2, 4, 24, 24]
    graph = helper.make_graph(
        nodes, "pools", [helper.make_tensor_value_info("x0", 1, shape)],
        [helper.make_tensor_value_info(f"x{blocks}", 1, shape)],
        [numpy_helper.from_array(v, n) for n, v in stored.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def test_places_of_pools_are_found_again_where_that_keeps_less() -> None:
    """The convolution keeps x anyway, and a place takes eight bytes: a lower peak, in the order of
    the file and in onnxruntime's own, and the same gradients."""
    model = pools_beside_convolutions()
    shape = (2, 4, 24, 24)
    feeds = {"x0": RNG.standard_normal(shape).astype(np.float32)}
    feeds |= {"labels": RNG.standard_normal(shape).astype(np.float32)}
    feeds |= {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    peaks, results = [], []
    for variants in ({"MaxPool": "saved"}, None):
        made = differentiate(model, loss="mse", optimizer=None, variants=variants)
        graph = build_graph(made)
        orders = (graph, reordered(graph, default_order(graph)))
        peaks.append([simulate(each, weight_bytes=0).peak for each in orders])
        session = open_session(made, session_options(Options(threads=1, pattern=False)))
        names = [value.name for value in session.get_inputs()]
        results.append(session.run(None, {name: feeds[name] for name in names}))
    assert peaks[1][0] < 0.5 * peaks[0][0]
    assert peaks[1][1] < 0.85 * peaks[0][1]
    for one, two in zip(*results, strict=True):
        np.testing.assert_array_equal(one, two)
