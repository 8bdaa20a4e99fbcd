"""Files of a plan's matrices; what they hold is tested by the command that writes them."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from onnxremat.errors import ExhaustedError, UsageError
from onnxremat.report import matrices
from onnxremat.report.matrices import write_csv


def plan_on(*devices: str) -> Any:
    steps = SimpleNamespace(
        devices=devices, ops=("a",), values=("v",), computed={("cuda-0", 0, "a"): 1},
        stored={("cuda:0", 0, "v")}, copies=(),
    )  # fmt: skip
    return SimpleNamespace(steps=steps, bytes={})


def test_a_folder_holds_matrices_of_one_plan(tmp_path: Path) -> None:
    write_csv(plan_on("cpu-0", "cpu-1"), tmp_path)
    write_csv(plan_on("cpu-0", "cpu-1"), tmp_path)
    with pytest.raises(UsageError, match=r"matrices of another plan: R-cpu-1.csv"):
        write_csv(plan_on("cpu-0"), tmp_path)
    assert len(list(tmp_path.iterdir())) == 6


def test_all_matrices_are_written_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(matrices.csv, "writer", Mock(side_effect=[Mock(), full]))
    with pytest.raises(ExhaustedError, match=r"S-cpu\.csv"):
        write_csv(plan_on("cpu"), tmp_path / "tables")
    assert not list(tmp_path.iterdir())


def test_devices_with_names_alike_have_files_of_their_own(tmp_path: Path) -> None:
    devices = ("cuda:0", "cuda-0", "cpu")
    names = [path.name for path in write_csv(plan_on(*devices), tmp_path)]
    assert len(set(names)) == len(names) == 2 * len(devices) + 2
    runs = [(tmp_path / name).read_text().split()[1] for name in names if name.startswith("R-")]
    assert runs == ["0,0", "0,1", "0,0"]
