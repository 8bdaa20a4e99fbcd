"""A refusal names ``--target portable`` where that holds less, and only there."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxremat import Settings, api
from onnxremat.errors import InfeasibleError, NoPlanError
from tests.toolbox import parse


def tied() -> onnx.ModelProto:
    """A table that is looked up and, transposed, multiplied with, as in a language model: every
    target folds the transpose."""
    model = parse("""net (int64[8] x) => (float[8, 2000] y) {
        h = Gather(table, x)
        g = Tanh(h)
        turned = Transpose <perm = [1, 0]> (table)
        y = MatMul(g, turned)
    }""")
    table = np.random.default_rng(0).standard_normal((2000, 64)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(table, "table"))
    return model


def filled() -> onnx.ModelProto:
    """Filters that are made of a shape, which are laid out for the processor as the model opens."""
    return parse("""net (float[1, 64, 8, 8] x) => (float[1, 256, 8, 8] y)
        <int64[4] shape = {256, 64, 3, 3}> {
        w = ConstantOfShape <value = float[1] {0.02}> (shape)
        h = Conv <pads = [1, 1, 1, 1]> (x, w)
        y = Relu(h)
    }""")


@pytest.mark.parametrize(("made", "named"), [(tied, False), (filled, True)])
def test_portable_is_named_where_it_holds_less(
    made: Callable[[], onnx.ModelProto], named: bool
) -> None:
    with pytest.raises((InfeasibleError, NoPlanError)) as refused:
        api.optimize(made(), budget="0.1x", settings=Settings(threads=1))
    assert ("--target portable" in refused.value.hint) == named
