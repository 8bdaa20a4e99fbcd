"""A thread that carries out one stream of a partitioned model, whenever it is told to."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from onnxremat.execute.streams import Stream
from onnxremat.ort.denormals import denormals_as_zero


class StreamThread(threading.Thread):
    """Starts itself, and waits for the first :meth:`begin`.

    Args:
        act: carries out one action.
    """

    def __init__(self, stream: Stream, act: Callable[[int], None]) -> None:
        super().__init__(daemon=True, name=f"onnxremat-{stream.name}")
        self._go: SimpleQueue[bool] = SimpleQueue()
        self._done: SimpleQueue[Exception | None] = SimpleQueue()
        self._act, self._stream = act, stream
        self.start()

    def begin(self) -> None:
        """Carry out the stream once."""
        self._go.put(True)

    def error(self) -> Exception | None:
        """Wait for the end of the run; what went wrong in it."""
        return self._done.get()

    def end(self) -> None:
        """End the thread."""
        self._go.put(False)

    def run(self) -> None:
        """What the thread does; not to be called."""
        with denormals_as_zero():
            while self._go.get():
                self._done.put(self._stream.run(self._act))
