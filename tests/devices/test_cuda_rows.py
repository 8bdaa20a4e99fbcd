"""The rows of the CUDA bench at toy size on the processor: that they run to their end, and that
what they find out is right where it can be known."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))

import cuda_all  # noqa: E402
import cuda_rows  # noqa: E402
from cuda_plans import Stand  # noqa: E402

STAND = Stand("cpu", tiny=True)
NETS = ("resnet50", "bert")


def test_every_row_names_a_kind_and_comes_once() -> None:
    rows = cuda_all.rows()
    assert {row.what for row in rows} == {*cuda_rows.KINDS, "torch"}
    assert len({row.name for row in rows}) == len(rows)


@pytest.mark.slow
@pytest.mark.parametrize("net", ["resnet50", "bert"])
def test_a_step_is_planned_carried_out_and_checked(net: str) -> None:
    found = cuda_rows.step(STAND, net, share=0.7)
    for plan in (found["store_all"], found["planned"]):
        assert plan["order_ok"]
        assert plan["outputs_ok"]
        assert abs(plan["error"]) < 0.03
        assert plan["runs_within"] == 1.0  # nothing limits the processor
    most = found["share"] * found["store_all"]["counted_bytes"]
    assert found["planned"]["counted_bytes"] <= 1.03 * most
    assert found["share"] < 1
    assert not found["left_to_the_processor"]
    assert found["rows"]["planned"]["overhead_planned"] >= 0


@pytest.mark.slow
def test_swapping_keeps_the_limit_and_no_smaller_share_is_kept_by_a_larger_one() -> None:
    found = cuda_rows.step(
        STAND, "resnet50", share=0.85, others=(0.95, 0.01), ways=("swap", "both")
    )
    rows, whole = found["rows"], found["rows"]["store_all"]["counted_bytes"]
    assert {"store_all", "planned", "0.95"} <= set(rows)
    assert "0.01" not in rows
    for name in {"planned", "swap", "both"} & set(rows):
        assert rows[name]["predicted_bytes"] <= found["share"] * whole + 1
    assert 0 < found["least_under_10"] <= found["least_under_5"] <= 1


def test_a_second_stream_and_a_graph_change_no_result() -> None:
    assert cuda_rows.graphs(STAND, "resnet50")["difference"] == 0
    found = cuda_rows.streams(STAND, "densenet121")
    assert found["difference"] == 0
    assert found["moved"] > 0


@pytest.mark.slow
def test_training_is_that_of_the_processor() -> None:
    found = cuda_rows.trainer(STAND, "resnet50")
    assert found["falls"]
    assert found["farthest_from_the_processor"] == 0
    assert cuda_rows.saved(STAND, "resnet50")["state_updated"] > 0


@pytest.mark.parametrize(
    "what",
    [
        *("starts", "one_session", "left_over", "detected"),
        pytest.param("xengine", marks=pytest.mark.slow),
    ],
)
def test_the_other_rows_run(what: str) -> None:
    asked = {"starts": {}, "detected": {}, "left_over": {"nets": NETS}}.get(
        what, {"net": "resnet50"}
    )
    found = cuda_rows.KINDS[what](STAND, **asked)
    json.dumps(found)
    if what == "starts":
        assert found["kernels"] == found["kernels_with_counted_bytes"] > 0
    if what == "one_session":
        assert found["difference"] == 0
    if what == "left_over":
        assert found == {net: {"of sizes": 0} for net in NETS}


@pytest.mark.slow
def test_the_driver_goes_on_after_a_failure_and_keeps_what_is_done(tmp_path: Path) -> None:
    book = cuda_all.Book(tmp_path / "out", {"date": "today"})
    picked = [
        cuda_all.Row("bad", "step", "", 60, {"net": "no such net"}),
        cuda_all.Row("good", "detected", "links", 60),
        cuda_all.Row("late", "detected", "", 60),
    ]
    assert not cuda_all.all_rows(picked[:2], book, 5, 2, provider="cpu", tiny=True)
    cuda_all.all_rows(picked[2:], book, 0.01, 1, provider="cpu", tiny=False)
    lines = [
        json.loads(line) for line in (tmp_path / "out" / "rows.jsonl").read_text().splitlines()
    ]
    ended = {line["row"]: line for line in lines[1:]}
    assert {row: line["status"] for row, line in ended.items()} == {
        "bad": "failed", "good": "ok", "late": "left out"
    }  # fmt: skip
    assert "cpu>cuda:0" in ended["good"]["found"]["links"]
    with (tmp_path / "out" / "rows.jsonl").open("a") as file:
        file.write('{"row": "cut sho')
    assert cuda_all.finished(tmp_path / "out" / "rows.jsonl") == {"good"}
    report = (tmp_path / "out" / "report.md").read_text()
    assert "- date: today" in report
    assert report.count("\n| ") == 4


def test_without_cuda_it_says_so() -> None:
    done = subprocess.run(
        [sys.executable, str(TOOLS / "cuda_all.py"), "--only", "starts"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 8:
        pytest.skip("a CUDA GPU is here")
    assert "cuda:0" in done.stderr
