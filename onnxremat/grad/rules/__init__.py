"""Gradient rules, one module per family; importing this package registers them all."""

from onnxremat.grad.rules import (
    activation,
    arithmetic,
    batchnorm,
    contrib,
    conv,
    indexing,
    layout,
    loss,
    matmul,
    nondifferentiable,
    normalization,
    pooling,
    random,
    reduction,
    resize,
)

__all__ = [
    "activation",
    "arithmetic",
    "batchnorm",
    "contrib",
    "conv",
    "indexing",
    "layout",
    "loss",
    "matmul",
    "nondifferentiable",
    "normalization",
    "pooling",
    "random",
    "reduction",
    "resize",
]
