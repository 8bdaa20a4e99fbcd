"""What onnxruntime runs of a model that is opened without any options, on paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from onnxremat.cost.analytic import analytic_costs
from onnxremat.graph.ir import Graph, Role
from onnxremat.graph.onnx_io import to_model
from onnxremat.graph.order import without_dead_ops
from onnxremat.ort.offline import HOST, Optimised, optimised_for
from onnxremat.schedule.simulate import Rules, Timeline, simulate
from onnxremat.session.measure import weight_bytes

REUSE = Rules(reuse=True)


@dataclass(frozen=True)
class Loaded:
    """A model as a session without any options runs it.

    Attributes:
        graph: fused as such a session does it, in its order, in which it saves what it optimised;
            what it computes at load and keeps is a weight here.
        kept: bytes of that, among :attr:`weights`.
    """

    graph: Graph
    kept: int

    @cached_property
    def weights(self) -> int:
        """Bytes in memory for the whole run."""
        return weight_bytes(self.graph)

    def run(
        self,
        scratch: Mapping[str, int] | None = None,
        seconds: Mapping[str, float] | None = None,
    ) -> Timeline:
        """A run of it, on paper.

        Args:
            scratch, seconds: per op, where these are known better than estimated.
        """
        costs = analytic_costs(self.graph)
        return simulate(
            self.graph, REUSE, scratch={**costs.scratch, **(scratch or {})},
            seconds={**costs.seconds, **(seconds or {})}, weight_bytes=self.weights,
        )  # fmt: skip


def as_loaded(listed: Graph, home: Path | None, made: Optimised, graph: Graph) -> Loaded:
    """What a session without any options makes of a model.

    Args:
        listed: the model, not optimised.
        home: where its external weights are.
        made: it optimised; taken as it is where that was done for all that such a session does.
        graph: the ops of ``made``, every size known.
    """
    if made.target != HOST:
        made = optimised_for(to_model(listed), HOST, home, to_write=False)
        graph = without_dead_ops(made.graph)
    return Loaded(*_folded(graph, made.folded))


def _folded(graph: Graph, names: frozenset[str]) -> tuple[Graph, int]:
    """The graph with these tensors as weights, without the ops that make them; and their bytes."""
    names = names.difference(graph.outputs)
    ops = [op for op in graph.ops if names.isdisjoint(op.writes)]
    live = without_dead_ops(graph.with_ops(ops)).ops
    there = {name for op in live for name in (*op.reads, *op.writes)}
    tensors = {
        name: replace(tensor, role=Role.WEIGHT) if name in names else tensor
        for name, tensor in graph.tensors.items()
        if name in there or tensor.role in (Role.INPUT, Role.OUTPUT)
    }
    kept = sum(tensors[name].bytes for name in names if name in tensors)
    return graph.with_ops(live, tensors), kept
