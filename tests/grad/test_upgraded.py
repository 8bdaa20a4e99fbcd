"""Models of older opsets are trained as they compute."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onnxremat.errors import UnsupportedError
from onnxremat.grad import differentiate
from tests.grad import judge
from tests.toolbox import parse

X = np.random.default_rng(0).normal(size=(1, 1, 4, 3)).astype(np.float32)


def resized(op: str, opset: int, mode: str, scales: list[float]) -> onnx.ModelProto:
    """An image that grows or shrinks."""
    numbers = ", ".join(map(str, (1.0, 1.0, *scales)))
    made = parse(f"""g (float[1, 1, 4, 3] x) => (float[1, 1, a, b] y)
        <float[4] s = {{{numbers}}}> {{ y = {op} <mode = "{mode}"> (x, s) }}""")
    made.opset_import[0].version = opset
    return made


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize(
    ("op", "opset", "scales"),
    [
        ("Resize", 10, [1.5, 2.5]), ("Resize", 10, [2.0, 3.0]), ("Resize", 10, [0.6, 0.5]),
        ("Upsample", 9, [1.5, 2.5]), ("Upsample", 9, [2.0, 3.0]),
    ],
)  # fmt: skip
def test_places_are_found_as_before_opset_11(
    op: str, opset: int, scales: list[float], mode: str
) -> None:
    case = judge.judged(resized(op, opset, mode, scales), [X], stored=True)
    assert judge.verdict(case) == judge.RIGHT


def test_rounding_up_along_one_axis_and_down_along_another_is_refused() -> None:
    case = judge.judged(resized("Resize", 10, "nearest", [2.0, 0.5]), [X], stored=True)
    with pytest.raises(UnsupportedError, match="opset 10"):
        differentiate(case.loss, loss_output=judge.LOSS, optimizer=None, trainable=["x"])


def test_an_operator_of_onnxruntime_is_brought_along() -> None:
    """onnx's converter knows no SimplifiedLayerNormalization."""
    made = parse("""g (float[1, 1, 4, 3] x, float[3] s) => (float[1, 1, 4, 3] y)
        { y = SimplifiedLayerNormalization(x, s) }""")
    made.opset_import[0].version = 17
    case = judge.judged(made, [X, X[0, 0, 0]], stored=True)
    assert judge.verdict(case) == judge.RIGHT


def test_halves_may_be_scaled_by_float32_before_opset_17() -> None:
    """By onnxruntime's own LayerNormalization, which is not ONNX's."""
    made = parse("""g (float[1, 1, 4, 3] x) => (float[1, 1, 4, 3] y)
        <float[3] s = {1, 2, -3}, float[3] b = {0, 1, 2}>
        { h = Cast <to = 10> (x) y = LayerNormalization(h, s, b) }""")
    made.opset_import[0].version = 13
    case = judge.judged(made, [X], stored=True)
    assert judge.verdict(case) == judge.RIGHT


def test_a_domain_that_the_file_does_not_name_is_known() -> None:
    """onnxruntime runs files that use its operators and list no version of them."""
    made = parse("""g (float[1, 1, 4, 3] x) => (float[1, 1, 4, 3] y)
        { y = com.microsoft.Gelu(x) }""")
    assert [entry.domain for entry in made.opset_import] == [""]
    made.opset_import[0].version = 11
    case = judge.judged(made, [X], stored=True)
    assert judge.verdict(case) == judge.RIGHT


@pytest.mark.parametrize("axis", ["", "<axis = 1>", "<axis = 2>"])
def test_a_hardmax_before_opset_13_is_of_all_axes_from_its_own_on(axis: str) -> None:
    made = parse(f"""g (float[1, 1, 4, 3] x) => (float[1, 1, 4, 3] y)
        {{ h = Hardmax {axis} (x) y = Mul(h, x) }}""")
    made.opset_import[0].version = 11
    case = judge.judged(made, [X], stored=True)
    assert judge.verdict(case) == judge.RIGHT


@pytest.mark.parametrize(
    "text",
    [
        "ImageScaler <scale = 0.5, bias = [0.3]>", "Scale <scale = 0.5>",
        "Affine <alpha = 0.5, beta = 0.3>", "ParametricSoftplus <alpha = 0.5, beta = 2.0>",
        "ScaledTanh <alpha = 0.5, beta = 2.0>", "Crop <border = [1, 1, 0, 1]>",
        "Crop <border = [1, 1, 0, 0], scale = [2, 1]>",
    ],
    ids=str.split,
)  # fmt: skip
def test_operators_that_onnx_dropped_are_written_out(text: str) -> None:
    """onnxruntime still runs them, and infers no shapes."""
    op, _, attributes = text.partition(" ")
    made = parse(f"""g (float[1, 1, 4, 3] x) => (float[1, 1, a, b] y)
        {{ h = {op} {attributes} (x) y = Sin(h) }}""")
    made.opset_import[0].version = 7
    case = judge.judged(made, [X], stored=True)
    assert judge.verdict(case) == judge.RIGHT


def test_what_lies_in_a_body_is_brought_along() -> None:
    """A Resize until opset 10, and a Hardmax until opset 12, in a branch that only a run takes."""
    made = parse("""g (float[1, 1, 4, 3] x, bool c) => (float[1, 1, 10, 6] y)
        <float[4] s = {1, 1, 2.5, 2}> {
        y = If(c) <then_branch = t () => (float[1, 1, 10, 6] p) {
            h = Hardmax <axis = 1> (x) m = Mul(h, x) p = Resize <mode = "nearest"> (m, s) },
          else_branch = e () => (float[1, 1, 10, 6] q) {
            q = Resize <mode = "linear"> (x, s) }> }""")
    made.opset_import[0].version = 10
    for taken in (True, False):
        case = judge.judged(made, [X, np.array(taken)], stored=False)
        assert judge.verdict(case) == judge.RIGHT


def test_a_scan_over_a_batch_is_refused() -> None:
    """In opset 8; onnx's converter takes the batch from the model's inputs, too."""
    made = parse("""g (float[1, 2] h, float[1, 3, 2] x) => (float[1, 2] y, float[1, 3, 2] z) {
        y, z = Scan <num_scan_inputs = 1, body = b (float[2] a, float[2] s)
            => (float[2] c, float[2] d) { c = Add(a, s) d = Sin(c) }>("", h, x) }""")
    made.opset_import[0].version = 8
    with pytest.raises(UnsupportedError, match="Scan") as refused:
        differentiate(made, loss="mse", optimizer=None, trainable=["x"])
    assert "opset 9" in refused.value.hint
