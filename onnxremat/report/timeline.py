"""The memory timeline: what a run holds at every step, against its budget."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from onnxremat.errors import UsageError
from onnxremat.graph.ir import Graph
from onnxremat.ort.profile import Profile
from onnxremat.report.composition import Kind, compose, largest, totals
from onnxremat.report.figures import (
    INK,
    QUIET,
    byte_unit,
    heading,
    plot_file,
    quiet_grid,
    second_unit,
    shortened,
)
from onnxremat.schedule.simulate import Timeline
from onnxremat.units import format_bytes

Axis = Literal["auto", "time", "steps"]
Numbers = NDArray[np.float64]

WIDTH, HEIGHT = 11.0, 5.4  # inches
LEFT, RIGHT, BOTTOM, TOP = 0.075, 0.655, 0.115, 0.845  # of the plot; the rest is for words
PANEL = 0.745
LINE = 0.042  # height of a line of words

COLOURS = {
    Kind.WEIGHTS: "#4a4a4a",
    Kind.OUTPUTS: "#cc79a7",
    Kind.KEPT: "#0072b2",
    Kind.PASSING: "#a6d3ee",
    Kind.RECOMPUTED: "#e69f00",
    Kind.SCRATCH: "#f7efb2",
}
HATCHES = {Kind.RECOMPUTED: "/////"}  # tells it from its neighbours in grayscale
BUDGET = "#b2182b"


@dataclass(frozen=True)
class Shown:
    """What one timeline plot shows; see :func:`draw_timeline` for the fields."""

    graph: Graph
    predicted: Timeline
    measured: Profile | None
    budget: int | None
    store_all: Timeline | None
    by_time: bool

    @property
    def top(self) -> int:
        """Largest number of bytes in the plot."""
        peaks = [self.predicted.peak, self.budget or 0]
        peaks += [self.store_all.peak] if self.store_all else []
        peaks += [measured_peak(self.predicted, self.measured)] if self.measured else []
        return max(peaks)


def draw_timeline(
    graph: Graph,
    predicted: Timeline,
    path: str | Path,
    *,
    measured: Profile | None = None,
    budget: int | None = None,
    store_all: Timeline | None = None,
    title: str = "",
    axis: Axis = "auto",
) -> None:
    """Write the stacked memory timeline of a run.

    Args:
        graph: the graph that runs (the rewritten one, recomputations included).
        predicted: its simulated timeline.
        path: ``.png`` or ``.svg``.
        measured: a profiled run of the same graph; each kernel is drawn where the prediction has
            the op of its name.
        budget: bytes.
        store_all: the timeline without recomputation, drawn as an outline.
        title: the model's name.
        axis: ``time`` (predicted seconds), ``steps`` (executed ops), or ``auto``: time where the
            seconds of the ops are known.

    Raises:
        UsageError: unknown suffix or axis, an empty run, or the folder is not writable.
    """
    if axis not in ("auto", "time", "steps"):
        raise UsageError(f"unknown axis '{axis}'", hint="time, steps or auto")
    if not predicted.ops:
        raise UsageError("there is nothing to draw", why="the timeline has no step")
    by_time = axis != "steps" and predicted.total_seconds > 0
    shown = Shown(graph, predicted, measured, budget, store_all, by_time)
    with plot_file(path, WIDTH, HEIGHT) as figure:
        axes = figure.add_axes((LEFT, BOTTOM, RIGHT - LEFT, TOP - BOTTOM))
        heading(figure, LEFT - 0.045, title or "memory timeline", _subtitle(shown))
        _draw(axes, shown)
        _describe(figure, shown)


def measured_peak(predicted: Timeline, measured: Profile) -> int:
    """Bytes at the worst kernel, with the weights that the prediction counts."""
    return max(predicted.weight_bytes, measured.weight_bytes) + measured.live_peak


def edges(timeline: Timeline, by_time: bool) -> Numbers:
    """Where each step begins, and the end of the last: seconds, or step numbers."""
    if by_time:
        return np.concatenate(([0.0], np.cumsum(timeline.seconds)))
    return np.arange(len(timeline.ops) + 1, dtype=np.float64)


def _draw(axes: Axes, shown: Shown) -> None:
    size, unit = byte_unit(shown.top)
    ends = edges(shown.predicted, shown.by_time)
    longest = ends[-1]
    if shown.store_all:
        longest = max(longest, edges(shown.store_all, shown.by_time)[-1])
    second, name = second_unit(longest) if shown.by_time else (1.0, "")
    quiet_grid(axes)
    base = np.zeros(len(ends) - 1)
    for kind, row in compose(shown.graph, shown.predicted).items():
        above = base + row / size
        axes.fill_between(
            ends / second, _closed(base), _closed(above), step="post", linewidth=0,
            facecolor=COLOURS[kind], hatch=HATCHES.get(kind), edgecolor="white",
        )  # fmt: skip
        base = above
    if shown.store_all:
        at = edges(shown.store_all, shown.by_time) / second
        rows = totals(shown.store_all) / size
        axes.step(at, _closed(rows), where="post", color=QUIET, linewidth=1, linestyle=(0, (3, 2)))
    if shown.measured:
        at, rows = _measured_line(shown.predicted, shown.measured, ends)
        axes.step(at / second, rows / size, where="post", color=INK, linewidth=0.9)
    _mark(axes, shown, ends / second, size)
    axes.set_xlim(0, longest / second)
    axes.set_ylim(0, shown.top / size * 1.06)
    axes.set_ylabel(f"memory ({unit})")
    axes.set_xlabel(f"time in the step ({name})" if shown.by_time else "step (executed op)")


def _closed(rows: Numbers) -> Numbers:
    """One value per edge: the last step's again at its end."""
    return np.append(rows, rows[-1])


