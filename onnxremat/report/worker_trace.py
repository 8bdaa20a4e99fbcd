"""What several processes did when, for Perfetto: a process each, with a thread per lane."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from onnxremat.report.chrome_trace import Event, named_thread, save_trace
from onnxremat.workers.spans import Span

LANES = ("compute", "transfer", "wait")


def write_worker_trace(ranks: Sequence[Sequence[Span]], path: str | Path, *, title: str) -> None:
    """The spans of every rank; time begins with the first.

    Raises:
        UsageError: another suffix than .json, or the folder is not writable.
    """
    begin = min((span.begin for rank in ranks for span in rank), default=0.0)
    events: list[Event] = []
    for rank, spans in enumerate(ranks):
        events.append(
            {"ph": "M", "pid": rank, "name": "process_name", "args": {"name": f"rank {rank}"}}
        )
        for number, lane in enumerate(LANES, 1):
            events += named_thread(rank, number, lane)
        for span in spans:
            at, until = (round((moment - begin) * 1e6, 3) for moment in (span.begin, span.end))
            events.append({
                "ph": "X", "pid": rank, "tid": LANES.index(span.lane) + 1, "ts": at,
                "dur": round(until - at, 3), "cat": span.lane, "name": span.name,
            })  # fmt: skip
    save_trace(path, {"tool": "onnxremat", "model": title}, events)
