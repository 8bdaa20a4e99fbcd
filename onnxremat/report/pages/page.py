"""One HTML file that explains a plan: no network, readable without scripts, on a phone, printed."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from html import escape
from typing import Any

from onnxremat.fission.region import Region
from onnxremat.report.comparison import (
    BESIDE,
    COMPARISON,
    UNKNOWN,
    least,
    measured_overhead,
    original_overhead,
    signed,
    statements,
)
from onnxremat.report.pages.carried import Carried
from onnxremat.report.pages.composition import COLOURS, Kind, compose, totals, with_beside
from onnxremat.report.pages.curve_drawing import Swept, draw_curve
from onnxremat.report.pages.drawing import Level, draw
from onnxremat.report.pages.elements import AGAIN, HELD, READERS, Frame, Moments, made_here, table
from onnxremat.report.pages.holders import Holder
from onnxremat.report.sweep import ONE_ORDER, in_one_order
from onnxremat.rewrite.pins import is_added
from onnxremat.units import format_bytes, format_seconds

IN_PARTS = re.compile(r"\bcomputed in (\d+ )?parts\b")  # notes that tell so


def page(carried: Carried, swept: Swept | None = None) -> Frame:
    """The page of a plan in one session.

    Args:
        swept: the memory-time curve of the model, to be drawn beside the plan.
    """
    graph, line = carried.holders.graph, carried.holders.timeline
    step = line.peak_step
    parts = with_beside(compose(graph, line), carried.beside)
    moments = Moments(
        draw(parts, levels(carried), step),
        _key(carried, parts, step),
        (1, len(line.ops), step + 1),
        _moment(carried, step),
        ("bytes", "value", "kind", "made by", "still to be read by"),
        map(_holder, carried.holders.at(step, HELD)),
        _data(carried),
        "steps.js",
    )
    return Frame(
        f"{carried.facts.get('model') or carried.source}: where the memory goes",
        _lead(carried),
        (("Before and after", _summary(carried)),),
        "Memory over one run",
        moments,
        (
            ("Where the peak is, and why", _why(carried, step)),
            ("What is computed in parts", _in_parts(carried)),
            ("What was recomputed", _recomputed(carried)),
            ("How far from the least it is", _proof(carried)),
            ("What other budgets cost", _curve(carried, swept) if swept else ""),
            ("How it was made", made_here("the planned model", command(carried))),
        ),
    )


def levels(carried: Carried) -> list[Level]:
    """The lines of the chart: what is known of them."""
    facts, budget = carried.facts, carried.plan.provenance.budget
    peaks = (
        ("measured peak", "peak_measured_bytes", "measured"),
        ("original", "baseline_peak_bytes", "original"),
        ("nothing recomputed", "store_all_peak_bytes", "store"),
    )
    beside = carried.beside.total
    lines = [
        Level(label, facts[name] + facts.get(BESIDE.get(name, ""), beside), style)
        for label, name, style in peaks
        if facts.get(name)
    ]
    return [*([Level("budget", budget, "budget")] if budget else ()), *lines]


def _lead(carried: Carried) -> str:
    line, about, facts = carried.holders.timeline, carried.plan.provenance, carried.facts
    words = [f"The peak of weights and values is <b>{format_bytes(line.peak)}</b>"]
    if facts.get("baseline_peak_bytes"):
        words.append(f", {format_bytes(facts['baseline_peak_bytes'])} in the original")
    if about.budget:
        left = format_bytes(about.budget - carried.beside.total)
        words.append(f"; the budget of {least(about.budget)} leaves {left} for them")
    words.append(f". The plan changes the time of a run by <b>{signed(about.overhead)}</b>")
    known = measured_overhead(facts)
    if known:
        words.append(" (not measurable here)" if known == UNKNOWN else f" ({known} as measured)")
    words.append(" against the same graph with everything stored")
    to_original = original_overhead(facts)
    if to_original[-1:] == "%" and not to_original.startswith("+/-"):  # a figure
        words.append(f", and by {to_original} against the original")
    return "".join(words) + "."


def _summary(carried: Carried) -> str:
    facts = carried.facts
    if not facts:
        return "<p>This is a plan by itself: nothing was measured.</p>"
    rows = [(line.label, line.cells(facts)) for line in COMPARISON]
    heads = ("", "original", "store all", "planned", "measured")
    compared = table(heads, [(label, *cells) for label, cells in rows if any(cells)], numbers=4)
    return compared + table((), statements(facts), name="facts")


def _key(carried: Carried, parts: Mapping[Kind, Any], step: int) -> str:
    """Colours and lines, with the bytes at the peak."""
    made = [
        f'<li><span class="swatch {kind.name.lower()}" style="background:{COLOURS[kind]}"></span>'
        f"{kind.value} "
        f"{format_bytes(int(row[step]))}</li>"
        for kind, row in reversed(list(parts.items()))
        if row.any()
    ]
    made += [
        f'<li><span class="line {level.style}"></span>{level.label} '
        f"{format_bytes(level.bytes)}</li>"
        for level in levels(carried)
    ]
    return "".join(made)


def _moment(carried: Carried, step: int) -> str:
    line, graph = carried.holders.timeline, carried.holders.graph
    if not line.ops:
        return "The model has no ops."
    beside = carried.beside.total
    total = int(totals(line)[step]) + beside
    more = f"{format_bytes(beside)} beside weights and values, " if beside else ""
    return (
        f"Step {step + 1} of {len(line.ops)}: {line.ops[step]} ({graph.ops[step].op_type}), "
        f"{format_bytes(total)} in memory, of it {more}weights {format_bytes(line.weight_bytes)} "
        f"and workspace {format_bytes(line.scratch[step])}."
    )


def _holder(held: Holder) -> tuple[str, ...]:
    readers = list(held.readers[:READERS])
    more = len(held.readers) - len(readers)
    readers += [f"{more} more"] if more > 0 else []
    said = ", ".join(readers) or "\u2013"
    return format_bytes(held.bytes), held.tensor, held.kind.value, held.producer, said


def _why(carried: Carried, step: int) -> str:
    holders = carried.holders
    line, graph = holders.timeline, holders.graph
    if not line.ops:
        return "<p>Nothing runs.</p>"
    op, rest = graph.ops[step], sum(is_added(name) for name in line.ops)
    parts = {kind: int(row[step]) for kind, row in compose(graph, line).items() if row[step]}
    shares = ", ".join(
        f"{kind.value} {format_bytes(count)} ({count / line.peak:.0%})"
        for kind, count in sorted(parts.items(), key=lambda pair: -pair[1])
    )
    more = carried.beside.words
    beside = f" The process has {more} beside it." if more else ""
    first = next(iter(holders.at(step, 1)), None)
    again = ", a recomputation" if op.origin else ""
    words = [
        f"<p>The peak of {format_bytes(line.peak)} is at step {step + 1} of {len(line.ops)}, "
        f"while <b>{escape(op.name)}</b> ({escape(op.op_type)}{again}) runs. It is made of "
        f"{shares}.{beside}</p>"
    ]
    if first is not None:
        shape = " of shape " + " x ".join(map(str, first.shape)) if first.shape else ""
        words.append(
            f"<p>The largest value then is <b>{escape(first.tensor)}</b>{shape}, "
            f"{format_bytes(first.bytes)}, made by {escape(first.producer)}"
            + (f" and still to be read by {escape(first.readers[0])}" if first.readers else "")
            + ".</p>"
        )
    if rest:
        words.append(
            f'<p class="quiet">{rest} of the steps are gates and pins: ops of a few bytes that '
            "hold the planned order.</p>"
        )
    return "".join(words)


def _in_parts(carried: Carried) -> str:
    """What the plan says of a batch or of regions in parts; nothing where everything is whole."""
    about, facts = carried.plan.provenance, carried.facts
    words = [
        f"<p>{escape(note[:1].upper() + note[1:])}.</p>"
        for note in about.notes
        if IN_PARTS.search(note)
    ]
    regions = [Region.from_json(each) for each in about.settings.get("fission", ())]
    if not words and not regions:
        return ""
    before, after = facts.get("baseline_peak_bytes"), facts.get("store_all_peak_bytes")
    if before and after:
        words.append(
            f"<p>Without recomputation that takes {format_bytes(after)}, the original "
            f"{format_bytes(before)}.</p>"
        )
    cells = [
        (region.ops[0], region.ops[-1], str(len(region.ops)), str(len(region.parts)),
         str(max(region.axes.values())))
        for region in regions
    ]  # fmt: skip
    if cells:
        heads = ("from", "to", "ops", "parts", "along axis")
        words.append(table(heads, cells, numbers=3))
    return "".join(words)


def _recomputed(carried: Carried) -> str:
    rows, total = carried.again, carried.plan.provenance.store_all_seconds
    if not rows:
        return "<p>Nothing: every op runs once.</p>"
    cells = [
        (
            row.op, row.op_type, str(row.times), format_bytes(row.bytes),
            format_seconds(row.seconds), f"{row.seconds / total:.2%}" if total else "",
        )
        for row in rows[:AGAIN]
    ]  # fmt: skip
    runs, took = sum(row.times for row in rows), sum(row.seconds for row in rows)
    most = max(rows, key=lambda row: (row.times, row.bytes))
    words = (
        f"<p>{runs} runs of {len(rows)} ops, {format_seconds(took)} together. The most: "
        f"<b>{escape(most.op)}</b> ({escape(most.op_type)}), {most.times} more "
        f"{'time' if most.times == 1 else 'times'}; the most bytes: <b>{escape(rows[0].op)}</b>, "
        f"{format_bytes(rows[0].bytes)} not kept.</p>"
    )
    heads = ("op", "type", "runs again", "frees", "price", "of the time")
    if len(rows) > AGAIN:
        words += f"<p>The {AGAIN} that free the most:</p>"
    note = (
        '<p class="quiet">The price of all together is the plan\'s; what each takes of it is '
        "estimated from its arithmetic and traffic.</p>"
    )
    return words + table(heads, cells, numbers=4, name="ops") + note


def _proof(carried: Carried) -> str:
    """The certificate in plain words."""
    about = carried.plan.provenance
    words = [
        f"<p>The plan changes the time of a run by {signed(about.overhead)} against the same graph "
        f"with everything stored, by {escape(about.cost_source)} costs."
    ]
    if about.bound_kind:
        scope = "in whatever order ops run" if about.any_order else (
            "as long as the first runs of ops stay in this order; in another order one may"
        )  # fmt: skip
        which = " that runs each op at most once per stage" if about.staged else ""
        words.append(
            f" It is proven that no plan{which}{_of_parts(carried)} within the budget takes less "
            f"than <b>{signed(about.bound_overhead)}</b>, {scope}. So it is at most "
            f"<b>{about.gap:.3%}</b> of a run's time from the least."
        )
    words.append(
        f'</p><p class="quiet">Found by {escape(about.planner)} ({escape(about.status)}), proven '
        f"by {escape(about.bound_kind)}, in {format_seconds(about.plan_seconds)}.</p>"
    )
    notes = [note for note in about.notes if not IN_PARTS.search(note)]
    if notes:
        words.append("<ul>" + "".join(f"<li>{escape(note)}</li>" for note in notes) + "</ul>")
    return "".join(words)


def _of_parts(carried: Carried) -> str:
    """What a proof is about where something is computed in parts."""
    return " of the graph in these parts" if _in_parts(carried) else ""


def _curve(carried: Carried, swept: Swept) -> str:
    """What other budgets would cost."""
    about = carried.plan.provenance
    taken = carried.holders.timeline.peak + carried.beside.total
    chosen = (about.budget or taken, about.overhead)
    low = swept.infeasible_below
    none = f" The graph as a whole needs {format_bytes(low)} or more, proven." if low else ""
    if any(map(in_one_order, swept.points)):
        none += f" What is proven of some budgets is {ONE_ORDER}."
    return (
        draw_curve(swept, chosen) + '<ul class="key">'
        '<li><span class="line" style="border-color:#1b7fbf"></span>plans found</li>'
        '<li><span class="line" style="border-top:2px dashed #e69f00"></span>proven: no plan of '
        "the whole takes less</li>"
        '<li><span class="swatch" style="background:#009e73"></span>this plan</li></ul>'
        f'<p class="quiet">Of onnxremat sweep {escape(swept.model)}: {len(swept.points)} budgets, '
        f"by predicted peaks.{none}</p>"
    )


def command(carried: Carried) -> list[str]:
    """The command that made the file; where it does not say, one that makes such a file again."""
    if carried.facts.get("command"):
        return shlex.split(carried.facts["command"])
    about = carried.plan.provenance
    words = ["onnxremat", "optimize", str(carried.facts.get("model") or "IN.onnx"), "OUT.onnx"]
    words += ["--budget", str(about.budget)] if about.budget else []
    kept = about.settings
    left = ",".join(kept.get("not_counted", ()))
    words += ["--not-counted", left] if left else []
    words += ["--target", str(kept["target"])] if kept.get("target") else []
    for name, shape in kept.get("shapes", {}).items():
        words += ["--shape", f"{name}:{','.join(map(str, shape))}"]
    for name, size in kept.get("dims", {}).items():
        words += ["--dim", f"{name}={size}"]
    split = kept.get("split_batch")
    words += ["--split-batch", ",".join(map(str, split))] if split else []
    return words


def _data(carried: Carried) -> str:
    """What the script on the page needs."""
    holders = carried.holders
    line, graph = holders.timeline, holders.graph
    kinds = list(Kind)
    values: dict[str, int] = {}
    buffers = [
        [
            held.bytes, kinds.index(held.kind), held.first, held.last,
            [n for at, name in held.written for n in (at, values.setdefault(name, len(values)))],
            [at for at, _ in held.read],
        ]
        for held in holders.buffers
    ]  # fmt: skip
    data = {
        "peak": line.peak_step, "count": HELD, "readers": READERS, "weights": line.weight_bytes,
        "beside": carried.beside.total,
        "kinds": [kind.value for kind in kinds], "ops": line.ops,
        "types": [op.op_type for op in graph.ops], "totals": totals(line).tolist(),
        "scratch": line.scratch, "values": list(values), "buffers": buffers,
    }  # fmt: skip
    return json.dumps(data, separators=(",", ":"))
