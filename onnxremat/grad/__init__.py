"""Training graphs: any inference model becomes a training step in standard ONNX operators."""

from onnxremat.grad.blocked import block_size
from onnxremat.grad.description import Training, Variable, training_of
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
from onnxremat.grad.step import Settings, differentiate

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
    "MeanSquaredError",
    "Optimizer",
    "Settings",
    "Training",
    "Variable",
    "block_size",
    "differentiate",
    "non_differentiable",
    "training_of",
    "vjp",
]
