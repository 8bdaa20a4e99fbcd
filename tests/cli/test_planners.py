"""Planners, formulations, curves and batches from the command line, on graph files and models."""

from __future__ import annotations

import csv
import json
import shlex
from pathlib import Path

import onnx
import pytest

from onnxremat.cli.commands import load
from onnxremat.planner import peak
from onnxremat.planner.baselines import BASELINES
from onnxremat.planner.graph_files import read_graph
from onnxremat.planner.options import FORMULATIONS, PLANNERS
from onnxremat.planner.solvers import SOLVERS
from tests.cli.conftest import Command, Said, listing
from tests.limits import LONG
from tests.planner.graphs import graph_file, skip_chain, small_transformer
from tests.planner.readers import LINEAR
from tests.toolbox import parse

QUICK = ("--time-limit", 1)  # where nothing is left to the planner, or it would never end
PATIENT = ("--time-limit", LONG)
BUDGET = ("-b", "0.7x")
PLANNED = ("--not-counted", "inputs,state,session")  # budgets of weights and values alone


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small training graph as a study's file."""
    return graph_file(skip_chain(24, 1), tmp_path_factory.mktemp("graph") / "graph.json")


@pytest.fixture(autouse=True)
def _warm(warm: None) -> None:
    """The compiled search is ready."""


def fits(facts: dict, graph: Path) -> None:
    problem = read_graph(graph)
    assert peak(problem, facts["sequence"]) == facts["peak_predicted_bytes"]
    assert facts["peak_predicted_bytes"] <= facts["budget_bytes"]


@pytest.mark.parametrize("name", ["auto", "cuts", "search", "dtr", "chen-greedy", "knapsack"])
def test_planner(name: str, cli: Command, folder: Path, graph: Path) -> None:
    options = QUICK if name == "search" else PATIENT  # which proves nothing, and has a plan at once
    said = cli("plan", graph, *BUDGET, *options, "--planner", name, "-o", "plan.json", "--json")
    assert said.code == 0, said.err
    fits(said.facts, graph)
    assert json.loads(Path("plan.json").read_text()) == said.facts
    assert (said.facts["planner"] == name) == (name in BASELINES)


def test_the_same_work_gives_the_same_plan(cli: Command, graph: Path) -> None:
    """With more work another one, so that the limit is what ended the search."""
    few, again, many = (
        cli("plan", graph, *BUDGET, "--planner", "search", "--work", work, "--json").facts
        for work in (1, 1, 100)
    )
    assert few["sequence"] == again["sequence"]
    assert many["overhead_planned"] < few["overhead_planned"]


@pytest.mark.parametrize("name", FORMULATIONS)
def test_formulation(name: str, cli: Command, graph: Path) -> None:
    best = cli("plan", graph, *BUDGET, *PATIENT, "--json").facts["overhead_planned"]
    said = cli("plan", graph, *BUDGET, *PATIENT, "--formulation", name, "--json")
    assert said.code == 0, said.err
    fits(said.facts, graph)
    assert said.facts["overhead_planned"] == pytest.approx(best, abs=1e-4)


@pytest.mark.parametrize("solver", list(SOLVERS))
def test_formulation_with_a_solver_and_no_warm_start(
    solver: str, cli: Command, graph: Path
) -> None:
    said = cli("plan", graph, *BUDGET, *PATIENT, "--formulation", "checkmate", "--solver",
               solver, "--no-warm-start", "--threads", 1, "--seed", 3, "--gap", 1e-3,
               "--json")  # fmt: skip
    assert said.code == 0, said.err
    fits(said.facts, graph)
    assert said.facts["bound_staged"] is True
    assert said.facts["bound"] <= said.facts["overhead_planned"]
    assert "at most once per stage" in said.err.replace("\n", " ")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--planner best", ("unknown planner 'best'", "knapsack", "auto")),
        ("--formulation best", ("unknown formulation 'best'", "xengine-miqp")),
        ("--planner dtr --formulation cuts", ("exclude each other",)),
        ("--formulation checkmate --max-columns 100", ("columns", "n = 24", "--max-columns")),
        ("--write-model m.txt", (".txt", ".mps")),
        ("--write-model m.mps --read-solution m.sol", ("two steps",)),
        ("--write-model m.mps --planner dtr", ("--formulation",)),
        ("--write-model m.mps -b min", ("number",)),
        ("--write-model m.mps --cut 99", ("--cut 99", "0..23")),
        ("--write-model m.mps --cut 3 --formulation checkmate", ("--cut",)),
        ("--write-model none/m.mps", ("none/m.mps",)),
        ("--cut 3", ("--cut",)),
        ("--read-solution none.sol", ("none.sol",)),
        ("--solver cplex", ("cplex",)),
        ("--no-warm-start", ("goes with --formulation", "checkmate")),
        ("--max-columns 9", ("goes with --formulation",)),
        ("--no-measure --data x.npz", ("--data is for measuring",)),
        ("--no-measure --fresh", ("--fresh is for measuring",)),
        ("-o out.onnx", ("a plan is no model", "apply")),
    ],
)
def test_refusals(
    options: str, words: tuple[str, ...], cli: Command, folder: Path, graph: Path
) -> None:
    cli("plan", graph, *QUICK, *options.split()).assert_refused(2, *words)
    assert listing() == []


