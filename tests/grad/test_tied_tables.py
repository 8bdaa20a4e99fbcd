"""A table that is looked up and multiplied with as well, as in a language model: its gradient is
added up in one matrix of its size."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxremat.grad import differentiate
from onnxremat.ort.infer import build_graph
from onnxremat.ort.session import Options, open_session, session_options
from tests.toolbox import parse

LENGTH, WIDTH = 3000, 96
RNG = np.random.default_rng(0)
TABLE = RNG.standard_normal((LENGTH, WIDTH)).astype(np.float32)
MORE = "second = Gather(table, x) s = Mul(second, second) g = Add(h, s)"
NETS = {"once": "g = Tanh(h)", "twice": MORE}


def net(count: int, between: str) -> onnx.ModelProto:
    model = parse(f"""net (int64[{count}] x) => (float[{count}, {LENGTH}] y) {{
        h = Gather(table, x) {between}
        turned = Transpose <perm = [1, 0]> (table)
        y = MatMul(g, turned)
    }}""")
    model.graph.initializer.append(numpy_helper.from_array(TABLE, "table"))
    return model


def by_hand(x: np.ndarray, labels: np.ndarray, between: str) -> np.ndarray:
    """Gradient of the table for the mean of the squares of what is off."""
    table = TABLE.astype(np.float64)
    h = table[x]
    g, slope = (np.tanh(h), 1 - np.tanh(h) ** 2) if between == "once" else (h + h * h, 1 + 2 * h)
    dy = 2 * (g @ table.T - labels) / labels.size
    found = dy.T @ g
    np.add.at(found, x, (dy @ table) * slope)
    return found


@pytest.mark.parametrize("between", NETS)
@pytest.mark.parametrize("count", [40, 300])
def test_the_gradient_of_a_tied_table(count: int, between: str) -> None:
    """Right where indices repeat and where they count from the end, the same bits in every run of
    several threads, and of the table's size only what the product makes and what becomes of it."""
    step = differentiate(net(count, NETS[between]), loss="mse", optimizer=None)
    x = RNG.integers(-50, 50, count)
    labels = RNG.standard_normal((count, LENGTH)).astype(np.float32)
    session = open_session(step, session_options(Options(threads=2)))
    feeds = {"x": x, "labels": labels, "table": TABLE}
    found = [session.run(["table.grad"], feeds)[0] for _ in range(2)]
    want = by_hand(x, labels, between)
    assert np.abs(found[0] - want).max() <= 1e-5 * np.abs(want).max()
    np.testing.assert_array_equal(*found)
    graph = build_graph(step)
    large = [op.op_type for op in graph.ops for name in op.writes
             if graph.tensors[name].bytes == TABLE.nbytes]  # fmt: skip
    assert not {"Add", "Gather"}.intersection(large), large
    assert large.count("Transpose") == 1, large  # of the forward pass
