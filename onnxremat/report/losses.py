"""The loss over training steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from onnxremat.errors import UsageError
from onnxremat.report.figures import heading, plot_file, quiet_grid


def draw_losses(
    losses: Sequence[float], path: str | Path, *, title: str = "training", per_epoch: int = 0
) -> None:
    """Write the loss of every step, and its mean per epoch.

    Args:
        losses: one per step.
        path: ``.png`` or ``.svg``.
        per_epoch: steps of an epoch, 0 for no means.

    Raises:
        UsageError: no losses, unknown suffix, or the folder is not writable.
    """
    if not losses:
        raise UsageError("there is nothing to draw", why="no step was trained")
    values = np.asarray(losses, np.float64)
    steps = np.arange(1, len(values) + 1)
    with plot_file(path, 9.0, 4.6) as figure:
        heading(figure, 0.07, title, f"{len(values)} steps, last loss {values[-1]:.4g}")
        axes = figure.add_axes((0.07, 0.13, 0.9, 0.68))
        quiet_grid(axes)
        axes.plot(steps, values, color="#a6d3ee", linewidth=1.0, label="step")
        if per_epoch and len(values) >= per_epoch:
            whole = len(values) // per_epoch
            means = values[: whole * per_epoch].reshape(whole, per_epoch).mean(axis=1)
            ends = per_epoch * np.arange(1, whole + 1)
            axes.plot(ends, means, color="#1b7cc0", linewidth=2.0, marker="o", label="epoch mean")
            axes.legend(frameon=False)
        axes.set_xlabel("step")
        axes.set_ylabel("loss")
        axes.set_ylim(bottom=min(0.0, float(values.min())))
