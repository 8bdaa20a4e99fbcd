"""The order that planning begins with, and what the original takes in its own, on paper."""

from __future__ import annotations

from onnxremat.cost.analytic import analytic_costs
from onnxremat.graph.ir import Graph
from onnxremat.graph.order import default_order, file_order, priority_order, reordered
from onnxremat.schedule.simulate import Rules, simulate
from onnxremat.session.measure import weight_bytes


def base_order(graph: Graph, original: Graph, fixed: bool) -> Graph:
    """The better of the file's order and onnxruntime's own, by predicted peak."""
    listed = [name for op in original.ops for name in op.writes]
    choices = [file_order(graph, listed)]
    if not fixed:
        choices += [reordered(graph, default_order(graph)), graph]
    settled = [reordered(choice, priority_order(choice)) for choice in choices]
    apart: dict[tuple[str, ...], Graph] = {}
    for choice in settled:
        apart.setdefault(tuple(op.name for op in choice.ops), choice)
    return min(apart.values(), key=lambda g: simulate(g).peak)


def unmeasured_peak(original: Graph) -> int:
    """Predicted peak of the original under default options, its ops not fused."""
    ordered = reordered(original, default_order(original))
    scratch = analytic_costs(original).scratch
    weights = weight_bytes(original)
    return simulate(ordered, Rules(reuse=True), scratch=scratch, weight_bytes=weights).peak
