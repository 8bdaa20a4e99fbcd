"""Big constants that onnxruntime folds come back as ops only where these are few."""

from __future__ import annotations

import pytest

from onnxremat.ort.offline import UNFOLD_OPS, optimised_for
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
