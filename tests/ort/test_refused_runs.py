"""Models that onnxruntime opens and does not run: the message says what helps."""

from __future__ import annotations

import pytest

from onnxremat import Settings, api
from onnxremat.errors import ModelError
from tests.toolbox import parse


def test_a_bias_that_the_exporter_wrote_wrongly() -> None:
    """As PyTorch 2.13 writes Conv3d(bias=False) with ``optimize=False``; data change nothing."""
    model = parse("""net (float[1,2,4,4,4] x) => (float[1,3,4,4,4] y)
        <float[3,2,1,1,1] w = {1,1,1,1,1,1}, float zero = {0}, int64[2] shape = {1,3}> {
        b = Expand(zero, shape)
        y = Conv(x, w, b)
    }""")
    with pytest.raises(ModelError, match="does not run") as refused:
        api.optimize(model, budget="0.5x", settings=Settings(threads=1))
    assert "onnxremat.export" in refused.value.hint
    assert "--data" not in refused.value.hint
