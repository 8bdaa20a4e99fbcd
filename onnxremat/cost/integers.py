"""Work and workspace of onnxruntime's kernels on whole numbers, and of attention in one operator:
measured on its CPU provider, then written as formulas (``tests/cost/test_costs.py`` measures)."""

from __future__ import annotations

import math
from typing import Any

from onnx import helper

from onnxremat.cost.shapes import made_shape, read_shape
from onnxremat.graph.ir import Graph, Op

POINTER = 8  # bytes of an entry in the table of pixels that a convolution of bytes reads
CONVOLUTIONS = {"QLinearConv": 3, "ConvInteger": 1}  # position of the weights
PRODUCTS = frozenset({
    "QLinearMatMul", "MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul",
    "MatMulNBits",
})  # fmt: skip
ATTENTION = frozenset({"Attention", "MultiHeadAttention"})


def operations(graph: Graph, op: Op) -> float | None:
    """Multiplications and additions of one run, None of an operator that is not known here."""
    kind, out = op.op_type, math.prod(made_shape(graph, op))
    if kind in CONVOLUTIONS:
        return 2.0 * out * math.prod(read_shape(graph, op, CONVOLUTIONS[kind])[1:])
    first = read_shape(graph, op, 0)
    if kind in PRODUCTS:
        return 2.0 * out * (first[-1] if first else 1)
    if kind == "QGemm":
        return 2.0 * out * math.prod(first) / max((1, *made_shape(graph, op)[:1]))
    keys = read_shape(graph, op, 1)
    if kind in ATTENTION and len(keys) > 2:  # scores, and what they weigh
        return 4.0 * math.prod(first) * keys[-2]
    return None


def workspace(graph: Graph, op: Op) -> int | None:
    """Bytes that a run takes and gives back, None of an operator that is not known here."""
    kind, out = op.op_type, math.prod(made_shape(graph, op))
    told = {a.name: helper.get_attribute_value(a) for a in op.node.attribute}
    if kind in CONVOLUTIONS:
        return _of_convolution(graph, op, told)
    if kind == "QLinearMatMul" or (kind == "QGemm" and len(op.inputs) > 7):
        return 4 * out  # sums of 32 bits, before they are scaled
    first = math.prod(read_shape(graph, op, 0))
    if kind == "DynamicQuantizeMatMul":
        return first
    if kind == "MatMulNBits" and told.get("accuracy_level") == 4:
        return first + 8 * first // told["block_size"]
    if kind == "QLinearAveragePool":
        return 4 * first
    if kind == "Attention" and len(read_shape(graph, op, 1)) > 2:
        return 4 * _scores(graph, op, told, "q_num_heads")
    if kind == "MultiHeadAttention":
        return _of_many_heads(graph, op, told)
    return None


def _of_convolution(graph: Graph, op: Op, told: dict[str, Any]) -> int:
    """One image after the other: both ends with channels last, and a table of where the pixels of
    each window lie, or in their place all windows written out."""
    weights = read_shape(graph, op, CONVOLUTIONS[op.op_type])
    taps = math.prod(weights[2:])
    plain = taps == 1 and max(told.get("strides") or [1]) == 1
    image, made = read_shape(graph, op, 0)[1:], made_shape(graph, op)[1:]
    last = bool(told.get("channels_last"))
    pixels = math.prod(made[:-1] if last else made[1:])
    if op.op_type == "ConvInteger":
        return 0 if plain else math.prod(weights[1:]) * pixels
    ends = 0 if last else math.prod(image) + math.prod(made)
    return ends + (0 if plain else POINTER * taps * pixels)


def _of_many_heads(graph: Graph, op: Op, told: dict[str, Any]) -> int:
    """Queries, keys and values by heads; scores and the result too where something is added."""
    ends = 4 * sum(math.prod(read_shape(graph, op, position)) for position in range(3))
    if not any(op.inputs[4:6]):  # scores are there in blocks of the processor's cache
        return ends
    return ends + 4 * (_scores(graph, op, told, "num_heads") + math.prod(made_shape(graph, op)))


def _scores(graph: Graph, op: Op, told: dict[str, Any], heads: str) -> int:
    """How many there are: batch, heads, queries, keys."""
    queries, keys = read_shape(graph, op, 0), read_shape(graph, op, 1)
    if len(queries) == 3:
        queries = (queries[0], told.get(heads, 1), queries[1], 0)
    return math.prod(queries[:3]) * (keys[-2] if len(keys) > 1 else 1)
