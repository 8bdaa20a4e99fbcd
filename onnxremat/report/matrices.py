"""A plan as matrices: computed (R), stored (S), copies, and bytes, per device and timestep."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from onnxremat.errors import UsageError
from onnxremat.graph.atomic import atomic, not_left_empty
from onnxremat.pipeline.planned import Planned
from onnxremat.schedule.timesteps import Timesteps
from onnxremat.units import format_bytes

Rows = Iterable[Sequence[Any]]
FIRST, AGAIN, STORED, NONE = "●", "○", "■", "·"
NAME = 20  # letters of a name; its end tells more than its beginning
BESIDE = 46  # letters of a row beside the matrices
LEGEND = (
    f"row t ends with the first run of op t; computed: {FIRST} first run, {AGAIN} again, column k "
    f"is the op of row k; stored: {STORED} there when the timestep begins"
)


def matrices(planned: Planned, width: int) -> RenderableType:
    """The matrices of every device where they fit into ``width`` letters, else one list of all
    timesteps."""
    steps = planned.steps
    held = stored_values(steps)
    if BESIDE + len(steps.ops) + len(held) > width:
        return Group(timestep_list(planned), Text(_too_wide(steps, held)))
    legend = [Text(LEGEND)]
    if held:
        legend.append(Text("stored values, left to right: " + ", ".join(held)))
    return Group(*(_device(planned, name, held) for name in steps.devices), *legend)


def stored_values(steps: Timesteps) -> list[str]:
    """Values that any device holds from one timestep to another, in order of their making."""
    found = {value for _, _, value in steps.stored}
    return [value for value in steps.values if value in found]


def _too_wide(steps: Timesteps, held: Sequence[str]) -> str:
    wanted = BESIDE + len(steps.ops) + len(held)
    return (
        f"the matrices have {len(steps.ops)} + {len(held)} columns: a terminal of {wanted} letters "
        "shows them (COLUMNS), --csv DIR writes them, --json prints them"
    )


def _device(planned: Planned, device: str, held: Sequence[str]) -> RenderableType:
    steps = planned.steps
    if not any(device == name for name, _, _ in (*steps.computed, *steps.stored)):
        return Text(f"{device}: nothing runs there\n")
    table = Table(box=box.SIMPLE_HEAD, title=_title(planned, device), title_justify="left")
    for name in ("t", "first run", "computed", "stored", "copied here", "bytes"):
        right = name in ("t", "bytes")
        table.add_column(name, justify="right" if right else "left", no_wrap=True)
    for t, op in enumerate(steps.ops):
        came = [_short(v, 12) for at, v, _, b in steps.copies if (at, b) == (t, device)]
        table.add_row(
            str(t),
            _short(op, NAME) if steps.home[t] == device else f"({steps.home[t]})",
            "".join(_computed(steps, device, t, other) for other in steps.ops),
            "".join(STORED if (device, t, v) in steps.stored else NONE for v in held),
            ", ".join(came),
            _size(planned.bytes.get((device, t))),
        )
    return table


def _title(planned: Planned, device: str) -> str:
    peak = max((size for (name, _), size in planned.bytes.items() if name == device), default=0)
    budget = planned.budgets.get(device)
    words = f"{device}: peak {format_bytes(peak)}"
    return words + (f" of {format_bytes(budget)}" if budget else "")


def _computed(steps: Timesteps, device: str, t: int, op: str) -> str:
    count = steps.computed.get((device, t, op), 0)
    if not count:
        return NONE
    if count > 1:
        return str(min(count, 9))
    return FIRST if steps.ops[t] == op else AGAIN


def timestep_list(planned: Planned) -> Table:
    """All timesteps below each other: what is copied and runs again in it, its first run, the
    bytes of each device and how many values it stored when the timestep began."""
    steps = planned.steps
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("t", justify="right")
    for name in ("", "op or value", "on"):
        table.add_column(name, no_wrap=True)
    for device in steps.devices:
        table.add_column(f"{device} (stored)", justify="right", no_wrap=True)
    count = Counter((device, t) for device, t, _ in steps.stored)
    for t, op in enumerate(steps.ops):
        for at, value, source, target in steps.copies:
            if at == t:
                table.add_row("", "copy", _short(value, NAME), f"{source}>{target}")
        for device, again, times in _again(steps, t):
            table.add_row("", "again", _short(again, NAME), device + f" x{times}" * (times > 1))
        table.add_row(
            str(t), "first", _short(op, NAME), steps.home[t],
            *(f"{_size(planned.bytes.get((d, t)))} ({count[d, t]})" for d in steps.devices),
        )  # fmt: skip
    return table


def _again(steps: Timesteps, t: int) -> Iterator[tuple[str, str, int]]:
    """(device, op, times) of the runs of a timestep but the first run that ends it."""
    for device in steps.devices:
        for op in steps.ops[: t + 1]:
            times = steps.computed.get((device, t, op), 0)
            times -= op == steps.ops[t] and device == steps.home[t]
            if times > 0:
                yield device, op, times


def _short(name: str, most: int) -> str:
    return name if len(name) <= most else "…" + name[1 - most :]


def _size(count: int | None) -> str:
    return "-" if count is None else format_bytes(count)


def as_facts(planned: Planned) -> dict[str, Any]:
    """The matrices as plain data: names once, then one entry per timestep."""
    steps = planned.steps
    return {
        "devices": list(steps.devices),
        "budget_bytes": dict(planned.budgets),
        "timesteps": [
            {
                "timestep": t,
                "op": op,
                "device": steps.home[t],
                "computed": {
                    d: {o: n for o in steps.ops[: t + 1] if (n := steps.computed.get((d, t, o), 0))}
                    for d in steps.devices
                },
                "stored": {
                    d: [v for v in steps.values if (d, t, v) in steps.stored] for d in steps.devices
                },
                "copies": [[v, a, b] for at, v, a, b in steps.copies if at == t],
                "bytes": {d: planned.bytes.get((d, t)) for d in steps.devices},
            }
            for t, op in enumerate(steps.ops)
        ],
    }


def write_csv(planned: Planned, folder: Path) -> list[Path]:
    """``R-DEVICE.csv`` (timestep x op: runs), ``S-DEVICE.csv`` (timestep x value: 0 or 1),
    ``copies.csv`` and ``memory.csv``, all of them or none; returns the files.

    Raises:
        UsageError: the folder is not writable, or holds matrices of a plan over other devices.
        ExhaustedError: the disk is full.
    """
    tables = dict(_tables(planned))
    with not_left_empty(folder), ExitStack() as written:
        _prepare(folder, tables)
        for name, (head, rows) in tables.items():
            temporary = written.enter_context(atomic(folder / name))
            with temporary.open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                writer.writerow(head)
                writer.writerows(rows)
    return [folder / name for name in tables]


def _prepare(folder: Path, names: Collection[str]) -> None:
    """Make a folder for files of these names."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        there = {path.name for kind in "RS" for path in folder.glob(f"{kind}-*.csv")}
    except OSError as error:
        raise UsageError(f"cannot write to {folder}", why=error.strerror or str(error)) from error
    if left := sorted(there.difference(names)):
        raise UsageError(
            f"{folder} holds matrices of another plan: {left[0]}",
            why="they would lie beside those of this one",
            hint="give another folder, or remove them",
        )


