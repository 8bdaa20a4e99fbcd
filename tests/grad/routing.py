"""Small graphs in which some rows are chosen by data, worked on, and put back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto as T
from onnx import helper, numpy_helper

ROWS, WIDTH = 6, 4
MIXED = np.array([1.0, -1.0, 1.0, 1.0, -1.0, 1.0])
NONE, ALL, ONE = -np.ones(ROWS), np.ones(ROWS), np.where(np.arange(ROWS) == 2, 1.0, -1.0)
PUT = ("ScatterND", ["zeros", "places", "q"], {"reduction": "add"})


@dataclass(frozen=True)
class Work:
    """What becomes of the chosen rows.

    Attributes:
        name: of the case.
        nodes: operator, inputs, output and attributes, from ``r`` [N, 4] to ``q`` [N, 4].
        back: how ``q`` is put back, into ``out``.
        empty: whether it can be done with no row at all.
    """

    name: str
    nodes: Sequence[tuple]
    back: tuple = PUT
    empty: bool = True


def model(work: Work, kind: int = T.DOUBLE) -> onnx.ModelProto:
    """The loss of that work, with inputs ``score`` (a row is chosen where it is above 0), ``x``,
    ``w`` and ``b``, the last three to be differentiated."""
    real = helper.tensor_dtype_to_np_dtype(kind)
    random = np.random.default_rng(3)
    stored = {
        "zero": np.zeros((), real), "axis1": np.array([1], np.int64),
        "axis0": np.array([0], np.int64), "two": np.array([2], np.int64),
        "zeros": random.standard_normal((ROWS, WIDTH)).astype(real),
        "ones": np.ones((ROWS, WIDTH), real), "quads": np.array([-1, 2, 2], np.int64),
        "flat": np.array([-1], np.int64), "rows": np.array([-1, WIDTH], np.int64),
        "halves": np.array([1, 3], np.int64), "pads": np.array([0, 1, 0, 0], np.int64),
        "end": np.array([2**63 - 1], np.int64), "five": np.array([1, WIDTH], np.int64),
        "weights": random.standard_normal((ROWS, WIDTH)).astype(real),
        "three": np.array(3, np.int64), "columns": np.array([3, 0, 0, 1], np.int64),
    }  # fmt: skip
    put, inputs, settings = work.back
    nodes = [
        ("Greater", ["score", "zero"], "mask", {}),
        ("NonZero", ["mask"], "found", {}),
        ("Transpose", ["found"], "places", {"perm": [1, 0]}),
        ("Squeeze", ["places", "axis1"], "index", {}),
        ("Gather", ["x", "index"], "r", {"axis": 0}),
        *work.nodes,
        (put, inputs, "out", settings),
        ("Mul", ["out", "weights"], "weighted", {}),
        ("ReduceSum", ["weighted"], "total", {"keepdims": 0}),
    ]
    made = [
        helper.make_node(op, read, written if isinstance(written, list) else [written],
                         name=f"{op}_{k}", **attributes)
        for k, (op, read, written, attributes) in enumerate(nodes)
    ]  # fmt: skip
    shapes = {"score": (ROWS,), "x": (ROWS, WIDTH), "w": (WIDTH, WIDTH), "b": (WIDTH,)}
    signature = [helper.make_tensor_value_info(n, kind, s) for n, s in shapes.items()]
    total = helper.make_tensor_value_info("total", kind, [])
    initializers = [numpy_helper.from_array(value, name) for name, value in stored.items()]
    graph = helper.make_graph(made, "routing", signature, [total], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def values(score: np.ndarray, kind: type = np.float64) -> dict[str, np.ndarray]:
    """Inputs that choose these rows."""
    random = np.random.default_rng(5)
    shapes = {"x": (ROWS, WIDTH), "w": (WIDTH, WIDTH), "b": (WIDTH,)}
    made = {name: random.standard_normal(shape).astype(kind) for name, shape in shapes.items()}
    return {"score": score.astype(kind), **made}


def session(made: onnx.ModelProto) -> ort.InferenceSession:
    """Plain onnxruntime, one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    return ort.InferenceSession(
        made.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


WORKS = [
    Work("as they are", [("Identity", ["r"], "q", {})]),
    Work("product", [("MatMul", ["r", "w"], "p", {}), ("Add", ["p", "b"], "q", {})]),
    Work("gemm", [("Gemm", ["r", "w", "b"], "q", {"transB": 1})]),
    Work("softmax", [("Mul", ["r", "b"], "p", {}), ("Softmax", ["p"], "q", {"axis": -1})]),
    Work("normalised", [("LayerNormalization", ["r", "b"], "q", {"axis": -1})]),
    Work("sum of all", [
        ("ReduceSum", ["r", "axis0"], "s", {"keepdims": 1}), ("Mul", ["r", "s"], "q", {}),
    ]),
    Work("mean of all", [
        ("ReduceMean", ["r", "axis0"], "s", {"keepdims": 1}), ("Mul", ["r", "s"], "q", {}),
    ]),
    Work("mean of every number", [
        ("ReduceMean", ["r"], "s", {"keepdims": 0}), ("Mul", ["r", "s"], "q", {}),
    ]),
    Work("each with each", [
        ("Transpose", ["r"], "t", {"perm": [1, 0]}), ("MatMul", ["r", "t"], "g", {}),
        ("Softmax", ["g"], "a", {"axis": -1}), ("MatMul", ["a", "r"], "q", {}),
    ]),
    Work("twice, and half of it", [
        ("Mul", ["r", "b"], "p", {}), ("Concat", ["r", "p"], "c", {"axis": 0}),
        ("Shape", ["r"], "n", {"start": 0, "end": 1}),
        ("Slice", ["c", "n", "end", "axis0"], "q", {}),
    ]),
    Work("as large as", [
        ("Shape", ["r"], "n", {}), ("Expand", ["b", "n"], "e", {}), ("Mul", ["r", "e"], "q", {}),
    ]),
    Work("in squares", [
        ("Reshape", ["r", "quads"], "s", {}), ("MatMul", ["s", "s"], "p", {}),
        ("Reshape", ["p", "rows"], "q", {}),
    ]),
    Work("flat", [
        ("Reshape", ["r", "flat"], "f", {}), ("Mul", ["f", "f"], "p", {}),
        ("Shape", ["r"], "n", {}), ("Reshape", ["p", "n"], "q", {}),
    ]),
    Work("in halves", [
        ("Split", ["r", "halves"], ["h", "k"], {"axis": 1}), ("Mul", ["h", "k"], "p", {}),
        ("Concat", ["p", "h"], "q", {"axis": 1}),
    ]),
    Work("padded", [
        ("Slice", ["r", "axis1", "end", "axis1"], "s", {}), ("Pad", ["s", "pads"], "q", {}),
    ]),
    Work("other columns", [("Gather", ["r", "columns"], "q", {"axis": 1})]),
    Work("sums so far", [("CumSum", ["r", "axis0"], "q", {})]),
    Work("swish", [("Sigmoid", ["r"], "e", {}), ("Mul", ["r", "e"], "q", {})]),
    Work("taken by tuples", [
        ("GatherND", ["x", "places"], "s", {}), ("Mul", ["r", "s"], "q", {}),
    ]),
    Work("of rows of rows", [
        ("Mul", ["index", "index"], "i2", {}), ("Mod", ["i2", "three"], "i3", {}),
        ("Gather", ["w", "i3"], "s", {}), ("Mul", ["r", "s"], "q", {}),
    ]),
    Work("put over", [("Mul", ["r", "b"], "q", {})], ("ScatterND", ["x", "places", "q"], {})),
    Work("put over in numbers one by one", [
        ("Unsqueeze", ["mask", "axis1"], "tall", {}), ("Shape", ["x"], "n", {}),
        ("Expand", ["tall", "n"], "wide", {}), ("NonZero", ["wide"], "all", {}),
        ("Transpose", ["all"], "each", {"perm": [1, 0]}), ("Mul", ["r", "b"], "p", {}),
        ("Reshape", ["p", "flat"], "f", {}), ("Shape", ["each"], "m", {"start": 0, "end": 1}),
        ("Slice", ["f", "axis0", "m", "axis0"], "q", {}),
    ], ("ScatterND", ["x", "each", "q"], {})),
    Work("put over, element by element", [
        ("Shape", ["r"], "n", {}), ("Expand", ["places", "n"], "i", {}),
        ("Mul", ["r", "b"], "q", {}),
    ], ("ScatterElements", ["x", "i", "q"], {"axis": 0})),
    Work("added, element by element", [
        ("Shape", ["r"], "n", {}), ("Expand", ["places", "n"], "i", {}),
        ("Mul", ["r", "b"], "q", {}),
    ], ("ScatterElements", ["zeros", "i", "q"], {"axis": 0, "reduction": "add"})),
    Work("multiplied", [("Mul", ["r", "b"], "q", {})],
         ("ScatterND", ["x", "places", "q"], {"reduction": "mul"})),
    Work("the larger", [("Mul", ["r", "b"], "q", {})],
         ("ScatterND", ["x", "places", "q"], {"reduction": "max"})),
]  # fmt: skip
