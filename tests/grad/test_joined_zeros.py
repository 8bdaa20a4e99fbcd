"""A bias that an exporter joined with a buffer of zeros: the zeros are not trained.

So the key bias of EVA, BEiT and SwinV2 comes out: query bias, zeros, value bias, one vector.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper, numpy_helper

from onnxremat.errors import TrainingWarning
from onnxremat.grad import differentiate, training_of
from onnxremat.grad.exported.parameters import take_inventory
from onnxremat.grad.exported.patterns import zero_block
from onnxremat.grad.exported.unfold import fold_restored
from onnxremat.training.trainer import Trainer

WIDTH = 4
RNG = np.random.default_rng(0)
QUERY, VALUE = (RNG.standard_normal(WIDTH).astype(np.float32) for _ in range(2))
ZEROS = np.zeros(WIDTH, np.float32)
WEIGHT = RNG.standard_normal((5, 3 * WIDTH)).astype(np.float32)
MARK = "pkg.onnxscript.optimizer.folded_from"
X = RNG.standard_normal((6, 5)).astype(np.float32)


def net(name: str) -> onnx.ModelProto:
    """y = x w + the joined bias, which is called ``name``; if it is dynamo's (``cat``), it says
    what it was made from."""
    bias = np.concatenate([QUERY, ZEROS, VALUE])
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "qkv.weight"], ["h"]),
         helper.make_node("Add", ["h", name], ["y"])],
        "net", [helper.make_tensor_value_info("x", T.FLOAT, (6, 5))],
        [helper.make_tensor_value_info("y", T.FLOAT, (6, 3 * WIDTH))],
        [numpy_helper.from_array(WEIGHT, "qkv.weight"), numpy_helper.from_array(bias, name)],
    )  # fmt: skip
    if name == "cat":
        info = helper.make_tensor_value_info(name, T.FLOAT, bias.shape)
        info.metadata_props.add(key=MARK, value="['a.k_bias', 'a.q_bias', 'a.v_bias']")
        graph.value_info.append(info)
    opsets = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, producer_name="pytorch")


def trained(parameters: object, name: str = "onnx::Add_7") -> dict[str, tuple[int, ...]]:
    step = differentiate(net(name), loss="mse", optimizer=None, parameters=parameters)
    return {w.name: w.shape for w in training_of(step).weights if w.status == "trained"}


@pytest.mark.parametrize("name", ["onnx::Add_7", "cat"])
def test_the_zeros_stay_as_they_are(name: str, tmp_path: Path) -> None:
    model = net(name)
    with pytest.warns(TrainingWarning, match="zeros between learned numbers"):
        step = differentiate(model, loss="mse", optimizer="adamw")
    shapes = {w.name: w.shape for w in training_of(step).weights if w.status == "trained"}
    assert shapes == {"qkv.weight": WEIGHT.shape, f"{name}.learned": (2 * WIDTH,)}
    trainer = Trainer(step, model, rate=0.1, threads=1)
    for _ in range(3):
        trainer.step({"x": X, "labels": np.ones((6, 3 * WIDTH), np.float32)})
    trainer.export(model, tmp_path / "trained.onnx")
    stored = {t.name: t for t in onnx.load(tmp_path / "trained.onnx").graph.initializer}
    after = numpy_helper.to_array(stored[name]).reshape(3, WIDTH)
    np.testing.assert_array_equal(after[1], ZEROS)
    assert (np.abs(after[[0, 2]] - [QUERY, VALUE]) > 1e-3).all()
    assert set(stored) == {"qkv.weight", name}


def test_undoing_and_folding_again_give_the_same_file() -> None:
    model = net("cat")
    stock = take_inventory(model, None)
    assert [entry.how for entry in stock.restored] == ["fill"]
    onnx.checker.check_model(stock.model, full_check=True)
    again = fold_restored(stock.model, stock.restored)
    assert [n.op_type for n in again.graph.node] == ["MatMul", "Add"]
    stored = {t.name: numpy_helper.to_array(t) for t in again.graph.initializer}
    np.testing.assert_array_equal(stored["cat"], np.concatenate([QUERY, ZEROS, VALUE]))


@pytest.mark.parametrize("name", ["onnx::Add_7", "cat"])
def test_a_list_of_parameters_decides(name: str) -> None:
    """As ``--parameters module``: without the buffer, the zeros stay; with a parameter of zeros,
    they are trained."""
    given = {"a.w": WEIGHT.T, "qkv.weight": WEIGHT, "a.q_bias": QUERY, "a.v_bias": VALUE}
    assert trained(given, name)[f"{name}.learned"] == (2 * WIDTH,)
    assert trained({**given, "a.k_bias": ZEROS}, name)[name] == (3 * WIDTH,)


@pytest.mark.parametrize(
    ("vector", "found"),
    [
        ([1.5, -2.7, 0.3, 0.1, 0, 0, 0, 0, 0.9, -1.1, 2.3, 0.7], (4, 8)),
        ([0, 0, 0, 0, 1.5, -2.7, 0.3, 0.1], None),
        ([1.5, -2.7, 0.3, 0.1, 0, 0, 0, 0], None),
        ([1.5, -2.7, 0.3, 0, 0, 0, 0, 0.1, 0.9, -1.1, 2.3, 0.7], None),
        ([1.5, 0, 0.3, 0.1, 0, 0, 0, 0, 0.9, -1.1, 2.3, 0.7], None),
        ([1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1], None),
        ([1.5, -2.7, 0.3, 0.1], None),
    ],
    ids=["joined", "first", "last", "parts differ", "another zero", "made by code", "no zero"],
)
def test_only_a_part_in_the_middle_counts(
    vector: list[float], found: tuple[int, int] | None
) -> None:
    assert zero_block(np.array(vector, np.float32)) == found
