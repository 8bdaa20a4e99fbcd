"""How plots look and how they are written: one palette, one type size, atomic files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from onnxremat.errors import UsageError
from onnxremat.graph.onnx_io import atomic

PLOTS = (".png", ".svg")
DPI = 150
INK = "#222222"  # text, measured lines
QUIET = "#6b6b6b"  # secondary text, axes
FAINT = "#e4e4e4"  # grid

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
    "path.simplify": True,
}


def check_suffix(path: Path, accepted: Sequence[str]) -> str:
    """The suffix of ``path`` in lower case.

    Raises:
        UsageError: not one of ``accepted``.
    """
    suffix = path.suffix.lower()
    if suffix not in accepted:
        raise UsageError(
            f"cannot write {path}: unknown suffix '{path.suffix}'",
            hint=f"name the file {' or '.join(f'*{one}' for one in accepted)}",
        )
    return suffix


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
    with matplotlib.rc_context(_STYLE), atomic(target) as temporary:  # type: ignore[arg-type]
        figure = Figure(figsize=(width, height), dpi=DPI, facecolor="white")
        FigureCanvasAgg(figure)
        yield figure
        metadata = {"Date": None} if suffix == ".svg" else {}
        figure.savefig(temporary, format=suffix[1:], metadata=metadata)


def heading(figure: Figure, left: float, title: str, subtitle: str) -> None:
    """A bold title and a quiet line under it, from ``left`` (share of the width) on."""
    height = figure.get_figheight()
    figure.text(
        left, 1 - 0.18 / height, title, va="top", size=13, weight="bold", parse_math=False
    )
    figure.text(
        left, 1 - 0.48 / height, subtitle, va="top", color=QUIET, size=10, parse_math=False
    )


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


def shortened(text: str, limit: int) -> str:
    """``text``, its middle left out when it is longer than ``limit`` characters."""
    if len(text) <= limit:
        return text
    tail = (limit - 1) * 2 // 3
    return f"{text[: limit - 1 - tail]}…{text[-tail:]}"