def test_seconds_for_timing_what_is_not_run(cli: Command, chain: Path) -> None:
    said = cli("optimize", chain, "out.onnx", "-b", "0.7x", "--no-measure", "--bench-seconds", 3)
    said.assert_refused(2, "--bench-seconds is for measuring")


def test_a_planner_without_a_plan(cli: Command, graph: Path) -> None:
    said = cli("plan", graph, *BUDGET, *QUICK, "--planner", "store-all")
    said.assert_refused(4, "store-all has no plan", "needs at least", "--planner auto")
    said = cli("plan", graph, "-b", 3, *QUICK, "--planner", "dtr")
    said.assert_refused(4, "dtr has no plan")
    said = cli("plan", graph, "-b", 3, *QUICK, "--formulation", "checkmate")
    said.assert_refused(3, "at least")


def test_optimize_with_a_published_rule(cli: Command, folder: Path, chain: Path) -> None:
    said = cli("optimize", chain, "out.onnx", "-b", "0.7x", *PATIENT, "--bench-seconds", 0,
               "--planner", "farthest", "--json")  # fmt: skip
    assert said.code == 0, said.err
    assert said.facts["planner"] == "farthest"
    assert said.facts["recomputed_ops"] > 0
    assert said.facts["bit_equal"] is True
    assert said.facts["peak_measured_bytes"] <= said.facts["budget_bytes"]
    onnx.checker.check_model("out.onnx", full_check=True)
    none = cli("optimize", chain, "none.onnx", "-b", "0.5x", *QUICK, "--planner", "store-all")
    none.assert_refused(4, "store-all has no plan")
    assert listing() == ["out.onnx", "out.onnx.options.json"]


def test_solvers_that_fail_are_said_to_have_failed(
    cli: Command, graph: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SOLVERS["scip"], "unavailable", lambda: "SCIP is not installed")
    said = cli("plan", graph, *BUDGET, *PATIENT, "--formulation", "checkmate", "--solver", "scip")
    assert said.code == 0, said.err
    assert "SCIP is not installed" in said.err
    assert "optimal" in said.err


# Models written for solvers elsewhere


@pytest.mark.parametrize("suffix", [".mps", ".lp"])
@pytest.mark.parametrize("reader", LINEAR)
def test_written_solved_elsewhere_and_read_back(
    reader: str, suffix: str, cli: Command, folder: Path
) -> None:
    """The same optimum as here, by the one simulator."""
    graph = graph_file(skip_chain(16, 3), Path("graph.json"))
    chosen = (graph, "-b", "0.75x", "--formulation", "checkmate")
    ours = cli("plan", *chosen, *PATIENT, "--gap", 1e-6, "--json")
    wrote = cli("plan", *chosen, "--write-model", f"model{suffix}", "--json")
    assert wrote.code == 0, wrote.err
    seen = LINEAR[reader](Path(f"model{suffix}"), Path("plan.sol"))
    assert seen.integers == wrote.facts["integer_columns"]
    said = cli("plan", *chosen, "--read-solution", "plan.sol", "-o", "plan.json", "--json")
    assert said.code == 0, said.err
    fits(said.facts, graph)
    assert ours.facts["overhead_planned"] > 0
    assert said.facts["overhead_planned"] == pytest.approx(ours.facts["overhead_planned"], abs=1e-6)
    unit = wrote.facts["seconds_per_objective_unit"]
    total = float(read_graph(graph).cost.sum())
    assert seen.objective * unit / total - 1 == pytest.approx(said.facts["overhead_planned"])
    assert listing() == sorted(["graph.json", f"model{suffix}", "plan.sol", "plan.json"])


