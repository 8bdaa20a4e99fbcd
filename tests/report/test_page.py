"""The page that explains a plan: true, whole without scripts, and without a network."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxremat.errors import UsageError
from onnxremat.fission.region import Region
from onnxremat.report.pages import page
from onnxremat.report.pages.carried import Carried
from onnxremat.report.pages.composition import Kind, compose, totals
from onnxremat.report.pages.drawing import BOTTOM, COLUMNS, HEIGHT, TOP, Level, draw
from onnxremat.report.pages.holders import Holders
from onnxremat.units import format_bytes
from tests.report.conftest import AGAIN, Case

STORE_ALL, PLANNED, BOUND = 0.010, 0.012, 0.011  # seconds


class Reader(HTMLParser):
    """Words, scripts, and whatever an element would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.words, self.open, self.loads, self.scripts = "", [""], [""], [""]
        self.feed(text)
        self.words = " ".join(self.words.split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "input"):
            self.open.append(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "href")]
        self.scripts += [""] * (tag == "script")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1] == "script":
            self.scripts[-1] += data
        elif self.open[-1] != "style":
            self.words += f"{data} "


@pytest.fixture(scope="module")
def carried(case: Case) -> Carried:
    graph, line = case.rewritten.graph, case.predicted
    plan = case.plan.with_provenance(
        planner="cuts", status="feasible", budget=line.peak + 1024, bound=BOUND, seconds=PLANNED,
        store_all_seconds=STORE_ALL, bound_kind="single-cut", any_order=False,
        cost_source="measured", settings={"target": "portable", "dims": {"batch size": 8}},
    )  # fmt: skip
    facts = {
        "model": "</script><b>.onnx", "baseline_peak_bytes": 3 * line.peak, "bit_equal": True,
        "peak_measured_bytes": line.peak, "peak_predicted_bytes": line.peak,
    }  # fmt: skip
    order = {name: step for step, name in enumerate(line.ops)}
    ordered = graph.with_ops(sorted(graph.ops, key=lambda op: order[op.name]))
    return Carried("out.onnx", facts, plan, case.graph, Holders.of(ordered, line))


@pytest.fixture(scope="module")
def read(carried: Carried) -> Reader:
    return Reader(page.page(carried).html())


def test_elements_are_closed_and_nothing_is_loaded(carried: Carried, read: Reader) -> None:
    assert read.open == [""]
    assert read.loads == [""]
    assert not re.search(r"https?:|@import|url\(|fetch|XMLHttp", page.page(carried).html())


def test_names_cannot_break_out(read: Reader) -> None:
    """A model may have any name."""
    assert "</script><b>.onnx: where the memory goes" in read.words
    assert len(read.scripts) == 3  # one of data, one of code, and the empty beginning


def test_five_questions_are_answered_in_words(carried: Carried, read: Reader) -> None:
    line, holders = carried.holders.timeline, carried.holders
    first = holders.at(line.peak_step, 1)[0]
    op = line.ops[line.peak_step]
    answers = (
        f"The peak of {format_bytes(line.peak)} is at step {line.peak_step + 1} of "
        f"{len(line.ops)}, while {op}",
        f"The largest value then is {first.tensor}",
        "The plan changes the time of a run by +20.00%",
        f"{AGAIN} runs of {AGAIN} ops, 2 ms together",
        "takes less than +10.00% , as long as the first runs of ops stay in this order",
        "at most 10.000% of a run's time from the least",
    )
    for words in answers:
        assert words in read.words


def test_prices_add_up_to_the_plans(carried: Carried) -> None:
    assert sum(row.seconds for row in carried.again) == pytest.approx(PLANNED - STORE_ALL)


def test_the_command_is_the_one_for_a_shell(carried: Carried) -> None:
    assert shlex.join(page.command(carried)) == (
        "onnxremat optimize '</script><b>.onnx' OUT.onnx "
        f"--budget {carried.plan.provenance.budget} --target portable --dim 'batch size=8'"
    )


def test_the_command_that_made_it_is_the_one_that_is_told(carried: Carried) -> None:
    line = "onnxremat optimize net.onnx 'an out.onnx' --train --budget 0.5x"
    told = replace(carried, facts={**carried.facts, "command": line})
    assert f"<pre>{escape(line)}</pre>" in page.page(told).html()


def test_the_price_is_told_against_the_original_too(carried: Carried) -> None:
    """A graph in parts is its own reference: by that alone parts cost nothing."""
    told = replace(
        carried, facts={**carried.facts, "overhead_measured": 0.0, "overhead_to_original": 0.7}
    )
    words = Reader(page.page(told).html()).words
    assert "with everything stored, and by +70.00% against the original" in words


