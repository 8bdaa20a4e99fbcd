"""Every rule against finite differences; a rule without a case fails."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import helper, numpy_helper

from onnxremat.errors import UnsupportedError
from onnxremat.grad import differentiate, registry
from onnxremat.ort.session import Options, open_session, session_options
from tests.grad.cases import CASES
from tests.grad.checking import HALF, Case, build, check, gradients, half_precision
from tests.grad.rule_cases import PARAMETERS, variants, without_a_case
from tests.toolbox import parse


@pytest.mark.parametrize(("case", "opset", "variant"), PARAMETERS)
def test_rule_matches_finite_differences(case: Case, opset: int, variant: str | None) -> None:
    check(case, opset, variant)


def test_every_rule_has_a_case() -> None:
    assert not without_a_case(registry.rules())


def test_a_rule_of_a_later_opset_is_not_covered_by_a_case_of_an_earlier_one() -> None:
    rule = next(rule for rule in registry.rules() if rule.op_type == "Swish")
    early = Case("Swish", (), opsets=(13,))
    assert without_a_case([rule], [early]) == {".Swish/default"}
    assert not without_a_case([rule], [replace(early, opsets=(13, 24))])


def test_a_case_fails_where_its_rule_never_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the node becomes another operator on the way."""
    monkeypatch.setattr(registry, "_RULES", dict(registry._RULES))
    registry.vjp("Upsample")(lambda call: [None])
    case = next(case for case in CASES if case.op == "Upsample")
    assert variants(case, 9) == ["default"]
    with pytest.raises(AssertionError, match="never ran"):
        check(case, 9, "default")


@pytest.mark.parametrize("kind", HALF)
@pytest.mark.parametrize("op", ["MatMul", "Conv", "Relu", "LayerNormalization", "Softmax", "Gemm"])
def test_half_precision_graphs_are_valid(op: str, kind: int) -> None:
    case = next(case for case in CASES if case.op == op)
    half_precision(case, 22, kind)


@pytest.mark.parametrize("op", ["MaxPool", "GatherElements", "MeanVarianceNormalization"])
def test_what_needs_single_precision_runs_in_16_bits(op: str) -> None:
    """The CPU provider's ScatterElements adds no 16-bit numbers; ONNX's function for the
    normalisation adds a float32 to what it is given."""
    case = next(case for case in CASES if case.op == op)
    model, values = build(case, 19, np.dtype(np.float16))
    backward = gradients(model, list(values), None, op)
    session = open_session(backward, session_options(Options(threads=1, pattern=False)))
    assert all(np.isfinite(value).all() for value in session.run(None, values))


def test_minors_of_large_matrices_are_refused() -> None:
    model = parse("g (float[2, 17, 17] x) => (float loss) { y = Det(x) loss = ReduceSum(y) }")
    with pytest.raises(UnsupportedError, match="Det") as refused:
        differentiate(model, loss_output="loss", trainable=["x"])
    assert "up to 16 rows" in str(refused.value)


