"""A small training step with a few recomputations, planned and measured."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from onnxremat.graph.ir import Graph
from onnxremat.rewrite.emit import Rewritten, rewrite
from onnxremat.schedule.plan import Plan
from onnxremat.schedule.simulate import Timeline, simulate
from onnxremat.session.measure import Measurement, Running, measure
from tests.toolbox import ONE, seeded_feeds, training_chain

LAYERS = 5
AGAIN = 4  # recomputed ops: a MatMul and a Tanh in each of two layers


@dataclass(frozen=True)
class Row:
    budget: int
    peak: int | None = None
    overhead: float | None = None
    bound: float | None = None
    status: str = "none found"
    plan_seconds: float = 0.0
    any_order: bool = True

    @property
    def limit(self) -> int:
        """Nothing is counted beside weights and values."""
        return self.budget

    @property
    def process(self) -> int | None:
        return self.peak


ROWS = [
    Row(100 << 20, 95 << 20, -1e-16, 0.0, "optimal", 0.1),
    Row(60 << 20, 59 << 20, 0.20, 0.15, "feasible", 2.0),
    Row(80 << 20, 79 << 20, 0.05, 0.05, "optimal", 1.0),
    Row(50 << 20),
    Row(30 << 20, status="infeasible (at least 40.0 MiB)"),
]


@dataclass(frozen=True)
class Case:
    """A plan carried out.

    Attributes:
        graph: as planned.
        seconds: per op name; 1 ms for an op with an even number of letters, 2 ms otherwise.
        base: timeline with nothing recomputed.
        run: the measured run of the rewritten graph.
    """

    graph: Graph
    seconds: dict[str, float]
    plan: Plan
    rewritten: Rewritten
    base: Timeline
    run: Measurement

    @property
    def predicted(self) -> Timeline:
        """The simulated timeline of the rewritten graph."""
        return self.run.predicted


def recomputing_plan(graph: Graph) -> Plan:
    """Layers 1 and 3 are run again right before the backward half first reads them."""
    makers = {op.outputs[0]: op.name for op in graph.ops}
    sequence = []
    for op in graph.ops:
        if op.op_type == "Transpose" and op.inputs[0] in ("h1", "h3"):
            number = op.inputs[0][1:]
            sequence += [makers[f"p{number}"], makers[f"h{number}"]]
        sequence.append(op.name)
    return Plan.of(graph, sequence)


@pytest.fixture(scope="session")
def case() -> Case:
    graph = training_chain(LAYERS, width=32, batch=64)
    seconds = {op.name: 1e-3 * (1 + len(op.name) % 2) for op in graph.ops}
    plan = recomputing_plan(graph)
    made = rewrite(graph, plan)
    run = measure(Running(made.graph, seconds=seconds), made.model(), seeded_feeds(graph, 0), ONE)
    return Case(graph, seconds, plan, made, simulate(graph, seconds=seconds), run)
