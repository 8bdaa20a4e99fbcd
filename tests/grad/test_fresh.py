"""Files that PyTorch's default exporter wrote of modules as they were made: every parameter trains
as in PyTorch, but those that the file no longer has, which are told.

``python -m tests.zoo.keep`` wrote files and gradients; PyTorch is not needed to read them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxremat.errors import TrainingWarning, UsageError
from onnxremat.grad import differentiate
from tests.grad.fresh import Wanted, look

FILES = sorted((Path(__file__).parent / "exported_fresh").glob("*.onnx"))


def test_there_are_files() -> None:
    assert len(FILES) >= 10


@pytest.mark.filterwarnings("ignore::onnxremat.errors.TrainingWarning")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_parameters_are_right_or_told(path: Path) -> None:
    kept = np.load(path.with_suffix(".npz"))
    parts = {
        part: {n.split(":", 1)[1]: kept[n] for n in kept.files if n.startswith(f"{part}:")}
        for part in ("feed", "gradient")
    }
    wanted = Wanted(parts["feed"], kept["target"], float(kept["loss"]), parts["gradient"])
    found = look(onnx.load(path), wanted)
    assert not found.silent, found.warnings
    assert set(found.told) == set(map(str, kept["lost"])), found.warnings
    assert found.loss < 1e-5


def test_what_is_left_out_can_be_an_error() -> None:
    """Of a gain of 1 nothing is left in the file but its name."""
    model = onnx.load(next(path for path in FILES if path.stem == "times-1"))
    with pytest.warns(TrainingWarning, match="1 parameters of the module are not trained: gain"):
        differentiate(model, optimizer="sgd")
    with pytest.raises(UsageError, match="gain"):
        differentiate(model, optimizer="sgd", strict=True)
