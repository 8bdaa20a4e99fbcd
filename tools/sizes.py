"""Sizes of functions, files and argument lists, with limits: small and plain is checked.

Prints one row per package and fails when something is over its limit. Arguments are counted
without ``self``. What a user chooses by name is not: options of a command, and of a public function
those that are keyword-only and have a default. Compiled functions take numbers and arrays, which no
object holds without costs in inner loops: they may have more.
"""

from __future__ import annotations

import ast
import statistics
import sys
from pathlib import Path

FUNCTION, FILE = 80, 500  # lines, docstring included
ARGUMENTS, COMPILED = 6, 10
PUBLIC = ("api.py", "exporting/write.py", "training/trainer.py", "grad/registry.py")
Function = ast.FunctionDef | ast.AsyncFunctionDef
ROOT = Path(__file__).resolve().parent.parent


def functions(path: Path) -> list[Function]:
    """Every function of a file."""
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, Function)]


def lines_of(node: Function) -> int:
    """Length in lines."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


def arguments_over(node: Function, file: str) -> int:
    """By how many arguments a function of a file is over the limit."""
    if file.startswith("cli/") and node.name == "command":
        return 0
    given = node.args
    named = zip(given.kwonlyargs, given.kw_defaults, strict=True)
    options = [arg for arg, default in named if default is not None] if file in PUBLIC else []
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    count = sum(arg is not None and arg.arg not in ("self", "cls") for arg in every)
    compiled = any(
        ast.unparse(how).split("(")[0] in ("compiled", "part") for how in node.decorator_list
    )
    return count - len(options) - (COMPILED if compiled else ARGUMENTS)


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
        for node in functions(path):
            length, where = lines_of(node), f"{path.relative_to(ROOT)}: {node.name}"
            rows.setdefault(package, []).append(length)
            if length > FUNCTION and "cli" not in parts:  # a command lists its options
                broken.append(f"{where} {length} lines")
            if (over := arguments_over(node, "/".join(parts))) > 0:
                broken.append(f"{where} takes {over} arguments more than it may")
    print(f"{'package':10s} {'lines':>6s} {'functions':>9s} {'median':>6s} {'longest':>7s}")
    for package, sizes in rows.items():
        middle = statistics.median(sizes)
        print(f"{package:10s} {lines[package]:6d} {len(sizes):9d} {middle:6.0f} {max(sizes):7d}")
    for text in broken:
        print("too much:", text)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
