"""Numbers times numbers times tensors, at matrix products."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxremat.grad import differentiate, training_of
from onnxremat.ort.session import Options, open_session, session_options


@pytest.mark.parametrize("scaling", ["Mul (d, scale)", "Mul (scale, d)", "Div (d, scale)"])
def test_a_loss_on_two_heads_of_which_one_is_scaled(scaling: str) -> None:
    """As of segmentation with an auxiliary head. The gradient of Resize is a matrix product."""
    model = onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["" : 18]>
        g (float[2, 3, 4, 4] x) => (float[2, 5, 8, 8] y)
        <float scale = {{0.4}}, float[4] sizes = {{1, 1, 2, 2}}> {{
            a = Conv (x, v)
            b = Conv (x, w)
            c = Resize <mode = "linear"> (a, , sizes)
            d = Resize <mode = "linear"> (b, , sizes)
            e = {scaling}
            y = Add (c, e)
        }}
    """)
    random = np.random.default_rng(0)
    first = {n: random.standard_normal((5, 3, 1, 1)).astype(np.float32) for n in "vw"}
    model.graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in first.items())
    step = differentiate(model, optimizer=None, loss="mse")
    about = training_of(step)
    feeds = {n: random.standard_normal(s).astype(np.float32) for n, s in
             (("x", (2, 3, 4, 4)), (about.target, (2, 5, 8, 8)))}  # fmt: skip
    session = open_session(step, session_options(Options(threads=1)))
    v, w = session.run(["v.grad", "w.grad"], feeds | first)
    factor = 2.5 if scaling.startswith("Div") else 0.4
    np.testing.assert_allclose(w, factor * v, rtol=1e-5, atol=1e-7)
