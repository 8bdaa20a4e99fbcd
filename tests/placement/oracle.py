"""Small random graphs, every placement of them, and a second judge, from the files' own words.

Nothing here is shared with the package: the judge reads the JSON object.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

Where = tuple[int, ...]


def draw(seed: int) -> dict[str, Any]:
    """A graph of up to 7 forward nodes: colours, orphans, memory, unsupported nodes, CPUs."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 7))
    devices = (int(rng.integers(1, 4)), int(rng.integers(0, 3))) if n < 6 else (2, 1)
    edges = [(u, v) for u in range(n) for v in range(u + 1, n) if rng.random() < 0.4]
    colour = [u if rng.random() < 0.8 else int(rng.integers(n)) for u in range(n)]
    backward = [0] * n
    if rng.random() < 0.4:  # mirrored; some backward nodes have a colour of their own
        colour += [colour[u] if rng.random() < 0.85 else 100 + u for u in range(n)]
        backward += [1] * n
        edges += [(v + n, u + n) for u, v in edges]
        edges += [(u, u + n) for u in range(n) if rng.random() < 0.6]
    total = len(colour)
    acc = rng.integers(0, 6, total)
    cpu = acc * rng.integers(1, 12, total)
    out = rng.integers(0, 4, total)
    name = rng.permutation(total) * 3 + int(rng.integers(2))
    nodes = [
        {
            "id": int(name[v]),
            "supportedOnFpga": bool(rng.random() < 0.92),
            "fpgaLatency": int(acc[v]),
            "cpuLatency": int(cpu[v]),
            "isBackwardNode": backward[v],
            "size": int(rng.integers(0, 5)),
        }
        | ({} if rng.random() < 0.1 and colour[v] == v < n else {"colorClass": colour[v]})
        for v in range(total)
    ]
    order = rng.permutation(total)
    return {
        "maxFPGAs": devices[0],
        "maxCPUs": devices[1],
        "maxSizePerFPGA": int(rng.integers(6, 25)),
        "nodes": [nodes[v] for v in order],
        "edges": [
            {"sourceId": int(name[u]), "destId": int(name[v]), "cost": int(out[u])}
            for u, v in edges
        ],
    }


@dataclass(frozen=True)
class Found:
    """What a placement costs and keeps."""

    load: float
    two: float
    fits: bool
    convex: bool
    chain: bool


def colours(data: dict[str, Any]) -> list[list[int]]:
    """Positions of the nodes of each colour."""
    groups: dict[Any, list[int]] = {}
    for i, node in enumerate(data["nodes"]):
        groups.setdefault(node.get("colorClass", ("alone", i)), []).append(i)
    return list(groups.values())


def every(data: dict[str, Any]) -> list[tuple[Where, Found]]:
    """All placements that keep colours, up to the numbering of alike devices."""
    groups, facts = colours(data), Facts.of(data)
    k, count = data["maxFPGAs"], data["maxFPGAs"] + data["maxCPUs"]
    found = []
    for homes in itertools.product(range(count), repeat=len(groups)):
        used = list(dict.fromkeys(homes))
        first = [d for d in used if d < k]
        second = [d for d in used if d >= k]
        if first != sorted(first) or second != sorted(second):
            continue
        if (first and max(first) >= len(first)) or (second and max(second) >= k + len(second)):
            continue
        where = [0] * len(data["nodes"])
        for group, home in zip(groups, homes, strict=True):
            for v in group:
                where[v] = home
        found.append((tuple(where), judged(data, tuple(where), facts)))
    return found


@dataclass(frozen=True)
class Facts:
    """What the judge reads of a file, once."""

    nodes: list[dict[str, Any]]
    edges: list[tuple[int, int, float]]
    after: list[int]  # forward nodes that each forward node reaches, as bits
    before: list[int]

    @classmethod
    def of(cls, data: dict[str, Any]) -> Facts:
        nodes = data["nodes"]
        index = {node["id"]: i for i, node in enumerate(nodes)}
        edges = [(index[e["sourceId"]], index[e["destId"]], e["cost"]) for e in data["edges"]]
        n = len(nodes)
        reach = np.zeros((n, n), bool)
        for u, v, _ in edges:
            reach[u, v] = not nodes[v]["isBackwardNode"]
        for w in range(n):
            reach |= np.outer(reach[:, w], reach[w])
        bits = [1 << v for v in range(n)]
        after = [sum(bits[v] for v in range(n) if reach[u, v]) for u in range(n)]
        before = [sum(bits[u] for u in range(n) if reach[u, v]) for v in range(n)]
        return cls(nodes, edges, after, before)


def judged(data: dict[str, Any], where: Where, facts: Facts | None = None) -> Found:
    """Charges and rules of one placement (a device per node), accelerators first."""
    facts = facts or Facts.of(data)
    nodes, k = facts.nodes, data["maxFPGAs"]
    count = k + data["maxCPUs"]
    time = [[0.0, 0.0] for _ in range(count)]
    size, bits = [0] * count, [0] * count
    fits = True
    for v, node in enumerate(nodes):
        d = where[v]
        key = "fpgaLatency" if d < k else "cpuLatency"
        time[d][int(node["isBackwardNode"])] += node[key]
        size[d] += node["size"]
        fits &= d >= k or bool(node["supportedOnFpga"])
        bits[d] |= 1 << v
    moved = set()
    for u, v, cost in facts.edges:
        if where[u] != where[v]:
            for d in (where[u], where[v]):
                if d < k and (u, d) not in moved:
                    moved.add((u, d))
                    time[d][int(nodes[u]["isBackwardNode"])] += cost
    fits &= max(size[:k], default=0) <= data["maxSizePerFPGA"]
    convex, chain = shape(facts, where, bits)
    return Found(
        max((a + b for a, b in time), default=0.0),
        max((a for a, _ in time), default=0.0) + max((b for _, b in time), default=0.0),
        fits, convex, chain,
    )  # fmt: skip


def shape(facts: Facts, where: Where, bits: list[int]) -> tuple[bool, bool]:
    """Whether each device's forward set is convex, and whether devices have an order."""
    convex = True
    for held in bits:
        after = before = 0
        for v in range(len(where)):
            if held >> v & 1:
                after |= facts.after[v]
                before |= facts.before[v]
        convex &= not after & before & ~held
    waits = {
        (where[u], where[v])
        for u, v, _ in facts.edges
        if where[u] != where[v] and not facts.nodes[v]["isBackwardNode"]
    }
    left = {d for pair in waits for d in pair}
    while left:
        free = {d for d in left if not any(b == d and a in left for a, b in waits)}
        if not free:
            return convex, False
        left -= free
    return convex, True


def least(found: list[tuple[Where, Found]], rule: str = "", two: bool = False) -> float:
    """The least value of a placement that keeps all limits and a rule (``convex``, ``chain``)."""
    return min(
        (f.two if two else f.load for _, f in found if f.fits and (not rule or getattr(f, rule))),
        default=inf,
    )


def has_orphans(data: dict[str, Any]) -> bool:
    """Whether a colour has backward nodes only."""
    nodes = data["nodes"]
    return any(all(nodes[v]["isBackwardNode"] for v in group) for group in colours(data))
