"""Training graphs: any inference model becomes a training step in standard ONNX operators."""

from onnxremat.grad.description import (
    Training,
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
    "Training",
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
