"""How plots look and how they are written: one palette, one type size, atomic files."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from onnxremat.graph.atomic import atomic
from onnxremat.report.suffix import check_suffix

PLOTS = (".png", ".svg")
DPI = 150
INK = "#222222"  # text, measured lines
QUIET = "#6b6b6b"  # secondary text, axes
FAINT = "#e4e4e4"  # grid
ALARM = "#b2182b"  # limits

_STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "text.color": INK,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "hatch.linewidth": 0.7,
    "svg.hashsalt": "onnxremat",
}


@contextmanager
def plot_file(path: str | Path, width: float, height: float) -> Iterator[Figure]:
    """An empty figure that is written when the block ends well.

    Args:
        path: ``.png`` or ``.svg``.
        width: inches.
        height: inches.

    Raises:
        UsageError: another suffix, or the folder is not writable.
    """
    target = Path(path)
    suffix = check_suffix(target, PLOTS)
    with (
        warnings.catch_warnings(),
        matplotlib.rc_context(_STYLE),  # type: ignore[arg-type]
        atomic(target) as temporary,
    ):
        warnings.filterwarnings("ignore", "Glyph .* missing")  # names in any script
        figure = Figure(figsize=(width, height), dpi=DPI, facecolor="white")
        FigureCanvasAgg(figure)
        yield figure
        metadata = {"Date": None} if suffix == ".svg" else {}
        figure.savefig(temporary, format=suffix[1:], metadata=metadata)


def heading(figure: Figure, left: float, title: str, subtitle: str) -> None:
    """A bold title and a quiet line under it, from ``left`` (share of the width) on."""
    height = figure.get_figheight()
    first = figure.text(left, 1 - 0.18 / height, title, va="top", size=13, weight="bold")
    fit(first, 0.985)
    second = figure.text(left, 1 - 0.48 / height, subtitle, va="top", color=QUIET, size=10)
    fit(second, 0.985)


def fit(text: Text, right: float) -> Text:
    """Leave out the middle of a text until it ends before ``right`` (share of the figure's
    width), and take it literally: names may hold signs that mean mathematics elsewhere."""
    text.set_parse_math(False)
    figure = text.get_figure()
    whole = text.get_text()
    if figure is None or not whole:
        return text
    limit = len(whole)
    while limit > 4 and text.get_window_extent().x1 > right * figure.bbox.x1:
        limit -= 1 + limit // 40
        text.set_text(shortened(whole, limit))
    return text


def shortened(text: str, limit: int) -> str:
    """``text``, its middle left out when it is longer than ``limit`` characters."""
    if len(text) <= limit:
        return text
    tail = (limit - 1) // 2
    return f"{text[: limit - 1 - tail]}…{text[len(text) - tail :]}"


def quiet_grid(axes: Axes) -> None:
    """Faint horizontal lines behind the data."""
    axes.set_axisbelow(True)
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    axes.tick_params(length=3)


def byte_unit(largest: float) -> tuple[float, str]:
    """Divisor and name of the unit in which an axis up to ``largest`` bytes reads well."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if largest >= 2 * 1024**power:
            return float(1024**power), unit
    return 1.0, "B"


def second_unit(largest: float) -> tuple[float, str]:
    """Divisor and name of the unit in which an axis up to ``largest`` seconds reads well."""
    for size, unit in ((1.0, "s"), (1e-3, "ms")):
        if largest >= 2 * size:
            return size, unit
    return 1e-6, "µs"
