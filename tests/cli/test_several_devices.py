"""Several devices from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxremat.device.files import parse_machine
from onnxremat.graph.onnx_io import to_model
from tests.cli.conftest import Command, listing
from tests.limits import LONG
from tests.toolbox import parse, training_chain


@pytest.fixture
def step(folder: Path) -> Path:
    path = folder / "step.onnx"
    onnx.save(to_model(training_chain(3, 32, 128)), path)
    return path


def test_optimize_verify_bench_export(cli: Command, folder: Path, step: Path) -> None:
    said = cli(
        "optimize", step, "out.onnx", "--devices", "cpu-2x1", "--budget", "cpu:0=8MiB,cpu:1=8MiB",
        "--time-limit", LONG, "--gap", 1, "--bench-seconds", 0, "--json",
    )  # fmt: skip
    assert said.code == 0, said.err
    facts = said.facts
    assert [row["device"] for row in facts["devices"]] == ["cpu:0", "cpu:1"]
    assert all(row["peak_measured_bytes"] <= 8 << 20 for row in facts["devices"])
    assert all(check["ok"] for check in facts["checks"])
    assert listing() == ["out.onnx", "step.onnx"]
    onnx.checker.check_model("out.onnx", full_check=True)
    checked = cli("verify", step, "out.onnx", "--json")
    assert checked.code == 0, checked.err
    assert checked.facts["ok"]
    used = max(facts["devices"], key=lambda row: row["peak_measured_bytes"])["device"]
    for budget in ("10KiB", f"{used}=10KiB"):
        said = cli("verify", step, "out.onnx", "--budget", budget, "--seeds", 3)
        assert said.code == 6, said.err
        assert "same outputs on 3 inputs" in said.err
        assert f"FAILED  measured peak of {used} within budget" in said.err
    assert cli("verify", step, "out.onnx", "--budget", "100x", "--seeds", 1).code == 0
    cli("verify", step, "out.onnx", "--budget", "gpu=1MiB").assert_refused(2, "no device 'gpu'")
    cli("bench", "out.onnx", "--threads", 2).assert_refused(2, "--threads does not apply")
    both = cli("bench", step, "out.onnx", "--seconds", 0.1, "--json")
    assert both.code == 0, both.err
    assert [row["name"] for row in both.facts["timings"]] == [str(step), "out.onnx"]
    timed = cli("bench", "out.onnx", "--seconds", 0.1, "--json")
    assert timed.code == 0, timed.err
    assert timed.facts["timings"][0]["name"] == "as planned"
    wrote = cli("export-partitions", "out.onnx", "parts", "--json")
    assert wrote.code == 0, wrote.err
    assert {Path(file).name for file in wrote.facts["files"]} == set(listing(Path("parts")))
    manifest = json.loads(Path("parts/manifest.json").read_text())
    assert parse_machine(manifest["machine"]).names == ("cpu:0", "cpu:1")


def test_saying_more(cli: Command, folder: Path, step: Path) -> None:
    """What is recomputed and the time by phase, for several devices and for one session."""
    for more in (
        ("--devices", "cpu-2x1", "--budget", "8MiB"),
        ("--budget", "2x", "--target", "portable"),
    ):
        said = cli(
            "optimize", step, "out.onnx", *more, "--time-limit", LONG, "--gap", 1, "-v",
            "--bench-seconds", 0, "--json",
        )  # fmt: skip
        assert said.code == 0, said.err
        assert "what is recomputed" in said.err
        assert "time by phase" in said.err
        phases = said.facts["seconds_by_phase"]
        assert {
            "read", "optimise offline", "costs", "plan", "build", "measure", "verify"
        } <= phases.keys()  # fmt: skip
        assert all(seconds >= 0 for seconds in phases.values())


def test_without_a_budget_the_memory_of_the_file_holds(cli: Command, step: Path) -> None:
    Path("two.txt").write_text("cpu_0;cpu;0;1;3000\ncpu_1;cpu;0;1;3000\n")
    cli("optimize", step, "out.onnx", "--devices", "two.txt", "--time-limit", 1).assert_refused(
        3, "cannot run within cpu_0=2.93 KiB, cpu_1=2.93 KiB"
    )


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        (("--devices", "nope.toml"), 2, "no machine file nope.toml"),
        (("--devices", "cpu-2x1", "--budget", "gpu=1GiB"), 2, "has no device 'gpu'"),
        (("--devices", "cpu-2x1", "--pin", "Conv"), 2, "--pin 'Conv' is not understood"),
        (("--devices", "cpu-2x1", "--pin", "Conv=cpu:0"), 2, "matches no op"),
        (("--devices", "cpu-2x1", "--pin", "Tanh=gpu"), 2, "has no device 'gpu'"),
        (("--devices", "cpu-2x1", "--objective", "speed"), 2, "unknown objective 'speed'"),
        (("--devices", "cpu-2x1", "--plot", "m.svg"), 2, "--plot and --trace draw one session"),
        (("--devices", "cpu-2x1", "--trace", "t.json"), 2, "onnxremat report OUT --matrices"),
        (("--pin", "Conv=cpu:0"), 2, "--pin goes with --devices"),
        (("--objective", "time"), 2, "--objective goes with --devices"),
    ],
)
def test_wrong_options_are_refused(
    cli: Command, step: Path, more: tuple[str, ...], code: int, words: str
) -> None:
    cli("optimize", step, "out.onnx", *more).assert_refused(code, words)
    assert listing() == ["step.onnx"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("(float[4] x) => (float[4] y, float[4] x) { y = Sin(x) }", "'x' is an input: no op"),
        (  # an Identity more would be folded, too
            "(float[4] x) => (float[4] y, float[4] z) <float[4] w = {1, 2, 3, 4}> "
            "{ y = Sin(x) z = Relu(w) }",
            "'z' is constant: no op makes it, and so no device",
        ),
        (
            "(float[4] x) => (seq(float) y) { a = Sin(x) y = SequenceConstruct(a) }",
            "'y' is no tensor",
        ),
        ("(string[4] x) => (string[4] y) { y = Identity(x) }", "'x' holds strings"),
    ],
)
def test_what_partitions_do_not_take_or_give(
    cli: Command, folder: Path, text: str, words: str
) -> None:
    onnx.save(parse(f"g {text}"), "in.onnx")
    np.savez(
        "feeds.npz",
        x=np.array(["1"] * 4 if "string" in text else [1] * 4).astype(
            str if "string" in text else np.float32
        ),
    )
    asked = ("optimize", "in.onnx", "out.onnx", "--devices", "cpu-2x1", "--data", "feeds.npz")
    cli(*asked).assert_refused(7, words)
    assert not Path("out.onnx").exists()


def test_export_of_a_plain_model_is_refused(cli: Command, step: Path) -> None:
    cli("export-partitions", step, "parts").assert_refused(2, "carries no plan")
    assert listing() == ["step.onnx"]


def test_devices(cli: Command, folder: Path) -> None:
    listed = cli("devices", "--json")
    assert listed.facts["devices"][0]["name"] == "cpu"
    shown = cli("devices", "show", "cpu-cuda", "--json")
    assert [row["name"] for row in shown.facts["devices"]] == ["cpu", "cuda:0"]
    cli("devices", "show", "nope").assert_refused(2, "shipped are")
    (folder / "far.toml").write_text('elsewhere = true\n[[device]]\nname = "cpu"\n')
    far = cli("devices", "show", "far.toml", "--json").facts
    assert far["missing"] == {"cpu": "the machine file says that it is elsewhere"}
    assert far["devices"][0]["memory_bytes"] == 0
    cli("devices", "draw").assert_refused(2, "devices draw is not understood")
    cli("devices", "detect", "x.toml").assert_refused(2, "is not understood")
    said = cli("devices", "detect", "--quiet")
    assert parse_machine(said.out).devices[0].name == "cpu"


def test_set_batch(cli: Command, folder: Path) -> None:
    model = parse("""g (float[2, 3, 4] x) => (float[2, 12] y) {
        a = Sin(x)
        w = Constant<value_ints: ints = [6, 4]>()
        b = Reshape(a, w)
        c = Cos(b)
        s = Constant<value_ints: ints = [2, 12]>()
        y = Reshape(c, s)
    }""")
    onnx.save(model, "in.onnx")
    said = cli("set-batch", "in.onnx", "out.onnx", 256, "--json")
    assert said.code == 0, said.err
    assert (said.facts["before"], said.facts["after"], said.facts["constants"]) == (2, 256, 2)
    made = onnx.load("out.onnx")
    assert [d.dim_value for d in made.graph.input[0].type.tensor_type.shape.dim] == [256, 3, 4]
    model.metadata_props.add(key="onnxremat.plan", value="{}")  # of batch 2
    onnx.save(model, "planned.onnx")
    assert "holds for batch 2" in cli("set-batch", "planned.onnx", "out.onnx", 4).err
    assert not onnx.load("out.onnx").metadata_props
    cli("set-batch", "in.onnx", "in.onnx", 4).assert_refused(2, "the output is the input")
    cli("set-batch", "in.onnx", "new.onnx", 0).assert_refused(2, "not positive")


def test_set_batch_refuses_rows_that_depend_on_each_other(cli: Command, folder: Path) -> None:
    onnx.save(parse("""g (float[2, 4] x) => (float[2, 4] y) {
        m = ReduceMean<axes: ints = [0], keepdims: int = 1>(x)
        y = Sub(x, m)
    }""", opset=13), "mean.onnx")  # fmt: skip
    cli("set-batch", "mean.onnx", "out.onnx", 5).assert_refused(7, "'m' is of all of them")
    assert listing() == ["mean.onnx"]
