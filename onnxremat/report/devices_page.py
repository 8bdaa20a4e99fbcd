"""One HTML file that explains a plan over several devices: who does what when, and holds what."""

from __future__ import annotations

import json
import shlex
from html import escape
from typing import Any

from onnxremat.execute.deployment import Deployment
from onnxremat.execute.pipelined import pipeline_stages
from onnxremat.report.elements import AGAIN, HELD, Frame, Moments, made_here, table
from onnxremat.report.gantt import draw
from onnxremat.report.recomputed import recomputed_ops
from onnxremat.report.spread import Spread, Waiting
from onnxremat.rewrite.partition import Copy
from onnxremat.units import format_bytes, format_seconds

Facts = dict[str, Any]


def devices_page(spread: Spread) -> Frame:
    """The page of a plan over several devices."""
    at = _fullest(spread)
    moments = Moments(
        draw(spread, at),
        _key(spread),
        (0, 1000, round(at / (spread.end or 1.0) * 1000)),
        _moment(spread, at),
        ("bytes", "value", "device", "made or brought by", "still to be read by"),
        map(_row, _held(spread, at)),
        _data(spread, at),
        "times.js",
    )
    return Frame(
        f"{spread.facts.get('model') or spread.source}: what each device does",
        _lead(spread),
        (("What each device does", _summary(spread)),),
        "When it does it, and what it holds then",
        moments,
        (
            ("Where the peaks are", _why(spread)),
            ("What was recomputed, and what was moved", _recomputed(spread)),
            ("How far from the least it is", _proof(spread)),
            ("How it was made", made_here(f"{spread.source} from its original", command(spread))),
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
    facts, made = spread.facts, spread.made
    busy = {part.device for part in made.parts.partitions}
    busy.update(name for row in made.replicas.values() for name in row)
    words = [f"{len(busy)} of {len(made.machine.names)} devices compute"]
    if made.in_flight:
        rate = facts.get("samples_per_second_predicted")
        words.append(f", with at most {made.in_flight} samples inside")
        words += [
            f", {' and '.join((first, *row))} take samples in turn"
            for first, row in made.replicas.items()
        ]
        words += [f", which pass {way}" if (way := _way(made)) else ""]
        words.append(f": <b>{rate:.4g} samples per second</b> predicted" if rate else "")
    elif spread.known:
        words.append(f", and a run takes <b>{format_seconds(spread.end)}</b> as predicted")
        alone = facts.get("best_single_device_seconds")
        if alone:
            words.append(f", {format_seconds(alone)} on the best one alone")
    return "".join(words) + "."


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


def _in_turn(spread: Spread) -> dict[str, str]:
    """Devices that take the samples of another one's stage in turn with it, and that one."""
    return {other: first for first, row in spread.made.replicas.items() for other in row}


def _key(spread: Spread) -> str:
    made = [
        '<li><span class="swatch" style="background:#1b7fbf"></span>a partition computes</li>',
        '<li><span class="swatch" style="background:#e69f00"></span>a value is copied</li>',
        '<li><span class="swatch" style="background:#a6d3ee"></span>bytes held</li>',
    ]
    if any(limit <= 3 * spread.peak(name)[1] for name, limit in spread.made.limits.items()):
        made.append('<li><span class="line budget"></span>budget</li>')
    return "".join(made)


def _moment(spread: Spread, at: float) -> str:
    words = [format_seconds(at) if spread.known else f"{at / (spread.end or 1):.0%} of the run"]
    for name in _streams(spread):
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


def _streams(spread: Spread) -> list[str]:
    """Devices first, then links that copy."""
    return list(dict.fromkeys((*spread.made.machine.names, *spread.streams)))


def _held(spread: Spread, at: float) -> list[tuple[Waiting, list[str]]]:
    """The largest values at a moment, and who still reads them."""
    alive = [value for value in spread.waiting() if value.begin <= at < value.end]
    alive.sort(key=lambda value: -value.bytes)
    return [(value, [name for end, name in value.readers if end > at]) for value in alive[:HELD]]


def _row(found: tuple[Waiting, list[str]]) -> tuple[str, ...]:
    value, readers = found
    said = ", ".join(readers) or "\u2013"
    return format_bytes(value.bytes), value.value, value.device, value.producer, said


def _why(spread: Spread) -> str:
    made, alike = [], _in_turn(spread)
    for name in spread.made.machine.names:
        if name in alike:
            made.append(
                f"<p><b>{escape(name)}</b> takes samples in turn with {escape(alike[name])}, and "
                "holds as much for one.</p>"
            )
            continue
        if not spread.held[name].steps:
            made.append(f"<p><b>{escape(name)}</b> does nothing.</p>")
            continue
        time, count, op = spread.peak(name)
        limit = spread.made.limits.get(name)
        share = f", {count / limit:.0%} of its budget" if limit else ""
        when = f"at {format_seconds(time)}" if spread.known else "at the mark"
        made.append(
            f"<p><b>{escape(name)}</b> holds most {when}: {format_bytes(count)}{share}"
            + (f", while {escape(op)} runs" if op else "") + f".{_largest(spread, name, time)}</p>"
        )  # fmt: skip
    made.append(
        '<p class="quiet">The list above is of values between partitions and copies; what a '
        "partition holds inside is in the chart.</p>"
    )
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


def _largest(spread: Spread, device: str, time: float) -> str:
    """The largest value that waits on a device at a moment; not what is there all the time."""
    made = set(spread.names)
    found = [
        v for v in spread.waiting()
        if v.device == device and v.begin <= time < v.end and v.producer in made
    ]  # fmt: skip
    if not found:
        return ""
    first = max(found, key=lambda value: value.bytes)
    words = f" The largest that waits there then: <b>{escape(first.value)}</b>, "
    return words + f"{format_bytes(first.bytes)}, from {escape(first.producer)}."


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
    moved = [
        (sizes[a.value].bytes, a.value, f"{a.source} to {a.target}", start)
        for a, (start, _) in zip(spread.made.parts.actions, spread.times, strict=True)
        if isinstance(a, Copy) and not links.link(a.source, a.target).shared
    ]
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
        f"<p>The plan was made for {aim}, by costs of ops. It is proven that none within the "
        f"budgets takes less than <b>{format_seconds(facts['bound_seconds'])}</b>, so it is at "
        f"most <b>{facts['gap']:.2%}</b> from the least.</p>"
        f'<p class="quiet">Found: {escape(str(facts.get("status")))}, proven by '
        f"{escape(str(facts.get('bound_kind')))}.</p>"
    )


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
    streams = _streams(spread)
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
            for v in spread.waiting()
        ],
    }  # fmt: skip
    return json.dumps(data, separators=(",", ":"))
