"""Reader for the graph files of published planner studies (networkx node-link JSON).

Two kinds are known: training graphs with ``cost_ram`` and ``cost_cpu`` per node, and random
layered graphs with ``out_cost`` and ``duration``. An edge u -> v says that v reads u's tensor.
"""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from onnxremat import plain_json
from onnxremat.graph.topological import least_first
from onnxremat.limits import regular
from onnxremat.planner.problem import OneDevice, Problem, Rows

SIZES = ("cost_ram", "out_cost", "size", "memory")
TIMES = ("cost_cpu", "duration", "time", "cost")
MOST_BYTES = 1 << 60  # of all values: sums of them are whole numbers of 64 bits


class GraphFileError(ValueError):
    """A graph file that cannot be read; the message says what is wrong."""


def read_graph(path: str | Path) -> Problem:
    """Problem of a graph file, ops in the order of the study.

    That order is the file's node order where it is topological, else ``graph.order``, else the
    smallest topological order of the node positions.

    Raises:
        GraphFileError: not JSON, not a graph, a missing key, a cycle.
    """
    try:
        data = plain_json.loads(regular(Path(path)).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise GraphFileError(f"{path}: {error}") from error
    if not isinstance(data, dict) or not isinstance(data.get("nodes"), list):
        raise GraphFileError(f"{path}: no list of nodes")
    nodes: list[dict[str, Any]] = data["nodes"]
    links = data.get("links", data.get("edges"))
    if not isinstance(links, list) or not nodes:
        raise GraphFileError(f"{path}: no nodes or no links")
    try:
        return _problem(data, nodes, links)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise GraphFileError(f"{path}: {error}") from error


def _problem(data: dict[str, Any], nodes: list[dict[str, Any]], links: list[Any]) -> Problem:
    ids = [node["id"] if "id" in node else node["name"] for node in nodes]
    index = {name: i for i, name in enumerate(ids)}
    if len(index) < len(ids):
        twice = next(name for i, name in enumerate(ids) if index[name] != i)
        raise ValueError(f"two nodes have the id {twice!r}")
    inputs: list[list[int]] = [[] for _ in nodes]
    for link in links:
        tail, head = _ends(link)
        for name in (tail, head):
            if name not in index:
                raise ValueError(f"link {link!r} names node {name!r}, which there is not")
        inputs[index[head]].append(index[tail])
    size_key, time_key = _key(nodes[0], SIZES), _key(nodes[0], TIMES)
    order = _order(data, index, inputs)
    rank = {node: i for i, node in enumerate(order)}
    count = len(order)
    sizes = [_bytes(nodes[v][size_key]) for v in order]
    if sum(sizes) > MOST_BYTES:
        raise ValueError(
            f"all sizes together are {sum(sizes)} bytes, at most {MOST_BYTES} are read"
        )
    return OneDevice(
        cost=np.asarray([_seconds(nodes[v][time_key]) for v in order]),
        work=np.zeros(count, np.int64),
        reads=Rows.of([sorted({rank[u] for u in inputs[v]}) for v in order]),
        writes=Rows.of([[i] for i in range(count)]),
        size=np.asarray(sizes, np.int64),
        keep=np.zeros(count, np.bool_),
        inplace=Rows.of([[] for _ in order]),
        recompute=np.ones(count, np.bool_),
    ).problem()


def _seconds(number: float) -> float:
    if not 0 <= float(number) < inf:
        raise ValueError(f"a time of {number} is no number of seconds")
    return float(number)


def _bytes(number: float) -> int:
    if number < 0 or number != int(number):
        raise ValueError(f"a size of {number} is not a whole number of bytes")
    return int(number)


def _ends(link: Any) -> tuple[Any, Any]:
    for tail, head in (("source", "target"), ("0", "1")):
        if isinstance(link, dict) and tail in link:
            return link[tail], link[head]
    if isinstance(link, list) and len(link) >= 2:
        return link[0], link[1]
    raise KeyError(f"link {link!r} has no source and target")


def _key(node: dict[str, Any], names: tuple[str, ...]) -> str:
    for name in names:
        if name in node:
            return name
    raise KeyError(f"nodes have none of {', '.join(names)}")


def _order(data: dict[str, Any], index: dict[Any, int], inputs: list[list[int]]) -> list[int]:
    meta = data.get("graph")
    given = meta.get("order") if isinstance(meta, dict) else None
    named = [index[name] for name in given] if given else None
    for order in (list(range(len(inputs))), named):
        if order is not None and _topological(order, inputs):
            return order
    found = least_first(inputs)
    if len(found) != len(inputs):
        raise ValueError("the graph has a cycle")
    return found


def _topological(order: list[int], inputs: list[list[int]]) -> bool:
    if sorted(order) != list(range(len(inputs))):
        return False
    rank = {node: i for i, node in enumerate(order)}
    return all(rank[source] < rank[node] for node, row in enumerate(inputs) for source in row)
