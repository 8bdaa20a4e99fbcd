"""The released programs' other methods, on graphs small enough to follow by hand."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from onnxremat.errors import UnsupportedError
from onnxremat.placement import baselines
from onnxremat.placement.answer import Work
from onnxremat.placement.biconnected import biconnected
from onnxremat.placement.graph_files import from_json
from onnxremat.placement.judge import judge
from tests.placement.test_latency import row


def diamonds() -> dict[str, Any]:
    """0 -> (1, 2) -> 3 -> 4 -> (5, 6) -> 7, every node 1 long, every edge 1."""
    data = row([1] * 8)
    pairs = [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (4, 5), (4, 6), (5, 7), (6, 7)]
    data["edges"] = [{"sourceId": u, "destId": v, "cost": 1} for u, v in pairs]
    return data


def test_biconnected_components() -> None:
    edges = [(0, 1), (1, 2), (0, 2), (2, 3), (3, 4), (4, 5), (3, 5), (6, 7)]
    found = sorted(sorted(edges[i] for i in part) for part in biconnected(8, edges))
    assert found == [
        [(0, 1), (0, 2), (1, 2)], [(2, 3)], [(3, 4), (3, 5), (4, 5)], [(6, 7)],
    ]  # fmt: skip


def test_pipedream_cuts_between_components_only() -> None:
    """The tails of a diamond are one class: {0, 1, 2}, {3}, {4, 5, 6}, {7}."""
    answer = baselines.pipedream(from_json(diamonds()), Work(inf))
    where = answer.where.tolist()
    assert where[0] == where[1] == where[2]
    assert where[4] == where[5] == where[6]
    assert answer.value == 5  # {0, 1, 2, 3} or {3, ..., 7} and one tensor


def test_released_ids_are_left_out_in_graphs_of_that_many_nodes() -> None:
    """In any graph of 32 nodes the edges out of 4 and 37 are not looked at."""
    data = row([1] * 32)
    data["edges"] += [{"sourceId": 4, "destId": v, "cost": 1} for v in (8, 9)]
    plain = baselines.pipedream(from_json(data), Work(inf))
    released = baselines.pipedream_released(from_json(data), Work(inf))
    assert plain.where[5] == plain.where[8]
    assert released.value <= plain.value


def test_layers_are_classes() -> None:
    data = diamonds()
    for node in data["nodes"]:
        node["layerId"] = 0 if node["id"] < 5 else 1
    answer = baselines.contract_layers(from_json(data), Work(inf))
    assert answer.where.tolist() == [0] * 5 + [1] * 3
    assert answer.value == 5 + 1
    with pytest.raises(UnsupportedError, match="needs layers"):
        baselines.contract_layers(from_json(diamonds()), Work(inf))


def test_greedy_fills_one_accelerator_after_the_other() -> None:
    data = row([1] * 8)
    data["maxSizePerFPGA"] = 3
    answer = baselines.greedy(from_json(data), Work(inf))
    assert answer.where.tolist() == [0, 0, 0, 1, 1, 1, 2, 2]  # 2: the first CPU


def test_methods_that_do_not_look_at_memory_are_found_out() -> None:
    data = diamonds()
    data["maxSizePerFPGA"] = 3
    graph = from_json(data)
    for method in (baselines.one_accelerator, baselines.local_search, baselines.bisection):
        answer = method(graph, Work(inf))
        verdict = judge(graph, answer.split(graph))
        assert verdict.max_load == pytest.approx(answer.value)
        assert verdict.breaks("memory")


def test_bisection_parts_where_little_is_cut() -> None:
    answer = baselines.bisection(from_json(diamonds()), Work(inf))
    first = {v for v in range(8) if answer.where[v] == answer.where[0]}
    assert first in ({0, 1, 2, 3}, {0, 1, 2, 3, 4})
