"""Whole models: they train, and in place as well as not. tests/torch compares their gradients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
import pytest
from _pytest.mark import ParameterSet
from onnx import numpy_helper

import models
from onnxremat.errors import ModelError
from onnxremat.grad import differentiate, training_of
from onnxremat.ort.blocks import DOMAIN, block_size
from onnxremat.ort.session import Options, open_session, session_options
from onnxremat.training.trainer import Trainer
from tests.limits import work

SMALL: dict[str, dict[str, Any]] = {
    "lenet": {"batch": 4},
    "resnet18": {"batch": 4, "size": 64, "width": 16, "classes": 10},
    "resnet34": {"batch": 2, "size": 64, "width": 8, "classes": 10},
    "resnet50": {"batch": 4, "size": 64, "width": 16, "classes": 10},
    "resnet20": {"batch": 4, "size": 16, "blocks": 1},
    "mobilenetv2": {"batch": 4, "size": 96, "classes": 10},
    "vgg16": {"batch": 2, "size": 32, "width": 8, "hidden": 32, "classes": 10},
    "vgg19": {"batch": 2, "size": 32, "width": 8, "hidden": 32, "classes": 10},
    "unet": {"batch": 2, "size": 32, "width": 8, "levels": 2},
    "densenet121": {"batch": 4, "size": 64, "growth": 8, "classes": 10},
    "inception": {"batch": 4, "size": 64, "classes": 10},
    "squeezenet": {"batch": 2, "size": 64, "classes": 10},
    "shufflenet": {"batch": 4, "size": 64, "classes": 10},
    "bert": {"batch": 2, "sequence": 16, "hidden": 32, "layers": 2, "heads": 4, "vocab": 64,
             "positions": 32},
    "gpt2": {"batch": 2, "sequence": 16, "hidden": 32, "layers": 2, "heads": 4, "vocab": 64,
             "positions": 32},
    "vit": {"batch": 2, "size": 32, "patch": 8, "hidden": 32, "layers": 2, "heads": 2,
            "classes": 10},
    "convnext": {"batch": 2, "size": 64, "width": 8, "deep": 2, "classes": 10},
    "llama": {"batch": 2, "sequence": 16, "hidden": 32, "layers": 2, "heads": 4, "kv_heads": 2,
              "ffn": 48, "vocab": 64},
    "mlp": {"batch": 8, "features": 16, "width": 32, "layers": 3},
}  # fmt: skip
LIGHT = [name for name in models.names() if name.startswith("light_")]
SLOW = (
    "light_densenet121", "light_inception_v1", "light_inception_v2", "light_vgg19",
    "light_zfnet512", "light_resnet50",
    "light_bvlc_alexnet", "densenet121", "inception", "mobilenetv2",
    "shufflenet", "light_shufflenet", "resnet50",
)  # fmt: skip
# Rates at which a step in each direction of a freshly drawn model lowers the loss.
RATES = {"vgg16": 1e-3, "vgg19": 1e-3, "squeezenet": 1e-4, "mobilenetv2": 1e-3, "unet": 0.05}


def setting(name: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray], np.ndarray]:
    """A small model, its inputs and labels."""
    model = models.build(name, **(SMALL.get(name) or {"seeded": True}))
    shape = [d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim]
    if len(shape) == 4 and shape[2] > 1:
        labels = np.random.default_rng(0).integers(0, shape[1], (shape[0], *shape[2:]))
    elif len(shape) == 4:
        labels = np.random.default_rng(0).integers(0, shape[1], (shape[0], 1, 1))
    else:
        labels = np.random.default_rng(0).integers(0, shape[-1], shape[:-1])
    return model, models.feeds(model), labels


def params(names: Iterable[str]) -> list[ParameterSet]:
    """Names as parameters, the slow ones marked."""
    return [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in names]


def test_every_model_is_tried() -> None:
    assert set(SMALL) | set(LIGHT) == set(models.names())


@pytest.mark.parametrize("name", params(SMALL))
def test_loss_falls(name: str) -> None:
    model, feeds, labels = setting(name)
    graph = differentiate(model, optimizer="sgd")
    onnx.checker.check_model(graph)
    trainer = Trainer(graph, model, rate=RATES.get(name, 0.01), threads=1)
    losses = [trainer.step({**feeds, "labels": labels}) for _ in range(5)]
    assert np.isfinite(losses).all(), losses
    assert min(losses[1:]) < losses[0] - 1e-3, losses


@pytest.mark.parametrize("name", params(LIGHT))
def test_light_zoo_trains(name: str) -> None:
    """Opset 9, final Softmax, Dropout: brought to 18, cut off, switched on."""
    model, feeds, labels = setting(name)
    graph = differentiate(model, optimizer="sgd", dropout=False)
    trainer = Trainer(graph, model, rate=1e-3, threads=1)
    del model, graph
    losses = [trainer.step({**feeds, "labels": labels}) for _ in range(3)]
    assert np.isfinite(losses).all(), losses
    assert losses[-1] < losses[0] - 1e-4, losses  # 1e-6 may be rounding


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a - b).max() / (np.abs(b).max() + 1e-30))


def test_differentiating_is_quick_and_light() -> None:
    """ResNet-50 at full width: weights are never copied into the training graph."""
    model = models.build("resnet50", batch=2, size=64, width=64)
    with work(10.0):
        graph = differentiate(model, optimizer="adamw")
    assert graph.ByteSize() < 0.02 * model.ByteSize()


def test_batch_statistics_are_state() -> None:
    model, feeds, labels = setting("resnet18")
    graph = differentiate(model, optimizer="sgd")
    states = {v.input for v in training_of(graph).states}
    assert states == {t.name for t in model.graph.initializer if "running" in t.name}
    trainer = Trainer(graph, model, threads=1)
    before = trainer.values()
    trainer.step({**feeds, "labels": labels})
    after = trainer.values()
    assert all(np.abs(after[name] - before[name]).max() > 0 for name in states)


@pytest.mark.parametrize(
    ("name", "sizes", "tolerance"),
    [
        ("mobilenetv2", {}, 5e-3),
        ("resnet18", {"width": 16, "size": 128}, 1e-3),
        ("squeezenet", {}, 1e-3),  # with biases
    ],
)
def test_blocked_convolutions_give_the_same_gradients(
    name: str, sizes: dict[str, int], tolerance: float
) -> None:
    """Up to rounding, which rectifiers at their bounds amplify."""
    try:
        block = block_size()
    except ModelError:
        pytest.skip("this onnxruntime has no blocked convolutions")
    model = models.build(name, batch=2, classes=10, **({"size": 96} | sizes))
    labels = np.array([1, 7])
    found = []
    for options in ({}, {"blocked": block}):
        graph = differentiate(model, optimizer=None, dropout=False, batch_norm="frozen", **options)
        session = open_session(graph, session_options(Options(threads=1, pattern=False)))
        stored = {t.name: t for t in model.graph.initializer}
        wanted = [i.name for i in session.get_inputs() if i.name in stored]
        values = {n: numpy_helper.to_array(stored[n]) for n in wanted}
        results = session.run(None, {**models.feeds(model), "labels": labels, **values})
        found.append(dict(zip([o.name for o in session.get_outputs()], results, strict=True)))
        domains = {n.domain for n in graph.graph.node}
        assert (DOMAIN in domains) == bool(options)
    for key, value in found[0].items():
        assert _distance(found[1][key], value) < tolerance, key


@pytest.mark.parametrize(
    "name",
    ["resnet18", pytest.param("mobilenetv2", marks=pytest.mark.slow), "convnext", "vit", "bert",
     "gpt2"],
)  # fmt: skip
def test_updates_in_place_change_nothing(name: str) -> None:
    """Each state bound to one buffer for old and new value gives the very bits of separate
    buffers: every reader of an old value has run before it is overwritten."""
    model, feeds, labels = setting(name)
    graph = differentiate(model, optimizer="adamw", dropout=False)
    trainer = Trainer(graph, model, rate=0.01, threads=1)
    session = open_session(graph, session_options(Options(threads=1, pattern=False)))
    inputs = {
        **feeds, "labels": labels, trainer.training.rate: np.array(0.01, np.float32),
        **trainer.values(),
    }  # fmt: skip
    names = [o.name for o in session.get_outputs()]
    apart = dict(zip(names, session.run(None, inputs), strict=True))
    trainer.step({**feeds, "labels": labels})
    together = trainer.values()
    differing = [v.input for v in trainer.training.variables
                 if not np.array_equal(together[v.input], apart[v.output])]  # fmt: skip
    assert not differing


@pytest.mark.parametrize("name", ["resnet20", "squeezenet", "gpt2"])
def test_nothing_is_computed_to_be_waited_for_alone(name: str) -> None:
    """An update in place waits for the readers of a parameter: by the sizes of what they make. One
    whose result nobody else reads is no reader."""
    made = differentiate(models.build(name, **SMALL[name]), optimizer="sgd").graph
    read = {value for node in made.node if node.op_type != "Size" for value in node.input}
    read |= {value.name for value in made.output}
    idle = [node.name for node in made.node if read.isdisjoint(node.output)]
    assert not idle


def test_portable_graph_gives_the_same_gradients() -> None:
    """Without training-mode BatchNormalization and without the extra LayerNormalization outputs."""
    for name in ("resnet18", "vit"):
        model, feeds, labels = setting(name)
        plain = differentiate(model, optimizer="sgd")
        portable = differentiate(model, optimizer="sgd", portable=True)
        assert not any(
            a.name == "training_mode" and a.i for n in portable.graph.node for a in n.attribute
        )
        assert all(
            len(n.output) == 1 for n in portable.graph.node if n.op_type == "LayerNormalization"
        )
        found = []
        for graph in (plain, portable):
            trainer = Trainer(graph, model, threads=1)
            trainer.step({**feeds, "labels": labels})
            found.append(trainer.values())
        for key, value in found[0].items():
            np.testing.assert_allclose(found[1][key], value, rtol=1e-3, atol=2e-5, err_msg=key)
