"""What a budget leaves for weights and values: a budget is what the process takes."""

from __future__ import annotations

from dataclasses import dataclass

from onnxremat.device.host import memory_bytes
from onnxremat.pipeline.prepare import Prepared
from onnxremat.session.process import Beside
from onnxremat.units import Budget


@dataclass(frozen=True)
class Limit:
    """A budget of one session.

    A number of bytes, or a share of this machine's memory, is for the whole process: what a plan
    may take depends on what its session takes beside. A share of the original's peak (``0.6x``) is
    for what a plan changes, weights and values; the rest, which is the same in the original, comes
    on top.

    Attributes:
        planned: bytes for weights and values, in a session of the graph that stores everything.
        total: bytes for the process, None where that is not what was asked for.
    """

    planned: int
    total: int | None = None

    def of(self, beside: int) -> int:
        """Bytes for weights and values in a process that takes ``beside`` bytes more."""
        return self.planned if self.total is None else max(1, self.total - beside)

    def asked(self, beside: int) -> int:
        """The budget itself, of a process that takes ``beside`` bytes beside weights and values."""
        return self.planned + beside if self.total is None else self.total


def fixed_bytes(prepared: Prepared) -> int:
    """Bytes of weights and results, which are there whatever is computed in parts."""
    graph = prepared.graph
    return prepared.weights + sum(graph.tensors[name].bytes for name in graph.outputs)


def beside_too(why: str, beside: Beside) -> str:
    """What needs so many bytes, and what the process takes besides that the budget counts."""
    return f"{why}; beside that {beside.words}" if beside.total else why


def limit_of(prepared: Prepared, budget: Budget) -> Limit | None:
    """A budget in bytes, None for ``min``."""
    size = budget.resolve(device_bytes=memory_bytes(), peak_bytes=prepared.baseline_peak)
    if size is None or budget.kind == "peak":
        return None if size is None else Limit(size)
    return Limit(max(1, size - prepared.beside.total), size)
