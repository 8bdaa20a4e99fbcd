"""Graph files of dnn-partitioning (JSON): read, checked, written.

Format: ``docs/placement.md``. Source: Tarnawski et al., Efficient Algorithms for Device Placement
of DNN Graph Operators, NeurIPS 2020, and its code package.
"""

from __future__ import annotations

import json
from decimal import Decimal, InvalidOperation
from math import ceil, isclose, isfinite
from pathlib import Path
from typing import Any

import numpy as np

from onnxremat import plain_json
from onnxremat.errors import ModelError
from onnxremat.graph.atomic import atomic
from onnxremat.graph.onnx_io import missing_file
from onnxremat.limits import PLACED_ON, regular
from onnxremat.placement.graph import SAME, PlacementGraph, check, repeated

KEYS = ("maxSizePerFPGA", "maxFPGAs", "maxCPUs", "nodes", "edges")
MOST = 2.0**53  # whole numbers below it are exact in floating point
DECIMALS = 9
LARGEST = Decimal("1e24")  # with sums of larger numbers nothing could be proven


def is_placement_graph(path: Path) -> bool:
    """Whether a file is JSON with the keys of such a graph."""
    if path.suffix.lower() != ".json" or not path.is_file():
        return False
    try:
        data = plain_json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(data, dict) and "nodes" in data and any(key in data for key in KEYS[:3])


def read_graph(path: Path) -> PlacementGraph:
    """Read a graph file.

    Raises:
        ModelError: not such a file, or one that breaks a rule (see ``docs/placement.md``).
    """
    if not path.is_file():
        make = "onnxremat place IN.onnx --devices MACHINE --graph graph.json makes one"
        raise missing_file(path, ".json", ModelError, make)
    try:
        data = plain_json.loads(regular(path).read_text(encoding="utf-8"), parse_float=Decimal)
    except (OSError, ValueError) as error:
        raise ModelError(
            "the graph cannot be read", where=str(path), why=str(error),
            hint="a JSON file with " + ", ".join(KEYS),
        ) from error  # fmt: skip
    return from_json(data, str(path))


def from_json(data: Any, where: str = "") -> PlacementGraph:
    """The graph of a file's object.

    Args:
        where: the file, for messages.

    Raises:
        ModelError: not such an object, or one that breaks a rule.
    """
    try:
        graph = _Reader(data).graph()
    except _MalformedError as error:
        raise ModelError(
            f"not a placement graph: {error}", where=where,
            hint="docs/placement.md has the format",
        ) from error  # fmt: skip
    check(graph, where)
    return graph


class _MalformedError(ValueError):
    """What is wrong with the file."""


class _Reader:
    def __init__(self, data: Any) -> None:
        if not isinstance(data, dict):
            raise _MalformedError("no JSON object")
        for key in KEYS:
            if key not in data:
                raise _MalformedError(f"no {key}")
        self.data = data
        self.nodes, self.edges = _objects(data, "nodes"), _objects(data, "edges")
        if not self.nodes:
            raise _MalformedError("no nodes")

    def graph(self) -> PlacementGraph:
        ids = [_whole(node, "id", f"node number {i}") for i, node in enumerate(self.nodes)]
        twice = repeated(ids)
        if twice is not None:
            raise _MalformedError(f"two nodes have the id {twice}")
        for node in self.nodes:
            if "containedSubnodes" in node or "containedNodes" in node:
                raise _MalformedError(
                    f"node {node['id']} has contained nodes, which nothing supports"
                )
        self.index = {name: i for i, name in enumerate(ids)}
        sizes = [_exact(node, "size", f"node {node['id']}", 0) for node in self.nodes]
        limit = _exact(self.data, "maxSizePerFPGA", "the file")
        unit = _unit([*sizes, limit])
        colour, coloured, labels = self._colours()
        tail, head, out = self._edges()
        return PlacementGraph(
            accelerators=_count(self.data, "maxFPGAs"),
            cpus=_count(self.data, "maxCPUs"),
            memory=float(int(limit * unit)),
            unit=unit,
            ids=np.asarray(ids, np.int64),
            names=tuple(str(node.get("name", "")) for node in self.nodes),
            acc=self._times("fpgaLatency"),
            cpu=self._times("cpuLatency"),
            size=np.asarray([float(ceil(size * unit)) for size in sizes]),
            backward=self._flags("isBackwardNode"),
            supported=self._flags("supportedOnFpga"),
            colour=colour,
            coloured=coloured,
            labels=labels,
            layer=self._layers(),
            tail=tail,
            head=head,
            out=out,
        )

    def _times(self, key: str) -> Any:
        return np.asarray([_number(node, key, f"node {node['id']}") for node in self.nodes])

    def _flags(self, key: str) -> Any:
        return np.asarray([_flag(node, key, f"node {node['id']}") for node in self.nodes], np.bool_)

    def _layers(self) -> Any:
        rows = [
            _whole(node, "layerId", f"node {node['id']}") if "layerId" in node else -1
            for node in self.nodes
        ]
        return np.asarray(rows, np.int64)

    def _colours(self) -> tuple[Any, Any, tuple[str, ...]]:
        numbers: dict[tuple[str, int], int] = {}
        colour, coloured = [], []
        for i, node in enumerate(self.nodes):
            given = node.get("colorClass") is not None
            value = _whole(node, "colorClass", f"node {node['id']}") if given else i
            key = ("colour" if given else "alone", value)
            colour.append(numbers.setdefault(key, len(numbers)))
            coloured.append(given)
        labels = tuple(
            f"colour {value}" if kind == "colour" else f"node {self.nodes[value]['id']}"
            for kind, value in numbers
        )
        return np.asarray(colour, np.int64), np.asarray(coloured, np.bool_), labels

    def _edges(self) -> tuple[Any, Any, Any]:
        ends: list[list[int]] = [[], []]
        cost: dict[int, float] = {}
        for i, edge in enumerate(self.edges):
            name = f"edge number {i}"
            for side, key in enumerate(("sourceId", "destId")):
                node = _whole(edge, key, name)
                if node not in self.index:
                    raise _MalformedError(f"{name} has {key} {node}, which no node has")
                ends[side].append(self.index[node])
            tail, value = ends[0][-1], _number(edge, "cost", name)
            if not isclose(cost.setdefault(tail, value), value, rel_tol=SAME):
                raise _MalformedError(
                    f"edges out of node {self.nodes[tail]['id']} have two costs, {cost[tail]:g} "
                    f"and {value:g}; the cost is that of the node's output, one for all readers"
                )
        out = np.zeros(len(self.nodes))
        for node, value in cost.items():
            out[node] = value
        return np.asarray(ends[0], np.int64), np.asarray(ends[1], np.int64), out


