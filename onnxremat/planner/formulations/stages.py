"""What the stage formulations share: their answer as a matrix R, and R as a sequence.

Stage t ends with the first run of op t. Inside a stage every op runs at most once, in base order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from onnxremat.planner.model import Model
from onnxremat.planner.problem import Floats
from onnxremat.planner.problem_lists import ProblemLists

SCALE = 1000.0  # store-all time and budget, in model units


@dataclass
class StageModel:
    """A model with run columns ``run[device, stage, op]``.

    Attributes:
        unit: seconds per unit of the objective.
    """

    lists: ProblemLists
    unit: float
    model: Model
    run: dict[tuple[int, int, int], int] = field(default_factory=dict)

    def seconds(self, objective: float) -> float:
        """Time in seconds of an objective value."""
        return objective * self.unit

    def steps(self, point: Floats) -> list[tuple[int, int]]:
        """(op, device) in execution order."""
        on = [key for key, column in self.run.items() if point[column] > 0.5]
        return [(op, device) for device, stage, op in sorted(on, key=lambda k: (k[1], k[2], k[0]))]

    def sequence(self, point: Floats) -> list[int]:
        """Ops in execution order."""
        return [op for op, _ in self.steps(point)]


def time_unit(lists: ProblemLists) -> float:
    """Seconds that one unit of the objective stands for."""
    total = sum(lists.cost[0])
    return total / SCALE if total > 0 else 1.0


def may_run(lists: ProblemLists, stage: int, op: int) -> bool:
    """True when ``op`` may run in ``stage``: first run, or a second run where allowed."""
    return op == stage or (op < stage and lists.recomputable[op])
