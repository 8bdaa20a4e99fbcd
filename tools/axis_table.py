"""The table of axes as docs/fission.md shows it: ``python tools/axis_table.py``."""

from __future__ import annotations

from onnxremat.graph.axes import TABLE

SHORT = {"ai.onnx.ml": "ml:", "com.microsoft": "ms:", "com.microsoft.nchwc": "nchwc:", "": ""}


def axis_table() -> str:
    """One line per rule, in Markdown."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for (domain, name), row in TABLE.items():
        groups.setdefault((row.kind, row.axes, SHORT[domain]), []).append(name)
    lines = ["| kind | can be split along | operators |", "|---|---|---|"]
    for (kind, axes, domain), names in groups.items():
        lines.append(f"| {kind} | {axes} | {', '.join(domain + name for name in names)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(axis_table())
