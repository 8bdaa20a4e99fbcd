"""Pipelines from the command line."""

from __future__ import annotations

import os
from pathlib import Path

import onnx
import pytest

from models import build
from onnxremat.cost.analytic import analytic_costs
from onnxremat.execute.deployment import deploy
from onnxremat.ort.infer import build_graph
from onnxremat.pipeline.devices import pipelined, throughput
from onnxremat.schedule.assign import assigned, round_robin
from tests.cli.conftest import Command, listing
from tests.devices.plans import processors
from tests.limits import LONG
from tests.toolbox import parse


@pytest.fixture
def lenet(folder: Path) -> Path:
    path = folder / "lenet.onnx"
    onnx.save(build("lenet", batch=2), path)
    return path


def test_optimize_verify_inspect_bench(
    cli: Command, lenet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipelined, "SECONDS", 0.0)
    made = cli(
        "optimize", lenet, "out.onnx", "--devices", "cpu-2x1", "--objective", "throughput",
        "--in-flight", 3, "--bench-seconds", 0, "--time-limit", LONG, "--json",
    )  # fmt: skip
    assert made.code == 0, made.err
    assert (made.facts["objective"], made.facts["in_flight"]) == ("throughput", 3)
    assert made.facts["stages"] == [["cpu:0", "cpu:1"]]
    assert listing() == ["lenet.onnx", "out.onnx"]
    onnx.checker.check_model("out.onnx", full_check=True)
    checked = cli("verify", lenet, "out.onnx")
    assert checked.code == 0, checked.err
    assert "PASSED  same outputs, 3 in flight, in order" in checked.err
    assert "with 3 in flight" in checked.err
    told = cli("inspect", "out.onnx", "--json").facts
    assert (told["objective"], told["in_flight"]) == ("throughput", 3)
    assert sum(told["loads_seconds"].values()) > 0
    assert told["stages"] == [["cpu:0", "cpu:1"]]
    timed = cli("bench", "--throughput", "out.onnx", "--seconds", 0.1, "--json")
    assert timed.code == 0, timed.err
    for row in timed.facts["timings"]:
        assert row["samples_per_second"] == 1 / row["seconds"]
    assert timed.facts["timings"][0]["samples_per_second_predicted"] > 0
    assert [row["name"] for row in timed.facts["timings"]][1:] == ["cpu:0 alone", "cpu:1 alone"]
    assert cli("verify", lenet, "out.onnx", "--budget", "10KiB", "--seeds", 1).code == 6


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no process is kept to a core")
def test_in_a_process_that_is_kept_to_one_core(
    cli: Command, lenet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a session takes that starts a thread for every core there is, is not taken for what the
    one thread of a device takes."""
    monkeypatch.setattr(pipelined, "SECONDS", 0.0)
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        made = cli(
            "optimize", lenet, "out.onnx", "--devices", "cpu-2x1", "--objective", "throughput",
            "--bench-seconds", 0, "--time-limit", LONG,
        )  # fmt: skip
        assert made.code == 0, made.err
        checked = cli("verify", lenet, "out.onnx")
    finally:
        os.sched_setaffinity(0, cores)
    assert checked.code == 0, checked.err


def test_samples_that_come_back(
    cli: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipelined, "SECONDS", 0.0)
    monkeypatch.setattr(throughput, "TRIALS", 1)
    text = "a = MatMul(x, w) b = MatMul(a, v) c = MatMul(b, v) y = MatMul(c, u)"
    inputs = "float[64, 64] x, float[64, 256] w, float[256, 256] v, float[256, 64] u"
    onnx.save(parse(f"g ({inputs}) => (float[64, 64] y) {{ {text} }}"), folder / "in.onnx")
    made = cli(
        "optimize", "in.onnx", "out.onnx", "--devices", "cpu-2x1", "--objective", "throughput",
        "--any", "--bench-seconds", 0, "--time-limit", LONG,
    )  # fmt: skip
    assert made.code == 0, made.err
    told = cli("inspect", "out.onnx", "--json").facts
    assert "any placement" in told["bound_kind"]
    page = cli("report", "out.onnx", "-o", "page.html")
    assert page.code == 0, page.err
    if told["rounds"]:  # as it was measured: the last product may go with the first, or not
        way = [row[0] for row in told["stages"]]
        assert len(way) > len(set(way))
        assert f"stages      {' > '.join(way)}; in a round" in made.out + made.err
        assert " &gt; ".join(way) in (folder / "page.html").read_text()


def test_what_is_refused(cli: Command, lenet: Path) -> None:
    devices = ("--devices", "cpu-2x1", "--objective", "throughput")
    cli("optimize", lenet, "o.onnx", "--in-flight", 2).assert_refused(
        2, "--in-flight", "--objective"
    )
    cli("optimize", lenet, "o.onnx", "--replicas", 2).assert_refused(2, "--replicas", "--objective")
    cli("optimize", lenet, "o.onnx", "--any").assert_refused(2, "--any", "--objective")
    cli("optimize", lenet, "o.onnx", *devices, "--any", "--replicas", 2).assert_refused(2, "--any")
    cli("optimize", lenet, "o.onnx", "--objective", "throughput").assert_refused(2, "--devices")
    cli("optimize", lenet, "o.onnx", *devices, "--pin", "Conv=cpu:0").assert_refused(2, "--pin")
    said = cli("optimize", lenet, "o.onnx", *devices, "--budget", "10KiB")
    said.assert_refused(3, "proven")
    said = cli("optimize", lenet, "o.onnx", *devices, "--formulation", "xengine-miqp")
    said.assert_refused(2, "--formulation")
    graph, machine = build_graph(build("lenet", batch=2)), processors(2)
    table = dict.fromkeys(machine.names, analytic_costs(graph))
    plan = assigned(graph, round_robin(graph, machine.names, 4), machine)
    onnx.save(deploy(graph, plan, machine, table).model(), "plain.onnx")
    said = cli("bench", "--throughput", "plain.onnx")
    said.assert_refused(2, "not planned for samples in flight", "--objective throughput")
    assert listing() == ["lenet.onnx", "plain.onnx"]
