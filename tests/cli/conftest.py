"""The command line, run in this process, and small models for it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import pytest

from onnxremat.cli.app import main
from onnxremat.graph.onnx_io import to_model
from tests.toolbox import parse, training_chain


@dataclass(frozen=True)
class Said:
    """What a command answered."""

    code: int
    out: str
    err: str

    @property
    def facts(self) -> dict[str, Any]:
        """The JSON object on stdout; anything else beside it is an error."""
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found

    def assert_refused(self, code: int, *words: str) -> None:
        """One message on stderr that says so, nothing on stdout."""
        assert self.code == code, self.err
        assert self.out == ""
        assert "Traceback" not in self.err
        said = [line for line in self.err.splitlines() if line.startswith("error: ")]
        assert len(said) == 1
        message = self.err[self.err.index("error: ") :]
        for word in words:
            assert word in message, f"{word!r} is not said in: {message}"


Command = Callable[..., Said]


def listing(folder: Path = Path()) -> list[str]:
    """Names of all files in a folder, sorted."""
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run ``onnxremat ARGS`` in this process."""

    def run(*args: object) -> Said:
        capfd.readouterr()
        monkeypatch.setattr(sys, "argv", ["onnxremat", *map(str, args)])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        said = capfd.readouterr()
        return Said(code, said.out, said.err)

    return run


@pytest.fixture(scope="session")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training step in which recomputation pays, with weights in the file."""
    path = tmp_path_factory.mktemp("chain") / "chain.onnx"
    onnx.save(to_model(training_chain(4, 32, 256)), path)
    return path


@pytest.fixture(scope="session")
def symbolic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with an open batch dimension."""
    path = tmp_path_factory.mktemp("symbolic") / "symbolic.onnx"
    onnx.save(
        parse("g (float[batch, 64] x) => (float[batch, 64] y) { a = Sin(x) y = Add(a, x) }"), path
    )
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, so that a file nobody asked for is seen."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return work
