"""One HTML file that explains a plan over several devices: who does what when, and holds what."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from html import escape
from typing import Any

from onnxremat.execute.deployment import Deployment
from onnxremat.execute.pipelined import pipeline_stages
from onnxremat.report.comparison import one_order, staged
from onnxremat.report.pages.device_times import measured, of_costs, predicted, time_heads, time_rows
from onnxremat.report.pages.device_values import Held
from onnxremat.report.pages.elements import AGAIN, HELD, READERS, Frame, Moments, made_here, table
from onnxremat.report.pages.gantt import draw
from onnxremat.report.pages.recomputed import recomputed_ops
from onnxremat.report.pages.spread import Spread
from onnxremat.rewrite.partition import Copy
from onnxremat.units import format_bytes, format_seconds

Facts = Mapping[str, Any]


def devices_page(spread: Spread) -> Frame:
    """The page of a plan over several devices."""
    at = _fullest(spread)
    moments = Moments(
        draw(spread, at),
        _key(spread),
        (0, 1000, round(at / (spread.end or 1.0) * 1000)),
        _moment(spread, at),
        ("bytes", "value", "device", "made by", "still to be read by"),
        map(_row, _held(spread, at)),
        _data(spread, at),
        "times.js",
    )
    return Frame(
        f"{spread.facts.get('model') or spread.source}: what each device does",
        _lead(spread),
        (
            ("What each device does", _summary(spread)),
            ("How long it takes", _times(spread)),
        ),
        "When it does it, and what it holds then",
        moments,
        (
            ("Where the peaks are", _why(spread)),
            ("What was recomputed, and what was moved", _recomputed(spread)),
            ("How far from the least it is", _proof(spread)),
            ("How it was made", made_here("the planned model", command(spread))),
        ),
    )


def _fullest(spread: Spread) -> float:
    """When the device that is closest to its budget, or holds most, does so."""
    limits = spread.made.limits
    peaks = {name: spread.peak(name) for name in spread.held if spread.held[name].steps}
    if not peaks:
        return 0.0
    name = max(peaks, key=lambda name: (peaks[name][1] / limits.get(name, 1 << 62), peaks[name][1]))
    return peaks[name][0]


def _lead(spread: Spread) -> str:
    made = spread.made
    busy = {part.device for part in made.parts.partitions}
    busy.update(name for row in made.replicas.values() for name in row)
    verb = "computes" if len(busy) == 1 else "compute"
    words = [f"{len(busy)} of {len(made.machine.names)} devices {verb}"]
    if made.in_flight:
        words.append(f", with at most {made.in_flight} samples inside")
        words += [
            f", {escape(' and '.join((first, *row)))} take samples in turn"
            for first, row in made.replicas.items()
        ]
        words += [f", which pass {way}" if (way := _way(made)) else ""]
    return "".join(words) + _takes(spread) + "."


def _takes(spread: Spread) -> str:
    """The time, measured where it was, and that of the best device alone, found in the same way."""
    facts = spread.facts
    if not (spread.known or facts.get("timings")):
        return ""
    took, alone, how = predicted(facts), facts.get("best_single_device_seconds"), "as predicted"
    if found := measured(facts):
        (took, alone), how = found, "measured"
    elif facts.get("tried"):
        alone, how = None, "as a trial of its partitions told"
    if spread.made.in_flight:
        words = f": <b>{1 / took:.4g} samples per second</b> {how}" if took else ""
        return words + (f", {1 / alone:.4g} on the best one alone" if alone and took else "")
    words = f", and a run takes <b>{format_seconds(took or spread.end)}</b> {how}"
    return words + (f", {format_seconds(alone)} on the best one alone" if alone else "")


def _way(made: Deployment) -> str:
    """The devices that a sample passes, where it comes back to some."""
    names = [stage.name for stage in pipeline_stages(made.parts, made.machine)]
    return " &gt; ".join(map(escape, names)) if len(set(names)) < len(names) else ""


def _summary(spread: Spread) -> str:
    """A line per device."""
    told = {row["device"]: row for row in spread.facts.get("devices", ())}
    rows, alike = [], _in_turn(spread)
    for name in spread.made.machine.names:
        shown = alike.get(name, name)
        parts = [part for part in spread.made.parts.partitions if part.device == shown]
        row = told.get(name, {})
        sizes = (
            spread.made.limits.get(name), spread.peak(shown)[1], row.get("peak_worst_case_bytes"),
            row.get("peak_measured_bytes"),
        )  # fmt: skip
        work = sum(end - start for stream, (start, end) in zip(spread.streams, spread.times,
                   strict=True) if stream == shown)  # fmt: skip
        rows.append(
            (
                name, str(sum(len(part.graph.ops) for part in parts)), str(len(parts)),
                f"{work / spread.end:.0%}" if spread.end else "",
                *("" if size is None else format_bytes(size) for size in sizes),
            )
        )  # fmt: skip
    heads = ("device", "ops", "partitions", "at work", "budget", "predicted", "at worst",
             "measured")  # fmt: skip
    return table(heads, rows, numbers=7)


def _times(spread: Spread) -> str:
    """A line per way to run it, and what was found on the way to the plan."""
    rows, notes = time_rows(spread.facts), spread.facts.get("notes") or ()
    words = table(time_heads(spread.facts), rows, numbers=4) if rows else ""
    if not notes:
        return words
    return words + "<ul>" + "".join(f"<li>{escape(note)}</li>" for note in notes) + "</ul>"


def _in_turn(spread: Spread) -> dict[str, str]:
    """Devices that take the samples of another one's stage in turn with it, and that one."""
    return {other: first for first, row in spread.made.replicas.items() for other in row}


