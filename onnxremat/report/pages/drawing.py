"""The memory of a run as an SVG: stacked by kind over its steps, with the lines it is held to.

Written by hand: a plotting library that draws in the browser makes every page megabytes larger
(plotly 4.8, bokeh 1.3), for one chart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

import numpy as np

from onnxremat.report.pages.composition import COLOURS, Bytes, Kind
from onnxremat.units import format_bytes

WIDTH, HEIGHT = 1000, 420  # of the drawing, in its own units
LEFT, RIGHT, TOP, BOTTOM = 110, 16, 20, 46  # beside the axes
COLUMNS = 900  # of steps: where there are more, one column shows the fullest step of several


@dataclass(frozen=True)
class Level:
    """A horizontal line: so many bytes, and how it is drawn."""

    label: str
    bytes: int
    style: str


def draw(parts: Mapping[Kind, Bytes], levels: Sequence[Level], peak: int) -> str:
    """The ``svg`` element; it says where its axes are, for what points at it.

    Args:
        parts: bytes of every kind at every step, in the order in which they are stacked.
        levels: lines across it.
        peak: the step that is marked.
    """
    steps = len(next(iter(parts.values())))
    total = np.sum(list(parts.values()), axis=0)
    top = max([int(total.max(initial=1)), *(level.bytes for level in levels)]) * 1.06
    shown, edges = _columns(total)
    x = LEFT + edges / max(1, steps) * (WIDTH - LEFT - RIGHT)
    base = np.zeros(len(shown))
    body = [_grid(top, steps)]
    for kind, row in parts.items():
        above = base + row[shown]
        if row.any():
            body.append(_area(kind, x, _y(base, top), _y(above, top)))
        base = above
    body += [_level(level, top) for level in levels]
    at = LEFT + (peak + 0.5) / max(1, steps) * (WIDTH - LEFT - RIGHT)
    height = float(_y(np.array([total[peak]]), top)[0])
    body.append(
        f'<path class="peak" d="M{at:.1f} {height:.1f}l-6 -10h12z"><title>peak</title></path>'
        f'<line id="cursor" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
    )
    label = f"memory over {steps} steps, stacked by kind, peak {format_bytes(int(total[peak]))}"
    return (
        f'<svg id="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}" '
        f'data-left="{LEFT}" data-right="{WIDTH - RIGHT}" data-steps="{steps}">'
        + "".join(body)
        + "</svg>"
    )


def _columns(total: Bytes) -> tuple[np.ndarray, np.ndarray]:
    """The step that each column shows, and the edges of the columns, in steps."""
    steps = len(total)
    count = min(steps, COLUMNS)
    edges = np.linspace(0, steps, count + 1).astype(np.int64)
    shown = [int(a + np.argmax(total[a:b])) for a, b in pairwise(edges)]
    return np.array(shown, np.int64), edges.astype(np.float64)


def _y(counts: np.ndarray, top: float) -> np.ndarray:
    return HEIGHT - BOTTOM - counts / top * (HEIGHT - TOP - BOTTOM)


def _area(kind: Kind, x: np.ndarray, low: np.ndarray, high: np.ndarray) -> str:
    """What lies between two staircases; nothing where they touch."""
    held = np.flatnonzero(low != high)
    path = []
    for run in np.split(held, np.flatnonzero(np.diff(held) > 1) + 1):
        path.append(f"M{x[run[0]]:.1f} {low[run[0]]:.1f}")
        path += [f"V{high[i]:.1f}H{x[i + 1]:.1f}" for i in run]
        path += [f"V{low[i]:.1f}H{x[i]:.1f}" for i in run[::-1]]
        path.append("z")
    return (
        f'<path class="{kind.name.lower()}" fill="{COLOURS[kind]}" d="{"".join(path)}">'
        f"<title>{escape(kind.value)}</title></path>"
    )


def _grid(top: float, steps: int) -> str:
    """Lines and labels of both axes."""
    made = []
    for count in _ticks(top):
        y = float(_y(np.array([count]), top)[0])
        made.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{LEFT - 8}" y="{y + 5:.1f}" text-anchor="end">{format_bytes(count)}</text>'
        )
    for share in (0, 0.25, 0.5, 0.75, 1):
        x = LEFT + share * (WIDTH - LEFT - RIGHT)
        anchor = "end" if share == 1 else "middle"
        made.append(
            f'<text x="{x:.0f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="{anchor}">'
            f"{round(share * steps)}</text>"
        )
    made.append(
        f'<text class="axis" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}" '
        'text-anchor="middle">step (ops in the order they run)</text>'
    )
    return "".join(made)


def _ticks(top: float) -> list[int]:
    """At most seven round sizes from 0 to ``top``."""
    unit = 1 << (10 * (max(0, int(top).bit_length() - 1) // 10))
    steps = [unit // 4, unit // 2, *(unit * n for n in (1, 2, 5, 10, 20, 50, 100, 200))]
    step = next(step for step in steps if step and top / step <= 6)
    return list(range(0, int(top) + 1, step))


def _level(level: Level, top: float) -> str:
    y = float(_y(np.array([level.bytes]), top)[0])
    words = f"{level.label} {format_bytes(level.bytes)}"
    return (
        f'<line class="level {level.style}" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" '
        f'y2="{y:.1f}"><title>{escape(words)}</title></line>'
    )
