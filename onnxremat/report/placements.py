"""A placement as a table: one line per device, and what is proven."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from onnxremat.report.tables import plain_table
from onnxremat.units import format_bytes


def placement_table(facts: Mapping[str, Any]) -> RenderableType:
    """What ``place --json`` prints, for people."""
    table = plain_table()
    for name in ("device", "stage", "nodes", "compute", "in", "out", "load", "of the limit"):
        table.add_column(name, justify="left" if name == "device" else "right")
    for row in facts["devices"]:
        stage = "-" if row["stage"] is None else str(row["stage"])
        mark = " *" if row["name"] == facts["bottleneck"] else ""
        table.add_row(
            row["name"] + mark, stage, str(len(row["nodes"])),
            *(f"{row[key]:.6g}" for key in ("compute", "in", "out", "load")),
            _memory(row),
        )  # fmt: skip
    return Group(table, *(Text(line) for line in lines(facts)))


def lines(facts: Mapping[str, Any]) -> list[str]:
    """The sentences below the table."""
    found = []
    if facts.get("bound") is not None:
        found.append(
            f"{facts['objective']} {facts['value']:.9g}, {facts['status']}: "
            f"at least {facts['bound']:.9g} ({facts['bound_by']}), gap {facts['gap']:.3%}, "
            f"{facts['seconds']:.2f} s"
        )
    else:
        found.append(f"max load {facts['value']:.9g}, two maxima {facts['two_maxima']:.9g}")
    found += [str(note) for note in facts.get("notes", ())]
    return found


def _memory(row: Mapping[str, Any]) -> str:
    if row["limit"] is None:
        return "no limit"
    share = f" ({row['bytes'] / row['limit']:.0%})" if row["limit"] else ""
    return f"{format_bytes(row['bytes'])} of {format_bytes(row['limit'])}{share}"


def findings_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """One sentence per rule that is broken."""
    return [
        f"{'BROKEN' if row['refused'] else 'note  '}  {row['rule']}: {row['text']} (passes: "
        f"{', '.join(row['passes']) or 'no released program'})"
        for row in rows
    ]
