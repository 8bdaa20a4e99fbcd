"""Every example runs at small size, and says what it is there to show."""

from __future__ import annotations

import os
import re
from importlib import import_module
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tools.examples import NAMES


def said(name: str, folder: Path) -> str:
    """What an example says at small size."""
    made = import_module(f"examples.{name}").main(True, folder)
    return str(made.text)


def number(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    assert found, text
    return float(found[1])


def test_every_example_is_named() -> None:
    scripts = {p.stem for p in (ROOT / "examples").glob("*.py")} - {"__init__", "run"}
    assert scripts == set(NAMES)
    page = (ROOT / "examples" / "README.md").read_text()
    for name in NAMES:
        assert name in page
    kept = {path.stem for path in (ROOT / "examples" / "output").glob("*.txt")}
    assert kept <= set(NAMES)


@pytest.mark.slow
def test_fine_tuning(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    text = said("finetune_vision", tmp_path)
    before = number(r"trained on 0 to 4: ([\d.]+)%", text)
    assert number(r"knows all ten: ([\d.]+)%", text) > before


def test_a_small_gpt(tmp_path: Path) -> None:
    text = said("small_gpt", tmp_path)
    assert number(r"measured, ([\d.]+)%", text) <= 70
    assert number(r"-> ([\d.]+) after", text) < number(r"loss ([\d.]+) -> ", text)


def test_segmentation(tmp_path: Path) -> None:
    text = said("segmentation", tmp_path)
    assert number(r"measured, ([\d.]+)%", text) <= 50
    assert number(r"ops in (\d+) parts", text) > 1
    assert number(r"off by ([\d.e+-]+)", text) < 1e-4


@pytest.mark.slow
def test_two_devices(tmp_path: Path) -> None:
    text = said("two_devices", tmp_path)
    assert "cpu:1: " in text
    assert number(r"off by ([\d.e+-]+)", text) < 1e-4


def test_two_ranks(tmp_path: Path) -> None:
    text = said("two_ranks", tmp_path)
    if "skipped" in text:
        pytest.skip(text)
    assert number(r"differ by at most ([\d.e+-]+)", text) < 1e-4


@pytest.mark.slow
@pytest.mark.torch
def test_from_pytorch(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    text = said("from_pytorch", tmp_path)
    assert number(r"after: ([\d.]+)%", text) > 90


@pytest.mark.parametrize(
    ("name", "opened", "limited", "given"),
    [("deploy_cpp", "Ort::Session session(env,", True, "ONNXRUNTIME"),
     ("deploy_csharp", "options.AddSessionConfigEntry(", False, "OnnxRuntimeAssembly")],
)  # fmt: skip
def test_deploying(name: str, opened: str, limited: bool, given: str, tmp_path: Path) -> None:
    """Compiled where onnxruntime's headers, or the .NET SDK, are (`make test-examples` gets both):
    the same sum as Python's, and from C++ within a hard limit."""
    text = said(name, tmp_path)
    assert opened in text
    if found := re.search("skipped: .*", text):
        assert given not in os.environ, found[0]
        pytest.skip(found[0])
    assert "Python's" in text
    assert ("half of it is too little" in text) == limited