def test_a_solution_that_does_not_fit_is_refused_with_the_reason(
    cli: Command, folder: Path, graph: Path
) -> None:
    model = ("--formulation", "checkmate", "--write-model", "m.mps")
    assert cli("plan", graph, *BUDGET, *model).code == 0
    LINEAR["highs"](Path("m.mps"), Path("m.sol"))
    read = ("--formulation", "checkmate", "--read-solution", "m.sol")
    assert cli("plan", graph, *BUDGET, *read).code == 0
    tight = cli("plan", graph, "-b", "0.55x", *read)
    tight.assert_refused(2, "takes", "step", "op", "budget")
    other = cli("plan", graph, *BUDGET, "--formulation", "retention", "--read-solution", "m.sol")
    other.assert_refused(2, "has no column R_0_0", "another graph")
    Path("zero.sol").write_text("R_0_0 0\n")
    empty = cli("plan", graph, *BUDGET, "--formulation", "checkmate", "--read-solution", "zero.sol")
    empty.assert_refused(2, "cannot run", "never run")


def solved_with_cuts(cli: Command, *chosen: object) -> Said:
    """Written, solved and read with the cuts that each refusal asks for, until it fits."""
    cuts: list[str] = []
    for _ in range(8):
        assert cli("plan", *chosen, "--write-model", "m.lp", *cuts).code == 0
        LINEAR["highs"](Path("m.lp"), Path("m.sol"))
        said = cli("plan", *chosen, "--read-solution", "m.sol", "-o", "plan.json", *cuts, "--json")
        if said.code != 2:
            break
        cuts = said.err.split("again with ")[1].split()
    return said


def test_cuts_are_added_until_the_solution_fits(cli: Command, folder: Path) -> None:
    graph = graph_file(small_transformer(3), Path("graph.json"))
    best = cli("plan", graph, "-b", "0.6x", "--fixed-order", *PATIENT, "--json").facts
    said = solved_with_cuts(cli, graph, "-b", "0.6x")
    assert said.code == 0, said.err
    fits(said.facts, graph)
    assert said.facts["overhead_planned"] == pytest.approx(best["overhead_planned"], abs=1e-4)


def test_a_solution_becomes_a_plan_of_a_model(cli: Command, folder: Path, chain: Path) -> None:
    said = solved_with_cuts(cli, chain, "-b", 200000, "--no-measure", *PLANNED)
    assert said.code == 0, said.err
    assert said.facts["recomputed_ops"] > 0
    assert said.facts["peak_predicted_bytes"] <= 200000
    applied = cli("apply", chain, "plan.json", "out.onnx", "--json")
    assert applied.code == 0, applied.err
    assert applied.facts["bit_equal"] is True


# Planners side by side


def test_compare(cli: Command, graph: Path) -> None:
    said = cli(
        "compare",
        graph,
        "-b",
        "0.9x",
        "-b",
        "0.6x",
        "-b",
        3,
        "--jobs",
        2,
        *PATIENT,
        "--json",
    )
    assert said.code == 0, said.err
    assert said.facts["defects"] == []
    rows = said.facts["standings"]
    assert {row["planner"] for row in rows} == {"auto", *BASELINES}
    for budget in {row["budget"] for row in rows}:
        here = {row["planner"]: row for row in rows if row["budget"] == budget}
        best = here["auto"]["overhead"]
        for row in here.values():
            if row["overhead"] is None:
                assert row["why"]
            else:
                assert row["overhead"] >= best - 1e-4
                assert row["peak"] <= budget
    assert {row["status"] for row in rows if row["budget"] == 3 and row["planner"] == "auto"} == {
        "infeasible"
    }


def test_compare_shows_a_table_and_takes_planners(cli: Command, graph: Path) -> None:
    said = cli("compare", graph, *BUDGET, *PATIENT, "--planner", "dtr", "--planner", "checkmate")
    assert said.code == 0, said.err
    for word in ("auto", "dtr", "checkmate", "overhead", "least", "gap", "0.693x"):
        assert word in said.out
    assert "knapsack" not in said.out
    (graph.parent / "broken.json").write_text("{")  # the name is looked at before the file is
    for file in (graph, "broken.json"):
        cli("compare", file, "--planner", "best").assert_refused(2, "unknown planner 'best'")
    rules = ("--planner", "store-all", "--max-columns", "9")
    cli("compare", graph, *rules).assert_refused(2, "--max-columns goes with --formulation")


