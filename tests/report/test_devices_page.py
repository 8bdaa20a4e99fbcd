"""The page of a plan over several devices: whole without a network, and its bytes those planned."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from onnxremat.cost.table import CostTable
from onnxremat.device.files import read_machine
from onnxremat.errors import UsageError
from onnxremat.execute.deployment import deploy
from onnxremat.report.pages.curve_drawing import draw_curve, read_sweep
from onnxremat.report.pages.devices_page import _lead, devices_page
from onnxremat.report.pages.spread import Spread
from onnxremat.schedule.assign import assigned
from onnxremat.units import format_bytes
from tests.report.test_page import Reader
from tests.toolbox import graph_of

SINES = " ".join(f"v{i + 1} = Sin(v{i})" for i in range(12))
MODEL = f"g (float[1000] v0) => (float[1000] v12, float[1000] v3) {{ {SINES} }}"
FACTS = {
    "model": "</script><b>.onnx", "objective": "time", "bound_seconds": 0.011, "gap": 0.1,
    "bound_kind": "least run", "status": "feasible", "best_single_device_seconds": 0.02,
}  # fmt: skip


@pytest.fixture(scope="module")
def spread() -> Spread:
    """Twelve ops, four by four on the processor and a GPU that is not here: values are copied."""
    graph = graph_of(MODEL)
    graph = graph.with_ops([op.renamed(op.outputs[0], {}) for op in graph.ops], graph.tensors)
    machine = read_machine("cpu-cuda")
    places = {op.name: machine.names[i // 4 % 2] for i, op in enumerate(graph.ops)}
    table = CostTable({op.name: 1e-3 for op in graph.ops}, {}, "given")
    plan = assigned(graph, places, machine)
    made = deploy(graph, plan, machine, dict.fromkeys(machine.names, table))
    return Spread("two.onnx", FACTS, made)


@pytest.fixture(scope="module")
def read(spread: Spread) -> Reader:
    return Reader(devices_page(spread).html())


def test_elements_are_closed_and_nothing_is_loaded(spread: Spread, read: Reader) -> None:
    assert read.open == [""]
    assert read.loads == [""]
    assert not re.search(r"https?:|@import|url\(|fetch|XMLHttp", devices_page(spread).html())
    assert len(read.scripts) == 3  # one of data, one of code, and the empty beginning


def test_names_of_devices_are_no_elements(spread: Spread) -> None:
    """A machine file is part of a model, which anybody may have written."""
    made = replace(spread.made, in_flight=2, replicas={"<script>a": ("<script>b",)})
    html = devices_page(replace(spread, made=made)).html()
    assert "&lt;script&gt;a and &lt;script&gt;b take samples in turn" in html
    assert Reader(html).open == [""]
    assert "<script>a" not in html.replace("\\u003c", "")


def test_what_is_asked_first_is_said_in_words(spread: Spread, read: Reader) -> None:
    copies = len(spread.made.parts.copies)
    assert copies
    for words in (
        "2 of 2 devices compute",
        f"cpu holds most at {spread.peak('cpu')[0] * 1e3:.3g} ms",
        f"{copies} copies between memories",
        "The largest value then is v9 , 3.91 KiB, made by v9 and still to be read by v10",
        "none within the budgets takes less than 11 ms",
        "at most 10.00% from the least",
        "onnxremat optimize '</script><b>.onnx' OUT.onnx --devices cpu-cuda",
    ):
        assert words in read.words, words


def test_a_pipeline_says_that_one_sample_is_shown(spread: Spread, read: Reader) -> None:
    assert "one sample on its way" not in read.words
    full = replace(spread, made=replace(spread.made, in_flight=3))
    words = Reader(devices_page(full).html()).words
    assert "at most 3 samples inside" in words
    assert "at worst in the table counts as many as may be inside, 3." in words
    assert "takes samples in turn" not in words


def test_a_device_in_turn_with_another_does_as_much(spread: Spread) -> None:
    """Its stage is drawn once, on the first of them."""
    made = replace(spread.made, in_flight=2, replicas={"cpu": ("cuda:0",)})
    words = Reader(devices_page(replace(spread, made=made)).html()).words
    assert "cuda:0 takes samples in turn with cpu, and holds as much" in words
    assert "does nothing" not in words
    row = re.search(r"cuda:0 8 2 67% +15.6 KiB", words)
    assert row, words
    named = replace(made, replicas={"<b>": ("cuda:0",)})  # as a machine file may call a device
    assert "&lt;b&gt; and cuda:0 take" in _lead(replace(spread, made=named))


def test_what_is_listed_at_a_moment_adds_up_to_what_a_device_holds(spread: Spread) -> None:
    """While any op runs, and any copy."""
    ends = [end for _, end in spread.times]
    assert ends == sorted(ends)  # a chain
    for device in spread.held:
        line = spread.line(device)
        for (at, total, runs), (until, _, _) in itertools.pairwise(line):
            if runs and until > at:
                alive = spread.alive((at + until) / 2, device)
                assert sum(value.bytes for value in alive) == total, (device, at)
        assert spread.peak(device)[1] == spread.held[device].peak
    found = {value.value: value for value in spread.alive(spread.peak("cpu")[0], "cpu")}
    assert [name for _, name in found["v9"].readers] == ["v10"]
    assert found["v8"].producer == "copy from cuda:0"


def test_times_found_in_one_way_stand_beside_each_other(spread: Spread) -> None:
    """A trial of partitions is not compared with costs of ops; rounds that differ give no ratio."""
    timings = [{"name": name, "seconds": took, "ratio": took / 0.2, "spread": wide, "rounds": 9}
               for name, took, wide in (("as planned", 0.2, 0.0), ("cpu alone", 0.3, 0.1),
                                        ("cuda:0 alone", 0.9, 4.0))]  # fmt: skip
    facts = {**FACTS, "objective": "makespan", "tried": True, "makespan_of_costs": 0.010,
             "makespan_planned": 0.012, "makespan_predicted": 0.15}  # fmt: skip
    tried = Reader(devices_page(replace(spread, facts=facts)).html()).words
    assert "a run takes 150 ms as a trial of its partitions told." in tried
    timed = {**facts, "timings": timings, "notes": ["why <it> is so"]}
    words = Reader(devices_page(replace(spread, facts=timed)).html()).words
    assert "a run takes 200 ms measured, 300 ms on the best one alone." in words
    assert re.search(r"this plan 12 ms 150 ms 200 ms", words)
    assert re.search(r"cpu alone 300 ms 1.50 x cuda:0 alone 900 ms too noisy", words)
    assert "why <it> is so" in words
    assert "by which it takes 12 ms" in words
    sums = {**facts, "objective": "time", "seconds_planned": 0.04}  # what the bound is then of
    words = Reader(devices_page(replace(spread, facts=sums)).html()).words
    assert "by which it takes 40 ms" in words
    assert re.search(r"all runs and copies, by costs of ops .* this plan 40 ms 150 ms", words)


def test_a_file_keeps_the_times(spread: Spread, tmp_path: Path) -> None:
    path = tmp_path / "two.onnx"
    onnx.save(spread.made.model(FACTS), path)
    again = Spread.read(path)
    assert again.known
    assert again.end == pytest.approx(spread.end, rel=1e-3)
    assert again.streams == spread.streams
    devices_page(again).write(tmp_path / "page.html")
    assert "what each device does" in (tmp_path / "page.html").read_text()
    with pytest.raises(UsageError, match="html"):
        devices_page(again).write(tmp_path / "page.pdf")


def test_the_script_has_every_action_and_value(spread: Spread, read: Reader) -> None:
    data: dict[str, Any] = json.loads(read.scripts[1])
    assert len(data["actions"]) == len(spread.made.parts.actions)
    assert max(action[2] for action in data["actions"]) == data["end"] == spread.end
    assert len(data["values"]) == len(spread.values)
    largest = max(row[1] for row in data["lines"][0])
    assert format_bytes(largest) == format_bytes(spread.peak("cpu")[1])


def test_what_is_proven_of_one_order_is_said_to_be(spread: Spread, read: Reader) -> None:
    words = "in this order of first runs"
    assert words not in read.words
    alone = replace(spread, facts={**FACTS, "bound_any_order": False})
    assert Reader(devices_page(alone).html()).words.count(words) == 2  # in a sentence and a table


def test_a_curve_is_read_and_drawn(tmp_path: Path) -> None:
    path = tmp_path / "curve.json"
    row = {"budget": 100, "limit": 100, "process": 90, "peak": 90, "overhead": 0.0, "bound": 0.0,
           "status": "optimal", "plan_seconds": 1.0, "planner": "cuts",
           "any_order": True}  # fmt: skip
    rows = [row, {**row, "budget": 60, "overhead": 0.5, "bound": 0.25, "status": "feasible"},
            {**row, "budget": 40, "peak": None, "overhead": None, "bound": None,
             "status": "infeasible (at least 50 B)"}]  # fmt: skip
    path.write_text(json.dumps({"model": "m<.onnx", "infeasible_below_bytes": 50, "points": rows}))
    svg = draw_curve(read_sweep(path), (60, 0.5))
    assert "60 B: +50.00%" in svg
    assert "nothing below 50 B" in svg
    assert "m&lt;.onnx" in svg
    assert svg.count("<circle") == 3  # two plans, and the one in use
    empty = {"model": "m", "infeasible_below_bytes": None, "points": []}
    wrong = [{**row, "budget": "100"}, {**row, "overhead": float("nan")}, {**row, "status": 1}, 7]
    bad = [{"model": "m", "infeasible_below_bytes": 0, "points": [row]} for row in wrong]
    for said, words in (*((b, "not the curve") for b in ({}, *bad)), (empty, "no points")):
        path.write_text(json.dumps(said))
        with pytest.raises(UsageError, match=words):
            read_sweep(path)
    with pytest.raises(UsageError, match="not the curve"):
        read_sweep(tmp_path / "none.json")
