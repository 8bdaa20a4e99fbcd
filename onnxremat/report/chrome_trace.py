"""A trace for Perfetto (ui.perfetto.dev) and chrome://tracing: planned beside measured.

Process 1 is the plan as simulated, process 2 a profiled run. Each has one thread for first runs
(category ``compute``), one for recomputations (``recompute``) and one for gates and pins
(``order``), and counter tracks in bytes: ``memory`` (the total a budget counts) and, for the
plan, one per kind of value. Arrows lead from the first run of an op to its recomputations.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx import NodeProto

from onnxremat.graph.atomic import atomic
from onnxremat.graph.ir import Graph, Op
from onnxremat.ort.profile import Profile
from onnxremat.report.pages.composition import compose, totals
from onnxremat.report.suffix import check_suffix
from onnxremat.rewrite.pins import is_added
from onnxremat.schedule.simulate import Timeline

PLANNED, MEASURED = 1, 2  # process ids
THREADS = {"compute": 1, "recompute": 2, "order": 3}
NAMES = {"compute": "ops", "recompute": "recomputed ops", "order": "gates and pins"}
BLANK = 1e-6  # seconds of every op where no cost is known

Event = dict[str, Any]


@dataclass(frozen=True)
class Slice:
    """One executed op of a lane.

    Attributes:
        seconds: its duration.
        args: what a click on it shows.
    """

    op: Op
    seconds: float
    args: Mapping[str, Any]


def write_trace(
    graph: Graph,
    predicted: Timeline,
    path: str | Path,
    *,
    measured: Profile | None = None,
    budget: int | None = None,
    title: str = "",
) -> None:
    """Write the trace of a run.

    Args:
        graph: the graph that runs (the rewritten one, recomputations included).
        predicted: its simulated timeline.
        path: ``.json``.
        measured: a profiled run of the same graph.
        budget: bytes, a counter of its own.
        title: the model's name.

    Raises:
        UsageError: another suffix, or the folder is not writable.
    """
    trace = make_trace(graph, predicted, measured=measured, budget=budget, title=title)
    save_trace(path, trace["otherData"], trace["traceEvents"])


def save_trace(path: str | Path, facts: Mapping[str, Any], events: Sequence[Event]) -> None:
    """Write events to a file.

    Raises:
        UsageError: another suffix than .json, or the folder is not writable.
    """
    target = Path(path)
    check_suffix(target, (".json",))
    trace = {"displayTimeUnit": "ms", "otherData": dict(facts), "traceEvents": list(events)}
    with atomic(target) as temporary:
        temporary.write_text(json.dumps(trace, separators=(",", ":")) + "\n")


def make_trace(
    graph: Graph,
    predicted: Timeline,
    *,
    measured: Profile | None = None,
    budget: int | None = None,
    title: str = "",
) -> dict[str, Any]:
    """The trace as plain data; see :func:`write_trace`."""
    ops = {op.name: op for op in graph.ops}
    slices = _planned_slices(ops, predicted)
    held = {"memory": totals(predicted).tolist()}
    held |= {f"memory: {k.value}": row.tolist() for k, row in compose(graph, predicted).items()}
    events = [*_process(PLANNED, "planned", title)]
    events += _lane(PLANNED, slices, held, budget)
    if measured is not None:
        weights = max(predicted.weight_bytes, measured.weight_bytes)
        kernels = [weights + k.live + k.scratch for k in measured.kernels]
        events += _process(MEASURED, "measured", title)
        events += _lane(MEASURED, _measured_slices(ops, measured), {"memory": kernels}, budget)
    facts = {"tool": "onnxremat", "model": title, "budget_bytes": budget}
    if predicted.total_seconds <= 0:
        facts["note"] = "no costs are known: every planned op is drawn 1 us long"
    return {"displayTimeUnit": "ms", "otherData": facts, "traceEvents": events}


def _planned_slices(ops: Mapping[str, Op], predicted: Timeline) -> list[Slice]:
    known = predicted.total_seconds > 0
    rows = zip(predicted.ops, predicted.seconds, predicted.live, predicted.scratch, strict=True)
    return [
        Slice(ops[name], seconds if known else BLANK, _args(ops[name], step, live, scratch))
        for step, (name, seconds, live, scratch) in enumerate(rows)
    ]


def _measured_slices(ops: Mapping[str, Op], measured: Profile) -> list[Slice]:
    """Kernels that onnxruntime made itself by fusing count as ops of their own."""
    made = []
    for step, kernel in enumerate(measured.kernels):
        op = ops.get(kernel.name)
        if op is None:
            op = Op(kernel.name, kernel.op_type, "", (), (), (), NodeProto())
        args = _args(op, step, kernel.live, kernel.scratch)
        made.append(Slice(op, kernel.seconds, {**args, "provider": kernel.provider}))
    return made


def _args(op: Op, step: int, live: int, scratch: int) -> dict[str, Any]:
    args: dict[str, Any] = {"type": op.op_type, "step": step, "live_bytes": live}
    if scratch:
        args["scratch_bytes"] = scratch
    if op.origin:
        args["recomputes"] = op.origin
    return args


def _process(process: int, name: str, title: str) -> Iterator[Event]:
    label = f"{name} ({title})" if title else name
    yield _meta(process, 0, "process_name", {"name": label})
    yield _meta(process, 0, "process_sort_index", {"sort_index": process})
    for kind, thread in THREADS.items():
        yield from named_thread(process, thread, NAMES[kind])


def named_thread(process: int, thread: int, name: str) -> Iterator[Event]:
    """The name of a thread, and its place among the others: by number."""
    yield _meta(process, thread, "thread_name", {"name": name})
    yield _meta(process, thread, "thread_sort_index", {"sort_index": thread})


def _meta(process: int, thread: int, name: str, args: Mapping[str, Any]) -> Event:
    return {"ph": "M", "pid": process, "tid": thread, "name": name, "args": dict(args)}


def category(op: Op) -> str:
    """``order`` for gates and pins, ``recompute`` for recomputations, ``compute`` else."""
    if is_added(op.name):
        return "order"
    return "recompute" if op.origin else "compute"


def _lane(
    process: int, slices: Sequence[Slice], held: Mapping[str, Sequence[int]], budget: int | None
) -> Iterator[Event]:
    """Slices end to end, counters where they change, and the arrows between runs of an op."""
    now = 0.0
    first: dict[str, float] = {}
    last: dict[str, int] = {}
    for step, item in enumerate(slices):
        end = now + item.seconds * 1e6
        # Rounded ends, not lengths: slices must not overlap by a nanosecond.
        at = {"pid": process, "tid": THREADS[category(item.op)], "ts": round(now, 3)}
        length = round(round(end, 3) - at["ts"], 3)
        yield {
            "ph": "X", **at, "dur": length, "name": item.op.name,
            "cat": category(item.op), "args": dict(item.args),
        }  # fmt: skip
        if item.op.origin in first:
            yield from _arrow(process, step, first[item.op.origin], at)
        first.setdefault(item.op.name, at["ts"])
        for name, row in held.items():
            if last.get(name) != row[step]:
                last[name] = row[step]
                yield _counter(process, at["ts"], name, row[step])
        now = end
    if slices:
        for name in held:
            yield _counter(process, round(now, 3), name, last[name])
        if budget:
            yield _counter(process, 0.0, "memory: budget", budget)
            yield _counter(process, round(now, 3), "memory: budget", budget)


def _counter(process: int, moment: float, name: str, value: int) -> Event:
    return {"ph": "C", "pid": process, "ts": moment, "name": name, "args": {"value": value}}


def _arrow(process: int, step: int, start: float, at: Mapping[str, Any]) -> Iterator[Event]:
    """From the slice of the first run to this one."""
    key = {"id": process * 10_000_000 + step, "name": "recomputed", "cat": "recompute"}
    yield {"ph": "s", "pid": process, "tid": THREADS["compute"], "ts": start, **key}
    yield {"ph": "f", "bp": "e", **at, **key}
