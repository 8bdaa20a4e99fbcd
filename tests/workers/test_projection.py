"""A step on a cluster that is not here."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import onnx
import pytest
from typer.testing import CliRunner

import models
from onnxremat.cli.commands import app
from onnxremat.errors import UnsupportedError, UsageError
from onnxremat.grad import differentiate
from onnxremat.grad.description import training_of
from onnxremat.workers.pipelines.cluster import parse_cluster, read_cluster, shipped
from onnxremat.workers.pipelines.projection import Grid, project

STEP = differentiate(
    models.build("gpt2", batch=2, sequence=8, hidden=16, layers=4, heads=2, vocab=50, positions=8),
    optimizer="adamw",
)
CLUSTER = """
name = "slow"
devices_per_node = 2
flops = 1e9
bandwidth = "1GB"
memory = "{memory}"
[within]
bandwidth = "{within}"
latency = 0.0
[between]
bandwidth = "{between}"
latency = 0.0
"""


def cluster(within: str = "1GB", between: str = "1GB", memory: str = "1GB") -> str:
    """A file of a cluster."""
    return CLUSTER.format(within=within, between=between, memory=memory)


def seconds(grid: Grid, **links: str) -> float:
    """Of a step."""
    return project(STEP, None, parse_cluster(cluster(**links)), grid).seconds


def test_bytes_of_ranks_are_those_of_the_step() -> None:
    found = project(STEP, None, parse_cluster(cluster()), Grid(2, 2, 4, "1f1b"))
    about = training_of(STEP)
    sizes = {v.name: 4 * math.prod(d.dim_value for d in v.type.tensor_type.shape.dim)
             for v in STEP.graph.input}  # fmt: skip
    parameters = sum(sizes[v.input] for v in about.parameters)
    assert sum(each.parameters for each in found.memory) == parameters
    assert sum(each.sums for each in found.memory) == parameters
    state = sum(sizes[v.input] for v in about.states if sizes[v.input] > 8)
    assert state == 2 * parameters
    assert 0 <= sum(each.state for each in found.memory) - state <= 8
    assert found.rows == 2 * 4 * 2
    assert found.replay.peak == (2, 1)
    assert found.peaks[0] == found.memory[0].peak(2)


def test_slower_links_never_help() -> None:
    """Two to a node: sums of four pipelines leave it, and so do boundaries of four stages."""
    grid = Grid(4, 2, 4, "1f1b")
    assert seconds(grid, between="1MB") > seconds(grid)
    assert seconds(Grid(1, 2, 4, "1f1b"), between="1MB") < seconds(grid, between="1MB")


def test_without_a_pipeline_sums_travel_beside_computing() -> None:
    """Half of the sum is hidden at least where it takes a tenth of the step."""
    alone, fast = seconds(Grid(1, 1, 1)), seconds(Grid(2, 1, 1))
    assert alone <= fast < alone * 1.1


def test_it_is_said_what_is_measured(tmp_path: Path) -> None:
    step, chart = tmp_path / "step.onnx", tmp_path / "a.svg"
    onnx.save(STEP, step)
    options = ["--data-parallel", "3", "--pipeline", "2", "--micro-batches", "4", "--json"]
    told = []
    for name in ("a100-nodes", "cores-here"):
        given = ["simulate", str(step), "--cluster", name, *options, "-o", str(chart)]
        result = CliRunner().invoke(app, [*given, "--schedule", "zb-h1"])
        assert result.exception is None, result.exception
        told.append(json.loads(result.stdout))
    assert [facts["origin"]["forward, backward, weight"] for facts in told] == [
        "modelled", "measured",
    ]  # fmt: skip
    assert told[0]["ranks"] == 6
    assert "<svg" in chart.read_text()
    assert "a100-nodes" in shipped()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name = 'a'\nwhat = 1", "unknown keys what"),
        ("x", "not valid TOML"),
        (CLUSTER.replace('"1GB"', "-1", 1), "bandwidth"),
        (CLUSTER.replace("[between]", "[other]"), "unknown keys other"),
        (CLUSTER.replace("flops = 1e9", "flops = 'many'"), "flops"),
        ("efficiency = 45\n" + CLUSTER, "'efficiency' .* a share, 0 to 1"),
        (re.sub("devices_per_node = .*", "devices_per_node = 2.5", CLUSTER), "a whole number"),
        ("source = 3\n" + CLUSTER, "'source' .* a text"),
        (CLUSTER + "\nmemory_bandwidth = 3", "and nothing else"),
    ],
)
def test_files_that_are_none(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_cluster(text.format(within="1GB", between="1GB", memory="1GB"))


def test_what_is_refused() -> None:
    with pytest.raises(UsageError, match="no cluster file"):
        read_cluster("none")
    there = parse_cluster(cluster())
    with pytest.raises(UsageError, match=r"too few for 500 stages\n.* a pipeline of \d+ stages"):
        project(STEP, None, there, Grid(1, 500, 2))
    planned = onnx.ModelProto()
    planned.CopyFrom(STEP)
    planned.metadata_props.add(key="onnxremat.plan", value="{}")
    with pytest.raises(UnsupportedError, match="planned step"):
        project(planned, None, there, Grid(1, 2, 2))
    result = CliRunner().invoke(app, ["simulate", "a.onnx", "--micro-batches", "2"])
    assert isinstance(result.exception, UsageError)
    assert "--cluster FILE" in str(result.exception)
