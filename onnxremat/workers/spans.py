"""What a process did when, for a trace."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnxremat.workers.courier import Courier

LIMIT = 20_000  # of the latest ones


@dataclass(frozen=True)
class Span:
    """A stretch of time.

    Attributes:
        lane: ``compute``, ``transfer`` or ``wait``.
        begin, end: by ``time.perf_counter``, which processes of a machine share.
    """

    lane: str
    name: str
    begin: float
    end: float


@dataclass
class Spans:
    """What was done so far; nothing is kept unless ``on``."""

    on: bool = False
    rows: list[Span] = field(default_factory=list)

    def add(self, lane: str, name: str, begin: float, end: float) -> None:
        """It was done."""
        if self.on:
            self.rows.append(Span(lane, name, begin, end))
            del self.rows[:-LIMIT]

    def watch(self, courier: Courier) -> None:
        """Add its transfers. It knows nobody else by that, and whoever has it can be dropped."""
        add = self.add
        courier.finished = lambda each: add("transfer", each.name, each.begin, each.end)

    @contextmanager
    def during(self, lane: str, name: str) -> Iterator[None]:
        """What is done inside."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.add(lane, name, begin, time.perf_counter())
