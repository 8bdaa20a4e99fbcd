"""Latency by calls: three judges, every placement of small graphs, bounds."""

from __future__ import annotations

import itertools
from math import inf
from typing import Any

import numpy as np
import pytest

from onnxremat.errors import InfeasibleError
from onnxremat.placement import labels, latency, limits, paths
from onnxremat.placement.answer import Work
from onnxremat.placement.calls import compute_latency, contiguous_pieces, time_calls
from onnxremat.placement.classes import condense
from onnxremat.placement.graph_files import from_json
from onnxremat.placement.latency import Slots
from onnxremat.placement.latency_program import latency_program
from onnxremat.placement.splits import Split
from onnxremat.planner.solvers import Limits, Outcome, minimise
from tests.limits import LONG
from tests.placement import oracle

SEEDS = [seed for seed in range(400) if not any(
    node["isBackwardNode"] for node in oracle.draw(seed)["nodes"])][:50]  # fmt: skip


def relaxed(data: dict[str, Any], slot: tuple[int, ...]) -> float:
    """Latency of a slot per node (-1: a CPU core), by raising start times until nothing moves; a
    circle never settles."""
    nodes, n = data["nodes"], len(data["nodes"])
    index = {node["id"]: i for i, node in enumerate(nodes)}
    edges = [(index[e["sourceId"]], index[e["destId"]], e["cost"]) for e in data["edges"]]
    load: dict[int, float] = {}
    for v, node in enumerate(nodes):
        if slot[v] >= 0:
            load[slot[v]] = load.get(slot[v], 0.0) + node["fpgaLatency"]
    moved = {(u, s, cost) for u, v, cost in edges for s in {slot[u], slot[v]} - {-1}
             if slot[u] != slot[v]}  # fmt: skip
    for _, s, cost in moved:
        load[s] += cost
    end = [0.0] * n
    for _ in range(4 * n + 4):
        start = dict.fromkeys(load, 0.0)
        for u, v, _ in edges:
            if slot[v] >= 0 and slot[u] != slot[v]:
                start[slot[v]] = max(start[slot[v]], end[u])
        new = []
        for v, node in enumerate(nodes):
            if slot[v] >= 0:
                new.append(start[slot[v]] + load[slot[v]])
            else:
                before = [end[u] for u, w, _ in edges if w == v]
                new.append(max(before, default=0.0) + node["cpuLatency"])
        if new == end:
            return max(end)
        end = new
    return inf


def circles(data: dict[str, Any], slot: tuple[int, ...]) -> bool:
    """Whether slots wait for each other: then times without cost could settle all the same."""
    index = {node["id"]: i for i, node in enumerate(data["nodes"])}
    unit = [s if s >= 0 else 100 + v for v, s in enumerate(slot)]
    edges = {(unit[index[e["sourceId"]]], unit[index[e["destId"]]]) for e in data["edges"]}
    edges = {(a, b) for a, b in edges if a != b}
    left = set(unit)
    while left:
        free = {u for u in left if not any(b == u and a in left for a, b in edges)}
        if not free:
            return True
        left -= free
    return False


def placements(data: dict[str, Any]) -> list[tuple[int, ...]]:
    """All that keep colours, memory and support, one slot per accelerator."""
    groups, nodes = oracle.colours(data), data["nodes"]
    found = []
    first = 0 if not data["maxCPUs"] else -1
    for homes in itertools.product(range(first, data["maxFPGAs"]), repeat=len(groups)):
        slot = [0] * len(nodes)
        for group, home in zip(groups, homes, strict=True):
            for v in group:
                slot[v] = home
        sizes = [
            sum(node["size"] for v, node in enumerate(nodes) if slot[v] == a)
            for a in range(data["maxFPGAs"])
        ]
        if max(sizes) <= data["maxSizePerFPGA"] and all(
            node["supportedOnFpga"] or slot[v] < 0 for v, node in enumerate(nodes)
        ):
            found.append(tuple(slot))
    return found


def test_judges_agree_and_bounds_hold() -> None:
    equal = 0
    for seed in SEEDS:
        data = oracle.draw(seed)
        graph = from_json(data)
        slots = Slots(graph, 1)
        least = inf
        for slot in placements(data):
            value = slots.value(slot)
            wanted = inf if circles(data, slot) else relaxed(data, slot)
            assert value == pytest.approx(wanted), (seed, slot)
            pieces = [
                (a, [v for v, s in enumerate(slot) if s == a]) for a in range(graph.accelerators)
            ]
            assert time_calls(graph, pieces, in_order=True).latency == pytest.approx(wanted)
            assert slots.fits(np.asarray(slot))
            least = min(least, value)
        bound = paths.bound(graph, 1, inf, Work(LONG))
        assert bound <= least + 1e-6, seed
        equal += bound > least - 1e-6
    assert equal > len(SEEDS) / 3


def test_the_released_program_has_the_least_latency() -> None:
    """Of one call per accelerator; with two it is never more."""
    for seed in SEEDS[::6]:
        data = oracle.draw(seed)
        graph = from_json(data)
        slots = Slots(graph, 1)
        least = min((slots.value(slot) for slot in placements(data)), default=inf)
        found = [minimise(latency_program(graph, q), Limits(LONG), "highs")[0] for q in (1, 2)]
        if least == inf:
            assert all(one.outcome is Outcome.INFEASIBLE for one in found)
            continue
        assert found[0].objective == pytest.approx(least, abs=1e-4), seed
        assert found[1].objective <= least + 1e-4, seed
        assert paths.bound(graph, 2, inf, Work(LONG)) <= found[1].objective + 1e-4, seed


