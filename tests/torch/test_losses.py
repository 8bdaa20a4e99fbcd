"""Losses and their gradients against PyTorch's, in float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from onnxremat.grad import (
    AbsoluteError,
    BinaryCrossEntropy,
    CrossEntropy,
    Dice,
    Huber,
    Loss,
    MeanSquaredError,
)
from onnxremat.grad.losses import LOSSES
from tests.grad.loss_values import CROSS, cross_data, evaluate
from tests.torch.node import Tensor

RNG = np.random.default_rng(4)


def _dice(x: Tensor, z: Tensor) -> Tensor:
    """As its paper has it, smoothed by 1; PyTorch has none of its own."""
    p, space = torch.sigmoid(x), list(range(2, x.dim()))
    return (1 - (2 * (p * z).sum(space) + 1) / (p.sum(space) + z.sum(space) + 1)).mean()


ELEMENTWISE: list[tuple[Loss, Callable[[Tensor, Tensor], Tensor]]] = [
    (BinaryCrossEntropy(), F.binary_cross_entropy_with_logits),
    (MeanSquaredError(), F.mse_loss),
    (AbsoluteError(), F.l1_loss),
    (Huber(0.7), lambda x, z: F.huber_loss(x, z, delta=0.7)),
    (Dice(), _dice),
]


def _same(loss: Loss, x: np.ndarray, z: np.ndarray, call: Callable[[Tensor], Tensor]) -> None:
    value, gradient = evaluate(loss, x, z)
    tensor = torch.tensor(x, requires_grad=True)
    expected = call(tensor)
    expected.backward()
    assert tensor.grad is not None
    assert value == pytest.approx(float(expected.detach()), rel=1e-9)
    np.testing.assert_allclose(gradient, tensor.grad.numpy(), rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("loss", CROSS, ids=str)
def test_cross_entropy_equals_torch(loss: CrossEntropy) -> None:
    x, labels = cross_data((6, 4), 1, loss.ignore_index)
    weights = loss.class_weights
    table = None if weights is None else torch.tensor(weights, dtype=torch.float64)
    ignored = -100 if loss.ignore_index is None else loss.ignore_index
    _same(loss, x, labels, lambda tensor: F.cross_entropy(
        tensor, torch.tensor(labels), table, label_smoothing=loss.label_smoothing,
        ignore_index=ignored,
    ))  # fmt: skip


@pytest.mark.parametrize(
    ("loss", "call"), ELEMENTWISE, ids=lambda v: getattr(v, "__name__", str(v))
)
def test_elementwise_equals_torch(loss: Loss, call: Callable[[Tensor, Tensor], Tensor]) -> None:
    x, z = RNG.standard_normal((2, 3, 4)), RNG.random((2, 3, 4))
    _same(loss, x, z, lambda tensor: call(tensor, torch.tensor(z)))


def test_every_loss_is_compared() -> None:
    compared = {CrossEntropy, *(type(loss) for loss, _ in ELEMENTWISE)}
    assert compared == set(LOSSES.values())
