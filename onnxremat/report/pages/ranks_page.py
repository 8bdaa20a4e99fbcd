"""One HTML file that explains the schedule of a pipeline: which rank computes what when, and what
is alive meanwhile."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape

from onnxremat.errors import UsageError
from onnxremat.report.pages.elements import Frame, Moments, made_here, table
from onnxremat.report.pages.time_chart import ROW, row_names, time_chart, x_at, y_of
from onnxremat.units import format_bytes, format_seconds
from onnxremat.workers.pipelines.replay import Action, Replay

MOST = 20_000  # actions on a page
COLOURS = {"F": "#1b7fbf", "B": "#009e73", "W": "#e69f00", "BW": "#009e73"}
WORDS = {
    "F": "forward", "B": "gradient of its input", "W": "gradients of its weights",
    "BW": "both gradients",
}  # fmt: skip


@dataclass(frozen=True)
class Shown:
    """A schedule to be explained.

    Attributes:
        bound: no order of these actions takes fewer seconds.
        command: that made it, as a line for a shell.
        memory: bytes of a rank per stage, at most; empty where only times are given.
        told: figures of a step on a cluster, each a label and words.
    """

    replay: Replay
    bound: float
    command: str = ""
    memory: tuple[int, ...] = ()
    told: tuple[tuple[str, str], ...] = ()

    @cached_property
    def actions(self) -> list[Action]:
        """Everything that runs, rank by rank."""
        return list(self.replay.actions())

    @cached_property
    def alive(self) -> list[list[tuple[float, int]]]:
        """Per stage (second, micro-batches alive from then on)."""
        changes: list[list[tuple[float, int]]] = [[] for _ in range(self.replay.pipeline.stages)]
        for each in self.actions:
            if each.kind == "F":
                changes[each.stage].append((each.start, 1))
            elif each.kind in ("W", "BW"):
                changes[each.stage].append((each.end, -1))
        return [list(_sums(sorted(row))) for row in changes]

    def count(self, stage: int, time: float) -> int:
        """Micro-batches alive in a stage at a moment."""
        return [number for at, number in self.alive[stage] if at <= time][-1]

    @cached_property
    def peak(self) -> tuple[float, int]:
        """(second, stage) where a stage keeps most alive, the first of them."""
        most = max(range(len(self.alive)), key=lambda stage: self.replay.peak[stage])
        top = self.replay.peak[most]
        return next(at for at, number in self.alive[most] if number == top), most


def _sums(changes: Sequence[tuple[float, int]]) -> Iterator[tuple[float, int]]:
    total = 0
    yield 0.0, 0
    for at, change in changes:
        total += change
        yield at, total


def ranks_page(shown: Shown) -> Frame:
    """The page of a schedule.

    Raises:
        UsageError: more actions than a page can hold.
    """
    if len(shown.actions) > MOST:
        raise UsageError(
            f"a page of {len(shown.actions)} actions is too large",
            why=f"at most {MOST} are shown",
            hint="a drawing (-o schedule.png), or fewer micro-batches",
        )
    replay, (at, _) = shown.replay, shown.peak
    pipeline = replay.pipeline
    moments = Moments(
        _draw(shown, at),
        _key(),
        (0, 1000, round(at / replay.makespan * 1000)),
        f"{_when(shown, at)}.",
        ("alive", "stage", "rank", "does now", "next"),
        _rows(shown, at),
        _data(shown, at),
        "ranks.js",
        "Micro-batches alive",
    )
    return Frame(
        f"A pipeline: {_counted(pipeline.stages, 'stage')}, "
        f"{_counted(pipeline.micro_batches, 'micro-batch')}",
        _lead(shown),
        (("In figures", table((), _figures(shown), name="facts")),),
        "Who computes what when",
        moments,
        (
            ("Where ranks wait", _waits(shown)),
            ("How far from the least it is", _proof(shown)),
            ("How it was made", made_here("the schedule", shlex.split(shown.command))),
        ),
    )


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 'es' if what.endswith('h') else 's'}"


def _scale(shown: Shown) -> tuple[float, str]:
    """What seconds are multiplied by on this page, and the unit."""
    end = shown.replay.makespan
    return (1.0, "s") if end >= 1 else (1e3, "ms") if end >= 1e-3 else (1e6, "us")


def _when(shown: Shown, time: float) -> str:
    """A moment, as the script writes it."""
    scale, unit = _scale(shown)
    return f"{time * scale:.2f} {unit}"


def _lead(shown: Shown) -> str:
    replay, (at, stage) = shown.replay, shown.peak
    alive = _counted(replay.peak[stage], "micro-batch")
    return (
        f"{_counted(replay.order.ranks, 'rank')}, scheduled by {escape(replay.order.name)}: all "
        f"gradients are there after <b>{format_seconds(replay.makespan)}</b>, and "
        f"<b>{replay.bubble:.1%}</b> of the ranks' time is waiting. Stage {stage} keeps most "
        f"alive, <b>{alive}</b> from {_when(shown, at)} on."
    )


def _figures(shown: Shown) -> list[tuple[str, str]]:
    replay = shown.replay
    limit = replay.pipeline.in_flight
    rows = [
        ("schedule", replay.order.name),
        ("until all gradients are there", format_seconds(replay.makespan)),
        ("proven", f"no order takes less than {format_seconds(shown.bound)}"),
        ("waiting", f"{replay.bubble:.1%} of the ranks' time"),
        ("alive at most", f"{max(replay.peak)} micro-batches in a stage"
         + (f", {limit} allowed" if limit else "")),
    ]  # fmt: skip
    if shown.memory:
        stage = max(range(len(shown.memory)), key=lambda at: shown.memory[at])
        rows.append(
            ("memory of a rank", f"{format_bytes(shown.memory[stage])} at most (stage {stage})")
        )
    return [*rows, *shown.told]


def _draw(shown: Shown, at: float) -> str:
    """The ``svg`` element: a row per rank."""
    ranks, total = shown.replay.order.ranks, shown.replay.makespan
    body = row_names([f"rank {rank}" for rank in range(ranks)])
    for each in shown.actions:
        x, end = x_at(each.start / total), x_at(each.end / total)
        words = f"{each.kind}{each.micro_batch} of stage {each.stage}, "
        words += format_seconds(each.end - each.start)
        body.append(
            f'<rect class="action" fill="{COLOURS[each.kind]}" x="{x:.1f}" y="{y_of(each.rank)}" '
            f'height="{ROW}" width="{max(0.5, end - x):.1f}"><title>{words}</title></rect>'
        )
    label = f"what {ranks} ranks compute over {format_seconds(total)}"
    return time_chart(
        body, y_of(ranks), at / total, label, lambda share: format_seconds(share * total)
    )


def _key() -> str:
    named = {COLOURS[kind]: f"{kind}, {WORDS[kind]}" for kind in ("F", "B", "W")}
    rows = [
        f'<li><span class="swatch" style="background:{colour}"></span>{words}</li>'
        for colour, words in named.items()
    ]
    return "".join(rows) + "<li>F6 is the forward pass of micro-batch 6</li>"


def _rows(shown: Shown, time: float) -> Iterator[tuple[str, ...]]:
    """Every stage at a moment."""
    for stage, rank in enumerate(shown.replay.order.rank):
        own = [each for each in shown.actions if each.stage == stage]
        now = next((f"{a.kind}{a.micro_batch}" for a in own if a.start <= time < a.end), "\u2013")
        later = next((f"{a.kind}{a.micro_batch}" for a in own if a.start > time), "\u2013")
        yield str(shown.count(stage, time)), str(stage), str(rank), now, later


def _waits(shown: Shown) -> str:
    replay, rows = shown.replay, []
    for rank in range(replay.order.ranks):
        own = [each for each in shown.actions if each.rank == rank]
        stages = sorted({each.stage for each in own})
        work = sum(each.end - each.start for each in own)
        cells = [f"rank {rank}", ", ".join(map(str, stages)), f"{work / replay.makespan:.0%}",
                 format_seconds(min((a.start for a in own), default=0.0)),
                 str(max((replay.peak[stage] for stage in stages), default=0))]  # fmt: skip
        if shown.memory:
            cells.append(format_bytes(sum(shown.memory[stage] for stage in stages)))
        rows.append(cells)
    heads = ["rank", "stages", "at work", "begins at", "alive at most"]
    heads += ["memory"] if shown.memory else []
    return table(heads, rows, numbers=len(heads) - 2)


def _proof(shown: Shown) -> str:
    replay = shown.replay
    gap = replay.makespan / shown.bound - 1
    return (
        f"<p>It is proven that no order of these actions takes less than "
        f"<b>{format_seconds(shown.bound)}</b>, so it is at most <b>{gap:.2%}</b> from the least."
        "</p>"
        '<p class="quiet">Simulated, from an empty pipeline to an empty one; transfers run beside '
        "computing. A micro-batch is alive in a stage from the start of its F to the end of its W."
        "</p>"
    )


def _data(shown: Shown, at: float) -> str:
    """What the script on the page needs."""
    order, (scale, unit) = shown.replay.order, _scale(shown)
    data = {
        "at": at, "end": shown.replay.makespan, "scale": scale, "unit": unit,
        "ranks": list(order.rank),
        "actions": [
            [each.stage, each.start, each.end, f"{each.kind}{each.micro_batch}"]
            for each in sorted(shown.actions, key=lambda each: each.start)
        ],
        "alive": shown.alive,
    }  # fmt: skip
    return json.dumps(data, separators=(",", ":"))
