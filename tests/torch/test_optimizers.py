"""Optimizers and clipping against PyTorch's, over six steps of a small net."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch

from onnxremat.grad import SGD, Adagrad, Adam, Optimizer
from onnxremat.grad.optimizers import OPTIMIZERS
from tests.grad.two_layers import RATE, W1, W2, X, Z, same, trained
from tests.torch.node import Tensor

Make = Callable[[Iterable[Tensor]], torch.optim.Optimizer]
# PyTorch has no LAMB; tests/grad/test_optimizers.py holds it to its definition.
WITHOUT_COUNTERPART = {"Lamb"}


def made(kind: type[torch.optim.Optimizer], **settings: Any) -> Make:
    return lambda values: kind(values, lr=RATE, **settings)


PAIRS: list[tuple[Optimizer, Make]] = [
    (SGD(), made(torch.optim.SGD)),
    (SGD(weight_decay=0.1), made(torch.optim.SGD, weight_decay=0.1)),
    (SGD(momentum=0.9), made(torch.optim.SGD, momentum=0.9)),
    (SGD(momentum=0.9, nesterov=True), made(torch.optim.SGD, momentum=0.9, nesterov=True)),
    (Adam(), made(torch.optim.Adam)),
    (Adam(weight_decay=0.1), made(torch.optim.Adam, weight_decay=0.1)),
    (Adam(weight_decay=0.1, decoupled=True), made(torch.optim.AdamW, weight_decay=0.1)),
    (Adagrad(), made(torch.optim.Adagrad)),
]


def torch_trained(
    make: Make, clip: Callable[[list[Tensor]], Any] | None = None
) -> dict[str, np.ndarray]:
    values = {"w1": torch.tensor(W1), "w2": torch.tensor(W2)}
    tensors = [value.requires_grad_(True) for value in values.values()]
    optimizer = make(tensors)
    for _ in range(6):
        optimizer.zero_grad()
        y = torch.tanh(torch.tensor(X) @ values["w1"]) @ values["w2"]
        torch.nn.functional.mse_loss(y, torch.tensor(Z)).backward()
        if clip:
            clip(tensors)
        optimizer.step()
    return {name: value.detach().numpy() for name, value in values.items()}


@pytest.mark.parametrize(
    ("ours", "theirs"), PAIRS, ids=lambda v: "torch" if callable(v) else str(v)[:60]
)
def test_optimizer_equals_torch(ours: Optimizer, theirs: Make) -> None:
    same(trained(ours), torch_trained(theirs))


def test_every_optimizer_is_compared() -> None:
    compared = {type(ours).__name__ for ours, _ in PAIRS} | WITHOUT_COUNTERPART
    assert compared == {type(optimizer).__name__ for optimizer in OPTIMIZERS.values()}


def test_clip_by_norm_equals_torch() -> None:
    found = trained("sgd", clip_norm=0.3)
    same(found, torch_trained(made(torch.optim.SGD), lambda values: (
        torch.nn.utils.clip_grad_norm_(values, 0.3))))  # fmt: skip


def test_clip_by_value_equals_torch() -> None:
    found = trained("sgd", clip_value=0.05)
    same(found, torch_trained(made(torch.optim.SGD), lambda values: (
        torch.nn.utils.clip_grad_value_(values, 0.05))))  # fmt: skip