def test_compare_says_when_it_is_beaten(
    cli: Command, graph: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from onnxremat.planner.lineup import Entry, line_up
    from onnxremat.studies import planners

    def worse(*given: object, **options: object) -> list[Entry]:
        found = line_up(*given, **options)  # type: ignore[arg-type]
        ours, dtr = found
        return [Entry("auto", ours.budget, None, "made to fail"), dtr]

    monkeypatch.setattr(planners, "line_up", worse)
    said = cli("compare", graph, *BUDGET, *PATIENT, "--planner", "dtr", "--json")
    assert said.code == 1
    assert "dtr beats auto" in said.facts["defects"][0]
    assert "a defect" in said.err


def test_compare_on_a_model(cli: Command, chain: Path) -> None:
    said = cli("compare", chain, "-b", "0.8x", "--no-measure", "--planner", "farthest", *PATIENT,
               "--json")  # fmt: skip
    assert said.code == 0, said.err
    auto, farthest = said.facts["standings"]
    assert auto["overhead"] <= farthest["overhead"] + 1e-4


# Curves


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_sweep_of_a_graph_file(jobs: int, cli: Command, folder: Path, graph: Path) -> None:
    said = cli("sweep", graph, "--points", 4, "--jobs", jobs, *QUICK, "-o", "curve.csv", "--plot",
               "curve.png", "--json")  # fmt: skip
    assert said.code == 0, said.err
    points = said.facts["points"]
    assert len(points) == 4
    overheads = [point["overhead"] for point in points]
    bounds = [point["bound"] for point in points]
    assert overheads == sorted(overheads)
    assert bounds == sorted(bounds)
    assert points[0]["overhead"] == pytest.approx(0)
    assert said.facts["infeasible_below_bytes"] <= points[-1]["budget"]
    assert said.facts["infeasible_why"]
    with Path("curve.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["budget"]) for row in rows] == [point["budget"] for point in points]
    assert Path("curve.png").read_bytes().startswith(b"\x89PNG")
    assert listing() == ["curve.csv", "curve.png"]


def test_sweep_of_a_model_with_two_processes(cli: Command, folder: Path, chain: Path) -> None:
    said = cli("sweep", chain, "-b", "0.95x", "-b", "0.75x", "--jobs", 2, "--no-measure", *PATIENT,
               "--json")  # fmt: skip
    assert said.code == 0, said.err
    high, low = said.facts["points"]
    assert high["overhead"] <= low["overhead"]
    assert low["peak"] <= low["budget"]
    hopeless = ("-b", "5KiB", "-b", "6KiB")  # less than a process takes beside weights and values
    one = cli("sweep", chain, "-b", "0.95x", "-b", "0.75x", *hopeless, "--no-measure", *PATIENT,
              "--json")  # fmt: skip
    assert one.facts["points"][1]["overhead"] == pytest.approx(low["overhead"], abs=1e-3)
    assert [point["budget"] for point in one.facts["points"][2:]] == [6 << 10, 5 << 10]


def test_sweep_marks_budgets_without_a_plan(cli: Command, graph: Path) -> None:
    said = cli("sweep", graph, "-b", 3, "-b", "1x", *PATIENT, "--json")
    high, low = said.facts["points"]
    assert (low["overhead"], low["bound"]) == (None, None)
    assert low["status"].startswith("infeasible")
    assert high["overhead"] == 0


@pytest.mark.parametrize(
    ("options", "word"),
    [("-o curve.txt", ".txt"), ("--plot curve.gif", ".gif"), ("--max-overhead 3%", "--max-batch"),
     ("--max-batch", "--budget"), ("--max-batch -b 1MiB -b 2MiB", "--budget"),
     ("--planner best", "best"), ("--points 4 -b 1x", "--points")],
)  # fmt: skip
def test_sweep_refusals(options: str, word: str, cli: Command, folder: Path, graph: Path) -> None:
    cli("sweep", graph, *options.split()).assert_refused(2, word)
    assert listing() == []


# Batches


def test_max_batch(cli: Command, symbolic: Path, folder: Path) -> None:
    said = cli("max-batch", symbolic, "-b", "64KiB", "--no-measure", *PATIENT, *PLANNED, "--json")
    assert said.code == 0, said.err
    facts = said.facts
    assert facts["dimension"] == "batch"
    assert facts["proven"] is True
    dim = f"batch={facts['batch']}"
    done = cli("optimize", symbolic, "out.onnx", "--dim", dim, "-b", facts["budget_bytes"],
               "--bench-seconds", 0, "--json", *PLANNED)  # fmt: skip
    assert done.code == 0, done.err
    assert done.facts["peak_measured_bytes"] <= facts["budget_bytes"]
    given = ("-b", "64KiB", "--no-measure", *PATIENT, *PLANNED)
    more = ("--target", "none", "--fixed-order")
    text = cli("max-batch", symbolic, "--dim", "batch", *given, *more)
    assert "largest batch" in text.err
    assert f"--dim {dim}" in " ".join(text.err.split())
    two = Path("two dims.onnx")
    onnx.save(parse("g (float[n, k] x) => (float[n, k] y) { a = Sin(x) y = Cos(a) }"), two)
    more = ("--dim", "k=4", "--target", "portable", "--most", 2)
    text = cli("max-batch", two, "--dim", "n", *more, *given)
    (line,) = (line for line in text.err.splitlines() if "out with" in line)
    words = shlex.split(line.partition("out with: onnxremat ")[2])
    assert words[1:3] == ["two dims.onnx", "OUT"]
    load("optimize").make_context("optimize", words[1:])
    assert {"n=2", "k=4", "portable"} <= {*words}
    same = cli("sweep", symbolic, "--max-batch", *given, "--json")
    assert same.facts["batch"] == facts["batch"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("-b 0.6x", ("depends on the batch",)),
        ("-b 1MiB --dim a --dim b", ("two dimensions",)),
        ("-b 1MiB --dim other", ("no open dimension 'other'", "batch")),
        ("-b 1MiB --max-overhead much", ("--max-overhead",)),
        ("-b 1MiB --max-overhead -5%", ("--max-overhead",)),
        ("-b 1MiB --dim batch=4", ("no open dimension", "by --dim", "--dim batch")),
    ],
)
def test_max_batch_refusals(
    options: str, words: tuple[str, ...], cli: Command, symbolic: Path
) -> None:
    cli("max-batch", symbolic, "--no-measure", *options.split()).assert_refused(2, *words)


def test_max_batch_of_a_graph_file(cli: Command, graph: Path) -> None:
    top = peak(read_graph(graph), read_graph(graph).store_all())
    said = cli("max-batch", graph, "-b", top, "--file-batch", 4, "--time-limit", 2, "--json")
    assert said.code == 0, said.err
    assert said.facts["batch"] > 4
    assert "optimize" not in said.err


def test_help_names_every_planner(cli: Command) -> None:
    said = " ".join(cli("plan", "--help").out.replace("│", " ").split())
    for name in (*PLANNERS, *FORMULATIONS):
        assert name in said
    for command in ("compare", "max-batch"):
        assert "Usage" in cli(command, "--help").out


def test_options_of_models_are_refused_for_graph_files(cli: Command, graph: Path) -> None:
    for given in (
        "--shape x:1", "--dim n=2", "--target host", "--data d.npz", "--not-counted inputs",
        "--split-batch 2", "--dw-policy asap", "--fresh",
    ):  # fmt: skip
        cli("plan", graph, *BUDGET, *given.split()).assert_refused(2, given.split()[0])
    for command in (("sweep",), ("compare", *BUDGET)):
        name, *more = command
        refused = cli(name, graph, *more, "--not-counted", "session")
        refused.assert_refused(2, "--not-counted is for models")
    for given in (("--dim", "n"), ("--dim", "n=2"), ("--train",), ("--target", "host")):
        cli("max-batch", graph, "-b", "1GiB", *given).assert_refused(2, "graph file")


def test_a_files_batch_is_refused_for_models(cli: Command, chain: Path) -> None:
    refused = cli("max-batch", chain, "-b", "1GiB", "--file-batch", 4, "--dim", "n")
    refused.assert_refused(2, "graph files", "leave out --file-batch")
