"""XEngine's flow in one command, and its tables: optimize --formulation --write-model, report."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import onnx
import pytest

from onnxremat.graph.onnx_io import to_model
from tests.cli.conftest import Command, listing
from tests.limits import LONG
from tests.planner.readers import scip
from tests.toolbox import parse, training_chain

TWO = ("--devices", "cpu-2x1")
PATIENT = ("--time-limit", LONG, "--bench-seconds", 0)
# Budgets of what a plan changes alone.
BARE = ("--not-counted", "inputs,state,session")


@pytest.fixture
def step(folder: Path) -> Path:
    path = folder / "step.onnx"
    onnx.save(to_model(training_chain(3, 32, 128)), path)
    return path


@pytest.fixture
def net(folder: Path) -> Path:
    """Branches, so that two devices have something to copy."""
    path = folder / "net.onnx"
    onnx.save(
        parse("""g (float[64, 64] x) => (float[64, 64] y) {
            a = Sin(x)
            b = Exp(a)
            c = Cos(x)
            d = Tanh(c)
            y = Add(b, d)
        }"""),
        path,
    )
    return path


def peaks_of(matrices: dict[str, Any]) -> dict[str, int]:
    """The largest of the bytes per timestep of each device."""
    rows = [row["bytes"] for row in matrices["timesteps"]]
    return {device: max(row[device] for row in rows) for device in matrices["devices"]}


@pytest.mark.parametrize("name", ["xengine-miqp", "xengine-linear"])
def test_the_whole_flow_on_two_devices(cli: Command, step: Path, name: str) -> None:
    said = cli(
        "optimize", step, "out.onnx", *TWO, "--budget", "cpu:0=120KiB,cpu:1=110KiB", *PATIENT,
        *BARE, "--pin", "MatMul=cpu:0", "--pin", "Tanh=cpu:1", "--formulation", name,
        "--write-model", "step.mps", "--json",
    )  # fmt: skip
    assert said.code == 0, said.err
    facts = said.facts
    assert facts["planner"] == name
    assert facts["objective"] == "time"
    assert facts["not_here"] == {}
    assert {check["ok"] for check in facts["checks"]} == {True}
    assert facts["moves"] > 0
    written = facts["written_model"]
    assert written["budget_bytes"] == {"cpu:0": 120 << 10, "cpu:1": 110 << 10}
    assert listing() == ["out.onnx", "step.mps", "step.onnx"]
    assert ("QMATRIX" in Path("step.mps").read_text()) == (name == "xengine-miqp")
    assert f"{name}, {written['columns']} columns" in said.err
    checked = cli("verify", step, "out.onnx", "--json")
    cli("verify", "out.onnx", step).assert_refused(2, "carries no plan, out.onnx does")
    assert checked.facts["ok"]
    assert checked.facts["checks"][0]["text"] == "bit-equal"

    reported = cli("report", "out.onnx", "--matrices", "--csv", "tables", "--json")
    assert reported.code == 0, reported.err
    matrices = reported.facts["matrices"]
    predicted = {row["device"]: row["peak_predicted_bytes"] for row in facts["devices"]}
    assert peaks_of(matrices) == predicted
    assert sum(len(row["copies"]) for row in matrices["timesteps"]) == facts["moves"]
    runs = sum(
        sum(counts.values()) for row in matrices["timesteps"] for counts in row["computed"].values()
    )
    assert runs == len(matrices["timesteps"]) + facts["recomputed_ops"]
    assert listing(Path("tables")) == [
        "R-cpu-0.csv", "R-cpu-1.csv", "S-cpu-0.csv", "S-cpu-1.csv", "copies.csv", "memory.csv",
    ]  # fmt: skip
    with Path("tables/memory.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert max(int(row["cpu:0"]) for row in rows) == predicted["cpu:0"]


def test_the_written_model_is_the_one_that_is_solved(cli: Command, net: Path) -> None:
    """SCIP, from the file, finds the time that the plan has."""
    said = cli(
        "optimize", net, "out.onnx", *TWO, "--budget", "64KiB", *PATIENT, *BARE,
        "--no-warm-start",
        "--pin",
        "Exp=cpu:1", "--pin", "Sin=cpu:0", "--formulation", "xengine-miqp", "--write-model",
        "net.mps", "--json",
    )  # fmt: skip
    assert said.code == 0, said.err
    facts = said.facts
    seen = scip(Path("net.mps"), Path("net.sol"))
    unit = facts["written_model"]["seconds_per_objective_unit"]
    assert seen.columns == facts["written_model"]["columns"] + 1  # SCIP's own, for the products
    assert seen.objective * unit == pytest.approx(facts["seconds_planned"], rel=2e-3)
    assert facts["moves"] > 0
    assert facts["status"] == "optimal"
    given = ("--pin", "Exp=cpu:1", "--pin", "Sin=cpu:0", "--formulation", "xengine-miqp")
    back = cli(
        "optimize", net, "back.onnx", *TWO, "--budget", "64KiB", *PATIENT, *BARE, *given,
        "--read-solution", "net.sol", "--json",
    )  # fmt: skip
    assert back.code == 0, back.err
    assert back.facts["planner"] == "xengine-miqp (net.sol)"
    assert back.facts["seconds_planned"] == pytest.approx(facts["seconds_planned"], rel=2e-3)
    assert {check["ok"] for check in back.facts["checks"]} == {True}
    less = cli(
        "optimize", net, "less.onnx", *TWO, "--budget", "40KiB", *PATIENT, *BARE, *given,
        "--read-solution", "net.sol",
    )  # fmt: skip
    less.assert_refused(2, "takes 48.0 KiB", "on 'cpu:")
    Path("broken.sol").write_text("R_0_0_0 1\n")
    cli("optimize", net, "x.onnx", *TWO, *given, "--read-solution", "broken.sol").assert_refused(
        2, "broken.sol cannot run"
    )
    cli("optimize", net, "x.onnx", "--read-solution", "net.sol").assert_refused(2, "--devices")


def test_a_device_that_is_not_here_is_planned_for_all_the_same(cli: Command, net: Path) -> None:
    Path("cpu_gpu.txt").write_text("cpu_0;cpu;0;1;0\ngpu_0;gpu;0;1;0\n")
    given = ("--devices", "cpu_gpu.txt", "--formulation", "xengine-miqp", "--write-model", "m.lp")
    said = cli("optimize", net, "out.onnx", *given, *PATIENT)
    if "gpu_0' is not here" not in said.err:
        pytest.skip("there is a GPU")
    assert said.code == 0, said.err
    assert "not verified here" in said.err
    assert "calibrated by cpu_0" in said.out
    assert listing() == ["cpu_gpu.txt", "m.lp", "net.onnx", "out.onnx"]
    reported = cli("report", "out.onnx", "--matrices")
    assert reported.code == 0, reported.err
    assert "gpu_0" in reported.out
    cli("optimize", net, "out.onnx", *given, *PATIENT, "--pin", "*=gpu_1").assert_refused(
        2, "has no device 'gpu_1'"
    )


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--formulation", "checkmate"), ("not for several devices", "xengine-miqp")),
        (("--formulation", "best"), ("unknown formulation",)),
        (("--planner", "dtr"), ("plans for one device",)),
        (("--write-model", "m.mps"), ("needs a formulation", "xengine-linear")),
        (("--write-model", "m.txt", "--formulation", "xengine-miqp"), ("m.txt",)),
        (("--formulation", "xengine-miqp", "--objective", "makespan"), ("minimises the time",)),
        (("--formulation", "xengine-miqp", "--max-columns", 10), ("on 2 devices has",)),
        (("--formulation", "xengine-miqp", "--budget", "gpu=1GiB"), ("has no device 'gpu'",)),
    ],
)
def test_what_does_not_go_together(
    cli: Command, net: Path, more: tuple[object, ...], words: tuple[str, ...]
) -> None:
    cli("optimize", net, "out.onnx", *TWO, *more, *PATIENT).assert_refused(2, *words)
    assert listing() == ["net.onnx"]


@pytest.mark.slow
def test_one_device(cli: Command, step: Path) -> None:
    """Written and solved; the report's rows have the predicted peak."""
    said = cli(
        "optimize", step, "out.onnx", "-b", "0.8x", *PATIENT, "--gap", 0.02, "--formulation",
        "checkmate", "--write-model", "step.mps", "--json",
    )  # fmt: skip
    assert said.code == 0, said.err
    assert "wrote step.mps: checkmate" in said.err
    assert listing() == ["out.onnx", "out.onnx.options.json", "step.mps", "step.onnx"]
    facts = said.facts
    assert facts["recomputed_ops"] > 0
    reported = cli("report", "out.onnx", "--matrices", "--json")
    assert peaks_of(reported.facts["matrices"]) == {"cpu": facts["peak_predicted_bytes"]}
    again = sum(
        sum(row["computed"]["cpu"].values()) - 1 for row in reported.facts["matrices"]["timesteps"]
    )
    assert again == facts["recomputed_ops"]
    assert "recomputed" in cli("report", "out.onnx").out
    cli("report", "out.onnx", "--csv", step).assert_refused(2, "cannot write to")
    cli("optimize", step, "o.onnx", "-b", "min", "--write-model", "x.mps").assert_refused(
        2, "is a number"
    )