def test_what_is_in_parts_has_a_section_of_its_own(carried: Carried) -> None:
    """Parts and their price, out of the plan's notes and settings."""
    assert "What is computed in parts" not in page.page(carried).html()
    region = Region(("first", "more", "last"), {"y": 2}, (1, 1, 1, 1), {})
    note = "computed in parts: 3 ops in 4 parts along axis 2 (whole: 9 MiB), at +5.0% of the time"
    plan = carried.plan.with_provenance(
        notes=("planned whole, not in parts: why", note), settings={"fission": [region.to_json()]}
    )
    words = Reader(page.page(replace(carried, plan=plan)).html()).words
    parts = words[words.index("What is computed in parts") : words.index("What was recomputed")]
    assert note[1:] in parts
    assert "first last 3 4 2" in parts
    assert "planned whole" not in parts
    assert words.count(note[1:]) == 1


def test_the_script_has_the_buffers_of_every_step(carried: Carried, read: Reader) -> None:
    """The bytes of all buffers that are alive, with weights and workspace, are the total."""
    data: dict[str, Any] = json.loads(read.scripts[1])
    assert data["totals"] == totals(carried.holders.timeline).tolist()
    for step, total in enumerate(data["totals"]):
        alive = [b for b in data["buffers"] if b[2] <= step <= b[3]]
        assert sum(b[0] for b in alive) + data["weights"] + data["scratch"][step] == total
        largest = max(alive, key=lambda b: (b[0], -b[2]))
        held = carried.holders.at(step, 1)[0]
        value = [largest[4][i + 1] for i in range(0, len(largest[4]), 2) if largest[4][i] <= step]
        assert data["values"][value[-1]] == held.tensor
        assert data["kinds"][largest[1]] == held.kind.value


def test_the_chart_is_of_all_that_the_budget_counts(carried: Carried) -> None:
    """Its lines, too; the budget is the one that was asked for."""
    beside = {"session_bytes": 3 << 20, "state_bytes": 2 << 20, "input_bytes": 3 << 20}
    told = replace(carried, facts={**carried.facts, **beside})
    text = page.page(told).html()
    total, peak = 6 << 20, carried.holders.timeline.peak
    found = {level.label: level.bytes for level in page.levels(told)}
    assert found == {
        "budget": told.plan.provenance.budget,
        "measured peak": peak + total,
        "original": 3 * peak + total,
    }
    apart = replace(told, facts={**told.facts, "baseline_beside_bytes": 2 << 20})
    lines = {level.label: level.bytes for level in page.levels(apart)}
    assert lines == {**found, "original": 3 * peak + (2 << 20)}  # it has fewer nodes
    data = json.loads(Reader(text).scripts[1])
    assert data["beside"] == total
    svg = text[text.index("<svg") : text.index("</svg>")]
    assert all(f'class="{kind}"' in svg for kind in ("session", "inputs", "state"))
    words = Reader(text).words
    assert "parameters and state 2.00 MiB" in words
    assert f"{format_bytes(peak + total)} in memory, of it 6.00 MiB beside" in words
    told = replace(told, facts={**told.facts, "not_counted": ["inputs"]})
    assert "inputs 1.00 MiB" not in Reader(page.page(told).html()).words


def test_areas_reach_as_high_as_the_bytes(case: Case) -> None:
    parts = compose(case.rewritten.graph, case.predicted)
    svg = draw(
        parts, [Level("budget", 2 * case.predicted.peak, "budget")], case.predicted.peak_step
    )
    paths = re.findall(r'<path class="(\w+)" fill="[^"]*" d="([^"]*)"', svg)
    assert [name for name, _ in paths] == [k.name.lower() for k, row in parts.items() if row.any()]
    top = min(float(y) for _, path in paths for y in re.findall(r"V([\d.]+)", path))
    share = (HEIGHT - BOTTOM - top) / (HEIGHT - TOP - BOTTOM)
    assert share == pytest.approx(1 / 2 / 1.06, abs=0.005)


def test_of_more_steps_than_columns_the_fullest_are_drawn() -> None:
    row = np.zeros(7 * COLUMNS, np.int64)
    row[4321] = 1 << 30  # for one step of thousands
    row[0] = 1
    svg = draw({Kind.KEPT: row}, [], 4321)
    lowest = min(float(y) for y in re.findall(r"V([\d.]+)", svg))
    assert lowest == pytest.approx(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) / 1.06, abs=0.1)
    assert svg.count("H") <= 2 * COLUMNS + 4


def test_another_suffix_is_refused(carried: Carried, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="html"):
        page.page(carried).write(tmp_path / "page.pdf")
    assert list(tmp_path.iterdir()) == []
