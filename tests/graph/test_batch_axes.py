"""The batch is followed through layers that want the sequence first."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxremat.errors import UnsupportedError
from onnxremat.graph.batch_axes import Place, batch_places
from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import to_model
from onnxremat.ort.feeds import seeded_feeds
from onnxremat.ort.infer import build_graph
from onnxremat.ort.profile import named_outputs
from onnxremat.pipeline.batch_size import set_batch
from onnxremat.rewrite.split_batch import split_batch
from tests.toolbox import parse

BATCH = 4
# Attention with the sequence first, as torch.nn.MultiheadAttention has it: eight steps, so that
# they are a multiple of the batch, and two heads of three numbers merged into the batch.
HEADS = """net (float[4, 8, 6] x) => (float[4, 8, 6] y) {
    split = Constant<value_ints: ints = [8, 8, 3]>()
    joined = Constant<value_ints: ints = [8, 4, 6]>()
    t = Transpose<perm: ints = [1, 0, 2]>(x)
    h = Reshape(t, split)
    u = Transpose<perm: ints = [1, 0, 2]>(h)
    v = Transpose<perm: ints = [0, 2, 1]>(u)
    s = MatMul(u, v) p = Softmax(s) o = MatMul(p, u)
    w = Transpose<perm: ints = [1, 0, 2]>(o)
    r = Reshape(w, joined)
    y = Transpose<perm: ints = [1, 0, 2]>(r)
}"""
# The rows of a product of matrices, the batch inside: 32 of them, and back.
ROWS = """net (float[4, 8, 6] x) => (float[4, 8, 6] y) {
    flat = Constant<value_ints: ints = [32, 6]>()
    back = Constant<value_ints: ints = [8, 4, 6]>()
    first = Constant<value_int: int = 1>()
    t = Transpose<perm: ints = [1, 0, 2]>(x)
    f = Reshape(t, flat) g = Sin(f) b = Reshape(g, back)
    row = Gather<axis: int = 0>(b, first)
    z = Add(b, row)
    y = Transpose<perm: ints = [1, 0, 2]>(z)
}"""


def graph_of_text(text: str) -> Graph:
    return build_graph(parse(text))


@pytest.mark.parametrize("text", [HEADS, ROWS], ids=["heads", "rows"])
@pytest.mark.parametrize("split", [(2,), (1, 3)])
def test_parts_are_those_of_the_batch(text: str, split: tuple[int, ...]) -> None:
    graph = graph_of_text(text)
    feeds = seeded_feeds(graph)
    whole = named_outputs(to_model(graph), feeds, None)["y"]
    parts = named_outputs(split_batch(graph, split), feeds, None)["y"]
    np.testing.assert_array_equal(parts, whole)


@pytest.mark.parametrize("text", [HEADS, ROWS], ids=["heads", "rows"])
def test_another_batch_size(text: str, tmp_path: Path) -> None:
    onnx.save(parse(text), tmp_path / "net.onnx")
    set_batch(tmp_path / "net.onnx", tmp_path / "more.onnx", 12)
    dims = onnx.load(tmp_path / "more.onnx").graph.input[0].type.tensor_type.shape.dim
    assert [dim.dim_value for dim in dims] == [12, 8, 6]


def test_places() -> None:
    found = batch_places(graph_of_text(HEADS), ["x"], BATCH)
    assert found["t"] == Place(1)
    assert found["h"] == Place(1, 2)  # two heads of each row
    assert found["s"] == found["o"] == Place(0, 2)
    assert found["y"] == Place(0)
    assert batch_places(graph_of_text(HEADS), ["x"], 1) == {}


@pytest.mark.parametrize(
    ("op", "shapes", "place"),
    [
        ("Gather<axis: int = 0>(table, x)", ("4, 2", "9, 5", "4, 2, 5"), Place(0)),
        ("Gather<axis: int = -1>(table, x)", ("4, 2", "9, 5", "9, 4, 2"), Place(1)),
        ("MatMul(table, x)", ("4, 4, 2", "4, 3, 4", "4, 3, 2"), Place(0)),
    ],
)
def test_operators(op: str, shapes: tuple[str, str, str], place: Place) -> None:
    kind = "int64" if op.startswith("Gather") else "float"
    text = f"net ({kind}[{shapes[0]}] x, float[{shapes[1]}] table) => (float[{shapes[2]}] y) "
    graph = graph_of_text(f"{text} {{ y = {op} }}")
    assert batch_places(graph, ["x"], BATCH)["y"] == place


@pytest.mark.parametrize(
    ("turned", "shape", "perm", "factors", "table"),
    [
        ("A", "4, 8, 2, 3", "1, 0, 2, 3", "t, table", "1, 2, 3, 5"),
        ("B", "4, 3, 2, 8", "1, 0, 2, 3", "table, t", "1, 2, 5, 3"),
    ],
)
def test_a_factor_whose_rows_are_before_its_batch(
    turned: str, shape: str, perm: str, factors: str, table: str
) -> None:
    """What onnxruntime makes of a transposition before a product."""
    rows = "4, 2, 8, 5" if turned == "A" else "4, 2, 5, 8"
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1]>'
        f"net (float[{shape}] x, float[{table}] table) => (float[{rows}] y) {{"
        f" t = Transpose<perm: ints = [{perm}]>(x)"
        f" y = com.microsoft.FusedMatMul<transBatch{turned}: int = 1>({factors}) }}"
    )
    graph = build_graph(model)
    assert graph.tensors["y"].shape == tuple(map(int, rows.split(", ")))
    assert batch_places(graph, ["x"], BATCH)["y"] == Place(0)


@pytest.mark.parametrize("batch", [1, 4])
def test_rows_that_decide_together_have_no_other_batch_size(batch: int, tmp_path: Path) -> None:
    """The largest of all is never above the bound on the numbers that a run is tried with."""
    net = f"""net (float[{batch},3] x) => (float[{batch},3] y) {{
        zero = Constant<value_ints: ints = [0, 1]>()
        bound = Constant<value_float: float = 1000.0>()
        all = ReduceMax<keepdims: int = 0>(x, zero)
        scale = Max(all, bound) y = Div(x, scale)
    }}"""
    onnx.save(parse(net), tmp_path / "net.onnx")
    with pytest.raises(UnsupportedError, match="rows of the batch depend on each other: 'all'"):
        set_batch(tmp_path / "net.onnx", tmp_path / "more.onnx", 8)
    assert not (tmp_path / "more.onnx").exists()
