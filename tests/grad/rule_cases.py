"""Which case runs which rule: what the tests of rules go through, and which rules they miss."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from onnxremat.grad.forward import OLDEST
from onnxremat.grad.registry import Rule, rules
from tests.grad.cases import CASES
from tests.grad.checking import Case


def opset_of(case: Case, opset: int) -> int:
    """Version of the case's domain in the graph that is differentiated."""
    return 1 if case.domain else max(opset, OLDEST)


def holding(case: Case, opset: int, every: Iterable[Rule]) -> list[Rule]:
    """The rules that may differentiate the node of a case at an opset."""
    return [
        rule
        for rule in every
        if (rule.domain, rule.op_type) == (case.domain, case.op)
        and rule.holds(opset_of(case, opset))
    ]


def variants(case: Case, opset: int) -> list[str | None]:
    """To test one by one; None where no rule is its own: the node is written out."""
    return list(dict.fromkeys(rule.variant for rule in holding(case, opset, rules()))) or [None]


def without_a_case(every: Iterable[Rule], cases: Iterable[Case] = CASES) -> set[str]:
    """Rules that no case runs: none is of their operator at an opset that they hold for.

    That a rule which holds is the one that runs is asserted where the case is checked.
    """
    every = list(every)
    ran = {rule for case in cases for opset in case.opsets for rule in holding(case, opset, every)}
    return {f"{rule.domain}.{rule.op_type}/{rule.variant}" for rule in every if rule not in ran}


PARAMETERS = [
    pytest.param(case, opset, variant, id=f"{case.label()}@{opset}-{variant or 'written out'}")
    for case in CASES
    for opset in case.opsets
    for variant in variants(case, opset)
]
