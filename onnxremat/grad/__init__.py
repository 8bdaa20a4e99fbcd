"""Training graphs: any inference model becomes a training step in standard ONNX operators."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnxremat.grad.description import (
        StepSignature,
        Variable,
        Weight,
        is_step,
        training_of,
        updated_inputs,
    )
    from onnxremat.grad.losses import (
        AbsoluteError,
        BinaryCrossEntropy,
        CrossEntropy,
        Dice,
        Huber,
        Loss,
        MeanSquaredError,
    )
    from onnxremat.grad.optimizers import SGD, Adagrad, Adam, Lamb, Optimizer
    from onnxremat.grad.registry import non_differentiable, vjp
    from onnxremat.grad.scaling import LossScale
    from onnxremat.grad.settings import Settings
    from onnxremat.grad.step import differentiate
    from onnxremat.grad.update import update_of

__all__ = [
    "SGD",
    "AbsoluteError",
    "Adagrad",
    "Adam",
    "BinaryCrossEntropy",
    "CrossEntropy",
    "Dice",
    "Huber",
    "Lamb",
    "Loss",
    "LossScale",
    "MeanSquaredError",
    "Optimizer",
    "Settings",
    "StepSignature",
    "Variable",
    "Weight",
    "differentiate",
    "is_step",
    "non_differentiable",
    "training_of",
    "update_of",
    "updated_inputs",
    "vjp",
]

_HOMES = {
    "description": (
        "StepSignature", "Variable", "Weight", "is_step", "training_of", "updated_inputs",
    ),
    "losses": (
        "AbsoluteError", "BinaryCrossEntropy", "CrossEntropy", "Dice", "Huber", "Loss",
        "MeanSquaredError",
    ),
    "optimizers": ("SGD", "Adagrad", "Adam", "Lamb", "Optimizer"),
    "registry": ("non_differentiable", "vjp"),
    "scaling": ("LossScale",),
    "settings": ("Settings",),
    "step": ("differentiate",),
    "update": ("update_of",),
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import on first use: a process that runs a step reads its description alone."""
    for home, names in _HOMES.items():
        if name in names:
            if home == "registry":  # a caller's rules come after ours, the defaults
                import_module(f"{__name__}.rules")
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
