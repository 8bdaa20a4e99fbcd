"""Help, the version and wrong options load next to nothing, so that they are there at once."""

from __future__ import annotations

import gc
import inspect
import io
import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import onnx
import pytest

from onnxremat.cli import app
from onnxremat.cli.commands import COMMANDS, load
from tests.conftest import ROOT
from tests.toolbox import parse

# What takes long to load, or belongs to the work itself.
HEAVY = (
    "numpy", "onnx", "onnxruntime", "onnx_graphsurgeon", "numba", "llvmlite", "matplotlib",
    "highspy", "pyscipopt", "gurobipy", "scipy", "torch", "onnxremat.api", "onnxremat.graph",
)  # fmt: skip

# Runs commands one after the other in a process of its own, then says what was loaded.
SCRIPT = """
import json, sys
from onnxremat.cli.app import main
codes = []
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["onnxremat", *arguments]
    try:
        main()
    except SystemExit as end:
        codes.append(end.code)
sys.stderr.write(json.dumps([codes, sorted(sys.modules)]))
"""


def answered(*commands: list[str]) -> tuple[list[int], set[str]]:
    """Exit codes of some commands in a fresh process, and the modules that they loaded."""
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(commands)],
        capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    codes, modules = json.loads(run.stderr.splitlines()[-1])
    return codes, set(modules)


def test_help_version_and_wrong_options_load_nothing_heavy() -> None:
    commands = [["--help"], ["--version"], *([name, "--help"] for name in COMMANDS)]
    wrong = [["no-such-command"], ["--wrong"], *([name, "--wrong"] for name in COMMANDS)]
    codes, modules = answered(*commands, *wrong)
    assert codes == [0] * len(commands) + [2] * len(wrong)
    assert not modules & set(HEAVY)


def test_the_interface_loads_no_compiled_search() -> None:
    """What does not plan (verify, run, report, apply) does not wait for it either."""
    script = "import sys, onnxremat.api; sys.exit('numba' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)


def test_the_list_of_commands_loads_none_of_them() -> None:
    _, modules = answered(["--help"], ["--version"])
    homes = {f"onnxremat.cli.{name.replace('-', '_')}" for name in COMMANDS}
    assert not modules & homes


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_says_what_each_command_says_of_itself(name: str) -> None:
    module = import_module(f"onnxremat.cli.{name.replace('-', '_')}")
    first = (inspect.getdoc(module.command) or "").split("\n\n")[0]
    assert COMMANDS[name] == " ".join(first.split())
    assert load(name).name == name


def test_without_a_runtime_it_says_which_to_install(tmp_path: Path) -> None:
    """What needs none works."""
    script = SCRIPT.replace(
        "import json, sys", "import json, sys; sys.modules['onnxruntime'] = None"
    )
    model = tmp_path / "net.onnx"
    onnx.save(parse("g (float[8] x) => (float[8] y) { y = Sin(x) }"), model)
    simulated = ["simulate", "--stages", "2", "--micro-batches", "2", "--schedule", "1f1b", "-q"]
    run = subprocess.run(
        [sys.executable, "-c", script, json.dumps([["explain", str(model)], simulated])],
        capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    codes, _ = json.loads(run.stderr.splitlines()[-1])
    assert codes == [8, 0], run.stderr
    assert "pip install onnxruntime-gpu" in run.stderr


def test_a_sweep_needs_no_drawing_library(tmp_path: Path) -> None:
    """matplotlib is an extra: for --plot alone."""
    script = SCRIPT.replace(
        "import json, sys", "import json, sys; sys.modules['matplotlib'] = None"
    )
    model, out = tmp_path / "net.onnx", tmp_path / "curve.json"
    onnx.save(parse("g (float[8] x) => (float[8] y) { y = Sin(x) }"), model)
    sweep = ["sweep", str(model), "-o", str(out), "--points", "2", "--no-measure", "-q"]
    run = subprocess.run(
        [sys.executable, "-c", script, json.dumps([sweep])],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert json.loads(run.stderr.splitlines()[-1])[0] == [0], run.stderr
    assert out.is_file()


@pytest.mark.parametrize("flag", [[], ["-u"]], ids=["buffered", "unbuffered"])
def test_output_that_a_full_disk_cuts_short_is_no_success(flag: list[str], tmp_path: Path) -> None:
    code = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300)); "
    code += "from onnxremat.cli.app import main; main()"
    with (tmp_path / "said").open("w") as said:
        run = subprocess.run(
            [sys.executable, *flag, "-c", code, "--help"],
            stdout=said, stderr=subprocess.PIPE, text=True, cwd=ROOT,
            env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        )  # fmt: skip
    assert (run.returncode, run.stderr.count("\n")) == (9, 2), run.stderr
    assert "error: cannot write what this command says" in run.stderr


def test_output_that_is_not_buffered_stays_the_callers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that ends closes no file of the program that called it."""
    with (tmp_path / "said").open("wb", buffering=0) as raw, monkeypatch.context() as patch:
        callers = io.TextIOWrapper(raw, write_through=True)
        patch.setattr(sys, "stdout", callers)
        app._write_whole()
        assert sys.stdout is not callers
        print("said")
        sys.stdout.flush()
        patch.undo()
        gc.collect()
        assert not raw.closed
        callers.write("more")
    assert (tmp_path / "said").read_text() == "said\nmore"


def test_surroundings_that_are_not_as_they_should_be(tmp_path: Path) -> None:
    """Output that is closed is none; a folder that is gone, and what Numba does not take, are told
    as what they are, not as mistakes of ours."""
    net = tmp_path / "net.onnx"
    onnx.save(parse("g (float[8] x) => (float[8] y) { y = Sin(x) }"), net)
    asked = f"{sys.executable} -m onnxremat"
    away = f"mkdir {tmp_path}/away; cd {tmp_path}/away; rmdir {tmp_path}/away; "
    plan = f"{asked} plan {net} --budget 1KiB -o"
    cases = {
        f"{asked} inspect {net} >&-": (0, ""),
        f"{away}{plan} plan.json": (2, "folder that this command was called in is gone"),
        f"NUMBA_NUM_THREADS=-3 {plan} {tmp_path}/plan.json": (2, "NUMBA_NUM_THREADS"),
    }
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    for line, (code, words) in cases.items():
        ran = subprocess.run(["sh", "-c", line], capture_output=True, text=True, env=env)
        assert (ran.returncode, words in ran.stderr) == (code, True), ran.stderr
