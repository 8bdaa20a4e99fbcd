"""The largest sizes of what depends on data, said beside those that were measured."""

from __future__ import annotations

import numpy as np
from onnx import numpy_helper

from onnxremat.graph.onnx_io import to_model
from onnxremat.ort.feeds import seeded_feeds
from onnxremat.ort.infer import build_graph
from onnxremat.pipeline.original.largest import at_largest
from onnxremat.pipeline.original.sizes import size_notes, with_measured_shapes
from tests.toolbox import parse

CONSTANTS = {"axis": [0], "along": [1], "zero": 0, "end": [2**62]}
CHOSEN = """g (float[8, 4] x) => (float[4] y) {
    s = ReduceMax<keepdims: int = 0>(x, along) r = Relu(s) n = NonZero(r)
    q = Gather<axis: int = 0>(n, zero) f = Gather(x, q) c = Concat<axis: int = 0>(f, f)
    m = MatMul(c, w) e = Exp(m)
    y = ReduceSum<keepdims: int = 0>(e, axis) }"""
REST = """g (float[8, 4] x) => (float[4] y) {
    r = Relu(x) n = NonZero(r) h = Shape<start: int = 1>(n) t = Slice(z, h, end, axis)
    y = ReduceSum<keepdims: int = 0>(t, axis) }"""


def measured(text: str):  # type: ignore[no-untyped-def]
    model = parse(text)
    for name, value in {**CONSTANTS, "w": np.eye(4, dtype=np.float32),
                        "z": np.ones((40, 4), np.float32)}.items():  # fmt: skip
        model.graph.initializer.append(numpy_helper.from_array(np.array(value), name))
    graph = build_graph(model)
    return with_measured_shapes(graph, to_model(graph), seeded_feeds(graph, 0), None)


def test_nothing_is_larger_than_what_is_looked_at() -> None:
    graph = measured(CHOSEN)
    largest = at_largest(graph)
    assert largest is not None
    shapes = {name: largest.tensors[name].shape for name in ("n", "f", "c", "e")}
    assert shapes == {"n": (1, 8), "f": (8, 4), "c": (16, 4), "e": (16, 4)}
    assert largest.tensors["c"].bytes == 16 * 4 * 4
    assert all(largest.tensors[n].seen == graph.tensors[n].seen for n in graph.tensors)


def test_what_gets_smaller_as_more_is_found_has_no_such_size() -> None:
    assert at_largest(measured(REST)) is None


def test_a_note_says_so() -> None:
    graph = measured(CHOSEN)
    assert "at its largest, everything kept takes 2.00 MiB" in size_notes(graph, True, 2 << 20)[0]
    assert "how large they can be is not known" in size_notes(graph, True)[0]
