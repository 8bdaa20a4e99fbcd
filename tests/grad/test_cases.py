"""The inputs of a case do not depend on the cases before it."""

from __future__ import annotations

import numpy as np

from tests.grad import cases
from tests.grad.checking import Case, Fixed
from tests.grad.draws import apart, normal


def registered(*names: str) -> dict[str, Case]:
    before = len(cases.CASES)
    for name in names:
        cases.case(name, normal(2, 3), cases.fixed(normal(3)), apart(4) * 0.5, axis=1)
    made = cases.CASES[before:]
    del cases.CASES[before:]
    return {case.op: case for case in made}


def test_a_new_case_leaves_others_as_they_are() -> None:
    first, second = registered("A", "B"), registered("New", "B", "Newer", "A")
    for name in ("A", "B"):
        for one, other in zip(first[name].inputs, second[name].inputs, strict=True):
            one, other = (getattr(entry, "value", entry) for entry in (one, other))
            np.testing.assert_array_equal(one, other)
    assert not np.array_equal(first["A"].inputs[0], first["B"].inputs[0])


def test_draws_are_changed_when_they_are_made() -> None:
    case = registered("A")["A"]
    assert isinstance(case.inputs[1], Fixed)
    assert case.inputs[1].value.shape == (3,)
    steps = np.diff(np.sort(case.inputs[2]))
    np.testing.assert_allclose(steps, 0.5 * 0.37)
