"""Planners side by side, one table per budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from onnxremat.report.comparison import least, signed, size
from onnxremat.report.tables import TAKES, plain_table
from onnxremat.units import format_seconds


class Standing(Protocol):
    """One planner at one budget; see :class:`onnxremat.studies.planners.Standing`."""

    @property
    def planner(self) -> str: ...
    @property
    def budget(self) -> int: ...
    @property
    def limit(self) -> int: ...
    @property
    def process(self) -> int | None: ...
    @property
    def peak(self) -> int | None: ...
    @property
    def overhead(self) -> float | None: ...
    @property
    def seconds(self) -> float | None: ...
    @property
    def bound(self) -> float | None: ...
    @property
    def gap(self) -> float | None: ...
    @property
    def any_order(self) -> bool: ...
    @property
    def status(self) -> str: ...
    @property
    def why(self) -> str: ...


def standings_table(rows: Sequence[Standing], baseline_peak: int) -> RenderableType:
    """Fastest plan first at each budget; then who has none, and why.

    Args:
        baseline_peak: bytes of weights and values that the share in each title refers to.
    """
    parts: list[RenderableType] = []
    for budget in dict.fromkeys(row.budget for row in rows):
        here = [row for row in rows if row.budget == budget]
        share = f", {here[0].limit / baseline_peak:.3f}x" if baseline_peak else ""
        parts.append(Text(f"budget {least(budget)}{share}", style="bold"))
        parts.append(_one(here))
        parts += [Text(f"infeasible: {row.why}") for row in here if row.status == "infeasible"][:1]
    words = "overhead, least (proven) and gap are shares of the store-all time; " + TAKES
    return Group(*parts, Text(words))


def _one(rows: Sequence[Standing]) -> Table:
    table = plain_table()
    table.add_column("planner", no_wrap=True)
    for name in ("overhead", "takes", "values", "planning", "least", "gap"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for row in sorted(rows, key=_rank):
        cells = [signed(row.overhead) or "-", least(row.process) or "-", size(row.peak) or "-"]
        cells.append("-" if row.seconds is None else format_seconds(row.seconds))
        cells += [signed(row.bound) or "-", "-" if row.gap is None else f"{row.gap:.3%}"]
        style = "bold" if row.planner == "auto" else "" if row.overhead is not None else "dim"
        table.add_row(Text(row.planner), *cells, Text(_words(row)), style=style)
    return table


def _rank(row: Standing) -> tuple[bool, float, bool, float]:
    """Fastest plan first, ours first among equals."""
    return (
        row.overhead is None, round(row.overhead or 0.0, 7), row.planner != "auto",
        row.seconds or 0.0,
    )  # fmt: skip


def _words(row: Standing) -> str:
    if row.status == "infeasible":
        return "infeasible, proven"
    if row.overhead is None:
        return row.why.removeprefix(f"{row.planner} ").removesuffix(" here") or row.status
    if row.bound is None:
        return ""
    scope = "any order" if row.any_order else "this order"
    return f"{row.status}, {scope}"
