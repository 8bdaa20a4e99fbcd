"""Models that return maps, as scikit-learn's classifiers do, or elements that NumPy lacks."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import onnxremat
from onnxremat.errors import UnsupportedError, UsageError
from onnxremat.grad import differentiate
from onnxremat.ort.profile import run_session
from onnxremat.ort.session import open_session, session_options
from onnxremat.training.sessions import UNPLANNED
from tests.toolbox import parse

ML = "ai.onnx.ml"


def classifier() -> onnx.ModelProto:
    """As skl2onnx writes one: labels, and a map of probabilities per row."""
    nodes = [
        helper.make_node(
            "LinearClassifier", ["x"], ["label", "score"], domain=ML, coefficients=[0.1] * 24,
            intercepts=[0.0, 0.1, 0.2], classlabels_ints=[0, 1, 2], multi_class=0,
            post_transform="SOFTMAX",
        ),
        helper.make_node("ZipMap", ["score"], ["p"], domain=ML, classlabels_int64s=[0, 1, 2]),
    ]  # fmt: skip
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, (16, 8))
    label = helper.make_tensor_value_info("label", TensorProto.INT64, (16,))
    graph = helper.make_graph(nodes, "net", [given], [label])
    kind = graph.output.add(name="p").type.sequence_type.elem_type.map_type
    kind.key_type = TensorProto.INT64
    kind.value_type.tensor_type.elem_type = TensorProto.FLOAT
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(ML, 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def test_a_run_into_given_memory_returns_maps_too() -> None:
    x = np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32)
    session = open_session(classifier(), session_options(UNPLANNED))
    plain = run_session(session, {"x": x})
    label, maps = run_session(session, {"x": x}, bound=["label", "p"])
    np.testing.assert_array_equal(label, plain[0])
    assert maps == plain[1]
    assert len(maps) == 16


@pytest.mark.parametrize(("kind", "name"), [(16, "bfloat16"), (22, "int4")])
def test_outputs_that_are_no_arrays(kind: int, name: str) -> None:
    model = parse(f"g (float[2, 3] x) => (float[2, 3] y) {{ a = Sin(x) y = Cast<to={kind}>(a) }}")
    model.graph.output[0].type.tensor_type.elem_type = kind
    model.opset_import[0].version = 21
    session = open_session(model, session_options(UNPLANNED))
    with pytest.raises(UnsupportedError, match=f"output 'y' is {name}"):
        run_session(session, {"x": np.ones((2, 3), np.float32)})


def test_the_default_order_is_not_promised_where_pins_cannot_fix_it() -> None:
    """No pin can be put on a sequence of maps: what optimize writes, verify's check accepts."""
    model = classifier()
    model.graph.node.append(helper.make_node("Cast", ["label"], ["named"], to=TensorProto.INT32))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("named", TensorProto.INT32, (16,)))
    result = onnxremat.optimize(model, budget="min", bench_seconds=0)
    assert result.prepared.feeds is not None
    run = result.candidate.artifact.measure(result.prepared.feeds)
    check = run.checks[-1]
    assert check.name == "executed order, default options"
    assert check.ok
    assert "'p' is no tensor" in check.text


def test_a_model_of_no_standard_operators_has_nothing_to_train() -> None:
    """As XGBoost's converter writes one: it names no version of ONNX's operators."""
    node = helper.make_node("Normalizer", ["x"], ["y"], domain=ML, norm="L2")
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (4, 6)) for name in "xy"]
    graph = helper.make_graph([node], "net", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid(ML, 1)], ir_version=10)
    with pytest.raises(UsageError, match="nothing to train"):
        differentiate(model, loss="mse")
