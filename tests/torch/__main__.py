"""Prints the table of docs/gradients.md: ``python -m tests.torch``."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from onnxremat.grad import differentiate
from tests.torch.comparison import (
    Finish,
    Race,
    agreement,
    by_autograd,
    by_interpreting,
    distance,
    in_float64,
    moving,
)
from tests.torch.graph import TorchGraph
from tests.torch.settings import SETTINGS, prepare

STEPS = 20


def exact(name: str) -> float:
    """Worst error in float64."""
    model, feeds = prepare(name)
    wide = in_float64(model)
    found = by_interpreting(wide, feeds, differentiate(wide, optimizer=None, dropout=False))
    want = by_autograd(TorchGraph(wide, torch.float64, train=True), feeds, list(found.of))
    return max(distance(found.of[p], want.of[p]) for p in moving(want))


def told(finish: Finish | None, rate: float | None) -> str:
    """A training: difference of the losses, the rate, the losses, and sides that were told."""
    if finish is None:
        return ""
    losses = f"{finish.losses[0]:.3f} to {finish.losses[-1]:.3f}"
    sides = f", {finish.overruled.count} sides" if finish.overruled.seen else ""
    return f"{finish.difference:.0e} at {rate} ({losses}{sides})"


def row(name: str) -> str:
    """One model."""
    found = agreement(*prepare(name))
    cells = [name, f"{exact(name):.0e}"]
    cells += [f"{max(part.values()):.0e}" for part in (found.torch, found.ours, found.theirs)]
    cells.append(f"{found.overruled[0].count} of {found.overruled[0].seen:,}")
    for optimizer, rates in SETTINGS[name].rates.items():
        with tempfile.TemporaryDirectory() as folder:
            race = Race(*prepare(name), optimizer, Path(folder))
            calm = race.run(rates.calm, STEPS, guided=False) if rates.calm else None
            useful = race.run(rates.useful, STEPS, guided=True)
        cells += [told(useful, rates.useful), told(calm, rates.calm)]
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    torch.set_num_threads(1)
    for each in SETTINGS:
        print(row(each), flush=True)
