"""The judge by ONNX's own tests of operators (``make test-nodes``) sees what is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxremat.grad import differentiate
from tests.grad import judge
from tests.toolbox import parse

X = np.array([0.5, -1.0, 0.0], np.float32)
REPEATS = np.array([2], np.int64)


def test_a_wrong_gradient_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is right is right where the loss has a kink, as at 0 here."""
    model = parse("""g (float[3] x, int64[1] many) => (float[6] y)
        { r = Relu(x) s = Mul(r, x) t = Add(s, r) y = Tile(t, many) }""")
    case = judge.judged(model, [X, REPEATS], stored=True)
    assert judge.verdict(case) == judge.RIGHT
    assert "refused" in judge.verdict(judge.judged(model, [X, REPEATS], stored=False))

    def other(loss: Any, **options: Any) -> Any:
        step = differentiate(loss, **options)
        gradient = next(n for n in step.graph.node if "x.grad" in n.output)
        assert gradient.op_type == "Add"
        gradient.op_type = "Sub"
        return step

    monkeypatch.setattr(judge, "differentiate", other)
    assert judge.verdict(case).startswith("wrong: of x, ")
    with pytest.raises(judge.NotJudgedError, match="no input"):
        judge.judged(
            parse("g (int64[3] x) => (int64[3] y) { y = Abs(x) }"), [X.astype(int)], stored=True
        )
