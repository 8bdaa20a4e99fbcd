"""Talking to people on stderr, to programs on stdout; interrupts."""

from __future__ import annotations

import json
import math
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from rich.status import Status
from rich.text import Text

from onnxremat.cli.crash import LAST_WORD
from onnxremat.cli.interrupt import KEEPS, WATCH
from onnxremat.errors import EndedError, NoPlanError, OverBudgetError, StoppedError
from onnxremat.report.literal import LiteralConsole
from onnxremat.units import format_bytes, format_seconds


class Interrupt:
    """First Ctrl-C: stop planning and keep the best so far. Second, or first where nobody has asked
    yet whether to stop: give up.

    Attributes:
        at_once: what runs has nothing to keep: give up at the first.
    """

    def __init__(self) -> None:
        self.asked = self.at_once = self._heeded = False
        self._kept: bool | None = None  # whether something is, without what runs; None: it decides

    def __call__(self) -> bool:
        self._heeded = True
        return self.asked

    @property
    def gives_up(self) -> bool:
        """Whether Ctrl-C now ends what runs."""
        if self._kept is not None:
            return self.asked or not self._kept
        return self.asked or self.at_once or not self._heeded

    def handle(self, number: int, frame: FrameType | None) -> None:
        given_up, self.asked = self.gives_up, True
        if not given_up:
            WATCH.answered()
            WATCH.acknowledge()
            if self._kept:
                raise EndedError
        elif not WATCH.leaving:
            WATCH.leaving = True
            raise KeyboardInterrupt

    @contextmanager
    def ending(self, kept: bool) -> Iterator[None]:
        """Ctrl-C ends what runs inside at once.

        Args:
            kept: there is a result without it: it ends by EndedError, to be caught.
        """
        before, self._kept = self._kept, kept
        try:
            yield
        finally:
            self._kept = before


class Voice:
    """Where output goes.

    Args:
        as_json: the result is one JSON object on stdout; everything else goes to stderr.
        quiet: nothing but errors and results.
    """

    def __init__(self, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json, self.quiet = as_json, quiet
        self.err = LiteralConsole(stderr=True, quiet=quiet)
        self.out = LiteralConsole(soft_wrap=True)
        self._status: Status | None = None
        self._stage, self._since = "", 0.0
        LAST_WORD.at("")

    @contextmanager
    def working(self, abandon: Callable[[], None] | None = None) -> Iterator[Interrupt]:
        """Show what is being done; Ctrl-C asks for the best so far.

        Args:
            abandon: stops what runs, from another thread, where it takes long to answer Ctrl-C.

        Raises:
            StoppedError: there is none.
        """
        interrupt = Interrupt()
        before = signal.signal(signal.SIGINT, interrupt.handle)
        self._status = self.err.status("starting") if self.err.is_terminal else None
        try:
            if self._status:
                self._status.start()
            deferred = lambda: not (abandon or interrupt.gives_up)  # noqa: E731
            with WATCH.told(deferred, abandon, "" if self.quiet else KEEPS):
                yield interrupt
        except (KeyboardInterrupt, EndedError, NoPlanError, OverBudgetError) as error:
            if interrupt.asked:  # it had no time to find one
                raise StoppedError("interrupted before there was a result") from error
            raise
        finally:
            if self._status:
                self._status.stop()
                self._status = None
            signal.signal(signal.SIGINT, before)

    def say(self, stage: str) -> None:
        """A new stage begins."""
        self._stage, self._since = stage, time.perf_counter()
        LAST_WORD.at(stage)
        if self._status:
            self._status.update(Text(stage))
        elif not self.quiet:
            self.err.print(f"- {stage}")

    def ended(self, phase: str, seconds: float) -> None:
        """A phase has ended, for those who ask."""
        self.note(f"  {phase}: {format_seconds(seconds)} so far")

    def update(self, text: str) -> None:
        """What the stage at hand is at; only shown on a terminal."""
        if self._status:
            self._status.update(Text(text))

    def planning(self, best: float, bound: float, stage: str) -> None:
        """Best time and bound moved."""
        if self._status:
            seconds = time.perf_counter() - self._since
            words = f"no plan yet, bound {format_seconds(bound)}"
            if math.isfinite(best):
                gap = max(0.0, 1 - bound / best) if best > 0 else 0.0
                words = (
                    f"best {format_seconds(best)}, bound {format_seconds(bound)}, gap {gap:.3%}; "
                    "Ctrl-C keeps it"
                )
            self._status.update(Text(f"planning ({stage}), {seconds:.0f} s: {words}"))

    def result(self, facts: Mapping[str, Any]) -> None:
        """One JSON object on stdout, in small parts: a large write into a pipe that a signal
        interrupts is cut short by Python without an error."""
        json.dump(_plain(facts), sys.stdout, indent=2)
        sys.stdout.write("\n")
        sys.stdout.flush()

    def note(self, text: str) -> None:
        """A line for people."""
        self.err.print(text)

    def command(self, what: str, words: Sequence[str]) -> None:
        """A command to be copied into a shell: its line is not broken."""
        self.err.print(f"{what}: {shlex.join(words)}", soft_wrap=True)

    def aside(self, table: Any) -> None:
        """A rich table beside an error: on stderr."""
        self.err.print(table)

    def table(self, table: Any) -> None:
        """A rich table for people: stdout, or stderr beside JSON."""
        if not self.quiet:
            (self.err if self.as_json else self.out).print(table)


def _plain(value: Any) -> Any:
    """JSON has no infinities."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def size(count: float | None) -> str:
    """Bytes for people, a dash for nothing."""
    return "-" if count is None else format_bytes(count)


def percent(share: float | None, digits: int = 2) -> str:
    """A share as percent, a dash for nothing."""
    return "-" if share is None else f"{share:+.{digits}%}"
