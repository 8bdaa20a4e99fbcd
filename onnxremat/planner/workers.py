"""Tasks in processes of their own: several at once, each with a limit, none able to take us down.

A worker is ``python -m onnxremat.planner.workers`` that reads a function and then arguments as
pickles on stdin and answers on a pipe. Unlike ``multiprocessing`` it does not import the caller's
main module, so scripts need no guard; and unlike an executor a worker can be ended in mid-task.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from threading import Event, Thread
from typing import Any, BinaryIO

LOOK = 0.1  # seconds between looks at the clock and at ``stop``
GRACE = 8.0  # seconds that stopped tasks have to answer with what they found
STARTING = 60.0  # seconds that a process has to be there, on whatever busy machine


@dataclass(frozen=True)
class Failure:
    """Why there is no answer to a task.

    Attributes:
        late: it had not ended by its limit, which says nothing of what it would have answered.
    """

    why: str
    late: bool = False


@dataclass(frozen=True)
class _Begun:
    """A worker is there, and begins its task."""


def run_tasks(
    function: Callable[[Any, Callable[[], bool]], Any],
    tasks: Iterable[Any],
    *,
    jobs: int,
    seconds: float | None = None,
    stop: Callable[[], bool] | None = None,
) -> Iterator[tuple[Any, Any]]:
    """(task, answer) in the order they finish; an answer may be a :class:`Failure`.

    Args:
        function: of (task, stop); importable, picklable. Its ``stop`` becomes True when ours does.
        tasks: drawn one by one when a worker is free, after all earlier answers were yielded, so
            a generator may let them depend on these.
        jobs: workers at the same time.
        seconds: limit per task, from when its worker is there; then it is asked for what it
            found, and ended a while later.
        stop: polled; no further task is begun, and those under way may answer for a while.
    """
    waiting = iter(tasks)
    answers: queue.SimpleQueue[tuple[_Worker, Any]] = queue.SimpleQueue()
    idle: list[_Worker] = []
    busy: list[_Worker] = []
    halted: float | None = None
    try:
        while True:
            halted = halted or (time.monotonic() if stop is not None and stop() else None)
            while halted is None and len(busy) < jobs:
                task = next(waiting, _END)
                if task is _END:
                    break
                worker = idle.pop() if idle else _Worker(function, answers)
                worker.begin(task)
                busy.append(worker)
            if not busy:
                return
            _supervise(busy, seconds, halted)
            try:
                worker, answer = answers.get(timeout=LOOK)
            except queue.Empty:
                continue
            if worker not in busy:  # it was ended while it had nothing to do
                idle = [other for other in idle if other is not worker]
                continue
            busy.remove(worker)
            if worker.alive and not worker.halted:
                idle.append(worker)
            else:
                worker.end()
            yield worker.task, answer
    finally:
        for worker in (*idle, *busy):
            worker.end()


_END = object()


def _supervise(busy: list[_Worker], seconds: float | None, halted: float | None) -> None:
    """Ask for what was found, end what is late."""
    now = time.monotonic()
    for worker in busy:
        if halted is not None:
            worker.halt()
            if now > halted + GRACE:
                worker.end("interrupted")
        elif seconds is not None and now > worker.begun + seconds:
            worker.halt()
            if now > worker.begun + seconds + GRACE:
                worker.late = True
                worker.end(f"no answer in {seconds:.3g} s")


class _Worker:
    """A process and the thread that listens to it."""

    def __init__(self, function: Any, answers: queue.SimpleQueue[Any]) -> None:
        paths = os.pathsep.join(path for path in sys.path if path)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "onnxremat.planner.workers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": paths},
            start_new_session=True,  # Ctrl-C is the caller's to handle
        )
        self.function, self.answers = function, answers
        self.task: Any = None
        self.begun = 0.0
        self.alive, self.halted, self.late, self.why = True, False, False, ""
        self._orders: queue.SimpleQueue[Any] = queue.SimpleQueue()
        Thread(target=self._send, daemon=True).start()
        Thread(target=self._listen, daemon=True).start()
        self._orders.put(function)

    def begin(self, task: Any) -> None:
        self.task, self.begun = task, time.monotonic() + STARTING  # until it says that it is there
        self._orders.put(("task", task))

    def halt(self) -> None:
        if not self.halted:
            self.halted = True
            self._orders.put(("halt", None))

    def end(self, why: str = "") -> None:
        """End the process; the task under way is answered with ``why``."""
        self.why = self.why or why
        if self.process.poll() is None:
            self.process.kill()

    def _send(self) -> None:
        assert self.process.stdin is not None
        with suppress(OSError), self.process.stdin as orders:  # it ended: the listener says so
            while (order := self._orders.get()) is not _END:
                pickle.dump(order, orders)
                orders.flush()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        try:
            while True:
                answer = pickle.load(self.process.stdout)
                if isinstance(answer, _Begun):
                    self.begun = time.monotonic()
                else:
                    self.answers.put((self, answer))
        except (EOFError, OSError, pickle.UnpicklingError):
            code = self.process.wait()
            self.process.stdout.close()
            self._orders.put(_END)
            self.alive = False
            why = self.why or f"its process ended with code {code}"
            self.answers.put((self, Failure(why, self.late)))


def _serve(orders: BinaryIO, replies: BinaryIO) -> None:
    """The worker's side: tasks one after the other, while a thread hears of halts."""
    function = pickle.load(orders)
    tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
    halted = Event()

    def hear() -> None:
        try:
            while True:
                kind, task = pickle.load(orders)
                halted.set() if kind == "halt" else tasks.put(task)
        except (EOFError, OSError):  # the caller is gone
            os._exit(0)

    Thread(target=hear, daemon=True).start()
    while True:
        task = tasks.get()
        pickle.dump(_Begun(), replies)
        replies.flush()
        try:
            answer = function(task, halted.is_set)
        except MemoryError:
            answer = Failure("out of memory")
        except Exception as error:  # told to the caller, who decides
            answer = Failure(str(error) or repr(error))
        pickle.dump(answer, replies)
        replies.flush()


def main() -> None:
    """Serve on stdin and a copy of stdout; what libraries print goes to stderr."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where a session does not shield from Ctrl-C
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _serve(sys.stdin.buffer, replies)


if __name__ == "__main__":
    from onnxremat.planner import workers

    workers.main()  # the module by its name, so that its classes are the caller's