def test_a_class_may_be_spread_over_the_calls_of_an_accelerator() -> None:
    """Nodes 1 and 2 share one, which calls 2 while the other one runs 4."""
    data = row([5, 1, 50, 10, 50]) | {"maxCPUs": 0}
    for v in (1, 2):
        data["nodes"][v]["colorClass"] = 7
    data["edges"] = [
        {"sourceId": u, "destId": v, "cost": cost}
        for u, v, cost in ((0, 3, 0), (1, 3, 100), (3, 4, 1))
    ]
    graph = from_json(data)
    assert time_calls(graph, [(0, [0, 1, 3]), (0, [2]), (1, [4])], in_order=True).latency == 68
    assert paths.bound(graph, 1, inf, Work(LONG)) == pytest.approx(116)
    assert 65 < paths.bound(graph, 2, inf, Work(LONG)) <= 68


def test_labels_find_and_prove_the_least() -> None:
    """Below a value above the least they find it (or less, where ends without time are forgiven
    their bytes), below the least they find nothing, and never do they prove too much."""
    exact = proven = 0
    for seed in SEEDS:
        data = oracle.draw(seed)
        graph = from_json(data)
        if limits.reason(condense(graph, chain=False)):
            continue
        slots = Slots(graph, 1)
        least = min((slots.value(slot) for slot in placements(data)), default=inf)
        if least == inf:
            continue
        tails = paths.tails(graph, 1, least + 1, Work(LONG))
        bound = max(tail.bound for tail in tails)
        above = labels.prove(graph, tails, least + 1, bound, Work(LONG))
        assert above.bound <= least + 1e-9, seed
        if above.slots is None:
            continue
        assert slots.value(above.slots) == pytest.approx(above.bound), seed
        if slots.fits(above.slots):
            assert above.bound == pytest.approx(least), seed
            exact += 1
        below = labels.prove(graph, tails, above.bound, min(bound, above.bound), Work(LONG))
        assert below.slots is None, seed
        assert below.bound == pytest.approx(above.bound, rel=1e-5)
        proven += 1
    assert exact > len(SEEDS) / 3
    assert proven >= exact


def test_no_time_proves_nothing_new() -> None:
    graph = from_json(row([2, 1, 4, 3]))
    tails = paths.tails(graph, 1, 100.0, Work(LONG))
    found = labels.prove(graph, tails, 100.0, 3.0, Work(0.0))
    assert found.bound == 3.0
    assert found.slots is None


def test_the_search_finds_the_least() -> None:
    found = 0
    for seed in SEEDS[:25]:
        data = oracle.draw(seed)
        graph, slots = from_json(data), Slots(from_json(data), 1)
        least = min((slots.value(slot) for slot in placements(data)), default=inf)
        looks = itertools.count()

        def stop(looks: itertools.count[int] = looks) -> bool:
            return next(looks) > 32

        try:
            one = latency.solve(graph, 1, Work(LONG, stop=stop))
        except InfeasibleError:
            assert least == inf
            continue
        if one.where is None:
            continue
        assert one.value >= least - 1e-9, seed
        assert one.bound <= least + 1e-9, seed
        assert slots.fits(one.slots)
        assert slots.value(one.slots) == pytest.approx(one.value)
        found += one.value <= least + 1e-9
    assert found >= 20


def test_two_pieces_of_an_accelerator_are_never_worse() -> None:
    for seed in SEEDS[:8]:
        graph = from_json(oracle.draw(seed))
        if not graph.cpus:
            continue
        looks = [itertools.count() for _ in range(2)]
        stops = [lambda c=c: next(c) > 16 for c in looks]
        one = latency.solve(graph, 1, Work(LONG, stop=stops[0]))
        two = latency.solve(graph, 2, Work(LONG, stop=stops[1]))
        if one.where is None or two.where is None:
            continue
        assert two.bound <= two.value + 1e-9
        split = two.split(graph)
        pieces = [(i // 2, nodes) for i, nodes in enumerate(split.accelerators)]
        assert time_calls(graph, pieces, in_order=True).latency == pytest.approx(two.value)


def row(costs: list[int]) -> dict[str, Any]:
    """Nodes in a row, cost 1 each way; CPU three times as slow."""
    n = len(costs)
    return {
        "maxFPGAs": 2, "maxCPUs": 8, "maxSizePerFPGA": 100,
        "nodes": [
            {"id": v, "supportedOnFpga": 1, "fpgaLatency": costs[v], "cpuLatency": 3 * costs[v],
             "isBackwardNode": 0, "size": 1}
            for v in range(n)
        ],
        "edges": [{"sourceId": v, "destId": v + 1, "cost": 1} for v in range(n - 1)],
    }  # fmt: skip


def test_a_set_that_is_left_and_entered_again_is_two_pieces() -> None:
    """The released ``-computeLatency``: nodes 0 and 2 on one accelerator, 1 on a CPU."""
    graph = from_json(row([2, 1, 4]))
    assert contiguous_pieces(graph, [0, 2]) == [[0], [2]]
    timing = compute_latency(graph, Split(((0, 2), ()), ((1,),)))
    assert timing.latency == (2 + 1) + 3 + (1 + 4)
    assert [call.start for call in timing.calls] == [0, 6]
