"""A placement as a table: one line per device, and what is proven."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, Protocol

from rich.console import Group, RenderableType
from rich.text import Text

from onnxremat.report.tables import plain_table
from onnxremat.units import format_bytes

IDLE = 8  # devices with nothing to do that have a line of their own


def placement_table(facts: Mapping[str, Any]) -> RenderableType:
    """What ``place --json`` prints, for people, in 80 columns."""
    table = plain_table()
    for name in ("device", "stage", "nodes", "compute", "in", "out", "load", "memory"):
        table.add_column(name, justify="left" if name == "device" else "right")
    idle = [row["name"] for row in facts["devices"] if not row["nodes"]][IDLE:]
    left_out = set(idle)
    for row in facts["devices"]:
        if row["name"] in left_out:
            continue
        stage = "-" if row["stage"] is None else str(row["stage"])
        mark = " *" if row["name"] == facts["bottleneck"] else ""
        table.add_row(
            row["name"] + mark, stage, str(len(row["nodes"])),
            *(f"{row[key]:.5g}" for key in ("compute", "in", "out", "load")),
            _memory(row),
        )  # fmt: skip
    more = [f"{len(idle)} more devices have nothing to do"] if idle else []
    return Group(table, *(Text(line) for line in (*more, *lines(facts))))


def lines(facts: Mapping[str, Any]) -> list[str]:
    """The sentences below the table."""
    found = []
    if facts.get("bound") is not None:
        found += [
            f"{facts['objective']} {facts['value']:.9g}, {facts['status']}, "
            f"{facts['seconds']:.2f} s",
            f"at least {facts['bound']:.9g} ({facts['bound_by']}), gap {facts['gap']:.3%}",
        ]
    else:
        found.append(
            f"max-load {facts['max_load']:.9g}, two maxima {facts['two_maxima']:.9g}"
            + (f", latency {facts['latency']:.9g}" if "latency" in facts else "")
        )
    found += [str(note) for note in facts.get("notes", ())]
    return found


def _memory(row: Mapping[str, Any]) -> str:
    if row["limit"] is None:
        return "no limit"
    share = f"{row['bytes'] / row['limit']:.0%} of " if row["limit"] else ""
    return f"{share}{format_bytes(row['limit'])}"


def findings_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """One sentence per rule that is broken."""
    return [
        f"{'BROKEN' if row['refused'] else 'note  '}  {row['rule']}: {row['text']} (passes: "
        f"{', '.join(row['passes']) or 'no released program'})"
        for row in rows
    ]


class Placed(Protocol):
    """One method's answer; see :class:`onnxremat.studies.placements.Placed`."""

    @property
    def objective(self) -> str: ...
    @property
    def asks(self) -> str: ...
    @property
    def method(self) -> str: ...
    @property
    def value(self) -> float: ...
    @property
    def bound(self) -> float: ...
    @property
    def status(self) -> str: ...
    @property
    def seconds(self) -> float: ...
    @property
    def breaks(self) -> tuple[str, ...]: ...
    @property
    def why(self) -> str: ...


def methods_table(rows: Sequence[Placed]) -> RenderableType:
    """Methods side by side, one table for each question."""
    parts: list[RenderableType] = []
    for asked in dict.fromkeys((row.objective, row.asks) for row in rows):
        table = plain_table()
        for name in ("method", "value", "bound", "status", "seconds"):
            table.add_column(name, justify="left" if name in ("method", "status") else "right")
        table.add_column("breaks, or why not")
        for row in rows:
            if (row.objective, row.asks) == asked:
                table.add_row(
                    row.method, f"{row.value:.6g}" if row.value < inf else "-",
                    f"{row.bound:.6g}" if row.bound else "-", row.status, f"{row.seconds:.2f}",
                    row.why or ", ".join(row.breaks),
                )  # fmt: skip
        parts += [Text(", ".join(asked), style="bold"), table]
    return Group(*parts)