def _key(spread: Spread) -> str:
    swatch = '<li><span class="swatch" style="background:{}"></span>{}</li>'
    made = [swatch.format("#1b7fbf", "a partition computes")]
    if spread.made.parts.copies:
        made.append(swatch.format("#e69f00", "a value is handed over or copied"))
    made.append(swatch.format("#a6d3ee", "bytes held (&#9660; the most)"))
    if any(limit <= 3 * spread.peak(name)[1] for name, limit in spread.made.limits.items()):
        made.append('<li><span class="line budget"></span>budget</li>')
    return "".join(made)


def _moment(spread: Spread, at: float) -> str:
    alike = _in_turn(spread)
    words = [format_seconds(at) if spread.known else f"{at / (spread.end or 1):.0%} of the run"]
    for name in _streams(spread):
        if name in alike:
            words.append(_does_as(name, alike))
            continue
        now = next(
            (
                f"{called} ({does})"
                for stream, (start, end), called, does in zip(
                    spread.streams, spread.times, spread.names, spread.words, strict=True
                )
                if stream == name and start <= at < end
            ),
            "",
        )
        text = f"{name}: {now}" if now else f"{name} waits"
        if name in spread.held:
            count = [row[1] for row in spread.line(name) if row[0] <= at][-1]
            text += f", holds {format_bytes(count)}"
        words.append(text)
    return ". ".join(words) + "."


def _does_as(name: str, alike: Mapping[str, str]) -> str:
    return f"{name} takes samples in turn with {alike[name]}"


def _streams(spread: Spread) -> list[str]:
    """Devices first, then links that copy."""
    return list(dict.fromkeys((*spread.made.machine.names, *spread.streams)))


def _held(spread: Spread, at: float) -> list[tuple[Held, list[str]]]:
    """The largest values at a moment, and who still reads them."""
    return [
        (value, [name for end, name in value.readers if end > at])
        for value in spread.alive(at)[:HELD]
    ]


def _row(found: tuple[Held, list[str]]) -> tuple[str, ...]:
    value, readers = found
    more = len(readers) - READERS
    said = ", ".join(readers[:READERS]) + (f", {more} more" if more > 0 else "")
    return format_bytes(value.bytes), value.value, value.device, value.producer, said or "\u2013"


def _why(spread: Spread) -> str:
    made, alike = [], _in_turn(spread)
    for name in spread.made.machine.names:
        if name in alike:
            made.append(f"<p>{escape(_does_as(name, alike))}, and holds as much for one.</p>")
            continue
        if not spread.held[name].steps:
            made.append(f"<p><b>{escape(name)}</b> does nothing.</p>")
            continue
        time, count, op = spread.peak(name)
        limit = spread.made.limits.get(name)
        share = f", {_share(count / limit)} of its budget" if limit else ""
        when = f"at {format_seconds(time)}" if spread.known else "at the mark"
        made.append(
            f"<p><b>{escape(name)}</b> holds most {when}: {format_bytes(count)}{share}"
            + (f", while {escape(op)} runs" if op else "")
            + f". All the time it holds {escape(spread.held[name].stays.words)}."
            + f"{_largest(spread, name, time)}</p>"
        )  # fmt: skip
    if spread.made.in_flight:
        made.append(
            '<p class="quiet">The chart is of one sample on its way. In a full pipeline every '
            "device works on another one meanwhile: <i>at worst</i> in the table counts as many "
            f"as may be inside, {spread.made.in_flight}.</p>"
        )
    else:
        made.append(
            '<p class="quiet">Bytes are those of one action after the other. Side by side a device '
            "holds no more than the table says under <i>at worst</i>.</p>"
        )
    return "".join(made)


def _share(part: float) -> str:
    return f"{part:.0%}" if part >= 0.01 else "less than 1%"


