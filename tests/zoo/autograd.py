"""PyTorch's side: the module's own gradients and steps of SGD."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import torch

from tests.zoo.registry import Architecture


@dataclass(frozen=True)
class Gradients:
    """Loss, and the gradient of every parameter that has a part in it."""

    loss: float
    of: dict[str, np.ndarray]


@dataclass(frozen=True)
class Steps:
    """Losses of steps of SGD, the parameters after them, and what the net, put out of training
    mode, then makes of another batch (of the seed after that of the steps)."""

    losses: list[float]
    parameters: dict[str, np.ndarray]
    prediction: np.ndarray


def norms_of(module: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Its batch normalizations that have running statistics."""
    kind = torch.nn.modules.batchnorm._BatchNorm
    every = module.named_modules()
    return {n: p for n, p in every if isinstance(p, kind) and p.running_var is not None}


def trainer_of(
    module: torch.nn.Module, norms: Collection[str], real: torch.dtype = torch.float32
) -> torch.nn.Module:
    """A copy of a module that normalises by the batch and is otherwise as it was exported.

    Only normalizations are put into training mode, the given ones: whatever else a module does
    differently then (stochastic depth, masks, second heads) the exported file does not.
    """
    for part in module.modules():  # what weight_norm computes before each call cannot be copied
        for name, value in list(vars(part).items()):
            if torch.is_tensor(value) and not value.is_leaf:
                setattr(part, name, value.detach())
    made = copy.deepcopy(module).to(real)
    for name, part in norms_of(made).items():
        part.train(name in norms)
    return made


def loss_of(
    net: Architecture, module: torch.nn.Module, seed: int, real: torch.dtype = torch.float32
) -> torch.Tensor:
    """The loss on the data of a seed."""
    prediction = predicted(net, module, seed, real)
    return net.value(prediction, net.target(prediction, seed))


def predicted(
    net: Architecture, module: torch.nn.Module, seed: int, real: torch.dtype
) -> torch.Tensor:
    """What a module makes of the data of a seed."""
    for part in module.modules():  # LeViT keeps what it computed of parameters in eval mode
        getattr(part, "attention_bias_cache", {}).clear()
    data = [x.to(real) if x.is_floating_point() else x for x in net.data(seed)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return module(*data)


def gradients(
    net: Architecture,
    module: torch.nn.Module,
    norms: Collection[str],
    seed: int = 0,
    real: torch.dtype = torch.float32,
) -> Gradients:
    """By autograd, in arrays of float64."""
    made = trainer_of(module, norms, real)
    loss = loss_of(net, made, seed, real)
    loss.backward()
    found = {
        name: p.grad.double().numpy() for name, p in made.named_parameters() if p.grad is not None
    }
    return Gradients(float(loss.detach()), found)


def descend(
    net: Architecture,
    module: torch.nn.Module,
    trained: Collection[str],
    steps: int,
    seed: int = 0,
    real: torch.dtype = torch.float32,
) -> Steps:
    """Steps of SGD on one batch, of the given parameters."""
    made = trainer_of(module, norms_of(module), real)
    parameters = dict(made.named_parameters())
    optimizer = torch.optim.SGD([parameters[name] for name in trained], net.rate)
    losses = []
    for _ in range(steps):
        made.zero_grad()
        loss = loss_of(net, made, seed, real)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    with torch.no_grad():
        prediction = predicted(net, made.eval(), seed + 1, real).double().numpy()
    values = {name: parameters[name].detach().double().numpy() for name in trained}
    return Steps(losses, values, prediction)
