"""The frame of charts over time with a row for each who computes: places, axis, cursor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

WIDTH, LEFT, RIGHT, TOP = 1000, 165, 16, 8
ROW, GAP, AXIS = 34, 8, 30  # heights: of a bar, between rows, of the axis


def x_at(share: float) -> float:
    """Where a share of the time is."""
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def y_of(row: int) -> int:
    """Top of a row; of the first one that is no more, where rows end."""
    return TOP + row * (ROW + GAP)


def row_names(names: Sequence[str]) -> list[str]:
    """A ``text`` element before each row."""
    return [
        f'<text x="{LEFT - 8}" y="{y_of(row) + ROW / 2 + 5:.0f}" text-anchor="end">'
        f"{escape(name)}</text>"
        for row, name in enumerate(names)
    ]


def time_chart(
    body: Sequence[str], end: int, at: float, label: str, words: Callable[[float], str]
) -> str:
    """The ``svg`` element; it says where its time axis is, for what points at it.

    Args:
        body: elements inside.
        end: of what they take, downwards.
        at: share of the time, where the cursor stands.
        label: what it shows, for those who do not see it.
        words: a share of the time, at the axis.
    """
    height = end + AXIS
    made = [*body]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        x, anchor = x_at(share), "end" if share == 1 else "middle"
        made.append(
            f'<line class="grid" x1="{x:.0f}" x2="{x:.0f}" y1="{TOP}" y2="{end}"/>'
            f'<text x="{x:.0f}" y="{height - 8}" text-anchor="{anchor}">'
            f"{words(share) if share else 0}</text>"
        )
    x = x_at(at)
    made.append(f'<line id="cursor" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{end}"/>')
    return (
        f'<svg id="chart" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label)}" '
        f'data-left="{LEFT}" data-right="{WIDTH - RIGHT}">' + "".join(made) + "</svg>"
    )
