"""Files that the pages for contributors name are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import ROOT

NAME = re.compile(r"`([\w./-]+?\.(?:py|md|toml))(?:::\w+)?`")
FOLDERS = ("onnxremat", "tests", "tools", "models", "docs")


def files() -> list[str]:
    """Every file of the project, as ``/onnxremat/units.py``."""
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.*")]
    return [f"/{path.relative_to(ROOT)}" for path in (*found, *ROOT.glob("*.*"))]


@pytest.mark.parametrize("page", ["docs/glossary.md", "CONTRIBUTING.md", "docs/architecture.md"])
def test_files_named_are_there(page: str) -> None:
    """A name may leave out folders in front."""
    names, known = set(NAME.findall(Path(ROOT / page).read_text())), files()
    assert names
    assert not {name for name in names if not any(path.endswith(f"/{name}") for path in known)}