def _objects(data: dict[str, Any], key: str) -> list[dict[str, Any]]:
    rows = data[key]
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise _MalformedError(f"{key} is no list of objects")
    return rows


def _given(row: dict[str, Any], key: str, name: str) -> Any:
    if key not in row:
        raise _MalformedError(f"{name} has no {key}")
    return row[key]


def _exact(row: dict[str, Any], key: str, name: str, default: int | None = None) -> Decimal:
    """A finite number that is not negative, as it is written."""
    value = row.get(key, default) if default is not None else _given(row, key, name)
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
            raise InvalidOperation
        number = Decimal(str(value))
    except InvalidOperation as error:
        raise _MalformedError(f"{key} of {name} is {value!r}, not a number") from error
    if not number.is_finite() or not 0 <= number <= LARGEST:
        raise _MalformedError(f"{key} of {name} is {number}; 0 to {LARGEST} is what it can be")
    return number


def _number(row: dict[str, Any], key: str, name: str) -> float:
    return float(_exact(row, key, name))


def _whole(row: dict[str, Any], key: str, name: str) -> int:
    value = _given(row, key, name)
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float | Decimal)
        or not isfinite(value)
        or value != int(value)
    ):
        raise _MalformedError(f"{key} of {name} is {_written(value)}, not a whole number")
    if abs(int(value)) >= MOST:
        raise _MalformedError(f"{key} of {name} is {value}, which is too large")
    return int(value)


def _written(value: Any) -> str:
    return str(value) if isinstance(value, Decimal) else repr(value)


def _count(row: dict[str, Any], key: str) -> int:
    value = _whole(row, key, "the file")
    if not 0 <= value <= PLACED_ON:
        raise _MalformedError(f"{key} is {value}, not a number of devices")
    return value


def _flag(row: dict[str, Any], key: str, name: str) -> bool:
    value = _given(row, key, name)
    if value not in (0, 1):
        raise _MalformedError(
            f"{key} of {name} is {value!r}; true, false, 1 or 0 is what it can be"
        )
    return bool(value)


def _unit(sizes: list[Decimal]) -> int:
    """The power of ten that makes all sizes whole, as far as their sum stays exact."""
    total, unit = sum(sizes), 1
    for _ in range(DECIMALS):
        if all(size * unit % 1 == 0 for size in sizes) or total * unit * 10 >= MOST:
            break
        unit *= 10
    return unit


def write_graph(graph: PlacementGraph, path: Path) -> None:
    """Write a graph as such a file.

    Raises:
        OSError: the file cannot be written.
    """
    with atomic(path) as temporary:
        temporary.write_text(json.dumps(to_json(graph), indent=1), encoding="utf-8")


def to_json(graph: PlacementGraph) -> dict[str, Any]:
    """The file's object."""
    return {
        "maxSizePerFPGA": _plain(graph.memory / graph.unit),
        "maxFPGAs": graph.accelerators,
        "maxCPUs": graph.cpus,
        "nodes": [_node(graph, v) for v in range(graph.count)],
        "edges": [
            {
                "sourceId": int(graph.ids[u]),
                "destId": int(graph.ids[v]),
                "cost": float(graph.out[u]),
            }
            for u, v in zip(graph.tail.tolist(), graph.head.tolist(), strict=True)
        ],
    }


def _node(graph: PlacementGraph, v: int) -> dict[str, Any]:
    node: dict[str, Any] = {"id": int(graph.ids[v])}
    if graph.names[v]:
        node["name"] = graph.names[v]
    node |= {
        "supportedOnFpga": int(graph.supported[v]),
        "cpuLatency": float(graph.cpu[v]),
        "fpgaLatency": float(graph.acc[v]),
        "isBackwardNode": int(graph.backward[v]),
        "size": _plain(graph.size[v] / graph.unit),
    }
    colour = graph.colour_class(v)
    if colour is not None:
        node["colorClass"] = colour
    if graph.layer[v] >= 0:
        node["layerId"] = int(graph.layer[v])
    return node


def _plain(value: float) -> float | int:
    return int(value) if value == int(value) else float(value)