REFUSED = {
    "longer than its window": 'Conv <auto_pad = "SAME_UPPER", strides = [4]> (z, w)',
    "where the first window begins": """AveragePool <auto_pad = "SAME_UPPER", strides = [3],
        kernel_shape = [1]> (z)""",
    "which 'auto_pad' = SAME_LOWER goes without": """LpPool <auto_pad = "SAME_LOWER",
        kernel_shape = [2], dilations = [2]> (z)""",
    "infers another shape": "MaxPool <kernel_shape = [1], strides = [3], ceil_mode = 1> (z)",
    "goes backwards": "Slice(z, last, most, axis, last)",
    "in which both meet": "ConvTranspose <output_shape = [8]> (z, w)",
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_onnxruntime_computes_otherwise_is_refused(why: str) -> None:
    """Of where these windows and slices begin or end, onnx and onnxruntime have different ideas:
    gradients would be those of other elements, or steps would not run."""
    model = parse(f"""g (float[1, 1, 12] x) => (float loss)
        <float[1, 1, 1] w = {{2}}, int64[1] last = {{-1}}, int64[1] most = {{2147483647}},
         int64[1] axis = {{2}}>
        {{ z = Mul(x, w) y = {REFUSED[why]} loss = ReduceSum <keepdims = 0> (y) }}""")
    with pytest.raises(UnsupportedError, match=why):
        differentiate(model, optimizer=None, loss_output="loss", trainable=["w"])


def test_causal_attention_behind_a_past_is_refused() -> None:
    model = parse(
        """g (float[1, 1, 4, 8] x, float[4, 7] mask, float[1, 1, 3, 8] old, float[1, 1, 3, 8] seen)
        => (float loss) <float[8] w = {1, 2, 3, 4, 5, 6, 7, 8}> {
        q = Mul(x, w)
        y = Attention <is_causal = 1> (q, x, x, mask, old, seen)
        loss = ReduceMean <keepdims = 0> (y) }""",
        opset=23, ir=11,
    )  # fmt: skip
    with pytest.raises(UnsupportedError, match="keys of the past"):
        differentiate(model, optimizer=None, loss_output="loss", trainable=["w"])


def test_a_resize_to_nothing_passes_no_gradient() -> None:
    model = parse("""g (float[1, 2, 3, 4] x) => (float loss)
        <float[1, 2, 3, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19,
         20, 21, 22, 23, 24}, float[4] scales = {1, 1, 0.2, 0.5}> {
        z = Mul(x, w)
        y = Resize <mode = "linear"> (z, , scales)
        s = ReduceSum <keepdims = 0> (y)
        t = ReduceSum <keepdims = 0> (z)
        loss = Add(s, t) }""")
    step = differentiate(model, optimizer=None, loss_output="loss", trainable=["w"])
    assert "MatMul" not in {node.op_type for node in step.graph.node}
    session = open_session(step, session_options(Options(threads=1)))
    x = np.ones((1, 2, 3, 4), np.float32)
    w = np.arange(1, 25, dtype=np.float32).reshape(x.shape)
    feeds = {"x": x, "w": w}
    made = dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))
    np.testing.assert_array_equal(made["w.grad"], x)


def test_a_projected_state_is_refused() -> None:
    """As PyTorch's default exporter writes it, which onnxruntime opens and does not run."""
    weights = {"w": (1, 32, 12), "r": (1, 32, 4), "m": (8, 3)}
    graph = helper.make_graph(
        [
            helper.make_node("LSTM", ["x", "w", "r"], ["h"], name="lstm", hidden_size=8),
            helper.make_node("MatMul", ["h", "m"], ["y"], name="out"),
        ],
        "net",
        [helper.make_tensor_value_info("x", 1, (7, 2, 12))],
        [helper.make_tensor_value_info("y", 1, None)],
        [
            numpy_helper.from_array(np.random.default_rng(0).random(s).astype(np.float32), n)
            for n, s in weights.items()
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    with pytest.raises(UnsupportedError, match="proj_size"):
        differentiate(model, optimizer=None, loss="mse")


def test_a_result_that_the_file_gives_another_rank_is_refused() -> None:
    """onnx infers no shape where scales are computed, and takes what the file says."""
    made = parse("""g (float[2, 3] x, float[2] s) => (float y)
        { y = Resize <mode = "nearest"> (x, "", s) }""")
    with pytest.raises(UnsupportedError, match=r"its result the shape \(\), its input \(2, 3\)"):
        differentiate(made, loss="mse", trainable=["x"])


def test_a_norm_of_groups_with_other_numbers_is_refused() -> None:
    """onnxruntime broadcasts a scale of one number, which the operator does not allow."""
    made = parse("""g (float[1, 4, 3] x, float[1] s, float[2] b) => (float[1, 4, 3] y)
        { y = GroupNormalization <num_groups = 2> (x, s, b) }""")
    with pytest.raises(UnsupportedError, match="one number per channel, or per group"):
        differentiate(made, loss="mse", trainable=["x"])
