"""The memory timeline: what a run holds at every step, against its budget."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from onnxremat.errors import UsageError
from onnxremat.graph.ir import Graph
from onnxremat.ort.profile import Profile
from onnxremat.report.pages.composition import COLOURS, Bytes, Kind, compose, largest, totals
from onnxremat.report.plots.figures import (
    ALARM,
    INK,
    QUIET,
    byte_unit,
    heading,
    plot_file,
    quiet_grid,
    second_unit,
)
from onnxremat.report.plots.margin import Margin
from onnxremat.rewrite.pins import is_added
from onnxremat.schedule.simulate import Timeline
from onnxremat.units import format_bytes, format_seconds

Axis = Literal["auto", "time", "steps"]
Numbers = NDArray[np.float64]

WIDTH, HEIGHT = 11.0, 5.6  # inches
PLOT = (0.07, 0.11, 0.585, 0.735)  # left, bottom, width, height as shares of the figure
MARGIN = (0.745, 0.985)  # left and right

FILLS: dict[Kind, dict[str, Any]] = {kind: {"facecolor": c} for kind, c in COLOURS.items()}
# The hatch tells it from its neighbours in grayscale.
FILLS[Kind.RECOMPUTED] |= {"hatch": "/////", "edgecolor": "white"}
MEASURED: dict[str, Any] = {"color": INK, "linewidth": 0.8}
STORE_ALL: dict[str, Any] = {"color": QUIET, "linewidth": 1.0, "linestyle": (0, (3, 2))}
PEAK: dict[str, Any] = {"marker": "v", "markersize": 8, "color": INK, "markeredgecolor": "white"}


@dataclass(frozen=True)
class View:
    """What one plot shows.

    Attributes:
        graph: the graph that runs (the rewritten one, recomputations included).
        predicted: its simulated timeline.
        measured: a profiled run of the same graph; each kernel is drawn where the prediction has
            the op of its name.
        budget: bytes for weights and values, which are what is drawn.
        whole: the budget that these are a part of; the same by default.
        store_all: the timeline without recomputation, drawn as an outline.
        title: the model's name.
        axis: ``time`` (predicted seconds), ``steps`` (executed ops; gates and pins take no room),
            or ``auto``: time where the seconds of the ops are known.
    """

    graph: Graph
    predicted: Timeline
    measured: Profile | None = None
    budget: int | None = None
    store_all: Timeline | None = None
    title: str = ""
    axis: Axis = "auto"
    whole: int | None = None

    @property
    def by_time(self) -> bool:
        """Whether steps are as wide as they take long."""
        return self.axis != "steps" and self.predicted.total_seconds > 0

    @cached_property
    def parts(self) -> dict[Kind, Bytes]:
        """Bytes of every kind that occurs, per step."""
        found = compose(self.graph, self.predicted)
        return {kind: row for kind, row in found.items() if row.any()}

    @cached_property
    def at(self) -> Numbers:
        """Where each step begins, and the end of the last: seconds, or executed ops."""
        return edges(self.predicted, self.by_time)

    @property
    def measured_peak(self) -> int | None:
        """Bytes at the worst kernel."""
        if self.measured is None:
            return None
        return resident(self.predicted, self.measured) + self.measured.live_peak

    @property
    def top(self) -> int:
        """Largest number of bytes in the plot."""
        rest = self.store_all.peak if self.store_all else 0
        return max(self.predicted.peak, self.budget or 0, rest, self.measured_peak or 0)


def draw_timeline(view: View, path: str | Path) -> None:
    """Write the stacked memory timeline of a run.

    Args:
        path: ``.png`` or ``.svg``.

    Raises:
        UsageError: unknown suffix or axis, an empty run, or the folder is not writable.
    """
    if view.axis not in ("auto", "time", "steps"):
        raise UsageError(f"unknown axis '{view.axis}'", hint="time, steps or auto")
    if not view.predicted.ops:
        raise UsageError("there is nothing to draw", why="the timeline has no step")
    with plot_file(path, WIDTH, HEIGHT) as figure:
        heading(figure, 0.03, view.title or "memory timeline", _subtitle(view))
        _draw(figure.add_axes(PLOT), view)
        _describe(figure, view)


def resident(predicted: Timeline, measured: Profile) -> int:
    """Bytes of the weights as a measured run is charged for them."""
    return max(predicted.weight_bytes, measured.weight_bytes)


def edges(timeline: Timeline, by_time: bool) -> Numbers:
    """Where each step begins, and the end of the last: seconds, or executed ops."""
    widths = timeline.seconds if by_time else [not is_added(name) for name in timeline.ops]
    return np.concatenate(([0.0], np.cumsum(widths, dtype=np.float64)))


def measured_line(view: View) -> tuple[Numbers, Numbers]:
    """Begin and bytes of every kernel that the prediction has under its name, and the end of
    the last with its bytes again."""
    if view.measured is None:
        return np.empty(0), np.empty(0)
    place = {name: step for step, name in enumerate(view.predicted.ops)}
    weights = resident(view.predicted, view.measured)
    rows = sorted(
        (place[kernel.name], weights + kernel.live + kernel.scratch)
        for kernel in view.measured.kernels
        if kernel.name in place
    )
    if not rows:
        return np.empty(0), np.empty(0)
    at = np.append(view.at[[step for step, _ in rows]], view.at[rows[-1][0] + 1])
    return at, _closed(np.array([count for _, count in rows], np.float64))


def _draw(axes: Axes, view: View) -> None:
    size, unit = byte_unit(view.top)
    ends = [view.at[-1]]
    if view.store_all:
        ends.append(edges(view.store_all, view.by_time)[-1])
    second, name = second_unit(max(ends)) if view.by_time else (1.0, "")
    quiet_grid(axes)
    _stack(axes, view, second, size)
    if view.store_all:
        at = edges(view.store_all, view.by_time) / second
        axes.step(at, _closed(totals(view.store_all) / size), where="post", **STORE_ALL)
    at, rows = measured_line(view)
    axes.step(at / second, rows / size, where="post", **MEASURED)
    _mark(axes, view, second, size)
    axes.set_xlim(0, max(ends) / second)
    axes.set_ylim(0, view.top / size * 1.06)
    axes.set_ylabel(f"memory ({unit})")
    axes.set_xlabel(f"time in the step ({name})" if view.by_time else "step (executed op)")


def _stack(axes: Axes, view: View, second: float, size: float) -> None:
    base = np.zeros(len(view.at) - 1)
    for kind, row in view.parts.items():
        above = base + row / size
        axes.fill_between(
            view.at / second, _closed(base), _closed(above), step="post", linewidth=0,
            **FILLS[kind],
        )  # fmt: skip
        base = above


def _closed(rows: Numbers) -> Numbers:
    """One value per edge: the last step's again at its end."""
    return np.append(rows, rows[-1])


