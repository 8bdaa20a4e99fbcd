"""Compiled kernels are those of the files that are there."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

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


def ran(folder: Path, *words: str, **more: Any) -> str:
    env = {**os.environ, "PYTHONPATH": f"{folder}:{ROOT}"}
    env.pop("NUMBA_CACHE_DIR", None)
    done = subprocess.run(
        [sys.executable, *words, "-c", "import kernel"], cwd=folder, env=env, check=True,
        capture_output=True, text=True, **more,
    )  # fmt: skip
    return done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="no limit on the size of files")
def test_a_kernel_that_cannot_be_kept_is_compiled_all_the_same(tmp_path: Path) -> None:
    """A full disk, and a file that a machine which lost its power has cut short."""
    import resource

    def full() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))

    (tmp_path / "kernel.py").write_text(KERNEL)
    assert ran(tmp_path, "-B", preexec_fn=full) == "42 0\n"
    assert ran(tmp_path) == "42 0\n"
    (kept,) = tmp_path.rglob("*.nbc")
    os.truncate(kept, kept.stat().st_size // 2)
    assert [ran(tmp_path) for _ in range(3)] == ["42 0\n", "42 0\n", "42 1\n"]


@pytest.mark.skipif(not hasattr(caching, "InTreeCacheLocator"), reason="an older Numba")
def test_compiled_kernels_go_with_their_folder(tmp_path: Path) -> None:
    """What is compiled when the package is built is taken where it is installed."""

    built, installed = tmp_path / "built", tmp_path / "installed"
    built.mkdir()
    (built / "kernel.py").write_text(KERNEL)
    assert ran(built) == "42 0\n"
    shutil.copytree(built, installed)
    shutil.rmtree(built)
    assert ran(installed) == "42 1\n"
