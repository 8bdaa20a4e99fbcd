"""The trace says what the timeline and the profile say."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from onnxremat.errors import UsageError
from onnxremat.report.chrome_trace import MEASURED, PLANNED, make_trace, write_trace
from onnxremat.report.pages.composition import Kind, compose, totals
from onnxremat.schedule.simulate import simulate
from tests.report.conftest import AGAIN, Case

Event = dict[str, Any]


@pytest.fixture
def trace(case: Case, tmp_path: Path) -> dict[str, Any]:
    path = tmp_path / "trace.json"
    write_trace(
        case.rewritten.graph, case.predicted, path, measured=case.run.profile, budget=54321,
        title="chain",
    )  # fmt: skip
    return json.loads(path.read_text())


def slices(trace: dict[str, Any], process: int) -> list[Event]:
    return [e for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] == process]


def counter(trace: dict[str, Any], process: int, name: str, at: list[float]) -> list[int]:
    """The counter's value right after each of these moments."""
    rows = [
        (e["ts"], e["args"]["value"])
        for e in trace["traceEvents"]
        if e["ph"] == "C" and e["pid"] == process and e["name"] == name
    ]
    return [[value for ts, value in rows if ts <= moment][-1] for moment in at]


def test_one_slice_per_op_in_order(case: Case, trace: dict[str, Any]) -> None:
    assert [e["name"] for e in slices(trace, PLANNED)] == list(case.predicted.ops)
    assert [e["name"] for e in slices(trace, MEASURED)] == [
        kernel.name for kernel in case.run.profile.kernels
    ]


def test_slices_do_not_overlap_and_take_their_time(case: Case, trace: dict[str, Any]) -> None:
    for process, seconds in (
        (PLANNED, case.predicted.total_seconds),
        (MEASURED, case.run.profile.seconds),
    ):
        rows = slices(trace, process)
        for before, after in pairwise(rows):
            assert before["ts"] + before["dur"] == pytest.approx(after["ts"], abs=1e-6)
        assert rows[-1]["ts"] + rows[-1]["dur"] == pytest.approx(seconds * 1e6, abs=0.01)


def test_counters_are_the_timeline(case: Case, trace: dict[str, Any]) -> None:
    # An op without seconds shares its moment with the next one: the later value stands.
    rows = slices(trace, PLANNED)
    lasting = [step for step, e in enumerate(rows) if e["dur"] > 0]
    at = [rows[step]["ts"] for step in lasting]
    found = counter(trace, PLANNED, "memory", at)
    assert found == [int(totals(case.predicted)[step]) for step in lasting]
    parts = compose(case.rewritten.graph, case.predicted)
    for kind in (Kind.KEPT, Kind.RECOMPUTED, Kind.OUTPUTS):
        found = counter(trace, PLANNED, f"memory: {kind.value}", at)
        assert found == [int(parts[kind][step]) for step in lasting]
    assert counter(trace, PLANNED, "memory: budget", [0.0]) == [54321]


def test_every_total_is_there_even_at_moments_of_no_length(case: Case) -> None:
    trace = make_trace(case.rewritten.graph, case.predicted)
    values = {
        e["args"]["value"] for e in trace["traceEvents"] if e["ph"] == "C" and e["name"] == "memory"
    }
    assert values == set(totals(case.predicted).tolist())


def test_measured_counter_peaks_at_the_measured_peak(case: Case, trace: dict[str, Any]) -> None:
    values = [
        e["args"]["value"]
        for e in trace["traceEvents"]
        if e["ph"] == "C" and e["pid"] == MEASURED and e["name"] == "memory"
    ]
    assert max(values) == case.run.peak


def test_recomputations_have_their_category_and_arrows(trace: dict[str, Any]) -> None:
    for process in (PLANNED, MEASURED):
        again = [e for e in slices(trace, process) if e["cat"] == "recompute"]
        assert len(again) == AGAIN
        assert len({e["tid"] for e in again}) == 1
        starts = {e["id"]: e for e in trace["traceEvents"] if e["ph"] == "s"}
        ends = {e["id"]: e for e in trace["traceEvents"] if e["ph"] == "f"}
        assert starts.keys() == ends.keys()
        assert len(starts) == 2 * AGAIN
        first = {e["name"]: e for e in slices(trace, process)}
        for event in again:
            origin = first[event["args"]["recomputes"]]
            assert origin["cat"] == "compute"
            assert origin["ts"] < event["ts"]
    added = {e["name"] for e in slices(trace, PLANNED) if e["cat"] == "order"}
    assert added
    assert all(name.startswith("onnxremat.") for name in added)


def test_processes_are_named(trace: dict[str, Any]) -> None:
    names = {
        e["pid"]: e["args"]["name"]
        for e in trace["traceEvents"]
        if e["ph"] == "M" and e["name"] == "process_name"
    }
    assert names == {PLANNED: "planned (chain)", MEASURED: "measured (chain)"}


def test_without_costs_every_op_is_visible(case: Case) -> None:
    trace = make_trace(case.graph, simulate(case.graph))
    assert {e["dur"] for e in slices(trace, PLANNED)} == {1.0}
    assert "no costs" in trace["otherData"]["note"]


def test_another_suffix_is_refused(case: Case, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\.json"):
        write_trace(case.graph, case.base, tmp_path / "trace.html")
    assert not list(tmp_path.iterdir())
