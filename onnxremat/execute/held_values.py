"""The values of one run while it is on."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onnxremat.rewrite.partition import Key


@dataclass
class Held:
    """The values of one run that are in memory.

    Attributes:
        store: values between actions.
        left: how often each will be taken yet.
        given: per action the graph inputs that this run alone binds there, with their names.
        moving: graph inputs of this run that the plan moves.
    """

    store: dict[Key, Any]
    left: dict[Key, int]
    given: dict[int, list[tuple[str, Any]]]
    moving: Mapping[str, Any] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def used(self, reads: Sequence[Key], writes: Sequence[Key]) -> None:
        """An action is done: what nobody will take goes."""
        if not (reads or writes):
            return
        with self.lock:
            for key in reads:
                self.left[key] -= 1
            for key in (*reads, *writes):
                if not self.left[key]:
                    self.store.pop(key, None)

    def drop(self) -> None:
        """The run failed: whoever keeps its error keeps none of its values."""
        with self.lock:
            self.store.clear()
            self.given.clear()
