"""Batches tried for a budget, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rich.console import Group, RenderableType
from rich.text import Text

from onnxremat.report.comparison import least, signed
from onnxremat.report.tables import plain_table
from onnxremat.units import format_bytes, format_seconds


class Trial(Protocol):
    """One batch; see :class:`onnxremat.studies.max_batch.Trial`."""

    @property
    def batch(self) -> int: ...
    @property
    def verdict(self) -> str: ...
    @property
    def store_all_process(self) -> int: ...
    @property
    def process(self) -> int | None: ...
    @property
    def overhead(self) -> float | None: ...
    @property
    def seconds(self) -> float | None: ...
    @property
    def throughput(self) -> float | None: ...


def batch_table(trials: Sequence[Trial], dimension: str, budget: int) -> RenderableType:
    """Smallest batch first."""
    table = plain_table()
    for name in (dimension, "store all", "planned", "overhead", "one run", "a second"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for trial in trials:
        table.add_row(
            str(trial.batch), format_bytes(trial.store_all_process), least(trial.process) or "-",
            signed(trial.overhead) or "-",
            "-" if trial.seconds is None else format_seconds(trial.seconds),
            "-" if trial.throughput is None else f"{trial.throughput:.3g}",
            Text(trial.verdict), style="" if trial.verdict == "fits" else "dim",
        )  # fmt: skip
    title = Text(f"batches within {format_bytes(budget)}", style="bold")
    words = "bytes of the process and times are predicted; a second: samples, not runs"
    return Group(title, table, Text(words))
