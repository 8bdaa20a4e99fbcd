"""A thread that carries out one stream of a partitioned model, whenever it is told to."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from onnxremat.execute.streams import Stream
from onnxremat.ort.denormals import denormals_as_zero


class StreamThread(threading.Thread):
    """Starts itself, and waits for the first :meth:`begin`. Between runs it knows nobody, so that
    what it works for can be dropped."""

    def __init__(self, stream: Stream) -> None:
        super().__init__(daemon=True, name=f"onnxremat-{stream.name}")
        self._go: SimpleQueue[Callable[[int], None] | None] = SimpleQueue()
        self._done: SimpleQueue[Exception | None] = SimpleQueue()
        self._stream = stream
        self.start()

    def begin(self, act: Callable[[int], None]) -> None:
        """Carry out the stream once.

        Args:
            act: carries out one action.
        """
        self._go.put(act)

    def error(self) -> Exception | None:
        """Wait for the end of the run; what went wrong in it."""
        return self._done.get()

    def end(self) -> None:
        """End the thread."""
        self._go.put(None)

    def run(self) -> None:
        """What the thread does; not to be called."""
        with denormals_as_zero():
            while (act := self._go.get()) is not None:
                error = self._stream.run(act)
                del act
                self._done.put(error)
                del error  # its traceback knows who it was for
