"""How an architecture of the zoo is written down: a module, its inputs, a loss."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

NOISE = 0.02
Draw = Callable[[np.random.Generator], np.ndarray]


@dataclass(frozen=True)
class Architecture:
    """One net of the zoo.

    Attributes:
        name: of the function that builds it.
        family: the library it is from.
        build: makes the module.
        inputs: one function per positional input that draws it.
        loss: ``cross-entropy`` or ``mse``, of the first output.
        rate: of the five steps of SGD: what moves parameters by about a hundredth without
            amplifying rounding.
        sample: among the few that every test run checks.
    """

    name: str
    family: str
    build: Callable[[], torch.nn.Module]
    inputs: tuple[Draw, ...]
    loss: str
    rate: float
    sample: bool

    def module(self, *, fresh: bool = False) -> torch.nn.Module:
        """In eval mode, the same weights each time; no two numbers in them equal, or as it was
        made, with zeros, ones and copies."""
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = self.build().eval()
        if not fresh:
            scatter(made)
        return made

    def data(self, seed: int = 0) -> tuple[torch.Tensor, ...]:
        """Inputs."""
        random = np.random.default_rng(seed)
        return tuple(torch.from_numpy(draw(random)) for draw in self.inputs)

    def target(self, prediction: torch.Tensor, seed: int = 0) -> torch.Tensor:
        """What the prediction is compared with: labels, or an array of its shape."""
        random, shape = np.random.default_rng(1000 + seed), tuple(prediction.shape)
        if self.loss == "mse":
            return torch.from_numpy(random.standard_normal(shape).astype(np.float32))
        axis = class_axis(shape)
        labels = random.integers(0, shape[axis], (*shape[:axis], *shape[axis + 1 :]))
        return torch.from_numpy(labels)

    def value(self, prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The loss in PyTorch."""
        if self.loss == "mse":
            return torch.nn.functional.mse_loss(prediction, target.to(prediction.dtype))
        rows = prediction.movedim(class_axis(tuple(prediction.shape)), -1)
        flat = rows.reshape(-1, rows.shape[-1])
        return torch.nn.functional.cross_entropy(flat, target.reshape(-1))


def class_axis(shape: tuple[int, ...]) -> int:
    """Where ``onnxremat.grad.CrossEntropy`` has its classes."""
    return len(shape) - 1 if len(shape) <= 3 else 1


ARCHITECTURES: dict[str, Architecture] = {}
Builder = Callable[[], torch.nn.Module]


def architecture(
    family: str,
    *inputs: Draw,
    loss: str = "cross-entropy",
    rate: float = 1e-2,
    sample: bool = False,
) -> Callable[[Builder], Builder]:
    """Enter a function that builds a module into the zoo."""

    def enter(build: Builder) -> Builder:
        name = build.__name__
        ARCHITECTURES[name] = Architecture(name, family, build, inputs, loss, rate, sample)
        return build

    return enter


# ---- inputs ----------------------------------------------------------------------------------


def reals(*shape: int) -> Draw:
    """Normally distributed."""
    return lambda random: random.standard_normal(shape).astype(np.float32)


def images(size: int, batch: int = 4, channels: int = 3) -> Draw:
    """A batch of square images."""
    return reals(batch, channels, size, size)


def tokens(length: int, batch: int = 2, words: int = 60) -> Draw:
    """Word numbers; the lowest ones, which often are padding and the like, are left out."""
    return lambda random: random.integers(5, words, (batch, length))


def ones(*shape: int) -> Draw:
    """A mask that keeps everything."""
    return lambda random: np.ones(shape, np.int64)


# ---- modules ---------------------------------------------------------------------------------


class Called(torch.nn.Module):
    """A module called with keywords, of whose results one is taken."""

    def __init__(self, net: torch.nn.Module, names: str, pick: str, **fixed: Any) -> None:
        super().__init__()
        self.net, self.names, self.pick, self.fixed = net, names.split(), pick, fixed

    def forward(self, *values: torch.Tensor) -> torch.Tensor:
        made = self.net(**dict(zip(self.names, values, strict=True)), **self.fixed)
        return made[self.pick]


def scatter(module: torch.nn.Module) -> None:
    """Noise on every parameter, and numbers in them that occur only once, so that wherever an
    exporter puts a number it can be told from which parameter it is. Running statistics are drawn
    at random."""
    random = np.random.default_rng(0)
    drawn: list[torch.Tensor] = []
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.add_(_noise(random, parameter.shape), alpha=NOISE)
                drawn.append(parameter)
        for norm in module.modules():
            mean, var = getattr(norm, "running_mean", None), getattr(norm, "running_var", None)
            if torch.is_tensor(mean) and torch.is_tensor(var):
                mean.copy_(_noise(random, mean.shape) * 0.1)
                var.copy_(_noise(random, var.shape).abs() * 0.3 + 0.5)
                drawn += [mean, var]
        make_different(drawn, others(module, drawn), random)


def _noise(random: np.random.Generator, shape: torch.Size) -> torch.Tensor:
    return torch.from_numpy(random.standard_normal(tuple(shape)).astype(np.float32))


def others(module: torch.nn.Module, drawn: list[torch.Tensor]) -> np.ndarray:
    """Every floating-point number of the module that is to stay as it is."""
    ours = {id(tensor) for tensor in drawn}
    kept = [
        tensor.detach().reshape(-1).float().numpy()
        for tensor in (*module.parameters(), *module.buffers())
        if id(tensor) not in ours and tensor.is_floating_point()
    ]
    return np.concatenate([np.array([0, 1, -1], np.float32), *kept])


def make_different(
    drawn: list[torch.Tensor], taken: np.ndarray, random: np.random.Generator
) -> None:
    """Change equal numbers by a thousandth until all are different."""
    flat = np.concatenate([tensor.detach().reshape(-1).numpy() for tensor in drawn])
    known = np.sort(np.concatenate([np.unique(taken), flat]))
    twice = np.unique(known[1:][known[1:] == known[:-1]])
    again = np.flatnonzero(np.isin(flat, twice))
    while again.size:
        factor = 1 + 1e-3 * random.standard_normal(again.size)
        flat[again] = flat[again] * factor + 1e-4 * random.standard_normal(again.size)
        old = known[np.searchsorted(known, flat[again]).clip(max=known.size - 1)] == flat[again]
        _, first = np.unique(flat[again], return_index=True)
        old[np.setdiff1d(np.arange(again.size), first)] = True
        known = np.sort(np.concatenate([known, flat[again[~old]]]))
        again = again[old]
    start = 0
    for tensor in drawn:
        part = flat[start : start + tensor.numel()]
        tensor.copy_(torch.from_numpy(part.reshape(tuple(tensor.shape))))
        start += tensor.numel()
