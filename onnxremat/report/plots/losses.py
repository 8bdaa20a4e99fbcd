"""The loss over training steps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from matplotlib.ticker import FuncFormatter, MaxNLocator

from onnxremat.errors import UsageError
from onnxremat.report.plots.figures import heading, plot_file, quiet_grid

LIGHT, DARK, OTHER = "#a6d3ee", "#1b7cc0", "#e08214"
POINTS = 4000  # of the thin line
MARKED = 40  # epochs up to which each is marked


def draw_losses(
    losses: Sequence[float],
    path: str | Path,
    *,
    title: str = "training",
    ends: Sequence[int] = (),
    start: int = 0,
    validation: Sequence[tuple[int, float]] = (),
) -> None:
    """Write the loss of every step, its mean per epoch, and the loss on validation data.

    Args:
        losses: one per step.
        path: ``.png`` or ``.svg``.
        ends: steps after which epochs ended, ascending; none for no means.
        start: steps done before the first of ``losses``, by a run that was resumed.
        validation: (step, loss) pairs.

    Raises:
        UsageError: no losses, unknown suffix, or the folder is not writable.
    """
    if not losses:
        raise UsageError("there is nothing to draw", why="no step was trained")
    values = np.asarray(losses, np.float64)
    steps = start + np.arange(1, len(values) + 1)
    edges = [start, *sorted({end for end in ends if end > start})]  # one may have had no step left
    means = [float(values[a - start : b - start].mean()) for a, b in pairwise(edges)]
    drawn = [*values, *(loss for _, loss in validation)]
    with plot_file(path, 9.0, 4.6) as figure:
        heading(figure, 0.07, title, _summary(values, means, validation))
        axes = figure.add_axes((0.07, 0.13, 0.9, 0.68))
        quiet_grid(axes)
        marker = "o" if len(values) == 1 else None
        axes.plot(*_thinned(steps, values), color=LIGHT, linewidth=1.0, marker=marker, label="step")
        if means:
            axes.stairs(
                means, edges, color=DARK, linewidth=2.0, baseline=None, label="epoch mean", zorder=3
            )
        if validation:
            marker = "o" if len(validation) <= MARKED else None
            axes.plot(
                *zip(*validation, strict=True), color=OTHER, linewidth=1.6, marker=marker,
                markersize=5, label="validation", zorder=4, clip_on=False,
            )  # fmt: skip
        if means or validation:
            axes.legend(frameon=False)
        axes.set_xlabel("step")
        axes.set_ylabel("loss")
        axes.set_xlim(start, steps[-1])
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if _wide(drawn):
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        else:
            axes.set_ylim(bottom=min(0.0, float(np.nanmin(values))))


def _summary(
    values: np.ndarray, means: Sequence[float], validation: Sequence[tuple[int, float]]
) -> str:
    text = f"{len(values)} step{'s' * (len(values) > 1)}"
    text += f", mean loss of the last epoch {means[-1]:.4g}" if means else ""
    text += f", last loss {values[-1]:.4g}" if not means else ""
    return text + (f", validation loss {validation[-1][1]:.4g}" if validation else "")


def _thinned(steps: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """At most POINTS points: means over equal parts."""
    part = -(-len(values) // POINTS)
    whole = len(values) // part * part
    return steps[part - 1 : whole : part], values[:whole].reshape(-1, part).mean(axis=1)


def _wide(values: Sequence[float]) -> bool:
    """Whether a linear axis would show a flat line."""
    finite = np.array([value for value in values if np.isfinite(value)])
    return bool(len(finite) and finite.min() > 0 and finite[0] > 20 * np.median(finite[-20:]))
