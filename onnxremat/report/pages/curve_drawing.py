"""The memory-time curve of a model on a page: plans found, what is proven, and the plan in use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from html import escape
from pathlib import Path
from typing import Any

from onnxremat import plain_json
from onnxremat.errors import UsageError
from onnxremat.limits import regular
from onnxremat.report.sweep import bounds, infeasible_until, plans
from onnxremat.studies.points import SweepPoint
from onnxremat.units import format_bytes

WIDTH, HEIGHT = 1000, 360  # of the drawing, in its own units
LEFT, RIGHT, TOP, BOTTOM = 110, 24, 16, 46  # beside the axes
MOST = 1 << 62  # what no number of a curve reaches


@dataclass(frozen=True)
class Swept:
    """What ``onnxremat sweep -o FILE.json`` wrote.

    Attributes:
        model: file name.
        infeasible_below: proven: no budget below these bytes works; 0 where nothing is.
    """

    model: str
    points: tuple[SweepPoint, ...]
    infeasible_below: int


def read_sweep(path: Path) -> Swept:
    """Raises:
    UsageError: it is not there, or not what ``sweep`` writes.
    """
    try:
        said = plain_json.loads(regular(path).read_text("utf-8"))
        points = tuple(map(_point, said["points"]))
        least = int(said["infeasible_below_bytes"] or 0)
        model = str(said["model"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{path} is not the curve of a model",
            why=(error.strerror or "")
            if isinstance(error, OSError)
            else plain_json.why_damaged(error),
            hint="onnxremat sweep IN.onnx -o curve.json makes one",
        ) from error
    if not points:
        raise UsageError(f"{path} has no points", hint="sweep again, with more time")
    return Swept(model, points, max(least, infeasible_until(points)))


def _point(row: dict[str, Any]) -> SweepPoint:
    """A row of the file.

    Raises:
        KeyError, TypeError, ValueError: it is none.
    """
    point = SweepPoint(**{field.name: row[field.name] for field in fields(SweepPoint)})
    sizes = (point.budget, point.overhead or 0, point.bound or 0)
    if not all(isinstance(size, int | float) and abs(size) < MOST for size in sizes):
        raise ValueError(f"budget, overhead and bound are no numbers of a curve: {sizes}")
    if not isinstance(point.status, str):
        raise ValueError(f"the status is no word: {point.status}")
    return point


def draw_curve(swept: Swept, chosen: tuple[int, float]) -> str:
    """The ``svg`` element, and its key.

    Args:
        chosen: (bytes of the process allowed, extra time) of the plan on the page.
    """
    found, proven = plans(swept.points), bounds(swept.points)
    sizes = [
        *(point.budget for point in swept.points),
        chosen[0],
        swept.infeasible_below or chosen[0],
    ]
    low, high = min(sizes) * 0.95, max(sizes) * 1.03
    top = max([0.01, chosen[1], *(over for _, over in (*found, *proven))]) * 1.1

    def x(count: float) -> float:
        return LEFT + (count - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(share: float) -> float:
        return HEIGHT - BOTTOM - share / top * (HEIGHT - TOP - BOTTOM)

    def stairs(rows: Sequence[tuple[int, float]], style: str, *, end: float) -> str:
        path = "".join(
            f"{'L' if k else 'M'}{x(count):.1f} {y(rows[max(0, k - 1)][1]):.1f}V{y(share):.1f}"
            for k, (count, share) in enumerate(rows)
        )
        return f'<path class="{style}" d="{path}H{x(end):.1f}"/>' if rows else ""

    def stairs_before(rows: Sequence[tuple[int, float]], style: str) -> str:
        path = "".join(
            f"{'V' if k else f'M{x(low):.1f} '}{y(share):.1f}H{x(count):.1f}"
            for k, (count, share) in enumerate(rows)
        )
        return f'<path class="{style}" d="{path}"/>' if rows else ""

    body = _axes(x, y, (low, high), top)
    if swept.infeasible_below:
        width = max(0.0, x(swept.infeasible_below) - LEFT)
        words = f"proven of the whole: nothing below {format_bytes(swept.infeasible_below)}"
        body += (
            f'<rect class="impossible" x="{LEFT}" y="{TOP}" width="{width:.1f}" '
            f'height="{HEIGHT - TOP - BOTTOM}"><title>{words}</title></rect>'
        )
    body += stairs(found, "found", end=high) + stairs_before(proven, "proven")
    for count, share in found:
        words = f"{format_bytes(count)}: {share:+.2%}"
        body += f'<circle class="point" cx="{x(count):.1f}" cy="{y(share):.1f}" r="5">'
        body += f"<title>{words}</title></circle>"
    body += (
        f'<circle class="chosen" cx="{x(chosen[0]):.1f}" cy="{y(chosen[1]):.1f}" r="9">'
        f"<title>this plan: {format_bytes(chosen[0])}, {chosen[1]:+.2%}</title></circle>"
    )
    label = f"extra time against budget of {escape(swept.model)}"
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{body}</svg>'


def _axes(x: Any, y: Any, ends: tuple[float, float], top: float) -> str:
    """Lines and labels; bytes across, extra time up."""
    low, high = ends
    made = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        at, level = low + share * (high - low), share * top / 1.1
        anchor = "end" if share == 1 else "middle"
        made.append(
            f'<text x="{x(at):.0f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="{anchor}">'
            f"{format_bytes(int(at))}</text>"
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(level):.1f}" '
            f'y2="{y(level):.1f}"/><text x="{LEFT - 8}" y="{y(level) + 5:.1f}" '
            f'text-anchor="end">{level:+.1%}</text>'
        )
    made.append(
        f'<text class="axis" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}" '
        'text-anchor="middle">budget</text>'
    )
    return "".join(made)