def test_drawn_matrices(cli: Command, net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    said = cli("optimize", net, "out.onnx", "-b", "60KiB", "--not-counted",
               "inputs,state,session", *PATIENT, "-q")  # fmt: skip
    assert said.code == 0, said.err
    shown = cli("report", "out.onnx", "--matrices").out
    assert shown.count("●") == 5 + 1  # one first run per timestep, and the legend
    assert "stored values, left to right: " in shown
    monkeypatch.setenv("COLUMNS", "50")
    listed = cli("report", "out.onnx", "--matrices").out
    assert "●" not in listed
    assert listed.count("first") >= 5
    assert "--csv DIR" in listed.replace("\n", " ")


def test_a_plan_by_itself_needs_its_model(cli: Command, step: Path, net: Path) -> None:
    whole = ("--fission", "off")  # whichever is quicker by the times of this machine
    said = cli("plan", step, "-o", "plan.json", "-b", "0.8x", *whole, *PATIENT[:2], "--json")
    assert said.code == 0, said.err
    cli("report", "plan.json").assert_refused(2, "--model IN.onnx")
    cli("report", "plan.json", "--model", net).assert_refused(2, "belongs to another model")
    found = cli("report", "plan.json", "--model", step, "--matrices", "--json")
    assert found.code == 0, found.err
    assert len(found.facts["matrices"]["timesteps"]) > 5
    cli("report", step).assert_refused(2, "carries no plan")
    cli("report", step, "--model", step).assert_refused(2, "--model is for a plan.json")
    assert listing() == ["net.onnx", "plan.json", "step.onnx"]
