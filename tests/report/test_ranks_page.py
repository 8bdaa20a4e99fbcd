"""The page of a pipeline's schedule: true, and whole without a network."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from onnxremat.errors import UsageError
from onnxremat.report.pages import ranks_page
from onnxremat.report.pages.ranks_page import Shown
from onnxremat.workers.pipeline import Pipeline
from onnxremat.workers.pipelines.replay import carry_out
from onnxremat.workers.pipelines.schedules import named
from tests.conftest import ROOT
from tests.report.test_page import Reader

COMMAND = "onnxremat simulate --stages 3 --schedule '</script>'"


@pytest.fixture(scope="module")
def shown() -> Shown:
    pipeline = Pipeline((1.0, 2.0, 1.0), (1.0, 1.0, 2.0), (0.5, 1.0, 1.0), 6)
    replay = carry_out(pipeline, named(pipeline, "1f1b", None))
    return Shown(replay, 0.8 * replay.makespan, COMMAND, (100, 3 << 20, 200), (("step", "9 s"),))


@pytest.fixture(scope="module")
def read(shown: Shown) -> Reader:
    return Reader(ranks_page.ranks_page(shown).html())


def test_elements_are_closed_and_nothing_is_loaded(shown: Shown, read: Reader) -> None:
    assert read.open == [""]
    assert read.loads == [""]
    assert not re.search(r"https?:|@import|url\(|fetch", ranks_page.ranks_page(shown).html())
    assert len(read.scripts) == 3  # one of data, one of code, and the empty beginning


def test_what_is_asked_first_is_said_in_words(shown: Shown, read: Reader) -> None:
    replay = shown.replay
    for words in (
        f"3 ranks, scheduled by 1f1b: all gradients are there after {replay.makespan:.3g} s , and "
        f"{replay.bubble:.1%} of the ranks' time is waiting",
        f"Stage 0 keeps most alive, {replay.peak[0]} micro-batches from ",
        f"no order of these actions takes less than {shown.bound:.3g} s , so it is at most 25.00%",
        "3.00 MiB at most (stage 1)",
        "step 9 s",
        COMMAND,
    ):
        assert words in read.words, words


def test_the_script_counts_what_is_alive(shown: Shown, read: Reader) -> None:
    """Between F and W of a micro-batch, as the replay does."""
    data = json.loads(read.scripts[1])
    assert len(data["actions"]) == len(shown.actions)
    assert max(action[2] for action in data["actions"]) == data["end"] == shown.replay.makespan
    assert [max(count for _, count in row) for row in data["alive"]] == list(shown.replay.peak)
    assert {row[-1][1] for row in data["alive"]} == {0}
    at, stage = shown.peak
    assert shown.count(stage, at) == max(shown.replay.peak)


def test_too_many_actions_are_refused(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks_page, "MOST", 3)
    with pytest.raises(UsageError, match="too large"):
        ranks_page.ranks_page(shown)


def test_a_schedule_is_simulated_without_a_plotting_library(tmp_path: Path) -> None:
    """Drawings want one; figures and the page do not."""
    code = (
        "import sys; sys.modules['matplotlib'] = None\nfrom onnxremat.cli.app import main; main()"
    )
    words = ("simulate", "--stages", "2", "--micro-batches", "2", "--schedule", "1f1b")
    done = subprocess.run(
        [sys.executable, "-c", code, *words, "-o", str(tmp_path / "s.html")],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "1f1b: 9 s" in done.stdout
    made = (tmp_path / "s.html").read_text()
    assert "onnxremat simulate --micro-batches 2 --stages 2 --schedule 1f1b" in made
    assert str(tmp_path) not in made
