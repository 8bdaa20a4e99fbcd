"""Ctrl-C while compiled code runs.

Python answers a signal when the main thread is back from compiled code: a run or the opening of a
session may take minutes. The byte that the C handler writes (``signal.set_wakeup_fd``) is there at
once, and onnxruntime lets other threads go on while it works.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

GRACE = 1.0  # seconds without an answer until what runs is told to stop
PATIENCE = 2.0  # seconds without an answer until the process ends
POLL = 0.02  # seconds between two looks
NEWS = b"error: interrupted\n"


def _nothing() -> None:
    """Nothing that runs can be told to stop."""


def _never() -> bool:
    return False


class Watch:
    """Ends what takes too long to answer Ctrl-C.

    Attributes:
        abandon: tells what runs to stop; called from a thread.
        deferred: whether what runs may first come to an end, because its result is kept.
    """

    def __init__(self) -> None:
        self.abandon: Callable[[], None] = _nothing
        self.deferred: Callable[[], bool] = _never
        self._answer = 0.0
        self._waiting = 0

    def answered(self) -> None:
        """A Python handler has run."""
        self._answer, self._waiting = time.monotonic(), 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch while the block runs, in the main thread."""
        source, sink = os.pipe()
        os.set_blocking(sink, False)
        before = signal.set_wakeup_fd(sink, warn_on_full_buffer=False)
        thread = threading.Thread(target=self._watch, args=(source,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            os.close(sink)  # ends the thread
            thread.join(PATIENCE + GRACE)

    @contextmanager
    def told(
        self, deferred: Callable[[], bool], abandon: Callable[[], None] | None
    ) -> Iterator[None]:
        """While the block runs, what can wait and how to stop it."""
        before = self.abandon, self.deferred
        self.abandon, self.deferred = abandon or _nothing, deferred
        try:
            yield
        finally:
            self.abandon, self.deferred = before

    def _watch(self, source: int) -> None:
        with os.fdopen(source, "rb", buffering=0) as pipe:
            while numbers := pipe.read(64):
                if signal.SIGINT in numbers:
                    self._pressed(time.monotonic(), numbers.count(signal.SIGINT))

    def _pressed(self, begin: float, times: int) -> None:
        self._waiting += times
        if self._answers(begin, GRACE):
            return
        self.abandon()
        if self._answers(begin, PATIENCE) or (self._waiting == 1 and self.deferred()):
            return
        os.write(2, (b"\x1b[?25h" if os.isatty(2) else b"") + NEWS)
        sys.stdout.flush()
        os._exit(130)

    def _answers(self, begin: float, seconds: float) -> bool:
        """Whether a handler runs within so many seconds of ``begin``, or did just before it."""
        while self._answer < begin - POLL:
            if time.monotonic() > begin + seconds:
                return False
            time.sleep(POLL)
        return True


WATCH = Watch()
