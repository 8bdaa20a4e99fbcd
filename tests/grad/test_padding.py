"""Rows of embeddings for padding: not trained where the file says which, else named."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxremat.errors import TrainingWarning
from onnxremat.grad import differentiate
from onnxremat.training.trainer import Trainer

PAD = 3
TABLE = np.arange(1, 11, dtype=np.float32).reshape(5, 2) / 10
IDS = np.array([[0, PAD, 2], [PAD, PAD, 0]])
SAYS = (
    "%embedding : [num_users=1] = call_function[target=torch.ops.aten.embedding.default]"
    "(args = (%p_e_weight, %x{}), kwargs = {{}})"
)


def net(call: str, known: bool = False, table: np.ndarray = TABLE) -> onnx.ModelProto:
    """Rows of a table as logits; ``call`` is what the file says of the Gather."""
    gather = helper.make_node("Gather", ["e.weight", "ids"], ["rows"])
    if call:
        scopes = "['', 'e', 'embedding']"
        for key, value in (("fx_node", call), ("name_scopes", scopes)):
            gather.metadata_props.add(key=f"pkg.torch.onnx.{key}", value=value)
    flat = helper.make_node("Flatten", ["rows"], ["logits"])
    weights = [numpy_helper.from_array(table, "e.weight")]
    inputs = [helper.make_tensor_value_info("ids", TensorProto.INT64, IDS.shape)]
    if known:
        shift = helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 6))
        weights.append(numpy_helper.from_array(IDS, "ids"))
        flat.output[0] = "flat"
        nodes = [gather, flat, helper.make_node("Add", ["flat", "x"], ["logits"])]
        inputs = [shift]
    else:
        nodes = [gather, flat]
    output = helper.make_tensor_value_info("logits", TensorProto.FLOAT, (2, 6))
    graph = helper.make_graph(nodes, "net", inputs, [output], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def by_hand(row: int | None) -> np.ndarray:
    """The gradient of the mean cross entropy with labels 0 and 1."""
    logits = TABLE[IDS].reshape(2, 6).astype(np.float64)
    share = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    share[[0, 1], [0, 1]] -= 1
    found = np.zeros(TABLE.shape)
    np.add.at(found, IDS, share.reshape(2, 3, 2) / 2)
    if row is not None:
        found[row] = 0
    return found


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(("said", "row"), [(f", {PAD}", PAD), ("", None), (f", {PAD}, True", PAD)])
def test_the_row_that_the_file_names_gets_no_gradient(
    said: str, row: int | None, known: bool
) -> None:
    model = net(SAYS.format(said), known)
    trainer = Trainer(differentiate(model, optimizer="sgd"), model, rate=1.0, threads=1)
    data = {"x": np.zeros((2, 6), np.float32)} if known else {"ids": IDS}
    trainer.step(data | {"labels": np.array([0, 1])})
    found = TABLE - trainer.values()["e.weight"]
    np.testing.assert_allclose(found, by_hand(row), atol=1e-6)


def _told(model: onnx.ModelProto) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", TrainingWarning)
        differentiate(model, optimizer="sgd")
    return [str(each.message) for each in caught if "padding_idx" in str(each.message)]


def test_a_row_of_zeros_is_named_where_the_file_does_not_say() -> None:
    table = TABLE.copy()
    table[1] = 0
    assert len(_told(net("", table=table))) == 1
    assert "row 1 of 'e.weight'" in _told(net("", table=table))[0]
    assert not _told(net(SAYS.format(""), table=table))  # it says that there is none
    assert not _told(net(""))
    table[2] = 0
    assert not _told(net("", table=table))
