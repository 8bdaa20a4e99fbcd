"""The planner's problem on several devices as a placement graph."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from onnxremat.errors import UnsupportedError
from onnxremat.placement.from_problem import TIED, Kinds, Ops, graph_of
from onnxremat.placement.graph_files import from_json, to_json
from onnxremat.planner.on_devices import Devices, on_devices
from onnxremat.planner.problem import Problem, Rows


def problem(cost: list[list[float]]) -> Problem:
    """Ops in a row on some devices."""
    count, devices = len(cost[0]), len(cost)
    base = Problem.plain([100] * count, cost[0], [[v - 1] if v else [] for v in range(count)])
    return on_devices(base, Devices(cost, np.full((devices, devices, count), 0.001)))


def ops(count: int) -> Ops:
    moving = np.asarray([0.002] * (count - 1) + [0.0])
    return Ops(tuple(f"op{v}" for v in range(count)), [True] * count, moving)


def test_times_are_milliseconds() -> None:
    made = problem([[0.001, 0.002, 0.003], [0.01, inf, 0.03], [0.01, inf, 0.03]])
    graph = graph_of(made, Kinds((1, 2), (0,)), ops(3), None, lumped=True)
    assert (graph.accelerators, graph.cpus, graph.memory) == (2, 1, 300)
    assert graph.cpu.tolist() == [1, 2, 3]
    assert graph.acc.tolist() == [10, 0, 30]
    assert graph.supported.tolist() == [True, False, True]
    assert graph.out.tolist() == [2, 2, 0]
    assert list(zip(graph.tail, graph.head, strict=True)) == [(0, 1), (1, 2)]


def test_an_op_that_no_cpu_runs_is_left_to_accelerators() -> None:
    made = problem([[0.001, inf], [0.01, 0.01]])
    graph = graph_of(made, Kinds((1,), (0,)), ops(2), 50, lumped=True)
    assert (graph.accelerators, graph.cpus, graph.memory) == (1, 1, 50)
    assert graph.cpu[1] > 1000 * graph.acc.sum()


def shared() -> Problem:
    """Ops 0 and 2 read a large weight, 0, 2 and 3 a small one."""
    made = problem([[0.001] * 4] * 2)
    uses = Rows.of([[0, 1], [], [0, 1], [1]])
    return replace(made, uses=uses, weight=np.asarray([[TIED, 10]] * made.devices, np.int64))


def test_ops_that_read_one_large_weight_share_a_device() -> None:
    graph = graph_of(shared(), Kinds((0, 1)), ops(4), None, lumped=True)
    assert graph.colour[0] == graph.colour[2]
    assert len(set(graph.colour.tolist())) == 3
    assert graph.size.tolist() == [100 + TIED + 10, 100, 100 + 10, 100 + 10]


def test_for_pipelines_every_op_is_free_and_takes_the_weights_it_reads_first() -> None:
    graph = graph_of(shared(), Kinds((0, 1)), ops(4), None, lumped=False)
    assert len(set(graph.colour.tolist())) == 4
    assert graph.size.tolist() == [TIED + 10, 0, 0, 0]


def test_devices_of_a_kind_are_alike() -> None:
    with pytest.raises(UnsupportedError, match="not alike"):
        graph_of(problem([[0.001] * 3, [0.004] * 3]), Kinds((0, 1)), ops(3), None, lumped=True)


def test_written_and_read_it_is_the_same() -> None:
    made = problem([[0.001, 0.002], [0.01, inf]])
    graph = graph_of(made, Kinds((1,), (0,)), ops(2), None, lumped=True)
    again = from_json(to_json(graph))
    for name in ("acc", "cpu", "size", "out", "supported", "backward", "colour", "tail", "head"):
        assert getattr(again, name).tolist() == pytest.approx(getattr(graph, name).tolist())
    assert again.names == graph.names
