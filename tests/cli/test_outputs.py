"""No output is an input or another output, by whatever name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from onnxremat.cli import outputs
from onnxremat.cli.outputs import check_outputs
from onnxremat.errors import UsageError


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """Two files of the same content."""
    for name in ("one", "other"):
        (tmp_path / name).write_text("something")
    return str(tmp_path / "one"), str(tmp_path / "other")


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_a_file_by_another_name(files: tuple[str, str], link: object) -> None:
    one, other = files
    Path(other).unlink()
    link(one, other)  # type: ignore[operator]
    with pytest.raises(UsageError, match="two outputs are one file"):
        check_outputs({"export": one, "checkpoint": other})
    with pytest.raises(UsageError, match="the output is the input"):
        check_outputs({"model": one, "output": other})


def test_names_of_no_file_yet(tmp_path: Path) -> None:
    name = str(tmp_path / "new")
    check_outputs({"export": name, "checkpoint": name + "er"})
    with pytest.raises(UsageError, match="two outputs are one file"):
        check_outputs({"export": name, "checkpoint": name})


def test_a_number_that_was_given_to_another_file_in_between(
    files: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As two processes that write the same outputs may see it."""
    monkeypatch.setattr(outputs, "_place", lambda path: (1, 2))
    one, other = files
    check_outputs({"export": one, "checkpoint": other})
    check_outputs({"model": one, "output": other})
    Path(other).unlink()
    check_outputs({"export": one, "checkpoint": other})
    with pytest.raises(UsageError, match="two outputs are one file"):
        check_outputs({"export": one, "checkpoint": one})
