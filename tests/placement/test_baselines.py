"""The released programs' other methods, on graphs small enough to follow by hand."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any

import pytest

from onnxremat.errors import UnsupportedError
from onnxremat.placement import baselines
from onnxremat.placement.answer import Work
from onnxremat.placement.biconnected import biconnected
from onnxremat.placement.calls import compute_latency
from onnxremat.placement.graph import PlacementGraph
from onnxremat.placement.graph_files import from_json
from onnxremat.placement.hash_order import hash_order, random_numbers
from onnxremat.placement.judge import judge
from onnxremat.placement.scotch import scotch
from tests.placement.test_latency import row


def diamonds() -> dict[str, Any]:
    """0 -> (1, 2) -> 3 -> 4 -> (5, 6) -> 7, every node 1 long, every edge 1."""
    data = row([1] * 8)
    pairs = [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (4, 5), (4, 6), (5, 7), (6, 7)]
    data["edges"] = [{"sourceId": u, "destId": v, "cost": 1} for u, v in pairs]
    return data


def scrambled(training: bool) -> dict[str, Any]:
    """40 nodes by a formula, ids and edges out of order; colours in training, some missing."""

    def drawn(k: int, i: int) -> int:
        return (i * i * 7919 + i * 104729 + k * 1299709 + 12345) % 1009

    forward = 20 if training else 40
    nodes: list[dict[str, Any]] = []
    for i in range(40):
        time = drawn(1, i) % 400 / 128 if drawn(2, i) % 4 else 0
        node = {
            "id": i * 17 % 40 + 3, "supportedOnFpga": 1, "isBackwardNode": int(i >= forward),
            "fpgaLatency": time, "cpuLatency": 8 * time, "size": drawn(3, i),
        }  # fmt: skip
        if training and drawn(4, i) % 8:
            node["colorClass"] = 2 * (39 - i if i >= forward else i)
        nodes.append(node)
    edges = [
        {"sourceId": nodes[j]["id"], "destId": nodes[i]["id"], "cost": drawn(9, j) / 1000}
        for i in range(1, 40)
        for j in sorted({max(0, i - 1 - drawn(5 + k, i) % 6) for k in range(2)})
    ]
    limits = {"maxFPGAs": 3, "maxCPUs": 1, "maxSizePerFPGA": 9000}
    return {**limits, "nodes": nodes[::-1], "edges": edges[::-1]}


def test_hash_tables_are_walked_and_numbers_drawn_as_by_gnus_libraries() -> None:
    """What a program that g++ 12 compiled prints; with the 14th key a table grows."""
    assert hash_order([5, 18, 31, 1, 5]) == [1, 31, 18, 5]
    assert hash_order(range(14)) == [13, *range(13)]
    assert hash_order([-5, 3, -5, 8, 16, 21]) == [21, 8, 16, 3, -5]
    assert list(islice(random_numbers(), 4)) == [1804289383, 846930886, 1681692777, 1714636915]


@pytest.mark.parametrize(
    ("training", "method", "released"),
    [
        (False, baselines.dpl, 17.20775),
        (False, baselines.pipedream_released, 287.1875),
        (False, baselines.local_search, 16.9454375),
        (True, baselines.dpl, 18.0613125),
        (True, baselines.pipedream_released, 301.1875),
        (True, baselines.local_search, 17.9436875),
    ],
)
def test_values_are_those_of_the_released_program(
    training: bool, method: Callable[[PlacementGraph, Work], Any], released: float
) -> None:
    """``dp.cpp``, commit b207b6a, compiled by g++ 12, gives these for the same graph."""
    assert method(from_json(scrambled(training)), Work(inf)).value == pytest.approx(released)


def test_greedy_is_as_slow_as_the_released_program() -> None:
    graph = from_json(scrambled(False))
    split = baselines.greedy(graph, Work(inf)).split(graph)
    assert compute_latency(graph, split).latency == pytest.approx(48.1290625)


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


@pytest.mark.skipif(os.name != "posix", reason="the stand-in is a script")
def test_scotch_is_asked_where_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for gpart that keeps what it was given and puts every other class on each part."""
    graph = from_json(diamonds())
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnsupportedError, match="needs the program gpart"):
        scotch(graph, Work(inf))
    program = tmp_path / "gpart"
    program.write_text(
        f"#!{sys.executable}\n"
        "import sys\n"
        "lines = sys.stdin.read().split(chr(10))\n"
        f"open({str(tmp_path / 'asked')!r}, 'w').write(chr(10).join(lines))\n"
        "n, k = int(lines[1].split()[0]), int(sys.argv[1])\n"
        "print(n, *(f'{i} {i % k}' for i in range(n)), sep=chr(10))\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    where = scotch(graph, Work(inf)).where
    assert where is not None
    assert set(where.tolist()) == set(range(min(8, graph.accelerators)))
    lines = (tmp_path / "asked").read_text().splitlines()
    assert lines[:3] == ["0", "8 18", "0 011"]
    assert sorted(len(line.split()) for line in lines[3:]) == [6, 6, 6, 6, 6, 6, 8, 8]
    assert all(line.startswith("1000000 ") for line in lines[3:])
