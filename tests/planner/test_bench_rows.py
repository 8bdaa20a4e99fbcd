"""The planner's benchmark: every row has an instance, and a run leaves a table and its figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from onnxremat.planner import Problem, peak
from onnxremat.planner.bounds import largest_need
from onnxremat.planner.problem_lists import ProblemLists
from tests.conftest import ROOT
from tests.limits import LONG
from tests.planner.graphs import graph_file, skip_chain


@pytest.fixture
def plan_rows(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import plan_rows

    return plan_rows


def test_rows_are_told_apart_and_small_ones_load(plan_rows: object) -> None:
    names = [row.name for row in plan_rows.rows()]  # type: ignore[attr-defined]
    assert len(names) == len(set(names)) > 40
    graphs = {row.graph for row in plan_rows.rows()}  # type: ignore[attr-defined]
    ops = {"vgg16": 45, "bert_12": 363, "bert_2": 63, "random_100": 100, "random_250": 250}
    large = {"bert_160", "bert_320", "bert_1000", "step_bert", "step_gpt2", "step_resnet50"}
    for graph in graphs - large:
        problem, source = plan_rows.load(graph, None)  # type: ignore[attr-defined]
        assert source == "generated"
        assert problem.ops == ops.get(graph, problem.ops)
        assert runs_in_its_order(problem)
        assert largest_need(ProblemLists(problem)).bytes < peak(problem, problem.store_all())


def runs_in_its_order(problem: Problem) -> bool:
    made = problem.producer
    return all(made[value] < op for op, row in enumerate(problem.reads.lists()) for value in row)


def test_study_files_are_read_where_they_are(plan_rows: object, tmp_path: Path) -> None:
    given = skip_chain(16, 1)
    graph_file(given, tmp_path / plan_rows.STUDY["vgg16"])  # type: ignore[attr-defined]
    problem, source = plan_rows.load("vgg16", tmp_path)  # type: ignore[attr-defined]
    assert (source, problem.ops) == ("study", given.ops)
    assert plan_rows.load("resnet50", tmp_path)[1] == "generated"  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_run_leaves_a_table_and_its_figures(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable, ROOT / "tools" / "bench_plan.py", "--only", "vgg16", "--json",
            "f.jsonl", "--seconds", str(LONG),
        ],
        cwd=tmp_path, capture_output=True, text=True, timeout=9 * LONG, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "f.jsonl").read_text().splitlines()]
    assert [row["row"] for row in rows] == ["vgg16/90%", "vgg16/70%", "vgg16/50%"]
    assert [row["met"] for row in rows] == [True, None, None]
    for row in rows:
        assert 20 < row["memory_mib"] < 4096
        assert row["from"] == "generated"
    for word in ("found %", "bound %", "MiB", "target", "met", "infeasible"):
        assert word in done.stdout
