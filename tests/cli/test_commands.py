"""Every command on a small model: what it writes, and one JSON object on stdout."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxremat.errors import OnnxrematError
from onnxremat.ort.session import DEFAULT
from onnxremat.session.resident import resident_rise
from tests.cli.conftest import Command, Said, listing
from tests.conftest import ROOT
from tests.limits import LONG
from tests.toolbox import parse

PATIENT = ("--bench-seconds", 0, "--time-limit", LONG, "--seed", 1)
NUMBERS = (
    "budget_bytes", "baseline_peak_bytes", "peak_predicted_bytes", "peak_measured_bytes",
    "overhead_planned", "bound", "gap", "plan_seconds", "recomputed_ops",
)  # fmt: skip


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory, chain: Path, warm: None) -> tuple[Path, dict]:
    """The chain within 70 % of its peak, and what was said about it."""
    out = tmp_path_factory.mktemp("planned") / "out.onnx"
    import onnxremat

    made = onnxremat.optimize(
        chain, budget="0.7x", bench_seconds=0, options=onnxremat.PlanOptions(time_limit=LONG)
    )
    made.save(out)
    return out, made.facts()


def test_optimize(cli: Command, folder: Path, chain: Path, warm: None) -> None:
    said = cli("optimize", chain, "out.onnx", "--budget", "0.7x", *PATIENT, "--json")
    assert said.code == 0, said.err
    facts = said.facts
    for name in NUMBERS:
        assert isinstance(facts[name], int | float), name
    assert facts["status"] in ("optimal", "feasible")
    assert "overhead_measured" in facts
    assert facts["peak_measured_bytes"] <= facts["limit_bytes"] < facts["baseline_peak_bytes"]
    assert facts["limit_bytes"] + facts["beside_bytes"] == facts["budget_bytes"]
    assert abs(facts["peak_predicted_bytes"] / facts["peak_measured_bytes"] - 1) < 0.02
    assert facts["recomputed_ops"] > 0
    assert facts["bit_equal"] is True
    assert facts["order_kept"] is True
    assert facts["order_kept_default_options"] is True
    assert 0 <= facts["bound"] <= facts["overhead_planned"] + 1e-9
    assert facts["gap"] == pytest.approx(max(0, facts["overhead_planned"] - facts["bound"]))
    assert listing() == ["out.onnx", "out.onnx.options.json"]
    onnx.checker.check_model("out.onnx", full_check=True)


def test_optimize_with_everything(cli: Command, folder: Path, chain: Path, warm: None) -> None:
    said = cli(
        "optimize", chain, "-o", "out.onnx", "-b", "0.75x", "--bench-seconds", 0.2, "--time-limit",
        LONG, "--fixed-order", "--target", "host", "--solver", "highs", "--threads", 1, "-v",
        "--plot", "memory.svg", "--trace", "trace.json", "--json",
    )  # fmt: skip
    assert said.code == 0, said.err
    assert said.facts["overhead_measured"] is not None
    assert said.facts["target"] == "host"
    assert json.loads(Path("trace.json").read_text())
    assert Path("memory.svg").read_text().lstrip().startswith("<?xml")
    assert listing() == [
        "memory.svg", "out.onnx", "out.onnx.options.json", "trace.json"
    ]  # fmt: skip


def test_dry_run_writes_nothing(cli: Command, folder: Path, chain: Path) -> None:
    said = cli("optimize", chain, "-b", "2x", "--dry-run", *PATIENT, "--json")
    assert said.code == 0, said.err
    assert said.facts["recomputed_ops"] == 0
    assert listing() == []


def test_without_measuring_nothing_is_claimed(
    cli: Command, folder: Path, chain: Path, warm: None
) -> None:
    said = cli("optimize", chain, "out.onnx", "-b", "0.7x", "--no-measure", *PATIENT, "--json")
    assert said.code == 0, said.err
    for name in ("peak_measured_bytes", "overhead_measured", "order_kept", "bit_equal"):
        assert said.facts[name] is None, name
    assert said.facts["cost_source"] == "analytic"
    assert cli("verify", chain, "out.onnx", "--seeds", 1).code == 0


def test_smallest_budget(cli: Command, folder: Path, chain: Path, warm: None) -> None:
    said = cli("optimize", chain, "out.onnx", "-b", "min", *PATIENT, "--time-limit", 3, "--json")
    assert said.code == 0, said.err
    assert said.facts["peak_measured_bytes"] <= said.facts["budget_bytes"]
    assert any("no budget below" in note for note in said.facts["notes"])


def test_quiet_says_nothing(cli: Command, folder: Path, chain: Path) -> None:
    said = cli("optimize", chain, "out.onnx", "-b", "2x", *PATIENT, "-q")
    assert said == Said(0, "", "")
    assert Path("out.onnx").exists()


def test_text_goes_to_stdout_and_progress_to_stderr(
    cli: Command, folder: Path, chain: Path
) -> None:
    said = cli("optimize", chain, "out.onnx", "-b", "2x", *PATIENT)
    assert said.code == 0
    assert "peak" in said.out
    assert "- planning" in said.err
    assert "wrote out.onnx" in said.err.replace("\n", " ")


def test_file_names_are_no_markup(cli: Command, folder: Path, chain: Path) -> None:
    Path("odd[").mkdir()
    said = cli("optimize", chain, "odd[/b] [red]x.onnx", "-b", "2x", *PATIENT)
    assert said.code == 0, said.err
    assert "odd[/b] [red]x.onnx" in said.err.replace("\n", " ")


def test_symbolic_dimensions(cli: Command, folder: Path, symbolic: Path) -> None:
    for options in (("--dim", "batch=4"), ("--shape", "x:4,64"), ("--shape", "x:[4, 64]")):
        said = cli("optimize", symbolic, "out.onnx", "-b", "2x", *PATIENT, *options, "--json")
        assert said.code == 0, said.err
        made = onnx.load("out.onnx")
        (dims,) = [[d.dim_value for d in v.type.tensor_type.shape.dim] for v in made.graph.input]
        assert dims == [4, 64]
    assert cli("verify", symbolic, "out.onnx", "--seeds", 1).code == 0


def test_inputs_from_a_file(cli: Command, folder: Path, chain: Path, planned: tuple) -> None:
    arrays = {name: np.full((256, 32), 0.5, np.float64) for name in "xt"}
    np.savez("feeds.npz", **arrays, unused=np.zeros(3))
    assert cli("run", chain, "--data", "feeds.npz", "--save", "out.npz", "--runs", 1).code == 0
    with np.load("out.npz") as out:
        assert set(out.files) == {f"dw{i}" for i in range(4)}
    one = cli("verify", chain, planned[0], "--data", "feeds.npz")
    assert one.code == 0
    assert "same outputs on the inputs given" in " ".join(one.err.split())
    several = cli("verify", chain, planned[0], "--data", "feeds.npz", "--seeds", 5)
    several.assert_refused(2, "--seeds and --data")
    said = cli("optimize", chain, "o.onnx", "-b", "2x", *PATIENT, "--data", "feeds.npz")
    assert said.code == 0, said.err


def test_plan_and_apply(cli: Command, folder: Path, chain: Path, warm: None) -> None:
    said = cli("plan", chain, "-b", "0.7x", "-o", "plan.json", "--time-limit", LONG, "--json")
    assert said.code == 0, said.err
    for name in ("status", "budget_bytes", "peak_predicted_bytes", "overhead_planned", "bound",
                 "gap", "plan_seconds", "recomputed_ops"):  # fmt: skip
        assert name in said.facts
    assert listing() == ["plan.json"]
    applied = cli("apply", chain, "plan.json", "out.onnx", "--json")
    assert applied.code == 0, applied.err
    assert applied.facts["recomputed_ops"] == said.facts["recomputed_ops"]
    assert applied.facts["peak_measured_bytes"] <= applied.facts["budget_bytes"]
    again = cli("apply", chain, "out.onnx", "again.onnx", "--json")  # the plan inside a model
    assert again.code == 0, again.err
    assert again.facts["recomputed_ops"] == said.facts["recomputed_ops"]
    assert cli("verify", chain, "again.onnx", "--seeds", 1).code == 0


def test_verify(cli: Command, folder: Path, chain: Path, planned: tuple) -> None:
    said = cli("verify", chain, planned[0], "--json")
    assert said.code == 0, said.err
    assert said.facts["ok"] is True
    assert all(check["ok"] for check in said.facts["checks"])
    assert said.facts["peak_measured_bytes"] <= planned[1]["budget_bytes"]
    assert listing() == []


def test_verify_fails_over_budget(cli: Command, chain: Path, planned: tuple) -> None:
    said = cli("verify", chain, planned[0], "--budget", "10KiB", "--seeds", 1)
    assert said.code == 6
    assert "error: the measured peak misses the budget" in said.err


def test_verify_finds_another_result(
    cli: Command, folder: Path, chain: Path, planned: tuple
) -> None:
    spoilt = onnx.load(planned[0])
    weight = next(t for t in spoilt.graph.initializer if t.name == "w0")
    weight.raw_data = (2 * np.frombuffer(weight.raw_data, np.float32)).tobytes()
    onnx.save(spoilt, "spoilt.onnx")
    said = cli("verify", chain, "spoilt.onnx", "--seeds", 1)
    assert said.code == 5
    assert "FAILED" in said.err
    spoilt.graph.initializer.remove(weight)  # whoever runs it gives it, as with training steps
    spoilt.graph.input.append(onnx.helper.make_tensor_value_info("w0", 1, list(weight.dims)))
    onnx.save(spoilt, "other.onnx")
    cli("verify", chain, "other.onnx").assert_refused(2, "cannot be compared with this original")


def test_run(cli: Command, folder: Path, chain: Path, planned: tuple) -> None:
    original, small = (cli("run", path, "--runs", 1, "--json") for path in (chain, planned[0]))
    assert (original.code, small.code) == (0, 0)
    assert small.facts["peak_measured_bytes"] < original.facts["peak_measured_bytes"]
    assert small.facts["peak_measured_bytes"] == planned[1]["peak_measured_bytes"]
    default = cli("run", planned[0], "--runs", 1, "--default-options", "--json")
    assert default.facts["peak_measured_bytes"] == planned[1]["peak_default_options_bytes"]
    assert listing() == []


def test_outputs_that_are_no_arrays_are_named_where_they_are_not_saved(
    cli: Command, folder: Path
) -> None:
    body = "g (float[2] x) => (float[2] y, seq(float[2]) s) { y = Neg(x) s = SequenceConstruct(x) }"
    onnx.save(parse(body), "in.onnx")
    said = cli("run", "in.onnx", "--runs", 1, "--save", "out.npz")
    assert said.code == 0, said.err
    assert "output 's' is no array, and is not in it" in said.err
    with np.load("out.npz") as found:
        assert found.files == ["y"]


def test_values_may_have_the_names_of_arguments(cli: Command, folder: Path) -> None:
    """Of ``numpy.savez``: results, and an input that goes to another process."""
    body = "g (float[8] file) => (float[8] allow_pickle, float[8] y) {"
    onnx.save(parse(body + " allow_pickle = Neg(file) y = Exp(allow_pickle) }"), "in.onnx")
    assert cli("run", "in.onnx", "--runs", 1, "--save", "out.npz").code == 0
    with np.load("out.npz") as found:
        np.testing.assert_allclose(found["y"], np.exp(found["allow_pickle"]), 1e-6)
    feeds = {"file": np.ones(8, np.float32)}
    assert resident_rise(Path("in.onnx"), feeds, DEFAULT).why == ""


def test_profile(cli: Command, folder: Path, chain: Path) -> None:
    said = cli("profile", chain, "--target", "portable", "-o", "costs.json", "--json")
    assert said.code == 0, said.err
    assert json.loads(Path("costs.json").read_text()) == said.facts
    rows = said.facts["ops"]
    assert {row["type"] for row in rows} >= {"MatMul", "Tanh", "Transpose"}
    assert said.facts["seconds"] == pytest.approx(sum(row["seconds"] for row in rows))
    assert cli("profile", chain, "--top", 0).code == 0
    assert cli("profile", chain, "--no-measure", "--json").facts["source"] == "analytic"


def test_bench(cli: Command, folder: Path, chain: Path, planned: tuple) -> None:
    said = cli("bench", chain, planned[0], "--seconds", 0.2, "--json")
    assert said.code == 0, said.err
    first, second = said.facts["timings"]
    assert first["ratio"] == 1.0
    assert second["seconds"] > 0
    assert listing() == []


def test_inspect(cli: Command, folder: Path, chain: Path, planned: tuple) -> None:
    plain = cli("inspect", chain, "--json")
    assert (plain.code, plain.facts["inputs"]) == (0, ["x", "t"])
    assert "snippets" not in plain.facts
    said = cli("inspect", planned[0], "--json")
    assert said.facts["recomputed_ops"] == planned[1]["recomputed_ops"]
    assert said.facts["budget_bytes"] == planned[1]["budget_bytes"]
    assert set(said.facts["snippets"]) == {"Python", "C++", "C#"}
    text = cli("inspect", planned[0])
    assert "PRIORITY_BASED" in text.out


def test_python_snippet_opens_the_model(cli: Command, folder: Path, planned: tuple) -> None:
    code = cli("inspect", planned[0], "--json").facts["snippets"]["Python"]
    made: dict = {}
    exec(code, made)
    assert [value.name for value in made["session"].get_inputs()] == ["x", "t"]


def test_snippets_with_the_least_arena(cli: Command, folder: Path, planned: tuple) -> None:
    said = cli("inspect", planned[0], "--region", "--json")
    code, size = said.facts["snippets"], said.facts["region_bytes"]
    assert size >= planned[1]["peak_measured_bytes"] - planned[1]["weight_bytes"]
    assert str(size) in code["C++"]
    opened = subprocess.run(  # its arena is the whole process's
        [sys.executable, "-c", code["Python"] + "\nprint(len(session.get_inputs()))"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert opened.stdout == "2\n"


def test_sweep(cli: Command, folder: Path, chain: Path, warm: None) -> None:
    said = cli(
        "sweep", chain, "-b", "0.9x", "-b", "0.7x", "-o", "curve.json", "--plot", "curve.png",
        "--time-limit", LONG, "--json",
    )  # fmt: skip
    assert said.code == 0, said.err
    assert json.loads(Path("curve.json").read_text()) == said.facts
    high, low = said.facts["points"]
    assert high["limit"] > low["limit"]
    assert high["overhead"] <= low["overhead"]
    assert Path("curve.png").read_bytes().startswith(b"\x89PNG")
    assert listing() == ["curve.json", "curve.png"]


def test_devices(cli: Command) -> None:
    said = cli("devices", "--json")
    assert said.code == 0
    assert said.facts["devices"][0]["name"] == "cpu"
    assert said.facts["devices"][0]["memory_bytes"] > 2**28


def test_doctor(cli: Command) -> None:
    said = cli("doctor", "--json")
    assert said.code == 0, said.err
    assert said.facts["ok"] is True
    assert {row["name"] for row in said.facts["checks"]} >= {
        "recomputation survives",
        "openvino",
        "mpi",
        "solver highs",
    }


@pytest.mark.parametrize("why", ["", "the package x is not installed", "the plugin offers no CPU"])
def test_doctor_says_what_openvino_would_gain_where_it_can_be_had(
    monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    from onnxremat.pipeline import doctor

    monkeypatch.setattr(doctor, "missing", lambda device: why)
    row = doctor._openvino()
    assert row.ok == (not why)
    assert not row.needed
    assert ("pip install 'onnxremat[openvino]'" in row.text) == ("not installed" in why)


def test_doctor_says_what_processes_need_that_train_together(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from onnxremat.pipeline import doctor

    package = tmp_path / "mpi4py"
    package.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (package / "__init__.py").write_text("raise ImportError('No module named mpi4py')")
    row = doctor._mpi()
    assert (row.ok, row.needed) == (False, False)
    assert row.text == "ImportError: No module named mpi4py; pip install 'onnxremat[mpi]'"
    (package / "__init__.py").write_text("")
    (package / "MPI.py").write_text("def Get_library_version(): return 'An MPI, 1.0\\nmore'")
    assert doctor._mpi().text.startswith("ready: An MPI, 1.0, ")


def test_version_and_help(cli: Command) -> None:
    from onnxremat import __version__

    said = cli("--version")
    assert said.out.startswith(f"onnxremat {__version__}\nPython ")
    assert f"\nonnx {onnx.__version__}\n" in said.out
    for command in ("", "optimize", "profile", "plan", "apply", "verify", "run", "bench", "inspect",
                    "sweep", "devices", "doctor"):  # fmt: skip
        said = cli(*command.split(), "--help")
        assert said.code == 0
        assert "Usage" in said.out


def test_unknown_command(cli: Command) -> None:
    said = cli("optimise")
    assert (said.code, said.out) == (2, "")


def test_entry_point_is_there() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, _, name = project["scripts"]["onnxremat"].partition(":")
    assert callable(getattr(import_module(module), name))


def test_exit_codes_are_the_documented_ones() -> None:
    import onnxremat.errors

    table = onnxremat.errors.__doc__ or ""
    kinds = [k for k in vars(onnxremat.errors).values() if isinstance(k, type)]
    for kind in kinds:
        if issubclass(kind, OnnxrematError):
            line = next(line for line in table.splitlines() if f"{kind.__name__} " in line)
            assert f" {kind.exit_code} " in line


# A model that onnxremat wrote is a model like any other


def test_a_result_can_be_optimised_again(
    cli: Command, folder: Path, chain: Path, planned: tuple
) -> None:
    loose = cli("optimize", chain, "loose.onnx", "-b", "0.85x", *PATIENT, "--json")
    assert loose.facts["recomputed_ops"] > 0
    tight = planned[1]["limit_bytes"] + 4096
    said = cli(
        "optimize", "loose.onnx", "out.onnx", "-b", tight, "--not-counted", "inputs,state,session",
        *PATIENT, "--json",
    )  # fmt: skip
    assert said.code == 0, said.err
    assert said.facts["recomputed_ops"] > 0
    onnx.checker.check_model("out.onnx", full_check=True)
    assert said.facts["bit_equal"] is True
    assert said.facts["order_kept"] is True
