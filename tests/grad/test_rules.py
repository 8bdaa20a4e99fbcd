"""Every rule against finite differences; a rule without a case fails."""

from __future__ import annotations

import pytest

from onnxremat.grad import registry
from tests.grad.cases import CASES
from tests.grad.checking import Case, check, half_precision


def _variants(case: Case, opset: int) -> list[str | None]:
    found = [
        rule.variant
        for rule in registry.rules()
        if rule.op_type == case.op and rule.domain == case.domain and rule.holds(max(opset, 18))
    ]
    return list(dict.fromkeys(found)) if len(found) > 1 else [None]


PARAMETERS = [
    pytest.param(case, opset, variant, id=f"{case.label()}@{opset}-{variant or 'only'}")
    for case in CASES
    for opset in case.opsets
    for variant in _variants(case, opset)
]


@pytest.mark.parametrize(("case", "opset", "variant"), PARAMETERS)
def test_rule_matches_finite_differences(case: Case, opset: int, variant: str | None) -> None:
    check(case, opset, variant)


def test_every_rule_has_a_case() -> None:
    covered = {
        (case.domain, case.op, variant)
        for case in CASES
        for opset in case.opsets
        for variant in ([r.variant for r in registry.rules()
                         if r.op_type == case.op and r.domain == case.domain])
    }  # fmt: skip
    # Upsample ends at opset 9: the forward graph is brought to 18, where it is a Resize.
    missing = {
        f"{rule.domain}.{rule.op_type}/{rule.variant}"
        for rule in registry.rules()
        if (rule.domain, rule.op_type, rule.variant) not in covered
    }
    assert not missing


@pytest.mark.parametrize("op", ["MatMul", "Conv", "Relu", "LayerNormalization", "Softmax", "Gemm"])
def test_half_precision_graphs_are_valid(op: str) -> None:
    case = next(case for case in CASES if case.op == op)
    half_precision(case, 18)
