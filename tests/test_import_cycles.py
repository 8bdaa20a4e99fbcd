"""No module needs, as it is imported, one that needs it: which of them comes first is anybody's."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import onnxremat

ROOT = Path(onnxremat.__file__).parent


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")


def at_import(node: ast.AST) -> Iterator[ast.AST]:
    """What runs as a module is imported: no bodies of functions, nothing for type checkers."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from at_import(child)


def needs(tree: ast.Module) -> Iterator[str]:
    """Every name that may be a module, and the packages it lies in."""
    for node in at_import(tree):
        names = list[str]()
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            yield from (".".join(parts[:k]) for k in range(1, len(parts) + 1))


def cycle(sources: dict[str, str]) -> list[str]:
    """Modules that import one another in a circle, by name and source; a package and what lies in
    it may."""
    graph = {
        name: {
            other
            for other in needs(ast.parse(source))
            if other in sources and other != name and not name.startswith(other + ".")
        }
        for name, source in sources.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert not cycle({module_of(path): path.read_text("utf-8") for path in ROOT.rglob("*.py")})


@pytest.mark.parametrize(
    ("later", "found"),
    [
        ("from a.c import x", True),
        ("def f():\n    from a.c import x", False),
        ("if TYPE_CHECKING:\n    from a.c import x", False),
        ("try:\n    import a.c\nexcept ImportError:\n    pass", True),
    ],
)
def test_a_circle_is_found(later: str, found: bool) -> None:
    sources = {"a": "import a.b", "a.b": later, "a.c": "from a import b"}
    assert bool(cycle(sources)) == found