def _tables(planned: Planned) -> Iterator[tuple[str, tuple[Sequence[str], Rows]]]:
    """By the names of their files: columns, and rows that are made as they are written: there are
    as many as ops, as long as there are ops or values."""
    steps = planned.steps
    names = set[str]()
    for device in steps.devices:
        name = "".join(letter if letter.isalnum() else "-" for letter in device)
        if name in names:  # of cuda:0 and cuda-0
            name = f"{name}-{len(names)}"
        names.add(name)
        yield f"R-{name}.csv", (["timestep", *steps.ops], _runs(steps, device))
        yield f"S-{name}.csv", (["timestep", *steps.values], _held(steps, device))
    yield "copies.csv", (["timestep", "value", "from", "to"], steps.copies)
    sizes = [
        [t, op, *(planned.bytes.get((d, t), "") for d in steps.devices)]
        for t, op in enumerate(steps.ops)
    ]
    yield "memory.csv", (["timestep", "op", *steps.devices], sizes)


def _runs(steps: Timesteps, device: str) -> Iterator[Sequence[int]]:
    for t in range(len(steps.ops)):
        yield [t, *(steps.computed.get((device, t, op), 0) for op in steps.ops)]


def _held(steps: Timesteps, device: str) -> Iterator[Sequence[int]]:
    for t in range(len(steps.ops)):
        yield [t, *(int((device, t, value) in steps.stored) for value in steps.values)]
