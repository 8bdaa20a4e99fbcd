"""The models that are compared with PyTorch: real architectures at full depth, small sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

import models


@dataclass(frozen=True)
class Rates:
    """Learning rates: one that trains, and a lower one at which sides of kinks do not matter."""

    useful: float
    calm: float | None = None


@dataclass(frozen=True)
class Setting:
    """A model with its data.

    Attributes:
        sizes: of the model.
        data: seed of inputs and labels.
        rates: per optimizer; empty where no losses are compared.
    """

    sizes: Mapping[str, Any]
    data: int = 0
    rates: Mapping[str, Rates] = field(default_factory=dict)


def _rates(sgd: Rates, adamw: Rates) -> dict[str, Rates]:
    return {"sgd": sgd, "adamw": adamw}


_PLAIN = _rates(Rates(0.01), Rates(1e-3))
_TEXT = {"batch": 2, "sequence": 16, "hidden": 32, "layers": 2, "heads": 4, "vocab": 64}

SETTINGS: dict[str, Setting] = {
    "resnet18": Setting({"batch": 4, "size": 64, "width": 16, "classes": 10}, 0, _PLAIN),
    "resnet50": Setting(
        {"batch": 8, "size": 64, "width": 8, "classes": 10}, 0,
        _rates(Rates(0.01, 1e-4), Rates(1e-4, 1e-5)),
    ),
    "mobilenetv2": Setting(
        {"batch": 8, "size": 64, "width": 0.35, "classes": 10}, 2,
        _rates(Rates(1e-3, 1e-6), Rates(1e-4, 1e-6)),
    ),
    "unet": Setting(
        {"batch": 4, "size": 64, "width": 8, "levels": 4}, 3,
        _rates(Rates(0.01, 1e-3), Rates(1e-4, 1e-5)),
    ),
    "densenet121": Setting(
        {"batch": 4, "size": 64, "growth": 8, "classes": 10}, 9,
        _rates(Rates(1e-3, 1e-6), Rates(1e-4, 1e-6)),
    ),
    "convnext": Setting({"batch": 2, "size": 64, "width": 8, "deep": 2, "classes": 10}, 0, _PLAIN),
    "bert": Setting({**_TEXT, "positions": 32}, 0, _PLAIN),
    "gpt2": Setting({**_TEXT, "positions": 32}, 0, _PLAIN),
    "vit": Setting(
        {"batch": 2, "size": 32, "patch": 8, "hidden": 32, "layers": 2, "heads": 2, "classes": 10},
        0, _PLAIN,
    ),
    "llama": Setting({**_TEXT, "kv_heads": 2, "ffn": 48}, 0, _PLAIN),
    "lenet": Setting({"batch": 4}),
    "resnet20": Setting({"batch": 8, "size": 16, "blocks": 3}),
    "resnet34": Setting({"batch": 2, "size": 64, "width": 8, "classes": 10}),
    "vgg16": Setting({"batch": 2, "size": 32, "width": 8, "hidden": 32, "classes": 10}),
    "vgg19": Setting({"batch": 2, "size": 32, "width": 8, "hidden": 32, "classes": 10}),
    "inception": Setting({"batch": 8, "size": 64, "classes": 10}),
    "squeezenet": Setting({"batch": 2, "size": 64, "classes": 10}),
    "shufflenet": Setting({"batch": 4, "size": 64, "classes": 10}),
    "mlp": Setting({"batch": 8, "features": 16, "width": 32, "layers": 3}),
}  # fmt: skip


def prepare(name: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """The model, and one batch of inputs with ``labels``."""
    setting = SETTINGS[name]
    model = models.build(name, **setting.sizes)
    shape = [dim.dim_value for dim in model.graph.output[0].type.tensor_type.shape.dim]
    images = len(shape) == 4
    classes, places = (shape[1], (shape[0], *shape[2:])) if images else (shape[-1], shape[:-1])
    labels = np.random.default_rng(setting.data).integers(0, classes, places)
    return model, {**models.feeds(model, setting.data), "labels": labels}
