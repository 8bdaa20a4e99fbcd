"""Sizes of functions and files, with limits: small and plain is checked, not hoped for.

Prints one row per package and fails when a function or file is over its limit.
"""

from __future__ import annotations

import ast
import statistics
import sys
from pathlib import Path

FUNCTION, FILE = 80, 500  # lines, docstring included
ROOT = Path(__file__).resolve().parent.parent


def functions(path: Path) -> list[tuple[str, int]]:
    """Name and length in lines of every function of a file."""
    tree = ast.parse(path.read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [
        (node.name, (node.end_lineno or node.lineno) - node.lineno + 1)
        for node in ast.walk(tree)
        if isinstance(node, kinds)
    ]


def main() -> int:
    """Print the table; 1 when a limit is broken."""
    broken = []
    rows: dict[str, list[int]] = {}
    lines: dict[str, int] = {}
    for path in sorted((ROOT / "onnxremat").rglob("*.py")):
        parts = path.relative_to(ROOT / "onnxremat").parts
        package = parts[0] if len(parts) > 1 else "(top)"
        count = len(path.read_text().splitlines())
        lines[package] = lines.get(package, 0) + count
        if count > FILE:
            broken.append(f"{path.relative_to(ROOT)}: {count} lines (limit {FILE})")
        for name, length in functions(path):
            rows.setdefault(package, []).append(length)
            if length > FUNCTION and "cli" not in parts:  # a command lists its options
                broken.append(f"{path.relative_to(ROOT)}: {name} {length} lines")
    print(f"{'package':10s} {'lines':>6s} {'functions':>9s} {'median':>6s} {'longest':>7s}")
    for package, sizes in rows.items():
        middle = statistics.median(sizes)
        print(f"{package:10s} {lines[package]:6d} {len(sizes):9d} {middle:6.0f} {max(sizes):7d}")
    for text in broken:
        print("too long:", text)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
