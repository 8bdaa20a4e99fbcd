"""Bytes that no budget goes below, whatever is computed in parts: the closed form, said once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from onnxremat.graph.ir import Graph
from onnxremat.session.process import Beside, in_any_parts

if TYPE_CHECKING:
    from onnxremat.pipeline.limits import Limit

WORDS = "weights and results, which are there in any parts"


@dataclass(frozen=True)
class Floor:
    """What is in memory at the end of every plan, in any number of parts.

    Attributes:
        fixed: bytes of weights and results.
        beside: what budgets count beside weights and values, less what parts may do without.
    """

    fixed: int
    beside: Beside

    @classmethod
    def of(cls, graph: Graph, weights: int, beside: Beside) -> Floor:
        """That of a model.

        Args:
            beside: what budgets count of a session of the graph as a whole.
        """
        return cls(weights + graph.result_bytes, in_any_parts(beside, graph))

    @property
    def total(self) -> int:
        """Bytes of a budget."""
        return self.fixed + self.beside.total

    def above(self, limit: Limit) -> bool:
        """Whether a limit is below it: no plan of any kind keeps that."""
        return limit.of(self.beside.total) < self.fixed


def beside_too(why: str, beside: Beside) -> str:
    """What needs so many bytes, and what the process takes besides that the budget counts."""
    return f"{why}; beside that {beside.words}" if beside.total else why
