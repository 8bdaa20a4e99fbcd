"""What is given to a step has the frozen values of the model that the step was made from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxremat.errors import ModelError, UsageError
from onnxremat.grad import differentiate
from onnxremat.training.evaluation import Evaluator
from onnxremat.training.state import Source
from onnxremat.training.trainer import Trainer
from tests.training.nets import BATCH, arrays, net

OTHERS = "'w1' is frozen in the training graph, and has other values"


def scaled(factor: float) -> onnx.ModelProto:
    """The small net with other weights of the same names and shapes."""
    model = net()
    for tensor in model.graph.initializer:
        value = numpy_helper.to_array(tensor) * np.float32(factor)
        tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))
    return model


def step_of(model: onnx.ModelProto, stored: bool = True) -> onnx.ModelProto:
    return differentiate(model, optimizer="sgd", freeze=["w1", "b1"], initializers=stored)


def in_a_file(model: onnx.ModelProto, folder: Path, apart: bool = False) -> Path:
    file = folder / "net.onnx"
    onnx.save(model, file, save_as_external_data=apart, size_threshold=0, location="net.data")
    return file


KINDS: dict[str, Callable[[onnx.ModelProto, Path], object]] = {
    "model": lambda model, _: model,
    "file": in_a_file,
    "files": lambda model, folder: in_a_file(model, folder, apart=True),
    "arrays": lambda model, _: {t.name: numpy_helper.to_array(t) for t in model.graph.initializer},
    "step": lambda model, _: step_of(model),
}


@pytest.mark.parametrize("kind", KINDS)
def test_first_values(tmp_path: Path, kind: str) -> None:
    """A step would train, and an export join, what does not belong together."""
    step = step_of(net(), stored=False)
    Trainer(step, KINDS[kind](net(), tmp_path))
    with pytest.raises(UsageError, match=OTHERS):
        Trainer(step, KINDS[kind](scaled(1.01), tmp_path))


@pytest.mark.parametrize("kind", ["model", "file", "files"])
@pytest.mark.parametrize("taker", ["export", "evaluator"])
def test_models_that_take_what_was_trained(tmp_path: Path, kind: str, taker: str) -> None:
    trainer = Trainer(step_of(net()))

    def give(source: Source) -> object:
        return trainer.export(source) if taker == "export" else Evaluator(trainer, source)

    trainer.step({name: array[:BATCH] for name, array in arrays().items()})
    give(KINDS[kind](net(), tmp_path))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=OTHERS):
        give(KINDS[kind](scaled(1.01), tmp_path))  # type: ignore[arg-type]


def test_a_checkpoint_is_of_what_was_trained_beside_the_same_values(tmp_path: Path) -> None:
    file = tmp_path / "run.safetensors"
    Trainer(step_of(net())).save(file)
    Trainer(step_of(net())).resume(file)
    other = Trainer(step_of(scaled(1.01)))
    before = other.values()
    with pytest.raises(ModelError, match="another training graph"):
        other.resume(file)
    assert all(np.array_equal(before[name], value) for name, value in other.state.items())


@pytest.mark.parametrize("name", ["ratio", "other"])
def test_settings_and_what_the_loss_does_not_see_may_be_others(name: str) -> None:
    def made(value: float) -> onnx.ModelProto:
        model = net(dropout=0.3)
        model.graph.node.append(onnx.helper.make_node("Mul", ["d", "other"], ["second"]))
        model.graph.output.append(onnx.helper.make_tensor_value_info("second", 1, [BATCH, 6]))
        model.graph.initializer.append(numpy_helper.from_array(np.ones(6, np.float32), "other"))
        (tensor,) = (t for t in model.graph.initializer if t.name == name)
        changed = np.full(tuple(tensor.dims), value, np.float32)
        tensor.CopyFrom(numpy_helper.from_array(changed, name))
        return model

    step = differentiate(made(0.3), freeze=["other", "b1"], initializers=True)
    Trainer(step, made(0.2)).export(made(0.4))


def test_an_export_wants_the_inference_model() -> None:
    trainer = Trainer(step_of(net()))
    with pytest.raises(UsageError, match="this is a training step"):
        trainer.export(step_of(net()))


def test_marks_are_those_of_the_model_however_the_step_is_stored(tmp_path: Path) -> None:
    """A rewrite may lay a frozen value out anew, and files hold it elsewhere."""
    step = step_of(net())
    for tensor in step.graph.initializer:
        if tensor.name == "w1":
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) + 1, "w1"))
    Trainer(step, net())


def test_an_export_takes_models_alone_whose_weights_are_of_the_kind_that_is_trained() -> None:
    trainer = Trainer(differentiate(net(), optimizer="sgd", initializers=True))
    for value in (np.zeros((6, 4), np.float32), np.zeros((6, 3), np.float16), None):
        model = net()
        (tensor,) = (t for t in model.graph.initializer if t.name == "w2")
        if value is None:
            model.graph.initializer.remove(tensor)
        else:
            tensor.CopyFrom(numpy_helper.from_array(value, "w2"))
        has = "no initializer" if value is None else rf"{value.dtype}\[6, {value.shape[1]}\]"
        with pytest.raises(UsageError, match=rf"'w2' is trained as float32\[6, 3\].*has {has}"):
            trainer.export(model)
