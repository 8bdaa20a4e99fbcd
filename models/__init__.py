"""Test models: real architectures with seeded weights, built with onnx and numpy alone.

>>> model = build("resnet18", batch=2, size=64)
>>> arrays = feeds(model)
"""

from collections.abc import Mapping

import onnx

from models import (
    bert,
    convnext,
    densenet,
    gpt2,
    inception,
    lenet,
    light,
    llama,
    mlp,
    mobilenetv2,
    resnet,
    shufflenet,
    squeezenet,
    unet,
    vgg,
    vit,
)
from models.inputs import feeds
from models.measure import activation_bytes, parameter_count
from models.spec import Argument, Spec

__all__ = [
    "SPECS",
    "activation_bytes",
    "build",
    "defaults",
    "feeds",
    "names",
    "parameter_count",
]

_FAMILIES = (
    resnet,
    mobilenetv2,
    vgg,
    unet,
    densenet,
    inception,
    squeezenet,
    shufflenet,
    lenet,
    bert,
    gpt2,
    vit,
    convnext,
    llama,
    mlp,
    light,
)

SPECS: Mapping[str, Spec] = {spec.name: spec for family in _FAMILIES for spec in family.SPECS}


def names() -> tuple[str, ...]:
    """Every name that ``build`` takes."""
    return tuple(SPECS)


def defaults(name: str) -> dict[str, Argument]:
    """The arguments of a model with their default values."""
    return dict(_spec(name).defaults)


def build(name: str, **arguments: Argument) -> onnx.ModelProto:
    """The model ``name``; ``arguments`` replace the values of ``defaults(name)``.

    All but the light models take ``batch``, ``seed``, ``symbolic_batch`` (leading dimensions
    named "batch") and ``weights`` (False: parameters become graph inputs without values).
    """
    return _spec(name).build(arguments)


def _spec(name: str) -> Spec:
    if name not in SPECS:
        raise ValueError(f"unknown model {name!r}; known are {', '.join(SPECS)}")
    return SPECS[name]
