"""Ctrl-C while compiled code runs.

Python answers a signal when the main thread is back from compiled code: a run or the opening of a
session may take minutes. The byte that the C handler writes (``signal.set_wakeup_fd``) is there at
once, and onnxruntime lets other threads go on while it works.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

GRACE = 1.0  # seconds without an answer until what runs is told to stop
PATIENCE = 2.0  # seconds without an answer until the process ends
AGAIN = 0.2  # and after another signal, which no handler got to see: compiled code runs
POLL = 0.02  # seconds between two looks
NEWS = "error: interrupted"
KEEPS = "stopping; what there is so far is kept, once it is checked (Ctrl-C again ends at once)"


def _nothing() -> None:
    """Nothing that runs can be told to stop."""


def _never() -> bool:
    return False


def leave(code: int) -> NoReturn:
    """End the process at once; only temporary folders and half-written files go."""
    # Of a module that is not there, or was being imported, nothing was called that needs it.
    getattr(sys.modules.get("onnxremat.graph.temporary"), "remove_folders", _nothing)()
    getattr(sys.modules.get("onnxremat.graph.atomic"), "remove_unfinished", _nothing)()
    os._exit(code)


def _write(line: str) -> None:
    """A line on stderr, from a thread or a handler; on a terminal over what is shown there, the
    cursor visible."""
    before = "\r\x1b[2K\x1b[?25h" if os.isatty(2) else ""
    os.write(2, f"{before}{line}\n".encode())


class Watch:
    """Ends what takes too long to answer Ctrl-C.

    The bytes of signals stay in the pipe until a Python handler takes them out: what is in there
    is not answered yet, however late this thread gets to look. A handler that raises leaves them
    there: the answer is the end of the command, and an exception may get lost on its way out of
    compiled code.

    Attributes:
        abandon: tells what runs to stop; called from a thread.
        deferred: whether what runs may first come to an end, because its result is kept.
        leaving: the command is ending: further signals change nothing.
    """

    def __init__(self) -> None:
        self.abandon: Callable[[], None] = _nothing
        self.deferred: Callable[[], bool] = _never
        self.leaving = False
        self._words = ""
        self._again = False  # a signal was answered: the next one ends the process
        self._source = -1
        self._ended = threading.Event()

    def answered(self) -> None:
        """A Python handler has run, and what runs will heed it."""
        self._again = True
        with suppress(OSError):  # nothing there, or nobody watches
            os.read(self._source, 4096)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch while the block runs, in the main thread."""
        self._source, sink = os.pipe()
        os.set_blocking(self._source, False)
        os.set_blocking(sink, False)
        self.leaving = self._again = False
        self._ended.clear()
        before = signal.set_wakeup_fd(sink, warn_on_full_buffer=False)
        thread = threading.Thread(target=self._watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            self._ended.set()
            os.close(sink)  # wakes the thread
            thread.join(PATIENCE + GRACE)
            os.close(self._source)
            self._source = -1

    @contextmanager
    def told(
        self, deferred: Callable[[], bool], abandon: Callable[[], None] | None, words: str
    ) -> Iterator[None]:
        """While the block runs, what can wait, how to stop it, and what is said where it waits."""
        before = self.abandon, self.deferred, self._words
        self.abandon, self.deferred, self._words = abandon or _nothing, deferred, words
        try:
            yield
        finally:
            self.abandon, self.deferred, self._words = before

    def acknowledge(self) -> None:
        """Say, once, that what runs comes to an end."""
        words, self._words = self._words, ""
        if words:
            _write(words)

    def _watch(self) -> None:
        while True:
            select.select([self._source], [], [])
            if self._ended.is_set():
                return
            self._pressed(time.monotonic())

    def _pressed(self, begin: float) -> None:
        """From a signal to its answer."""
        told = False
        while (waiting := self._waiting()) and not self._ended.is_set():
            late = time.monotonic() - begin
            if late > GRACE and not told:
                self.abandon()
                if self.deferred():
                    self.acknowledge()
                told = True
            unseen = (waiting > 1 or self._again) and not self.leaving
            if (late > AGAIN and unseen) or (late > PATIENCE and not self.deferred()):
                _write(NEWS)
                leave(130)
            time.sleep(POLL)

    def _waiting(self) -> int:
        """Signals that no handler has answered."""
        (count,) = struct.unpack("i", fcntl.ioctl(self._source, termios.FIONREAD, b"\0" * 4))
        return int(count)


WATCH = Watch()
