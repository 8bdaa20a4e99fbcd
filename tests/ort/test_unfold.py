"""Big constants that onnxruntime folds come back as ops only where these are few."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onnxremat.ort.offline import optimised_for
from onnxremat.ort.unfold import UNFOLD_OPS
from tests.toolbox import parse


@pytest.mark.parametrize(("ops", "folded"), [(3, False), (UNFOLD_OPS + 1, True)])
def test_few_ops_make_a_constant_anew(ops: int, folded: bool) -> None:
    """The mask of a shifted window came of hundreds of ops, whose sizes onnxruntime infers only by
    folding them: 3745 ops instead of 513, none of them in parts."""
    chain = "\n".join(f"c{i + 1} = Cos(c{i})" for i in range(ops - 1))
    model = parse(f"""g (float[200, 400] x) => (float[200, 400] y) <int64[2] s = {{200, 400}}> {{
        c0 = ConstantOfShape (s)
        {chain}
        y = Mul (x, c{ops - 1})
    }}""")
    kinds = [op.op_type for op in optimised_for(model, "host", None).graph.ops]
    assert (kinds == ["Mul"]) == folded
    assert ("ConstantOfShape" in kinds) != folded


def test_sizes_of_what_comes_back_are_known() -> None:
    """``constant.expand(x.shape[0], -1, -1)``: exporters compare the sizes with -1 first, which
    nothing infers. ``explain`` refused a generator with a learned constant, and ``optimize`` called
    its size one that depends on data."""
    model = parse("""g (float[4, 64] x) => (float[1, 512, 64] y) <
        int64[1] first = {0}, int64 axis = {0}, int64[2] rest = {-1, -1}, int64[1] three = {3},
        int64 minus = {-1}, int64[3] flat = {1, 512, 64}> {
        shape = Shape (x)
        batch = Gather <axis = 0> (shape, first)
        sizes = Concat <axis = 0> (batch, rest)
        ones = ConstantOfShape <value = int64[1] {1}> (three)
        same = Mul (ones, minus)
        kept = Equal (sizes, same)
        right = Where (kept, ones, sizes)
        wide = Expand (c, right)
        seen = Reshape (wide, flat)
        part = Gather <axis = 0> (x, axis)
        y = Add (seen, part)
    }""")
    learned = np.ones((1, 128, 64), np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(learned, "c"))
    graph = optimised_for(model, "host", None).graph
    assert [op.op_type for op in graph.ops] == ["Expand", "Reshape", "Gather", "Add"]
    assert graph.tensors["wide"].shape == (4, 128, 64)
