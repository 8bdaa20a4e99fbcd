"""Compiled kernels are those of the files that are there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numba
import pytest
from numba.core import caching

from onnxremat.planner import search
from onnxremat.planner.search.compiled import cache_folder
from tests.conftest import ROOT


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


KERNEL = """
from numba import types
from onnxremat.planner.search.compiled import compiled

@compiled(types.int64(types.int64), entry=True)
def twice(x):
    return 2 * x

print(twice(21), sum(twice.stats.cache_hits.values()))
"""


@pytest.mark.skipif(not hasattr(caching, "InTreeCacheLocator"), reason="an older Numba")
def test_compiled_kernels_go_with_their_folder(tmp_path: Path) -> None:
    """What is compiled when the package is built is taken where it is installed."""

    def run(folder: Path) -> str:
        env = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"}
        words = [sys.executable, "-c", "import kernel"]
        done = subprocess.run(
            words, cwd=folder, env={**env, "PYTHONPATH": f"{folder}:{ROOT}"}, capture_output=True,
            text=True, check=True,
        )  # fmt: skip
        return done.stdout

    built, installed = tmp_path / "built", tmp_path / "installed"
    built.mkdir()
    (built / "kernel.py").write_text(KERNEL)
    assert run(built) == "42 0\n"
    shutil.copytree(built, installed)
    shutil.rmtree(built)
    assert run(installed) == "42 1\n"
