"""Estimates of kernels on whole numbers, and of attention in one operator, against what they do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxremat.cost.analytic import flops, scratch_bytes
from onnxremat.graph.axes import MS
from onnxremat.graph.onnx_io import to_model
from onnxremat.ort.feeds import seeded_feeds
from onnxremat.ort.infer import build_graph
from onnxremat.ort.profile import profile
from tests.graph.axis_cases import Case, byte, number, weights
from tests.toolbox import ONE


def given(*shape: int) -> np.ndarray:
    return np.empty(shape, np.uint8)


def stored(*shape: int) -> tuple[str, np.ndarray]:
    return "constant", np.random.default_rng(0).integers(-9, 9, shape).astype(np.int8)


ZERO = "constant", np.int8(0)
A, B, Y = (number(0.1), byte(2)), (number(0.01), ZERO), (number(0.2), byte(9))
ROWS, COLUMNS, HEADS = given(2, 256, 64), stored(64, 96), (2, 4, 256, 32)
KERNEL, IMAGE, LAST = stored(32, 24, 3, 3), given(1, 24, 96, 96), given(1, 96, 96, 24)
PRODUCT, SCORES = 2 * 2 * 256 * 64 * 96, 4 * 2 * 4 * 256 * 128 * 32
SAME: dict[str, Any] = {"pads": [1] * 4}
FEW: dict[str, Any] = {"K": 64, "N": 96, "bits": 4, "block_size": 32}
PACKED = "constant", np.zeros((96, 2, 16), np.uint8)


@pytest.mark.parametrize(
    ("image", "filters", "attributes"),
    [
        ((2, 64, 15, 17), (256, 64, 3, 3), SAME), ((1, 64, 16, 16), (256, 64, 3, 3), SAME),
        ((1, 64, 8, 11), (256, 32, 3, 3), {**SAME, "group": 2}),
        ((1, 64, 33, 11), (900, 64, 1, 1), {}),
        ((1, 64, 33, 61), (900, 64, 1, 1), {"strides": [2, 2]}),
        ((1, 64, 190), (256, 64, 3), {"pads": [1, 1]}),
    ],
)  # fmt: skip
def test_windows_of_few_pixels_are_written_out(
    image: tuple[int, ...], filters: tuple[int, ...], attributes: dict[str, Any]
) -> None:
    graph = build_graph(Case("Conv", [image, weights(*filters)], frozenset(), attributes).model())
    found = profile(to_model(graph), seeded_feeds(graph), ONE)
    (kernel,) = [each for each in found.kernels if each.op_type == "Conv"]
    assert abs(scratch_bytes(graph, graph.ops[0]) - kernel.scratch) <= 64 << 10


@pytest.mark.parametrize(
    ("case", "work"),
    [
        (Case("QLinearConv", [IMAGE, *A, KERNEL, *B, *Y], frozenset(), SAME),
         2 * 32 * 24 * 9 * 96 * 96),
        (Case("QLinearConv", [LAST, *A, KERNEL, *B, *Y], frozenset(),
              {**SAME, "channels_last": 1, "strides": [2, 2]}, MS), 2 * 32 * 24 * 9 * 48 * 48),
        (Case("QLinearConv", [LAST, *A, stored(32, 24, 1, 1), *B, *Y], frozenset(),
              {"channels_last": 1}, MS), 2 * 32 * 24 * 96 * 96),
        (Case("ConvInteger", [IMAGE, KERNEL, byte(2)], frozenset(), SAME),
         2 * 32 * 24 * 9 * 96 * 96),
        (Case("QLinearMatMul", [ROWS, *A, COLUMNS, *B, *Y], frozenset()), PRODUCT),
        (Case("MatMulInteger", [ROWS, COLUMNS, byte(2)], frozenset()), PRODUCT),
        (Case("MatMulIntegerToFloat", [ROWS, COLUMNS, number(0.1), number(0.1), byte(2)],
              frozenset(), {}, MS), PRODUCT),
        (Case("DynamicQuantizeMatMul", [(2, 256, 64), COLUMNS, number(0.1)], frozenset(), {}, MS),
         PRODUCT),
        (Case("QGemm", [given(512, 64), *A, COLUMNS, *B, "", *Y], frozenset(), {}, MS), PRODUCT),
        (Case("MatMulNBits", [(2, 256, 64), PACKED, weights(192)], frozenset(), FEW, MS), PRODUCT),
        (Case("MatMulNBits", [(2, 256, 64), PACKED, weights(192)], frozenset(),
              {**FEW, "accuracy_level": 4}, MS), PRODUCT),
        (Case("QLinearAveragePool", [IMAGE, *A, *Y], frozenset(),
              {**SAME, "kernel_shape": [3, 3]}, MS), 24 * 96 * 96),
        (Case("Attention", [HEADS, (2, 4, 128, 32), (2, 4, 128, 32)], frozenset(), opset=23),
         SCORES),
        (Case("Attention", [(2, 256, 128), (2, 128, 128), (2, 128, 128)], frozenset(),
              {"q_num_heads": 4, "kv_num_heads": 4}, opset=23), SCORES),
        (Case("MultiHeadAttention", [(2, 256, 128), (2, 128, 128), (2, 128, 128)], frozenset(),
              {"num_heads": 4}, MS), SCORES),
        (Case("MultiHeadAttention", [(2, 256, 128), (2, 128, 128), (2, 128, 128), "", "",
                                     (1, 4, 256, 128)], frozenset(), {"num_heads": 4}, MS), SCORES),
    ],
    ids=lambda case: case.kind if isinstance(case, Case) else "",
)  # fmt: skip
def test_work_and_workspace(case: Case, work: int) -> None:
    graph = build_graph(case.model())
    (op,) = graph.ops
    found = profile(to_model(graph), seeded_feeds(graph), ONE)
    (kernel,) = [each for each in found.kernels if each.op_type == case.kind]
    assert abs(scratch_bytes(graph, op) - kernel.scratch) <= 64 << 10
    assert flops(graph, op) == work
