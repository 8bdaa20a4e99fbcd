"""Files that PyTorch's default exporter wrote of modules as they were made: every parameter trains
as in PyTorch, but those that the file no longer has, which are told.

``python -m tests.zoo.keep`` wrote files and gradients; PyTorch is not needed to read them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxremat.errors import TrainingWarning, UsageError
from onnxremat.grad import differentiate, training_of
from onnxremat.training.state import input_types
from onnxremat.training.trainer import Trainer
from tests.grad.fresh import Wanted, look

FILES = sorted((Path(__file__).parent / "exported_fresh").glob("*.onnx"))


def test_there_are_files() -> None:
    assert len(FILES) >= 10


@pytest.mark.filterwarnings("ignore::onnxremat.errors.TrainingWarning")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_parameters_are_right_or_told(path: Path) -> None:
    kept = np.load(path.with_suffix(".npz"))
    parts = {
        part: {n.split(":", 1)[1]: kept[n] for n in kept.files if n.startswith(f"{part}:")}
        for part in ("feed", "gradient")
    }
    wanted = Wanted(parts["feed"], kept["target"], float(kept["loss"]), parts["gradient"])
    found = look(onnx.load(path), wanted)
    assert not found.silent + found.denied, found.warnings
    assert set(found.told) == set(map(str, kept["lost"])), found.warnings
    assert found.loss < 1e-5


def test_what_is_left_out_can_be_an_error() -> None:
    """Of a gain of 1 nothing is left in the file but its name."""
    model = onnx.load(next(path for path in FILES if path.stem == "times-1"))
    with pytest.warns(TrainingWarning, match="parameters 1 are .* under their names: gain"):
        differentiate(model, optimizer="sgd")
    with pytest.raises(UsageError, match="gain"):
        differentiate(model, optimizer="sgd", strict=True)


def test_a_small_number_that_was_left_out_is_told() -> None:
    model = onnx.load(next(path for path in FILES if path.stem == "plus-small"))
    assert "Add" not in {node.op_type for node in model.graph.node}
    with pytest.warns(TrainingWarning, match="left out what is added before 1 roots"):
        differentiate(model, optimizer="sgd", loss="mse")


@pytest.mark.filterwarnings("ignore::onnxremat.errors.TrainingWarning")
@pytest.mark.parametrize("name", ["merged-with-numbers", "folded-with-number"])
def test_a_number_of_the_code_stays(name: str) -> None:
    """An exponent that was equal to what is trained, and is stored once with it."""
    path = next(path for path in FILES if path.stem == name)
    model, kept = onnx.load(path), np.load(path.with_suffix(".npz"))
    step = differentiate(model, optimizer="sgd", loss="mse")
    trainer = Trainer(step, model, rate=0.1, threads=1)
    batch = {n.split(":", 1)[1]: kept[n] for n in kept.files if n.startswith("feed:")}
    shape = input_types(step)[trainer.training.target][0]
    batch[trainer.training.target] = np.ones(shape, np.float32)
    losses = [trainer.step(batch) for _ in range(5)]
    assert losses[-1] < losses[0]


@pytest.mark.filterwarnings("ignore::onnxremat.errors.TrainingWarning")
@pytest.mark.parametrize("name", ["one-of-two-norms", "one-of-two-cuts", "one-of-two-splits"])
def test_what_was_left_out_is_trained_and_written_apart(name: str, tmp_path: Path) -> None:
    path = next(path for path in FILES if path.stem == name)
    model, kept = onnx.load(path), np.load(path.with_suffix(".npz"))
    step = differentiate(model, optimizer="sgd", loss="mse")
    trainer = Trainer(step, model, rate=0.1, threads=1)
    shape = input_types(step)[trainer.training.target][0]
    feeds = {n.split(":", 1)[1]: kept[n] for n in kept.files if n.startswith("feed:")}
    feeds[trainer.training.target] = kept["target"].reshape(shape)
    for _ in range(2):
        trainer.step(feeds)
    trainer.export(model, tmp_path / "trained.onnx")
    trained = onnx.load(tmp_path / "trained.onnx")
    again = Trainer(differentiate(trained, optimizer="sgd", loss="mse"), trained, threads=1)
    assert again.state.keys() == trainer.state.keys()
    assert again.step(feeds) == Trainer(step, trained, threads=1).step(feeds) == trainer.step(feeds)


def test_what_was_rounded_or_compared_is_not_trained() -> None:
    """``sign(s)`` and ``(w > 0.1).float()``, whose derivatives are 0."""
    model = onnx.load(next(path for path in FILES if path.stem == "folded-choice"))
    with pytest.warns(TrainingWarning, match="compared, ordered or rounded .* of w, s and"):
        about = training_of(differentiate(model, optimizer=None))
    assert {w.label or w.name for w in about.weights if w.status == "trained"} == {
        "l.weight", "l.bias", "w", "order"
    }  # fmt: skip
    assert [w.label for w in about.weights if w.name == "sign"] == ["s"]


def test_a_name_that_nothing_calls_is_listed_as_tied() -> None:
    model = onnx.load(next(path for path in FILES if path.stem == "tied-four-names"))
    about = training_of(differentiate(model, optimizer=None))
    assert not about.warnings
    assert any("model.shared.weight" in weight.tied for weight in about.weights)


def test_a_small_parameter_of_regular_numbers_is_never_frozen_silently() -> None:
    model = onnx.load(next(path for path in FILES if path.stem == "merged-group-norms"))
    name = next(t.name for t in model.graph.initializer if list(t.dims) == [4])
    scale = next(t for t in model.graph.initializer if t.name == name)
    scale.CopyFrom(numpy_helper.from_array(np.arange(4, dtype=np.float32) / 4, name))
    with pytest.warns(TrainingWarning, match="its values are a progression"):
        differentiate(model, optimizer="sgd")


def test_a_bound_without_a_name_is_told_and_can_be_trained() -> None:
    """``clamp(x, max=top)`` as PyTorch's older exporter writes it."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17], producer_name: "pytorch">
        g (float[2, 3] x) => (float[2, 3] y)
        <float[3] b = {0, 1, 2}, float top = {0.3}> {
            a = Add (x, b)
            y = Clip (a, , top)
        }
    """)
    model.graph.initializer[1].name = model.graph.node[1].input[2] = "onnx::Clip_9"
    with pytest.warns(TrainingWarning, match="onnx::Clip_9: not trained: a bound whose name"):
        assert [n for n, _ in training_of(differentiate(model, optimizer=None)).gradients] == ["b"]
    step = differentiate(model, optimizer=None, trainable=["onnx::Clip_9"])
    assert [name for name, _ in training_of(step).gradients] == ["onnx::Clip_9"]
    found = training_of(differentiate(model, optimizer=None, parameters=["b", "onnx::Clip_9"]))
    assert {name for name, _ in found.gradients} == {"b", "onnx::Clip_9"}


def test_buffers_of_spectral_norm_and_pruning_are_not_trained() -> None:
    """As PyTorch's older exporter writes them: it says of nothing whether it is a parameter."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17], producer_name: "pytorch">
        g (float[2, 3] x) => (float[2, 4] y) {
            h = MatMul (a_orig, a_v)
            s = MatMul (a_u, h)
            w = Div (a_orig, s)
            z = MatMul (x, w)
            m = Mul (b_orig, b_mask)
            y = MatMul (z, m)
        }
    """)
    random = np.random.default_rng(0)
    shapes = {"a_orig": (3, 3), "a_u": (3,), "a_v": (3,), "b_orig": (3, 4), "b_mask": (3, 4)}
    for name, shape in shapes.items():
        drawn = random.standard_normal(shape)
        value = (drawn > 0) if name.endswith("mask") else drawn
        model.graph.initializer.append(numpy_helper.from_array(value.astype(np.float32), name))
    with pytest.warns(TrainingWarning, match="2 vectors of spectral .* stay as they are"):
        about = training_of(differentiate(model, optimizer=None))
    assert {name for name, _ in about.gradients} == {"a_orig", "b_orig"}


def test_what_the_older_exporter_may_have_computed_is_told() -> None:
    """``x (1 - gate)`` beside a linear layer, whose weight is only transposed."""
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "onnx::MatMul_7"], ["h"], name="/l/MatMul"),
        onnx.helper.make_node("Mul", ["h", "onnx::Mul_8"], ["k"], name="/Mul"),
        onnx.helper.make_node("Add", ["k", "gate"], ["y"], name="/Add"),
    ]
    gate = np.linspace(0.1, 0.9, 5).astype(np.float32) ** 2
    weight = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)
    values = {"onnx::MatMul_7": weight, "onnx::Mul_8": 1 - gate, "gate": gate}
    graph = onnx.helper.make_graph(
        nodes,
        "main_graph",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (4, 6))],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (4, 5))],
        [numpy_helper.from_array(value, name) for name, value in values.items()],
    )
    model = onnx.helper.make_model(graph, producer_name="pytorch", ir_version=10)
    model.opset_import[0].version = 18
    with pytest.warns(TrainingWarning, match="stored 1 tensors .*: onnx::Mul_8: where"):
        differentiate(model, optimizer="sgd")
    with pytest.raises(UsageError, match="onnx::Mul_8"):
        differentiate(model, optimizer="sgd", strict=True)
    model.producer_name = "another"
    differentiate(model, optimizer="sgd", strict=True)
