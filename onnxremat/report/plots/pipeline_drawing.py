"""A pipeline's schedule as a plot: a bar per rank, time to the right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from onnxremat.report.pipelines import rank_rows
from onnxremat.report.plots.figures import PLOTS, QUIET, heading, plot_file
from onnxremat.report.suffix import check_suffix
from onnxremat.workers.pipeline import KINDS
from onnxremat.workers.pipelines.replay import Replay

COLORS = {"F": "#4878a8", "B": "#59a14f", "W": "#e0a040", "BW": "#59a14f"}
LABELS = 1500  # actions that are drawn one by one and named; above that, cells of time
BINS = 2000  # cells of time of such a plot


def draw_pipeline(replay: Replay, path: str | Path, *, title: str) -> None:
    """The schedule as a plot: a bar per rank, time to the right.

    Raises:
        UsageError: another suffix than .png or .svg, or the folder is not writable.
    """
    check_suffix(Path(path), PLOTS)
    ranks = replay.order.ranks
    with plot_file(path, 10, min(1.6 + 0.34 * ranks, 12)) as figure:
        room = 1 - 0.8 / figure.get_figheight()
        axes = figure.add_axes(
            (0.08, 0.55 / figure.get_figheight(), 0.9, room - 0.6 / figure.get_figheight())
        )
        if len(replay.start) > LABELS:
            _cells(axes, replay)
        else:
            _bars(axes, replay)
        axes.set_xlim(0, replay.makespan)
        axes.set_ylim(ranks - 0.5, -0.5)
        axes.set_xlabel("seconds")
        axes.set_ylabel("rank")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        shown = f"{replay.makespan:g} s, waiting {replay.bubble:.1%}, at most {max(replay.peak)} "
        heading(figure, 0.08, title, shown + "micro-batches alive in a stage; F B W")


def _bars(axes: Axes, replay: Replay) -> None:
    for rank, row in enumerate(rank_rows(replay)):
        for kind, number, start, end in zip(*row, strict=True):
            box = Rectangle(
                (start, rank - 0.4), end - start, 0.8, facecolor=COLORS[kind], edgecolor="white",
                linewidth=0.6,
            )  # fmt: skip
            axes.add_patch(box)
            if (end - start) / replay.makespan > 0.012:
                axes.text(
                    (start + end) / 2, rank, f"{kind}{number}", ha="center", va="center",
                    color="white", size=6,
                )  # fmt: skip


def _cells(axes: Axes, replay: Replay) -> None:
    """What each rank does at the middle of each cell of time."""
    middle = (np.arange(BINS) + 0.5) * replay.makespan / BINS
    image = np.zeros((replay.order.ranks, BINS), np.int64)
    for rank, (steps, start, end) in enumerate(replay.rows()):
        at = np.maximum(np.searchsorted(start, middle, side="right") - 1, 0)
        busy = (middle >= start[at]) & (middle < end[at])
        image[rank, busy] = 1 + steps[at[busy]] % 4
    colors = ListedColormap(["white", *(COLORS[kind] for kind in KINDS)])
    extent = (0, replay.makespan, replay.order.ranks - 0.5, -0.5)
    axes.imshow(
        image, cmap=colors, vmin=0, vmax=4, aspect="auto", interpolation="nearest", extent=extent
    )
    axes.tick_params(color=QUIET)