def _largest(spread: Spread, device: str, time: float) -> str:
    """The largest value on a device at a moment that is not there all the time."""
    first = next((value for value in spread.alive(time, device) if not value.stays), None)
    if first is None:
        return ""
    words = f" The largest value then is <b>{escape(first.value)}</b>, "
    words += f"{format_bytes(first.bytes)}, made by {escape(first.producer)}"
    later = [name for end, name in first.readers if end > time]
    return words + (f" and still to be read by {escape(later[0])}." if later else ".")


def _recomputed(spread: Spread) -> str:
    rows = recomputed_ops(spread.made.plan, spread.made.graph, {})
    words = ["<p>Recomputed: nothing.</p>"]
    if rows:
        cells = [(row.op, row.op_type, str(row.times), format_bytes(row.bytes)) for row in rows]
        most = max(rows, key=lambda row: (row.times, row.bytes))
        words = [
            f"<p>{sum(row.times for row in rows)} runs of {len(rows)} ops are repeated. The most: "
            f"<b>{escape(most.op)}</b> ({escape(most.op_type)}), {most.times} more "
            f"{'time' if most.times == 1 else 'times'}.</p>",
            table(("op", "type", "more runs", "frees"), cells[:AGAIN], numbers=2),
        ]
    sizes, links = spread.made.parts.graph.tensors, spread.made.machine
    handed = len(spread.made.parts.copies)
    moved = [
        (sizes[a.value].bytes, a.value, f"{a.source} to {a.target}", start)
        for a, (start, _) in zip(spread.made.parts.actions, spread.times, strict=True)
        if isinstance(a, Copy) and not links.link(a.source, a.target).shared
    ]
    handed -= len(moved)
    if handed:
        words.append(f"<p>{handed} values are handed over within one memory, without a copy.</p>")
    if not moved:
        return "".join(words) + "<p>Copied between memories: nothing.</p>"
    moved.sort(reverse=True)
    words.append(
        f"<p>{len(moved)} copies between memories, {format_bytes(sum(row[0] for row in moved))} "
        "together. The largest:</p>"
    )
    rows_ = [(value, way, format_seconds(at), format_bytes(n)) for n, value, way, at in moved]
    words.append(table(("value", "way", "at", "bytes"), rows_[:AGAIN], numbers=2))
    return "".join(words)


def _proof(spread: Spread) -> str:
    facts = spread.facts
    if facts.get("bound_seconds") is None:
        return "<p>Nothing is proven of it.</p>"
    aims = {"time": "the time of all runs and copies together", "makespan": "the time of a run",
            "throughput": "the time per sample"}  # fmt: skip
    aim = aims.get(str(facts.get("objective")), "its objective")
    return (
        f"<p>The plan was made for {aim}, by costs of ops{_by_costs(facts)}. It is proven that, by "
        f"these costs, none{staged(facts)} within the budgets takes less than "
        f"<b>{format_seconds(facts['bound_seconds'])}</b>{one_order(facts)}, so it is at most "
        f"<b>{facts['gap']:.2%}</b> from the least.</p>"
        f'<p class="quiet">Found: {escape(str(facts.get("status")))}, proven by '
        f"{escape(str(facts.get('bound_kind')))}.</p>"
    )


def _by_costs(facts: Facts) -> str:
    took = of_costs(facts)
    return f", by which it takes {format_seconds(took)}" if took else ""


def command(spread: Spread) -> list[str]:
    """The command that made the file; where it does not say, one that makes such a file again."""
    facts, made = spread.facts, spread.made
    if facts.get("command"):
        return shlex.split(facts["command"])
    limits = ",".join(f"{name}={limit}" for name, limit in made.limits.items())
    words = ["onnxremat", "optimize", str(facts.get("model") or "IN.onnx"), "OUT.onnx"]
    words += ["--devices", made.machine.name or "MACHINE.toml"]
    words += ["--budget", limits] if limits else []
    words += ["--objective", str(facts["objective"])] if facts.get("objective") else []
    if made.in_flight:
        most = max([1, *(1 + len(row) for row in made.replicas.values())])
        words += ["--in-flight", str(made.in_flight)]
        words += ["--any"] if _way(made) else ["--replicas", str(most)]
    return words


def _data(spread: Spread, at: float) -> str:
    """What the script on the page needs."""
    streams, alike = _streams(spread), _in_turn(spread)
    about = zip(spread.streams, spread.times, spread.names, spread.words, strict=True)
    data = {
        "at": at, "end": spread.end or 1.0, "known": spread.known, "count": HELD,
        "streams": streams,
        "actions": [[streams.index(s), a, b, name, words] for s, (a, b), name, words in about],
        "lines": [
            [[t, n] for t, n, _ in spread.line(name)] if name in spread.held else None
            for name in streams
        ],
        "values": [
            [v.bytes, v.value, streams.index(v.device), v.begin, v.end, v.producer, v.readers]
            for v in spread.values
        ],
        "alike": {name: _does_as(name, alike) for name in alike}, "readers": READERS,
    }  # fmt: skip
    return json.dumps(data, separators=(",", ":"))
