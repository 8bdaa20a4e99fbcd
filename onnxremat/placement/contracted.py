"""Graphs as the released ``dp.cpp`` contracts them, vertices and edges in its order.

Which linear order DPL and PipeDream walk, and where the local search begins, depends on the order
of vertices after several contractions, each of which walks a hash table of numbers that the program
gives to classes. So the same contractions are done here one after the other, with its numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from onnxremat.graph.topological import last_come
from onnxremat.placement.biconnected import biconnected
from onnxremat.placement.circles import components
from onnxremat.placement.graph import Index, PlacementGraph
from onnxremat.placement.hash_order import hash_order
from onnxremat.placement.reduce import Union

FRESH = 2**31 - 1 - 12345678  # below it, numbers for nodes without a colour
ARTIFICIAL = 100_000  # first name of a forward vertex for a class that has none
NOTHING = 1e-6  # time of a node that counts as none

Edge = tuple[int, int]


@dataclass(frozen=True)
class Vertex:
    """All forward, or all backward, nodes of a colour; before contraction one node.

    Attributes:
        acc, cpu: time on one accelerator and on one CPU.
        nodes: of the graph, by number; none in a vertex that only keeps the order.
    """

    name: int
    colour: int
    backward: bool
    acc: float
    cpu: float
    nodes: tuple[int, ...]


@dataclass(frozen=True)
class Contracted:
    """Vertices in the order of the released program, and edges between their names.

    Attributes:
        added: edges that only keep the order.
        real: edges of the graph.
    """

    vertices: tuple[Vertex, ...]
    added: tuple[Edge, ...]
    real: tuple[Edge, ...]

    @property
    def edges(self) -> tuple[Edge, ...]:
        """All edges."""
        return self.added + self.real

    def contracted(self, colour: dict[int, int] | None = None) -> Contracted:
        """One forward and one backward vertex per colour.

        Args:
            colour: a new one for each old one.
        """
        new = {v.colour: v.colour if colour is None else colour[v.colour] for v in self.vertices}
        colours = sorted(set(new.values()))
        behind = {c: colours[-1] + 1 + i for i, c in enumerate(colours)}
        parts: dict[int, list[Vertex]] = {}
        name: dict[int, int] = {}
        for v in self.vertices:
            name[v.name] = behind[new[v.colour]] if v.backward else new[v.colour]
            parts.setdefault(name[v.name], []).append(v)
        vertices = tuple(_one(n, new[parts[n][0].colour], parts[n]) for n in hash_order(parts))
        added, real = (
            sorted({(name[u], name[v]) for u, v in edges if name[u] != name[v]})
            for edges in (self.added, self.real)
        )
        return Contracted(vertices, tuple(added), tuple(real))

    @property
    def colours(self) -> dict[int, int]:
        """Colour of each node of the graph."""
        return {node: v.colour for v in self.vertices for node in v.nodes}


def _one(name: int, colour: int, parts: Sequence[Vertex]) -> Vertex:
    acc = cpu = 0.0
    for v in parts:  # one after the other: sum() rounds otherwise
        acc, cpu = acc + v.acc, cpu + v.cpu
    nodes = tuple(node for v in parts for node in v.nodes)
    return Vertex(name, colour, parts[0].backward, acc, cpu, nodes)


def original(graph: PlacementGraph) -> Contracted:
    """The graph as its file has it, with the released program's numbers for missing colours."""
    fresh, vertices = FRESH, []
    for v in range(graph.count):
        colour = graph.colour_class(v)
        if colour is None:
            colour = fresh = fresh - 1
        times = float(graph.acc[v]), float(graph.cpu[v])
        vertices.append(Vertex(int(graph.ids[v]), colour, bool(graph.backward[v]), *times, (v,)))
    ids = graph.ids.tolist()
    edges = zip(graph.tail.tolist(), graph.head.tolist(), strict=True)
    return Contracted(tuple(vertices), (), tuple((ids[u], ids[v]) for u, v in edges))


def forward_classes(graph: PlacementGraph, without: Sequence[int] | None = None) -> Contracted:
    """Classes as the released program searches them: every one has a forward vertex, and none
    depend on each other in a circle.

    Args:
        without: as PipeDream, which unites the tails of each biconnected component first, of all
            edges but those out of these vertices.
    """
    g = original(graph).contracted()
    if without is not None:
        g = g.contracted(_same_component(g, without))
    g = _with_forward(g)
    return g.contracted(_same_circle(g))


def blocks(graph: PlacementGraph) -> list[Index]:
    """Nodes that the released ``greedy.cpp`` places together, in its order: colours, united where
    they depend on each other in a circle."""
    colour, fresh = list[int](), -(2**31)
    for v in range(graph.count):
        known = graph.colour_class(v)
        fresh += known is None
        colour.append(fresh if known is None else known)
    walked = hash_order(colour)
    number = {name: i for i, name in enumerate(walked)}
    after: list[set[int]] = [set() for _ in walked]
    edges = list(zip(graph.tail.tolist(), graph.head.tolist(), strict=True))
    for u, v in edges:
        after[number[colour[u]]].add(number[colour[v]])
    rows: dict[int, list[int]] = {}
    home = components(after)
    for i, name in enumerate(walked):
        rows.setdefault(home[i], []).append(name)
    new = united(walked, [(name, c) for i, name in enumerate(walked) for c in rows[home[i]]])
    nodes: dict[int, list[int]] = {}
    for v, c in enumerate(colour):
        nodes.setdefault(new[c], []).append(v)
    between = [(new[colour[u]], new[colour[v]]) for u, v in edges]
    order = _depth_first(hash_order(nodes), [(u, v) for u, v in between if u != v])
    return [np.asarray(nodes[name], np.int64) for name in order]


