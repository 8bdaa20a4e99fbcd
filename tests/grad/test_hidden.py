"""Rows of a softmax that are NaN and that the forward pass hides give no gradient, and no NaN."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper

from onnxremat.grad import differentiate, training_of
from onnxremat.ort.session import Options, open_session, session_options
from tests.toolbox import parse

X = np.array([[0.5, -1, 2, 0.3], [1, 0.2, -0.7, 1.5], [0.1, 0.9, -2, 1]], np.float32)
W = np.array([0.3, 0.7, -0.4, 1.1], np.float32)
MASK = np.array([[0, 0, -np.inf, 0], [-np.inf] * 4, [0] * 4], np.float32)
HIDING = {
    "by NaN": "hide = IsNaN(p) q = Where(hide, zero, p)",
    "by row": "hide = Not(seen) q = Where(hide, zero, p)",
    "by row, 0 of its type": "z = CastLike(far, p) hide = Not(seen) q = Where(hide, z, p)",
    "what is seen": "q = Where(seen, p, zero)",
    "through a cast to its type": "c = Cast <to = 1> (p) q = Where(seen, c, zero)",
    "through a cast to another": """c = Cast <to = 11> (p) d = Where(seen, c, far)
        q = Cast <to = 1> (d)""",
    "through a cast, by NaN": """c = Cast <to = 11> (p) h = IsNaN(c) d = Where(h, far, c)
        q = Cast <to = 1> (d)""",
}


def by_hand(shown: np.ndarray) -> np.ndarray:
    """Gradient of ``w`` for the mean of the squares of the probabilities of the rows shown."""
    x, mask, found = X[shown].astype(np.float64), MASK[shown], np.zeros(4)
    powers = np.exp(x * W + mask)
    p = powers / powers.sum(axis=1, keepdims=True)
    dy = 2 * p / X.size
    found += (p * (dy - (dy * p).sum(axis=1, keepdims=True)) * x).sum(axis=0)
    return found


@pytest.mark.parametrize("variants", [None, {"Softmax": "input"}])
@pytest.mark.parametrize("hidden", HIDING)
def test_a_row_that_is_hidden_passes_nothing(hidden: str, variants: dict[str, str] | None) -> None:
    model = parse(f"""g (float[3, 4] x) => (float[3, 4] q)
        <float zero = {{0}}, double far = {{0}}, bool[3, 1] seen = {{1, 0, 1}}>
        {{ s = Mul(x, w) a = Add(s, mask) p = Softmax <axis = 1> (a) {HIDING[hidden]} }}""")
    for name, value in (("w", W), ("mask", MASK)):
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    step = differentiate(model, optimizer=None, loss="mse", trainable=["w"], variants=variants)
    session = open_session(step, session_options(Options(threads=1, pattern=False)))
    feeds = {"x": X, "w": W, training_of(step).target: np.zeros_like(X)}
    (found,) = session.run(["w.grad"], feeds)
    np.testing.assert_allclose(found, by_hand(np.array([0, 2])), rtol=1e-5)
