"""The planner's problem on several devices as a placement graph."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from onnxremat.errors import UnsupportedError
from onnxremat.placement.from_problem import TIED, graph_of
from onnxremat.placement.graph_files import from_json, to_json
from onnxremat.planner.over_devices import over_devices
from onnxremat.planner.problem import Problem, Rows


def problem(cost: list[list[float]], copy: float = 0.002) -> Problem:
    """Ops in a row on some devices, every link as slow."""
    count, devices = len(cost[0]), len(cost)
    base = Problem.plain([100] * count, cost[0], [[v - 1] if v else [] for v in range(count)])
    links = np.full((devices, devices, count), copy)
    return over_devices(base, cost, links)


def facts(count: int) -> dict[str, list[str] | list[bool]]:
    return {"names": [f"op{v}" for v in range(count)], "forward": [True] * count}


def test_times_are_milliseconds_and_outputs_move_over_the_link() -> None:
    made = problem([[0.001, 0.002, 0.003], [0.01, inf, 0.03], [0.01, inf, 0.03]])
    graph = graph_of(made, [1, 2], [0], memory=0, **facts(3))
    assert (graph.accelerators, graph.cpus, graph.memory) == (2, 1, 300)
    assert graph.cpu.tolist() == [1, 2, 3]
    assert graph.acc.tolist() == [10, 0, 30]
    assert graph.supported.tolist() == [True, False, True]
    assert graph.out.tolist() == [2, 2, 0]  # nobody reads the last one
    assert list(zip(graph.tail, graph.head, strict=True)) == [(0, 1), (1, 2)]


def test_a_machine_of_processors_has_accelerators_only() -> None:
    graph = graph_of(problem([[0.001] * 3] * 2), [0, 1], [], memory=50, **facts(3))
    assert (graph.accelerators, graph.cpus, graph.memory) == (2, 0, 50)
    assert graph.out.tolist() == [2, 2, 0]


def test_ops_that_read_one_large_weight_share_a_device() -> None:
    made = problem([[0.001] * 4] * 2)
    uses = Rows.of([[0, 1], [], [0, 1], [1]])
    made = replace(made, uses=uses, weight=np.asarray([TIED, 10], np.int64))
    graph = graph_of(made, [0, 1], [], memory=0, **facts(4))
    assert graph.colour[0] == graph.colour[2]
    assert len(set(graph.colour.tolist())) == 3
    assert graph.size.tolist() == [100 + TIED + 10, 100, 100 + 10, 100 + 10]


def test_devices_of_a_kind_are_alike() -> None:
    with pytest.raises(UnsupportedError, match="not alike"):
        graph_of(problem([[0.001] * 3, [0.004] * 3]), [0, 1], [], memory=0, **facts(3))


def test_written_and_read_it_is_the_same() -> None:
    graph = graph_of(problem([[0.001, 0.002], [0.01, inf]]), [1], [0], memory=0, **facts(2))
    again = from_json(to_json(graph))
    for name in ("acc", "cpu", "size", "out", "supported", "backward", "colour", "tail", "head"):
        assert getattr(again, name).tolist() == pytest.approx(getattr(graph, name).tolist())
    assert again.names == graph.names
