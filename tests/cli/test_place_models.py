"""``place`` of an ONNX model on a machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Command, listing

pytestmark = pytest.mark.usefixtures("folder")


def test_a_training_step_as_a_graph(cli: Command, chain: Path) -> None:
    said = cli(
        "place", chain, "--devices", "cpu-2x1", "--no-measure", "--graph", "graph.json",
        "-o", "split.json", "--json",
    )  # fmt: skip
    assert said.code == 0, said.err
    assert listing() == ["graph.json", "split.json"]
    data = json.loads(Path("graph.json").read_text())
    assert (data["maxFPGAs"], data["maxCPUs"]) == (2, 0)
    assert {node["isBackwardNode"] for node in data["nodes"]} <= {0, 1}
    again = cli("place", "graph.json", "--json").facts
    assert again["value"] == pytest.approx(said.facts["value"])
    assert "times are milliseconds" in said.facts["notes"]
    assert "times are milliseconds" not in again["notes"]
    assert cli("place", "graph.json", "--check", "split.json").code == 0


def test_models_need_a_machine_and_graphs_none(cli: Command, chain: Path) -> None:
    cli("place", chain).assert_refused(2, "no placement graph", "--devices")
    cli("place", "absent.onnx").assert_refused(2, "no such file: absent.onnx")
    Path("graph.json").write_text("{}")
    for option in (("--devices", "cpu-2x1"), ("--threads", 2), ("--no-measure",)):
        cli("place", "graph.json", *option).assert_refused(2, f"{option[0]} is for models")
