"""The command that simulates a pipeline."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from onnxremat.cli.commands import app
from onnxremat.errors import InfeasibleError, UsageError


def run(*options: str) -> str:
    """What the command prints on stdout; errors are raised."""
    result = CliRunner().invoke(app, ["simulate", *options])
    if result.exception:
        raise result.exception
    return result.stdout


def test_one_object(tmp_path: Path) -> None:
    rows, plot, trace = tmp_path / "a.csv", tmp_path / "a.svg", tmp_path / "a.json"
    files = ("--csv", str(rows), "-o", str(plot), "--trace", str(trace))
    options = ("--stages", "4", "--micro-batches", "8", "--schedule", "zb-h1", "--json")
    facts = json.loads(run(*options, *files))
    assert (facts["makespan"], facts["bound"], facts["peak"]) == (27, 27, [4, 4, 4, 4])
    table = list(csv.DictReader(rows.open()))
    assert len(table) == 4 * 8 * 3
    assert max(float(row["end"]) for row in table) == 27
    events = json.loads(trace.read_text())["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == len(table)
    assert "<svg" in plot.read_text()


def test_unequal_stages() -> None:
    options = ("--stages", "2", "--micro-batches", "3", "--forward", "1,2", "--backward", "2,1")
    facts = json.loads(run(*options, "--weight", "0.5", "--communication", "0.1", "--json"))
    assert facts["forward"] == [1, 2]
    assert facts["weight"] == [0.5, 0.5]
    assert facts["communication"] == [0.1]
    assert facts["bound"] <= facts["makespan"]


def test_chart() -> None:
    shown = run("--stages", "2", "--micro-batches", "4", "--schedule", "1f1b")
    first, second = shown.splitlines()[:2]
    assert first.startswith("rank 0 F0 F1 ·")
    assert second.startswith("rank 1 ···F0 BW0")
    assert "15 s for 4 micro-batches" in shown
    assert "at least 13 s" in shown


def test_large_plots_are_cells(tmp_path: Path) -> None:
    plot = tmp_path / "a.png"
    options = ("--stages", "32", "--micro-batches", "32", "--schedule", "1f1b", "-o", str(plot))
    assert "more ranks" in run(*options)
    assert plot.stat().st_size > 5000


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        (("--forward", "1,2"), UsageError, "2 numbers for 4"),
        (("--forward", "fast"), UsageError, "not numbers"),
        (("--weight", "-1"), UsageError, "numbers of 0 and more"),
        (("--schedule", "dual"), UsageError, "unknown schedule"),
        (("--schedule", "1f1b", "--in-flight", "2"), InfeasibleError, "keeps 4"),
        (("-o", "a.txt"), UsageError, "suffix"),
        (("--csv", "a.txt"), UsageError, "suffix"),
        (("--pipeline", "2"), UsageError, "--pipeline is for a STEP on a cluster"),
    ],
)
def test_refusals(options: tuple[str, ...], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match) as told:
        run("--stages", "4", "--micro-batches", "8", *options)
    assert str(told.value)