def _measured_line(
    predicted: Timeline, measured: Profile, ends: Numbers
) -> tuple[Numbers, Numbers]:
    """Edges and bytes of the kernels that the prediction has under the same name."""
    place = {name: step for step, name in enumerate(predicted.ops)}
    weights = max(predicted.weight_bytes, measured.weight_bytes)
    rows = sorted(
        (place[kernel.name], weights + kernel.live + kernel.scratch)
        for kernel in measured.kernels
        if kernel.name in place
    )
    if not rows:
        return np.empty(0), np.empty(0)
    at = np.append(ends[[step for step, _ in rows]], ends[rows[-1][0] + 1])
    return at, _closed(np.array([count for _, count in rows], np.float64))


def _mark(axes: Axes, shown: Shown, at: Numbers, size: float) -> None:
    """The budget line and the peak."""
    if shown.budget:
        level = shown.budget / size
        axes.axhline(level, color=BUDGET, linewidth=1.4)
        axes.annotate(
            f"budget\n{format_bytes(shown.budget)}", (1, level), (6, 0), color=BUDGET,
            xycoords=("axes fraction", "data"), textcoords="offset points", va="center",
            annotation_clip=False, weight="bold",
        )  # fmt: skip
    step = shown.predicted.peak_step
    axes.plot(
        (at[step] + at[step + 1]) / 2, shown.predicted.peak / size, "v", markersize=8, color=INK,
        markeredgecolor="white", clip_on=False, zorder=5,
    )  # fmt: skip


def _subtitle(shown: Shown) -> str:
    words = [f"predicted peak {format_bytes(shown.predicted.peak)}"]
    if shown.measured:
        words.append(f"measured {format_bytes(measured_peak(shown.predicted, shown.measured))}")
    if shown.budget:
        words.append(f"budget {format_bytes(shown.budget)}")
    if shown.store_all:
        words.append(f"nothing recomputed {format_bytes(shown.store_all.peak)}")
    return "   ·   ".join(words)


def _describe(figure: Figure, shown: Shown) -> None:
    """Right of the plot: the key with the bytes at the peak, and the peak's op and tensors."""
    step = shown.predicted.peak_step
    parts = compose(shown.graph, shown.predicted)
    row = TOP
    figure.text(PANEL, row, "held at the peak", weight="bold", va="center")
    for kind in reversed(Kind):
        row -= LINE
        _swatch(figure, row, kind)
        figure.text(PANEL + 0.03, row, kind.value, va="center")
        figure.text(0.985, row, format_bytes(int(parts[kind][step])), va="center", ha="right")
    for present, style, words in (
        (shown.measured, (INK, 0.9, "-"), "measured"),
        (shown.store_all, (QUIET, 1.0, (0, (3, 2))), "nothing recomputed"),
    ):
        if present is not None:
            row -= LINE
            _stroke(figure, row, *style)
            figure.text(PANEL + 0.03, row, words, va="center")
    row -= 2 * LINE
    _marker(figure, row)
    _describe_peak(figure, shown, step, row)


def _swatch(figure: Figure, row: float, kind: Kind) -> None:
    figure.add_artist(
        Patch(facecolor=COLOURS[kind], hatch=HATCHES.get(kind), edgecolor="white", linewidth=0)
        if False
        else _rectangle(figure, row, kind)
    )


def _rectangle(figure: Figure, row: float, kind: Kind) -> Patch:
    from matplotlib.patches import Rectangle

    return Rectangle(
        (PANEL, row - 0.013), 0.021, 0.026, transform=figure.transFigure, linewidth=0,
        facecolor=COLOURS[kind], hatch=HATCHES.get(kind), edgecolor="white",
    )  # fmt: skip


def _stroke(figure: Figure, row: float, colour: str, width: float, dashes: object) -> None:
    from matplotlib.lines import Line2D

    figure.add_artist(
        Line2D([PANEL, PANEL + 0.021], [row, row], color=colour, linewidth=width, linestyle=dashes)
    )


def _marker(figure: Figure, row: float) -> None:
    from matplotlib.lines import Line2D

    figure.add_artist(Line2D([PANEL + 0.0105], [row], marker="v", markersize=8, color=INK))


def _describe_peak(figure: Figure, shown: Shown, step: int, row: float) -> None:
    name = shown.predicted.ops[step]
    kinds = {op.name: op.op_type for op in shown.graph.ops}
    figure.text(
        PANEL + 0.03, row, f"peak at step {step} of {len(shown.predicted.ops)}", weight="bold",
        va="center",
    )  # fmt: skip
    row -= LINE
    words = f"{shortened(name, 30)}  ({kinds.get(name, '')})"
    figure.text(PANEL, row, words, va="center", parse_math=False)
    row -= 1.5 * LINE
    figure.text(PANEL, row, "largest tensors", weight="bold", va="center")
    for held in largest(shown.graph, shown.predicted, step):
        row -= LINE
        figure.text(PANEL, row, shortened(held.tensor, 24), va="center", parse_math=False)
        figure.text(0.985, row, format_bytes(held.bytes), va="center", ha="right")
        row -= LINE * 0.8
        shape = "×".join(map(str, held.shape)) if held.shape else "scalar"
        figure.text(
            PANEL, row, f"{shape}, {held.kind.value}", va="center", size=8.5, color=QUIET
        )