def _mark(axes: Axes, view: View, second: float, size: float) -> None:
    """The budget line and the peak."""
    if view.budget:
        level = view.budget / size
        axes.axhline(level, color=ALARM, linewidth=1.4)
        axes.annotate(
            f"{_budget_words(view)}\n{format_bytes(view.budget)}", (1, level), (6, 0), color=ALARM,
            xycoords=("axes fraction", "data"), textcoords="offset points", va="center",
            annotation_clip=False, weight="bold",
        )  # fmt: skip
    step = view.predicted.peak_step
    centre = (view.at[step] + view.at[step + 1]) / 2 / second
    axes.plot(centre, view.predicted.peak / size, clip_on=False, zorder=5, **PEAK)


def _budget_words(view: View) -> str:
    """What the line is: a process also has other things in its budget."""
    return "budget" if view.whole in (None, view.budget) else "of the\nbudget"


def _subtitle(view: View) -> str:
    words = [f"peak {format_bytes(view.predicted.peak)} predicted"]
    if view.measured_peak is not None:
        words.append(f"{format_bytes(view.measured_peak)} measured")
    if view.store_all:
        words.append(f"{format_bytes(view.store_all.peak)} if nothing is recomputed")
        base = view.store_all.total_seconds
        if base and view.predicted.total_seconds:
            words.append(f"{view.predicted.total_seconds / base - 1:+.1%} predicted time")
    return "  ·  ".join(words)


def _describe(figure: Figure, view: View) -> None:
    """Beside the plot: the key with the bytes at the peak, and the peak's op and tensors."""
    step = view.predicted.peak_step
    margin = Margin(figure, *MARGIN, PLOT[1] + PLOT[3])
    margin.title("held at the peak")
    for kind, row in reversed(view.parts.items()):
        margin.swatch(kind.value, format_bytes(int(row[step])), **FILLS[kind])
    if view.measured:
        margin.stroke("measured", **MEASURED)
    if view.store_all:
        margin.stroke("nothing recomputed", **STORE_ALL)
    margin.skip(0.7)
    _describe_peak(margin, view, step)
    margin.skip(0.7)
    margin.title("largest at the peak")
    for held in largest(view.graph, view.predicted, step):
        margin.words(held.tensor, format_bytes(held.bytes))
        shape = "×".join(map(str, held.shape)) if held.shape else "scalar"
        margin.note(f"{shape}, {held.kind.value}")


def _describe_peak(margin: Margin, view: View, step: int) -> None:
    name = view.predicted.ops[step]
    op = next((op for op in view.graph.ops if op.name == name), None)
    planned = [is_added(op) for op in view.predicted.ops]
    number, count = step + 1 - sum(planned[: step + 1]), len(planned) - sum(planned)
    margin.marker("peak", f"op {number} of {count}", weight="bold", **PEAK)
    margin.words(name)
    if op is not None:
        time = view.predicted.seconds[step]
        facts = [op.op_type, format_seconds(time) if time else ""]
        facts.append("recomputation" if op.origin else "")
        margin.note(", ".join(fact for fact in facts if fact))