def linear_order(g: Contracted) -> list[int]:
    """Colours in the depth-first order of the forward vertices that DPL takes."""
    colour = {v.name: v.colour for v in g.vertices if not v.backward}
    edges = [(u, v) for u, v in g.edges if v in colour]
    return [colour[name] for name in _depth_first(list(colour), edges)]


def _depth_first(names: Sequence[int], edges: Sequence[Edge]) -> list[int]:
    """Vertices of an acyclic graph as the released programs sort them: of those that wait for
    nothing, the last that came."""
    number = {name: i for i, name in enumerate(names)}
    before, after = ([list[int]() for _ in names] for _ in range(2))
    for u, v in edges:
        before[number[v]].append(number[u])
        after[number[u]].append(number[v])
    return [names[i] for i in last_come(before, after)]


def without_trivial(g: Contracted) -> Contracted:
    """Forward vertices that take no time, nor does their backward one, go where their only
    neighbour is; one after the other."""
    while True:
        found = _trivial(g)
        if found is None:
            return g
        colour = {v.colour: v.colour for v in g.vertices}
        colour[found[0]] = found[1]
        g = g.contracted(colour)


def _trivial(g: Contracted) -> Edge | None:
    """The first such vertex's colour, and where it goes."""
    by_name = {v.name: v for v in g.vertices}
    beside: dict[int, list[int]] = {v.name: [] for v in g.vertices}
    for tail, head in g.edges:
        beside[head].append(tail)
        beside[tail].append(head)
    behind = {v.colour: v.acc + v.cpu for v in g.vertices if v.backward}
    for v in g.vertices:
        if v.backward or v.cpu >= NOTHING or v.acc >= NOTHING or len(beside[v.name]) != 1:
            continue
        neighbour = by_name[beside[v.name][0]]
        if not neighbour.backward and behind.get(v.colour, 0.0) < NOTHING:
            return v.colour, neighbour.colour
    return None


def _same_component(g: Contracted, left_out: Sequence[int]) -> dict[int, int]:
    """Colours where vertices with edges out into one biconnected component are one."""
    edges = [(u, v) for u, v in g.edges if u not in left_out]
    number = {name: i for i, name in enumerate(hash_order(name for edge in edges for name in edge))}
    component = [0] * len(edges)
    parts = biconnected(len(number), [(number[u], number[v]) for u, v in edges])
    for i, part in enumerate(parts):
        for e in part:
            component[e] = i
    tails: dict[int, list[int]] = {}
    for e in sorted(range(len(edges)), key=lambda e: edges[e]):
        tails.setdefault(component[e], []).append(edges[e][0])
    pairs = [(tails[i][0], tail) for i in hash_order(tails) for tail in tails[i][1:]]
    home = united((v.name for v in g.vertices), pairs)
    colours: dict[int, list[int]] = {}
    for v in g.vertices:
        colours.setdefault(home[v.name], []).append(v.colour)
    rows = [colours[name] for name in hash_order(colours)]
    pairs = [pair for row in rows for pair in pairwise(row)]
    return united((v.colour for v in g.vertices), pairs)


def _same_circle(g: Contracted) -> dict[int, int]:
    """Colours where forward vertices that depend on each other are one."""
    forward = [v for v in g.vertices if not v.backward]
    number = {v.name: i for i, v in enumerate(forward)}
    after: list[set[int]] = [set() for _ in forward]
    for tail, head in g.edges:
        if tail in number and head in number:
            after[number[tail]].add(number[head])
    rows: dict[int, list[int]] = {}
    home = components(after)
    for i, v in enumerate(forward):
        rows.setdefault(home[i], []).append(v.colour)
    pairs = [(v.colour, c) for i, v in enumerate(forward) for c in rows[home[i]]]
    return united((v.colour for v in g.vertices), pairs)


def _with_forward(g: Contracted) -> Contracted:
    """With a forward vertex for every class that has none, and its backward edges turned round."""
    forward = {v.colour: v.name for v in g.vertices if not v.backward}
    colour = {v.name: v.colour for v in g.vertices if v.backward}
    names = {v.name for v in g.vertices}
    alone = [v.name for v in g.vertices if v.backward and v.colour not in forward]
    vertices, free = list(g.vertices), ARTIFICIAL
    for name in hash_order(alone):
        while free in names:
            free += 1
        names.add(free)
        forward[colour[name]] = free
        vertices.append(Vertex(free, colour[name], False, 0.0, 0.0, ()))
    lonely = set(alone)
    added = tuple(
        (forward[colour[v]], forward[colour[u]])
        for u, v in g.edges
        if u in colour and v in colour and (u in lonely or v in lonely)
    )
    return replace(g, vertices=tuple(vertices), added=added)


def united(names: Iterable[int], pairs: Iterable[Edge]) -> dict[int, int]:
    """The representative of each name where those of a pair are one: of the second's class."""
    every = list(dict.fromkeys(names))
    number = {name: i for i, name in enumerate(every)}
    union = Union(len(every))
    for u, v in pairs:
        union.join(number[u], number[v])
    return {name: every[home] for name, home in zip(every, union.homes(), strict=True)}
