"""What devices and links do over time as an SVG, with the bytes that each device holds below."""

from __future__ import annotations

from html import escape

from onnxremat.report.pages.spread import Spread
from onnxremat.report.pages.time_chart import (
    GAP,
    LEFT,
    RIGHT,
    ROW,
    WIDTH,
    row_names,
    time_chart,
    x_at,
    y_of,
)
from onnxremat.rewrite.partition import Copy
from onnxremat.units import format_bytes, format_seconds

STRIP = 120  # height of a memory strip
COLUMNS = 900  # a strip of more entries shows the fullest of each column


def draw(spread: Spread, at: float) -> str:
    """The ``svg`` element; it says where its time axis is, for what points at it.

    Args:
        at: seconds, where the cursor stands.
    """
    rows = list(dict.fromkeys((*spread.made.machine.names, *spread.streams)))
    rows = [name for name in rows if name in spread.streams]
    strips = [name for name in spread.made.machine.names if spread.held[name].steps]
    gantt = y_of(len(rows))
    body = [_bars(spread, rows), *(_strip(spread, name, gantt + k * (STRIP + GAP))
                                   for k, name in enumerate(strips))]  # fmt: skip

    def words(share: float) -> str:
        return format_seconds(share * spread.end) if spread.known else f"{share:.0%}"

    label = f"what {', '.join(rows)} do and hold over {format_seconds(spread.end)}"
    end = gantt + len(strips) * (STRIP + GAP)
    return time_chart(body, end, at / (spread.end or 1.0), label, words)


def _x(spread: Spread, time: float) -> float:
    return x_at(time / (spread.end or 1.0))


def _bars(spread: Spread, rows: list[str]) -> str:
    made = row_names(rows)
    about = zip(
        spread.made.parts.actions, spread.streams, spread.times, spread.names, spread.words,
        strict=True,
    )  # fmt: skip
    for action, stream, (start, end), name, words in about:
        if end <= start:  # handed over within one memory
            continue
        x, y = _x(spread, start), y_of(rows.index(stream))
        style = "copy" if isinstance(action, Copy) else "bar"
        made.append(
            f'<rect class="{style}" x="{x:.1f}" y="{y}" height="{ROW}" '
            f'width="{max(0.8, _x(spread, end) - x):.1f}"><title>{escape(name)}: {escape(words)}, '
            f"{format_seconds(end - start)}</title></rect>"
        )
    return "".join(made)


def _strip(spread: Spread, device: str, top: int) -> str:
    """Bytes of a device over time, its budget, and where it holds most."""
    line, limit = spread.line(device), spread.made.limits.get(device)
    peak = spread.peak(device)
    # A budget far above is no line: the bytes would lie flat.
    shown = limit if limit is not None and limit <= 3 * peak[1] else None
    high = max(peak[1], shown or 0) * 1.1 or 1.0
    base = top + STRIP

    def y(count: float) -> float:
        return base - count / high * STRIP

    path, column = [f"M{LEFT} {base}"], (WIDTH - LEFT - RIGHT) / COLUMNS
    kept: list[tuple[float, int]] = []
    for time, count, _ in line:
        x = _x(spread, time)
        if kept and x - kept[-1][0] < column and len(line) > COLUMNS:
            kept[-1] = (kept[-1][0], max(kept[-1][1], count))
        else:
            kept.append((x, count))
    path += [f"H{x:.1f}V{y(count):.1f}" for x, count in kept]
    made = [
        f'<path class="held" d="{"".join(path)}H{WIDTH - RIGHT}V{base}z"/>',
        f'<text x="{LEFT - 8}" y="{top + 20}" text-anchor="end">{escape(device)}</text>',
        f'<text x="{LEFT - 8}" y="{top + 46}" text-anchor="end">{format_bytes(peak[1])}</text>',
        f'<path class="peak" d="M{_x(spread, peak[0]):.1f} {y(peak[1]):.1f}l-5 -8h10z">'
        f"<title>{format_bytes(peak[1])}</title></path>",
    ]
    if shown is not None:
        made.append(
            f'<line class="level budget" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(shown):.1f}" '
            f'y2="{y(shown):.1f}"><title>budget {format_bytes(shown)}</title></line>'
        )
    return "".join(made)
