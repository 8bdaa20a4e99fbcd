"""A PyTorch module trained in less memory by onnxruntime, and back into the module.

One line makes a training step of it that keeps a budget; a Trainer takes the module's weights and
gives them back under their names. Wants ``pip install 'onnxremat[torch]'``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

import onnxremat
from examples.run import Said, example


def network(width: int) -> nn.Module:
    """Three convolutions with batch normalization, and a classifier of two classes."""
    layers: list[nn.Module] = []
    for inside in (3, width, width):
        layers += [nn.Conv2d(inside, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 2))


def stripes(count: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noise with faint stripes: upright (class 0) or lying (class 1)."""
    random = np.random.default_rng(0)
    labels = random.integers(2, size=count)
    wave = np.sin(np.arange(size) * 1.5)
    upright, lying = np.tile(wave, (size, 1)), np.tile(wave[:, None], (1, size))
    images = random.standard_normal((count, 3, size, size)) * 0.7
    images += np.where(labels[:, None, None, None] == 0, upright, lying)
    return torch.from_numpy(images).float(), torch.from_numpy(labels)


def right(net: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Share of the images that PyTorch names right with the module."""
    with torch.no_grad():
        return float((net.eval()(images).argmax(1) == labels).float().mean())


@example
def main(small: bool, folder: Path, say: Said) -> None:
    torch.manual_seed(0)
    width, size, batch, steps = (8, 12, 16, 30) if small else (32, 32, 64, 60)
    net = network(width)
    images, labels = stripes(batch * 8, size)
    say(f"before: {right(net, images, labels):.1%} of the images right, in PyTorch")

    made = onnxremat.optimize(
        onnxremat.from_torch(net, images[:batch]),
        budget="0.7x",
        settings=onnxremat.Settings(train=onnxremat.Training(optimizer="adamw")),
        options=onnxremat.PlanOptions(time_limit=5 if small else 30),
        bench_seconds=0,
    )
    made.save(folder / "step.onnx")
    say.memory("its training step", made.facts())

    trainer = onnxremat.Trainer(folder / "step.onnx", weights=net, rate=0.01)
    (name,) = trainer.training.data
    for k in range(steps):
        rows = slice(k % 8 * batch, (k % 8 + 1) * batch)
        loss = trainer.step({name: images[rows].numpy(), "labels": labels[rows].numpy()})
    say(f"loss {loss:.3f} after {steps} steps in onnxruntime")

    onnxremat.to_torch(trainer, net)
    say(f"after: {right(net, images, labels):.1%} of the images right, in PyTorch")


if __name__ == "__main__":
    main.run()
