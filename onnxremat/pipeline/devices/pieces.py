"""A placement of any shape as pieces: stretches of ops on one device, as a sample passes them.

Every border between two pieces is a call of a session and values that go through memory, which the
loads of a placement graph do not hold. So ops go through in as few pieces as possible, and a piece
that costs more than it saves joins another device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from onnxremat.cost.boundaries import call_seconds, traffic_seconds
from onnxremat.cost.table import CostTable
from onnxremat.pipeline.devices.placement_bridge import Bridge
from onnxremat.placement.graph import PlacementGraph

MOST = 8  # pieces of a device
TRIES = 1500  # moves that are tried
REST = 0.01  # weight of all loads together, beside the largest


@dataclass(frozen=True)
class Pieces:
    """Pieces in the order in which a sample passes them.

    Attributes:
        where: piece per node of the placement graph.
        devices: number of the device of each piece.
    """

    where: tuple[int, ...]
    devices: tuple[int, ...]


def in_pieces(graph: PlacementGraph, where: Sequence[int]) -> Pieces:
    """The fewest pieces that are found: all ops of a device that can run, then those of the next
    one. For two devices there is no order with fewer.

    Args:
        where: device per node.
    """
    tried = (_walked(graph, where, first) for first in sorted(set(where)))
    return min(tried, key=lambda one: len(one.devices))


def _walked(graph: PlacementGraph, where: Sequence[int], device: int) -> Pieces:
    """Pieces, from one device on; of more than two, the one that can run most is the next."""
    waits = [len(row) for row in graph.inputs]
    ready: set[int] = {node for node, count in enumerate(waits) if not count}
    piece = [0] * graph.count
    devices: list[int] = []
    while ready:
        runs, waits, ready = _run(graph, where, device, waits, ready)
        if runs:
            for node in runs:
                piece[node] = len(devices)
            devices.append(device)
        others = sorted({where[node] for node in ready})
        if others:
            device = others[0]
        if len(others) > 1:
            device = max(others, key=lambda d: len(_run(graph, where, d, waits, ready)[0]))
    return Pieces(tuple(piece), tuple(devices))


def _run(
    graph: PlacementGraph, where: Sequence[int], device: int, waits: list[int], ready: set[int]
) -> tuple[list[int], list[int], set[int]]:
    """All that a device can run: nodes, what each node then waits for, what can run then."""
    waits, left = list(waits), set(ready)
    runs: list[int] = []
    now = [node for node in ready if where[node] == device]
    while now:
        node = now.pop()
        runs.append(node)
        left.discard(node)
        for reader in graph.readers[node]:
            waits[reader] -= 1
            if not waits[reader]:
                left.add(reader)
                if where[reader] == device:
                    now.append(reader)
    return runs, waits, left


def joined(made: Bridge, tables: Mapping[str, CostTable], where: Sequence[int]) -> Pieces | None:
    """Pieces of a placement after those that cost more than they save, and ops at borders, have
    gone to another device; None where a device still has too many.

    Args:
        tables: costs per device.
        where: device per node.
    """
    loads = _Loads(made, tables)
    best = in_pieces(made.graph, where)
    value = loads.value(best)
    tries, better = 0, True
    while better and tries < TRIES:
        better = False
        for nodes, other in _moves(made.graph, best, loads, whole=bool(value[0])):
            moved = [best.devices[piece] for piece in best.where]
            for node in nodes:
                moved[node] = other
            pieces = in_pieces(made.graph, moved)
            new, tries = loads.value(pieces), tries + 1
            if new < value:
                best, value, better = pieces, new, True
                break
            if tries >= TRIES:
                break
    return None if value[0] else best


def _moves(
    graph: PlacementGraph, pieces: Pieces, loads: _Loads, *, whole: bool
) -> Iterator[tuple[list[int], int]]:
    """Nodes that another device could take: pieces, those that take the least first, and nodes at
    borders.

    Args:
        whole: pieces alone.
    """
    devices = sorted(set(pieces.devices))
    rows: list[list[int]] = [[] for _ in pieces.devices]
    for node, piece in enumerate(pieces.where):
        rows[piece].append(node)
    rows.sort(key=lambda row: sum(loads.cost[pieces.devices[pieces.where[v]]][v] for v in row))
    if not whole:
        rows += [[node] for node in range(graph.count) if _at_border(graph, pieces.where, node)]
    for row in rows:
        for other in devices:
            home = pieces.devices[pieces.where[row[0]]]
            if other != home and all(loads.runs(other, node) for node in row):
                yield row, other


def _at_border(graph: PlacementGraph, where: Sequence[int], node: int) -> bool:
    return any(where[v] != where[node] for v in (*graph.inputs[node], *graph.readers[node]))


class _Loads:
    """What devices are at work for a sample, borders included."""

    def __init__(self, made: Bridge, tables: Mapping[str, CostTable]) -> None:
        problem, first = made.model.problem, made.model.problem.host_inputs
        names = made.devices
        self.cost = [problem.cost[problem.names.index(name), first:].tolist() for name in names]
        self.tables = [tables[name] for name in names]
        size = problem.size.max(axis=0).tolist()
        readers: dict[int, list[int]] = {}
        for op, row in enumerate(problem.reads.lists()):
            for value in row:
                readers.setdefault(value, []).append(op - first)
        # of every value that an op reads: who makes it, who reads it, bytes
        self.values = [
            (op - first, readers[value], size[value])
            for op, row in enumerate(problem.writes.lists())
            if op >= first
            for value in row
            if value in readers
        ]

    def runs(self, device: int, node: int) -> bool:
        """Whether a device has the op."""
        return bool(np.isfinite(self.cost[device][node]))

    def value(self, pieces: Pieces) -> tuple[int, float]:
        """Pieces over what a device may have; the largest load, and a little of all."""
        count = len(pieces.devices)
        seconds, read, written, passed = ([0.0] * count for _ in range(4))
        for node, piece in enumerate(pieces.where):
            seconds[piece] += self.cost[pieces.devices[piece]][node]
        for maker, readers, size in self.values:
            source = pieces.where[maker]
            targets = {pieces.where[node] for node in readers} - {source}
            for piece in targets:
                read[piece] += size
                passed[piece] += 1
            if targets:
                written[source] += size
                passed[source] += 1
        loads = dict.fromkeys(pieces.devices, 0.0)
        for piece, device in enumerate(pieces.devices):
            table = self.tables[device]
            border = call_seconds(table, int(passed[piece]))
            border += traffic_seconds(table, read=int(read[piece]), written=int(written[piece]))
            loads[device] += seconds[piece] + border
        over = sum(max(0, number - MOST) for number in Counter(pieces.devices).values())
        return over, max(loads.values()) + REST * sum(loads.values())
