"""What compiles the search where a wheel is built: it finds Numba, and says what is missing."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))

import build_kernels


def package(folder: Path) -> Path:
    """Two kernels in one folder of a package."""
    rooms = folder / "onnxremat" / "rooms"
    rooms.mkdir(parents=True)
    (rooms / "a.py").write_text(
        "@compiled(int)\ndef one(): ...\n\n\n@compiled(int)\ndef two(): ..."
    )
    (rooms / "b.py").write_text('"""No @compiled( at the start of a line."""\n')
    return folder / "onnxremat"


def built(rooms: Path, count: int) -> str:
    """Code that leaves so many compiled kernels."""
    made = rooms / "__pycache__" / "kernels-1"
    return (
        "from pathlib import Path\n"
        f"made = Path({str(made)!r}); made.mkdir(parents=True, exist_ok=True)\n"
        f"for k in range({count}): (made / f'a.{{k}}.nbc').touch()"
    )


def test_a_compiling_process_finds_what_the_build_finds(tmp_path: Path) -> None:
    (tmp_path / "isolated").mkdir()
    (tmp_path / "isolated" / "only_there.py").write_text("")
    given = {**os.environ, "PYTHONPATH": str(tmp_path / "isolated"), "NUMBA_CACHE_DIR": "elsewhere"}
    made = build_kernels.environment(tmp_path / "lib", given)
    assert made["PYTHONPATH"].split(os.pathsep) == [str(tmp_path / "lib"), given["PYTHONPATH"]]
    assert "NUMBA_CACHE_DIR" not in made
    assert "PYTHONPATH" in build_kernels.environment(tmp_path, {})


def test_a_build_that_lacks_kernels_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = package(tmp_path)
    old = made / "rooms" / "__pycache__" / "kernels-0"
    old.mkdir(parents=True)
    for k in range(2):  # of an earlier build: they count for nothing
        (old / f"a.{k}.nbc").touch()
    monkeypatch.setattr(build_kernels, "SEARCH", built(made / "rooms", 1) + "\nraise SystemExit(3)")
    monkeypatch.setattr(build_kernels, "OTHERS", "")
    with pytest.raises(SystemExit, match=r"1 kernels .*1 of rooms.*=later"):
        build_kernels.compile_kernels(made)
    assert not old.exists()
    monkeypatch.setattr(build_kernels, "SEARCH", built(made / "rooms", 2))
    build_kernels.compile_kernels(made)
    assert build_kernels.missing(made) == {}
    monkeypatch.setenv(build_kernels.LATER, "later")
    monkeypatch.setattr(build_kernels, "SEARCH", "raise SystemExit(3)")
    build_kernels.compile_kernels(made)


def test_kernels_of_this_package_are_seen() -> None:
    """The decorator at the start of a line is how they are counted."""
    root = Path(build_kernels.__file__).parent.parent / "onnxremat"
    found = {
        folder.name
        for folder in root.rglob("*")
        if folder.is_dir()
        and any(build_kernels.DECORATED.search(f.read_text()) for f in folder.glob("*.py"))
    }
    assert found == {"search", "kernels", "pipelines"}
