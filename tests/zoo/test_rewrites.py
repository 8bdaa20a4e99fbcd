"""What PyTorch's default exporter does to fresh modules: every parameter trains as in PyTorch, but
those that the file no longer has, which are told."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tests.zoo import MISSING, WHY_MISSING

if MISSING:
    pytest.skip(WHY_MISSING, allow_module_level=True)

import torch

from tests.zoo.export import silence
from tests.zoo.fresh import compare_fresh
from tests.zoo.rewrites import REWRITES

pytestmark = pytest.mark.zoo

SAMPLED = ("norm-conv", "copied-layers")  # of others, tests/grad/test_fresh.py has the files
CASES = [
    pytest.param(name, marks=[pytest.mark.sample] if name in SAMPLED else []) for name in REWRITES
]


@pytest.mark.parametrize("name", CASES)
def test_parameters_are_right_or_told(name: str, tmp_path: Path) -> None:
    about, path = REWRITES[name], tmp_path / "net.onnx"
    module, data = about.make()
    with silence():
        names = [f"input{k}" for k in range(len(data))]
        torch.onnx.export(module, data, str(path), input_names=names, dynamo=True)
    found = compare_fresh(onnx.load(path), module, data)
    assert not found.silent + found.denied, found.warnings
    assert set(found.told) == set(about.lost), found.warnings
    assert found.right or about.lost
    assert found.loss < 1e-5
