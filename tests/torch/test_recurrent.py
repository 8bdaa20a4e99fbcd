"""Recurrent layers against torch.nn.RNN, GRU and LSTM: outputs and every gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

from onnxremat.grad import differentiate
from onnxremat.ort.session import Options, open_session, session_options

STEPS, BATCH, WIDTH, HIDDEN = 6, 3, 4, 5
TOLERANCE = 1e-5
# Where each gate of ONNX lies among PyTorch's.
ORDER = {"RNN": [0], "GRU": [1, 0, 2], "LSTM": [0, 3, 1, 2]}


def in_onnx_order(kind: str, rows: torch.Tensor) -> torch.Tensor:
    parts = rows.chunk(len(ORDER[kind]))
    return torch.cat([parts[k] for k in ORDER[kind]])


def stacked(kind: str, layer: torch.nn.RNNBase, gradient: bool) -> dict[str, np.ndarray]:
    """The weights of a layer (or their gradients) as ONNX has them."""
    sides = ("", "_reverse") if layer.bidirectional else ("",)

    def rows(name: str) -> torch.Tensor:
        parameter = getattr(layer, name)
        return in_onnx_order(kind, parameter.grad if gradient else parameter.detach())

    made = {
        "w": torch.stack([rows(f"weight_ih_l0{side}") for side in sides]),
        "r": torch.stack([rows(f"weight_hh_l0{side}") for side in sides]),
        "b": torch.stack(
            [torch.cat([rows(f"bias_ih_l0{side}"), rows(f"bias_hh_l0{side}")]) for side in sides]
        ),
    }
    return {name: value.numpy() for name, value in made.items()}


def in_onnx(
    kind: str, values: dict[str, np.ndarray], lengths: list[int] | None, **settings: Any
) -> onnx.ModelProto:
    """The layer; the loss is the sum of squares of all it returns."""
    states = ["h", "c"] if kind == "LSTM" else ["h"]
    inputs = ["x", "w", "r", "b", "" if lengths is None else "lengths", *states]
    outputs = [f"y{k}" for k in range(1 + len(states))]
    nodes = [helper.make_node(kind, inputs, outputs, hidden_size=HIDDEN, **settings)]
    nodes += [helper.make_node("ReduceSumSquare", [y], [f"{y}s"], keepdims=0) for y in outputs]
    nodes.append(helper.make_node("Sum", [f"{y}s" for y in outputs], ["total"]))
    graph = helper.make_graph(
        nodes, "layer",
        [helper.make_tensor_value_info(n, 1, v.shape) for n, v in values.items()],
        [helper.make_tensor_value_info("total", 1, [])],
        [numpy_helper.from_array(np.array(lengths, np.int32), "lengths")] if lengths else [],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def packed(
    layer: torch.nn.RNNBase, x: torch.Tensor, states: Any, lengths: list[int] | None
) -> torch.Tensor:
    """The loss in PyTorch."""
    if lengths is None:
        y, last = layer(x, states)
    else:
        rows = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor(lengths))
        y, last = layer(rows, states)
        y, _ = torch.nn.utils.rnn.pad_packed_sequence(y, total_length=STEPS)
    return sum((part**2).sum() for part in (y, *(last if isinstance(last, tuple) else (last,))))


@pytest.mark.parametrize("lengths", [None, [6, 4, 1]], ids=["full", "packed"])
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one-way", "both-ways"])
@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_layer_equals_torch(kind: str, bidirectional: bool, lengths: list[int] | None) -> None:
    torch.manual_seed(3)
    layer = getattr(torch.nn, kind)(WIDTH, HIDDEN, bidirectional=bidirectional)
    count = 2 if bidirectional else 1
    x = torch.randn(STEPS, BATCH, WIDTH, requires_grad=True)
    states = {"h": torch.randn(count, BATCH, HIDDEN, requires_grad=True)}
    if kind == "LSTM":
        states["c"] = torch.randn(count, BATCH, HIDDEN, requires_grad=True)
    given = tuple(states.values()) if kind == "LSTM" else states["h"]
    loss = packed(layer, x, given, lengths)
    loss.backward()
    leaves = {"x": x, **states}
    values = {name: leaf.detach().numpy() for name, leaf in leaves.items()}
    values.update(stacked(kind, layer, gradient=False))
    settings = {"direction": "bidirectional" if bidirectional else "forward"}
    if kind == "GRU":
        settings["linear_before_reset"] = 1
    model = in_onnx(kind, values, lengths, **settings)
    backward = differentiate(model, loss_output="total", optimizer=None, trainable=list(values))
    onnx.checker.check_model(backward)
    session = open_session(backward, session_options(Options(threads=1)))
    names = [output.name for output in session.get_outputs()]
    ours = dict(zip(names, session.run(None, values), strict=True))
    assert float(ours["loss"]) == pytest.approx(float(loss.detach()), rel=TOLERANCE)
    wanted = {name: leaf.grad.numpy() for name, leaf in leaves.items()}
    wanted.update(stacked(kind, layer, gradient=True))
    for name, gradient in wanted.items():
        found = ours[f"{name}.grad"]
        assert np.abs(found - gradient).max() <= TOLERANCE * np.abs(gradient).max(), name


def test_gemms_do_not_grow_with_the_sequence() -> None:
    """Per step one product with the recurrent weights; all others are over all steps at once."""

    def gemms(steps: int) -> int:
        shapes = {
            "x": (steps, 2, 3), "w": (1, 4 * HIDDEN, 3), "r": (1, 4 * HIDDEN, HIDDEN),
            "b": (1, 8 * HIDDEN), "h": (1, 2, HIDDEN), "c": (1, 2, HIDDEN),
        }  # fmt: skip
        values = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
        graph = in_onnx("LSTM", values, None)
        made = differentiate(graph, loss_output="total", optimizer=None, trainable=list(values))
        return sum(node.op_type in ("Gemm", "MatMul") for node in made.graph.node)

    assert gemms(9) - gemms(4) == 5
