"""Compiled kernels are those of the files that are there."""

from __future__ import annotations

import shutil
from pathlib import Path

import numba
import pytest

from onnxremat.planner import search
from onnxremat.planner.search.compiled import cache_folder


def test_another_file_another_cache(tmp_path: Path) -> None:
    """What a kernel calls may lie in another file than its own."""
    first, second = tmp_path / "first", tmp_path / "second"
    shutil.copytree(
        Path(search.__file__).parent, first, ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copytree(first, second)
    name = Path(cache_folder(first)).name
    assert Path(cache_folder(second)).name == name
    with (second / "evaluate.py").open("a") as file:
        file.write("\n# another version\n")
    cache_folder.cache_clear()
    assert Path(cache_folder(second)).name != name
    assert Path(cache_folder(first)).name == name


def test_a_folder_that_is_asked_for_is_used(tmp_path: Path) -> None:
    kernels = Path(search.__file__).parent
    assert Path(cache_folder(kernels, str(tmp_path))).parent == tmp_path


def test_loading_leaves_the_cache_of_other_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    search.warm_up()
    assert search.is_compiled()
    assert numba.config.CACHE_DIR == ""
