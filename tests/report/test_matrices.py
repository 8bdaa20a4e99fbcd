"""Files of a plan's matrices; what they hold is tested by the command that writes them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from onnxremat.report.matrices import write_csv


def test_devices_with_names_alike_have_files_of_their_own(tmp_path: Path) -> None:
    devices = ("cuda:0", "cuda-0", "cpu")
    steps = SimpleNamespace(
        devices=devices, ops=("a",), values=("v",), computed={("cuda-0", 0, "a"): 1},
        stored={("cuda:0", 0, "v")}, copies=(),
    )  # fmt: skip
    planned: Any = SimpleNamespace(steps=steps, bytes={})
    names = [path.name for path in write_csv(planned, tmp_path)]
    assert len(set(names)) == len(names) == 2 * len(devices) + 2
    runs = [(tmp_path / name).read_text().split()[1] for name in names if name.startswith("R-")]
    assert runs == ["0,0", "0,1", "0,0"]
