"""Costs of two graphs of one model are by one clock."""

from __future__ import annotations

from dataclasses import replace

import pytest

from onnxremat.cost.analytic import analytic_costs
from onnxremat.cost.in_step import in_step
from onnxremat.cost.table import CostTable, signatures
from onnxremat.graph.ir import Graph
from tests.toolbox import graph_of, training_chain

ONE = """g (float[64, 64] x, float[64, 64] w) => (float[64, 64] y) {
    a = MatMul(x, w)  b = Relu(a)  y = MatMul(b, w)
}"""
OTHER = """g (float[64, 64] x, float[64, 64] w) => (float[64, 64] y) {
    a = MatMul(x, w)  b = Sin(a)  c = Relu(b)  y = Exp(c)
}"""


def _costs(graph: Graph, times: float, source: str = "measured") -> CostTable:
    """As if measured: ops that are known by one key cost the same."""
    made, each = analytic_costs(graph), dict[str, float]()
    keys = signatures(graph)
    for name, key in keys.items():
        each.setdefault(key, times * made.seconds[name])
    seconds = {name: each[key] for name, key in keys.items()}
    return replace(made, seconds=seconds, source=source)


@pytest.mark.parametrize("busy", [0.5, 1.0, 3.0])
def test_a_busy_moment_does_not_count(busy: float) -> None:
    """Another net, measured while the machine was slower: what both have costs the same, and
    what only one has the same share of it as on a quiet machine."""
    whole, parts = graph_of(ONE), graph_of(OTHER)
    known, quiet = _costs(whole, 1.0, "cached"), _costs(parts, 1.0)
    found = in_step(_costs(parts, busy), parts, known, whole)
    assert found.seconds == pytest.approx(quiet.seconds)
    assert found.total == pytest.approx(quiet.total)


def test_estimates_are_left_alone() -> None:
    graph = training_chain(3, 32, 64)
    seen, guessed = _costs(graph, 2.0), _costs(graph, 1.0, "analytic")
    assert in_step(seen, graph, guessed, graph) is seen
    assert in_step(guessed, graph, seen, graph) is guessed
