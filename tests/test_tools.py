"""Tools run as ``python tools/NAME.py``, whatever folder they are started in."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parent.parent / "tools"
OURS = {path.name for path in TOOLS.parent.iterdir() if (path / "__init__.py").exists()} | {"tools"}


def imported(path: Path) -> set[str]:
    """Top-level names that a file imports anywhere."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


def finds_the_checkout(path: Path) -> bool:
    """It imports nothing of the checkout that is not installed, or says where that is, or imports
    a tool first that does."""
    if not imported(path) & OURS - {"onnxremat"} or "sys.path.insert" in path.read_text():
        return True
    others = [TOOLS / f"{name}.py" for name in imported(path)]
    return any("sys.path.insert" in other.read_text() for other in others if other.exists())


MAIN = [path for path in TOOLS.glob("*.py") if '__name__ == "__main__"' in path.read_text()]


def test_there_are_tools() -> None:
    assert {"models", "tests", "tools"} <= OURS
    assert len(MAIN) > 10


@pytest.mark.parametrize("path", MAIN, ids=lambda path: path.stem)
def test_a_tool_finds_what_it_imports(path: Path) -> None:
    assert finds_the_checkout(path)
