"""What one stream leaves for another that waits for it: a token, taken once.

A thread that sleeps takes tens of microseconds to wake on another core, and one that is woken while
Python's lock is held goes to sleep again. So where the machine has a core for every stream, a
thread that has to wait first looks again and again, without the lock and not for long, and only
then sleeps; what it leaves for others shows once it has let the lock go. Where looking was in vain
(waits are long, or others use the cores) it is tried again less and less often.
"""

from __future__ import annotations

import time
from functools import cache
from queue import SimpleQueue
from typing import Any

import numpy as np

from onnxremat.memory.native import compiled_look

SECONDS = 1e-4  # to look for before sleeping
REST = 63  # times not to look after looking in vain, at most
LINE = 8  # words of a cache line


class Token:
    """Passed from one thread to another: :meth:`put`, then :meth:`show`.

    Args:
        look: look for a while before sleeping.
    """

    def __init__(self, look: bool = False) -> None:
        self._queue: SimpleQueue[bool] = SimpleQueue()
        self._flag = np.zeros(2 * LINE, np.int64)
        self.address = int(self._flag.ctypes.data) + 8 * LINE
        found: tuple[Any, int] = looking() if look else (None, 0)
        self._look, self._turns = found
        self._rest = self._vain = 0

    def put(self, value: bool) -> None:
        """Leave it; a thread that sleeps wakes."""
        self._queue.put(value)

    def show(self) -> None:
        """Let a thread that looks see it."""
        self._flag[LINE] = 1

    def get(self, left: Token | None = None) -> bool:
        """Wait for it and take it.

        Args:
            left: another token, to show as soon as this thread waits, or at once where it need not.
        """
        if self._rest or self._look is None or not self._queue.empty():
            self._rest = max(0, self._rest - 1)
            if left:
                left.show()
        elif self._look(self.address, self._turns, left.address if left else 0):
            self._vain = 0
        else:
            self._vain = min(REST, 2 * self._vain + 1)
            self._rest = self._vain
        value = self._queue.get()
        self._flag[LINE] = 0
        return value


@cache
def looking() -> tuple[Any, int]:
    """The compiled function that sets the word at the second address (0 for none), then looks at
    the one at the first until it is set, so many times at most, without Python's lock; and how
    often it looks in :data:`SECONDS`. (None, 0) where nothing is compiled: threads sleep then."""
    look = compiled_look()
    return look, _turns(look) if look else 0


def _turns(look: Any) -> int:
    word, trial = np.zeros(1, np.int64), 100_000
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        look(int(word.ctypes.data), trial, 0)
        times.append(time.perf_counter() - begin)
    return int(trial * SECONDS / min(times))
