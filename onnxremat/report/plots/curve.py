"""The memory-time curve: what a smaller budget costs, and what is proven about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from onnxremat.errors import UsageError
from onnxremat.report.plots.figures import (
    ALARM,
    QUIET,
    byte_unit,
    heading,
    plot_file,
    quiet_grid,
)
from onnxremat.report.sweep import bounds, in_one_order, infeasible_until, plans
from onnxremat.units import format_bytes

if TYPE_CHECKING:
    from onnxremat.studies.points import SweepPoint

WIDTH, HEIGHT = 8.2, 5.2  # inches
PLOT = (0.095, 0.115, 0.865, 0.655)  # left, bottom, width, height as shares of the figure
FOUND = "#1b7fbf"
PROVEN = "#e69f00"
_EDGE = {"markeredgecolor": "white"}
PLAN_BEST: dict[str, Any] = {"color": FOUND, "marker": "o", "markersize": 7.5, **_EDGE}
PLAN: dict[str, Any] = {
    "color": FOUND, "marker": "o", "markersize": 6.5, "markerfacecolor": "white",
    "markeredgewidth": 1.6,
}  # fmt: skip
BOUND: dict[str, Any] = {
    "color": PROVEN, "marker": "^", "markersize": 7.5, "linewidth": 1.8,
    "linestyle": (0, (4, 1.5)), **_EDGE,
}  # fmt: skip
STAR: dict[str, Any] = {
    "color": "#009e73",
    "marker": "*",
    "markersize": 17,
    "linestyle": "",
    **_EDGE,
}
PARTS: dict[str, Any] = {
    "color": "#cc79a7", "marker": "s", "markersize": 6.5, "linewidth": 1.4, "linestyle": ":",
    **_EDGE,
}  # fmt: skip
NONE: dict[str, Any] = {
    "color": QUIET,
    "marker": "x",
    "markersize": 7,
    "markeredgewidth": 1.6,
    "linestyle": "",
}


@dataclass(frozen=True)
class CurveView:
    """What one plot of a curve shows.

    Attributes:
        points: in any order.
        title: the model's name.
        store_all_peak: bytes that the upper axis calls 100 %; 0 for no upper axis.
        reference: what these bytes are.
        chosen: (bytes, overhead) of the plan in use.
        infeasible_below: smallest budget, in bytes, not proven infeasible; the points' own
            proofs are used besides.
        parts: points with regions in parts, estimated; the proofs are not of these.
    """

    points: Sequence[SweepPoint]
    title: str = ""
    store_all_peak: int = 0
    reference: str = "the unoptimised peak"
    chosen: tuple[int, float] | None = None
    infeasible_below: int = 0
    parts: Sequence[SweepPoint] = ()


def draw_curve(view: CurveView, path: str | Path) -> None:
    """Write the curve of overhead against budget.

    The steps say what is known between the points: a plan for a budget keeps every larger one,
    a bound for a budget holds for every smaller one. The best plan lies between the two.

    Args:
        path: ``.png`` or ``.svg``.

    Raises:
        UsageError: no points, unknown suffix, or the folder is not writable.
    """
    points, parts, chosen = view.points, view.parts, view.chosen
    store_all_peak = view.store_all_peak
    if not points:
        raise UsageError("there is nothing to draw", why="the curve has no points")
    wall = max(view.infeasible_below, infeasible_until(points))
    left, right = _limits([*points, *parts], store_all_peak, chosen, wall)
    size, unit = byte_unit(right)
    with plot_file(path, WIDTH, HEIGHT) as figure:
        heading(figure, 0.035, view.title or "memory-time curve", _subtitle(points, wall))
        axes = figure.add_axes(PLOT)
        quiet_grid(axes)
        axes.set_xlim(left / size, right / size)
        _draw_bounds(axes, points, wall, left, size)
        _draw_plans(axes, points, right, size)
        _draw_failures(axes, points, size)
        if parts:
            at = [(point.budget / size, 100 * (point.overhead or 0.0)) for point in parts]
            axes.plot(*zip(*sorted(at), strict=True), clip_on=False, zorder=6, **PARTS)
        if chosen:
            axes.plot(chosen[0] / size, 100 * chosen[1], clip_on=False, zorder=7, **STAR)
        _vertical(axes, [*points, *parts], chosen)
        _forbid(axes, wall, left, size, "proven infeasible" + (" in one piece" if parts else ""))
        axes.set_xlabel(f"budget ({unit})")
        axes.set_ylabel("extra time over storing everything (%)")
        _key(axes, points, chosen, bool(parts))
        if store_all_peak:
            words = f"% of {view.reference} ({format_bytes(store_all_peak)})"
            _upper_axis(axes, store_all_peak / size, words)


def _limits(
    points: Sequence[SweepPoint], reference: int, chosen: tuple[int, float] | None, wall: int
) -> tuple[float, float]:
    """Left and right end in bytes: every plan, the wall, and some of what is infeasible."""
    wanted = [p.budget for p in points if not p.status.startswith("infeasible")]
    wanted += [wall] if wall else []
    wanted += [chosen[0]] if chosen else []
    wanted += [reference] if reference else []
    low, high = min(wanted), max(wanted)
    span = max(high - low, 0.05 * high)
    return max(0.0, low - (0.14 if wall else 0.05) * span), high + 0.05 * span


def _draw_plans(axes: Axes, points: Sequence[SweepPoint], right: float, size: float) -> None:
    known = plans(points)
    if not known:
        return
    at = np.array([budget for budget, _ in known] + [right]) / size
    rows = 100 * np.array([share for _, share in known] + [known[-1][1]])
    axes.step(at, rows, where="post", color=FOUND, linewidth=1.8, zorder=4)
    best = {p.budget for p in points if p.status == "optimal"}
    for budget, share in known:
        style = {**(PLAN_BEST if budget in best else PLAN), "linestyle": ""}
        axes.plot(budget / size, 100 * share, clip_on=False, zorder=5, **style)


def _draw_bounds(
    axes: Axes, points: Sequence[SweepPoint], wall: int, left: float, size: float
) -> None:
    known = bounds(points)
    if not known:
        return
    start = max(float(wall), left)
    at = np.array([start] + [budget for budget, _ in known]) / size
    rows = 100 * np.array([known[0][1]] + [share for _, share in known])
    axes.fill_between(at, 0, rows, step="pre", facecolor=PROVEN, alpha=0.13, linewidth=0, zorder=1)
    line, sign = {**BOUND, "marker": ""}, {**BOUND, "linestyle": ""}
    axes.step(at, rows, where="pre", zorder=3, **line)
    axes.plot(at[1:], rows[1:], clip_on=False, zorder=4, **sign)


def _draw_failures(axes: Axes, points: Sequence[SweepPoint], size: float) -> None:
    """Budgets for which neither a plan nor a proof was found."""
    at = [p.budget / size for p in points if _undecided(p)]
    axes.plot(at, [0.0] * len(at), clip_on=False, zorder=6, **NONE)


def _undecided(point: SweepPoint) -> bool:
    return point.overhead is None and not point.status.startswith("infeasible")


def _key(
    axes: Axes, points: Sequence[SweepPoint], chosen: tuple[int, float] | None, parts: bool
) -> None:
    """Only what the plot shows; upper right, where no curve of this kind goes."""
    found = [p for p in points if p.overhead is not None]
    least = "proven least: no plan is below"
    if any(map(in_one_order, points)):
        least = "proven least, in some places of one order"
    rows: list[tuple[str, dict[str, Any], bool]] = [
        ("plan, proven best", PLAN_BEST, any(p.status == "optimal" for p in found)),
        ("plan", PLAN, any(p.status != "optimal" for p in found)),
        (least, BOUND, any(p.bound is not None for p in points)),
        ("regions in parts, estimated", PARTS, parts),
        ("chosen", STAR, chosen is not None),
        ("neither plan nor proof", NONE, any(_undecided(p) for p in points)),
    ]
    signs = [Line2D([], [], label=words, **style) for words, style, present in rows if present]
    axes.legend(handles=signs, loc="upper right", framealpha=1, edgecolor="none")


def _vertical(axes: Axes, points: Sequence[SweepPoint], chosen: tuple[int, float] | None) -> None:
    shares = [share for _, share in (*plans(points), *bounds(points))]
    shares += [chosen[1]] if chosen else []
    axes.set_ylim(0, max(1.0, 115 * max(shares, default=0.0)))


def _forbid(axes: Axes, wall: int, left: float, size: float, words: str) -> None:
    if not wall:
        return
    axes.axvspan(left / size, wall / size, facecolor="#ececec", hatch="////", edgecolor="#c9c9c9",
                 linewidth=0, zorder=2)  # fmt: skip
    axes.axvline(wall / size, color=ALARM, linewidth=1.4, zorder=3)
    axes.annotate(
        words, ((left + wall) / 2 / size, 0.5), rotation=90, ha="center",
        va="center", color=ALARM, weight="bold", xycoords=("data", "axes fraction"), zorder=5,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 2.5},
    )  # fmt: skip


def _upper_axis(axes: Axes, whole: float, words: str) -> None:
    """A second scale on top, in percent of ``whole``."""

    def share(x: Any) -> Any:
        return 100 * x / whole

    def amount(x: Any) -> Any:
        return x * whole / 100

    upper = axes.secondary_xaxis("top", functions=(share, amount))
    upper.spines["top"].set_visible(True)
    upper.tick_params(length=3)
    upper.set_xlabel(words)


def _subtitle(points: Sequence[SweepPoint], wall: int) -> str:
    known = plans(points)
    words = []
    if known:
        budget, share = known[0]
        words.append(f"smallest budget with a plan: {format_bytes(budget)} at {share:+.1%} time")
    if wall:
        words.append(f"proven infeasible up to {format_bytes(wall)}")
    return "  ·  ".join(words)
