"""A pipeline's schedule for people and programs: a chart in text, a trace, rows."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from onnxremat.graph.atomic import atomic
from onnxremat.report.chrome_trace import Event, named_thread, save_trace
from onnxremat.report.suffix import check_suffix
from onnxremat.workers.pipeline import KINDS
from onnxremat.workers.pipelines.replay import Replay, Seconds

STYLES = {
    "F": "white on blue",
    "B": "white on green",
    "W": "black on yellow",
    "BW": "white on green",
}
IDLE, SHOWN = "·", 24  # ranks in a chart of text
CELLS = 3  # letters of the shortest action, where there is room


def pipeline_facts(replay: Replay, bound: float, schedule: str) -> dict[str, Any]:
    """A schedule and its figures, for programs; seconds and numbers of micro-batches.

    Args:
        schedule: as asked for.
    """
    pipeline, order = replay.pipeline, replay.order
    return {
        "schedule": schedule,
        "found_by": order.name,
        "stages": pipeline.stages,
        "ranks": order.ranks,
        "rank_of_stage": list(order.rank),
        "micro_batches": pipeline.micro_batches,
        "in_flight": pipeline.in_flight,
        "forward": list(pipeline.forward),
        "backward": list(pipeline.backward),
        "weight": list(pipeline.weight),
        "communication": list(pipeline.communication),
        "makespan": replay.makespan,
        "bound": bound,
        "gap": replay.makespan / bound - 1,
        "bubble": replay.bubble,
        "peak": list(replay.peak),
    }


def pipeline_chart(replay: Replay, bound: float, width: int) -> RenderableType:
    """A row of letters per rank, time to the right, and the figures under it.

    Args:
        width: letters of a line.
    """
    order, pipeline = replay.order, replay.pipeline
    label = len(f"rank {order.ranks - 1} ")
    shortest = min(
        *pipeline.forward, *pipeline.backward, *(w for w in pipeline.weight if w > 0), 1e99
    )
    wanted = round(CELLS * replay.makespan / shortest)
    cells = max(20, min(width - label - 1, wanted))
    lines = []
    for rank, row in enumerate(rank_rows(replay)):
        if rank == SHOWN // 2 and order.ranks > SHOWN:
            lines.append(Text(f"... {order.ranks - SHOWN} more ranks"))
        if order.ranks <= SHOWN or min(rank, order.ranks - 1 - rank) < SHOWN // 2:
            lines.append(
                Text(f"rank {rank}".ljust(label)) + _line(row, cells / replay.makespan, cells)
            )
    peak = max(replay.peak)
    lines += [
        Text(
            f"{order.name}: {replay.makespan:g} s for {pipeline.micro_batches} micro-batches, "
            f"waiting {replay.bubble:.1%}"
        ),
        Text(f"proven: at least {bound:g} s (found + {replay.makespan / bound - 1:.2%})"),
        Text(f"at most {peak} micro-batches alive in a stage"),
    ]
    return Group(*lines)


Row = tuple[list[str], list[int], Seconds, Seconds]


def rank_rows(replay: Replay) -> Iterator[Row]:
    """Per rank: kinds, micro-batches, starts and ends."""
    for steps, start, end in replay.rows():
        numbers = np.zeros(len(steps), np.int64)
        for step in np.unique(steps):
            at = steps == step
            numbers[at] = np.arange(int(at.sum()))
        yield [KINDS[kind] for kind in (steps % 4).tolist()], numbers.tolist(), start, end


def _line(row: Row, scale: float, cells: int) -> Text:
    """One rank; actions of less than a letter may be covered by others."""
    letters, styles = [IDLE] * cells, ["dim"] * cells
    for kind, number, start, end in zip(*row, strict=True):
        first, last = round(start * scale), min(round(end * scale), cells)
        name = f"{kind}{number}"
        size = last - first
        if size > 0:
            shown = name if len(name) < size else kind[:1]
            letters[first:last] = list(shown.ljust(size)[:size])
            styles[first:last] = [STYLES[kind]] * size
    line = Text()
    for letter, style in zip(letters, styles, strict=True):
        line.append(letter, style=style)
    return line


def write_pipeline_trace(replay: Replay, path: str | Path, *, title: str) -> None:
    """The schedule for Perfetto: a thread per rank.

    Raises:
        UsageError: another suffix than .json, or the folder is not writable.
    """
    events: list[Event] = []
    for rank in range(replay.order.ranks):
        events += named_thread(1, rank + 1, f"rank {rank}")
    for each in replay.actions():
        begin = round(each.start * 1e6, 3)
        events.append({
            "ph": "X", "pid": 1, "tid": each.rank + 1, "ts": begin,
            "dur": round(round(each.end * 1e6, 3) - begin, 3), "cat": each.kind,
            "name": f"{each.kind}{each.micro_batch}",
            "args": {"stage": each.stage, "micro_batch": each.micro_batch},
        })  # fmt: skip
    save_trace(path, {"tool": "onnxremat", "model": title}, events)


def write_pipeline_rows(replay: Replay, path: str | Path) -> None:
    """A row per action: rank, stage, action, micro-batch, start and end in seconds.

    Raises:
        UsageError: another suffix than .csv, or the folder is not writable.
    """
    target = Path(path)
    check_suffix(target, (".csv",))
    with atomic(target) as temporary, temporary.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("rank", "stage", "action", "micro_batch", "start", "end"))
        for each in replay.actions():
            writer.writerow(
                (each.rank, each.stage, each.kind, each.micro_batch, each.start, each.end)
            )
