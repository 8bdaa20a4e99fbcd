"""The released programs' other methods, each as its program does it.

They do not look at memory (``one``, ``local-search``, ``bisection``), or only so far; what a split
of theirs breaks is found by the judge, as for any split.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf

import numpy as np

from onnxremat.errors import UnsupportedError
from onnxremat.placement import contiguous, limits
from onnxremat.placement.annealing import Annealing
from onnxremat.placement.answer import Answer, Work
from onnxremat.placement.chains import Chains
from onnxremat.placement.classes import Classes, condense
from onnxremat.placement.contracted import (
    Contracted,
    blocks,
    forward_classes,
    linear_order,
    without_trivial,
)
from onnxremat.placement.graph import Index, PlacementGraph
from onnxremat.placement.hash_order import hash_order, random_numbers
from onnxremat.placement.reduce import Union
from onnxremat.placement.scotch import scotch
from onnxremat.planner.problem import Floats

RESTARTS = 10  # of the local search
# Tails of edges that the released PipeDream does not look at, in graphs with so many nodes.
LEFT_OUT = {32: (4, 37), 64: (4, 37), 96: (2, 100, 40, 137, 46, 142)}
LEFT_OUT[192] = LEFT_OUT[96]


def _answer(name: str, c: Classes, where: Index, value: float, work: Work) -> Answer:
    return Answer(name, value, 0.0, "", c.nodes(where), seconds=work.taken)


def one_accelerator(graph: PlacementGraph, work: Work) -> Answer:
    """Everything on one accelerator."""
    c = condense(graph, chain=False)
    where = np.zeros(c.count, np.int64)
    return _answer("one", c, where, float(c.load.sum()), work)


def local_search(graph: PlacementGraph, work: Work) -> Answer:
    """Best single moves from the released program's random placements on accelerators."""
    contracted = forward_classes(graph)
    c, number = _classes(graph, contracted)
    walked = [number[colour] for colour in hash_order(contracted.colours.values())]
    chance = random_numbers()
    starts = np.zeros((RESTARTS, c.count), np.int64)
    for start in starts:
        start[walked] = [next(chance) % graph.accelerators for _ in walked]
    value, where = Annealing(c, two=False, seed=0).descents(starts, walked)
    return _answer("local-search", c, where, value, work)


def dpl(graph: PlacementGraph, work: Work) -> Answer:
    """Chains along one depth-first order, that of the released program."""
    return _linear("dpl", graph, forward_classes(graph), work)


def contract_layers(graph: PlacementGraph, work: Work) -> Answer:
    """All chains of the graph whose layers are one class each.

    Raises:
        UnsupportedError: no node has a layer.
    """
    if not (graph.layer >= 0).any():
        raise UnsupportedError(
            "contract-layers needs layers", why="no node of the graph has a layerId",
            hint="choose another method",
        )  # fmt: skip
    c = condense(graph, chain=True)
    union = Union(c.count)
    first: dict[int, int] = {}
    for node, layer in enumerate(graph.layer.tolist()):
        if layer >= 0:
            union.join(int(c.of[node]), first.setdefault(layer, int(c.of[node])))
    return contiguous.best_chain(c.joined(union.homes()), work, "contract-layers")


def pipedream(graph: PlacementGraph, work: Work, *, released: bool = False) -> Answer:
    """Biconnected components are merged, then chains along one order.

    Args:
        released: leave out the edges that the released program leaves out by their ids, in every
            graph with as many nodes as those it was written for.
    """
    left_out = LEFT_OUT.get(graph.count, ()) if released else ()
    name = "pipedream-released" if released else "pipedream"
    return _linear(name, graph, forward_classes(graph, without=left_out), work)


def _linear(name: str, graph: PlacementGraph, merged: Contracted, work: Work) -> Answer:
    contracted = without_trivial(merged)
    c, number = _classes(graph, contracted)
    why = limits.reason(c)
    order = [number[colour] for colour in linear_order(contracted)]
    found = None if why else Chains(c).along(order)
    answer = Answer(name, inf, 0.0, "", None, seconds=work.taken)
    if found is None:
        return replace(answer, notes=(why or "no chain along its order keeps the limits",))
    return replace(
        answer, value=found.value, where=c.nodes(found.where), order=found.order,
        seconds=work.taken,
    )  # fmt: skip


def _classes(graph: PlacementGraph, contracted: Contracted) -> tuple[Classes, dict[int, int]]:
    """The classes of a contracted graph, and the class of each of its colours."""
    first: dict[int, int] = {}
    c = condense(graph, chain=False)
    home = list(range(c.count))
    for node, colour in contracted.colours.items():
        home[c.of[node]] = first.setdefault(colour, int(c.of[node]))
    c = c.joined(home)
    return c, {colour: int(c.of[node]) for node, colour in contracted.colours.items()}


def greedy(graph: PlacementGraph, work: Work) -> Answer:
    """Blocks in a topological order fill one accelerator after the other, each until the next does
    not fit; what is larger than one, or comes after the last, goes to CPUs. Whether nodes are
    supported is not looked at."""
    where = np.full(graph.count, graph.accelerators, np.int64)
    device, free, begun = 0, graph.memory, False
    for block in blocks(graph):
        size = float(graph.size[block].sum())
        if begun and size > free:
            device, begun = device + 1, False
        if size > graph.memory or device == graph.accelerators:
            continue
        free = (free if begun else graph.memory) - size
        begun = True
        where[block] = device
    return Answer("greedy", inf, 0.0, "", where, seconds=work.taken)


def bisection(graph: PlacementGraph, work: Work) -> Answer:
    """Recursive bisection of the nets' graph into k parts of even compute (Fiduccia and Mattheyses
    1982), in place of Scotch; no CPUs, no memory."""
    c = condense(graph, chain=False)
    where = np.zeros(c.count, np.int64)
    _halve(c, np.arange(c.count), 0, graph.accelerators, where, np.random.default_rng(work.seed))
    value = Annealing(c, two=False, seed=0).value(where)
    return _answer("bisection", c, where, value, work)


def _halve(
    c: Classes, part: Index, first: int, parts: int, where: Index, rng: np.random.Generator
) -> None:
    where[part] = first
    if parts < 2 or not len(part):
        return
    left = parts // 2
    side = _two(c, part, left / parts, rng)
    _halve(c, part[side == 0], first, left, where, rng)
    _halve(c, part[side == 1], first + left, parts - left, where, rng)


def _two(c: Classes, part: Index, share: float, rng: np.random.Generator) -> Index:
    """Two sides of about that share of the compute: the best of some starts after passes of moves
    that gain cut weight while both sides keep within the heaviest class of their share."""
    inside = {int(v): i for i, v in enumerate(part)}
    nets = [
        ([inside[v] for v in pins if v in inside], weight)
        for pins, weight in zip(c.nets, c.weight.tolist(), strict=True)
    ]
    nets = [(pins, weight) for pins, weight in nets if len(pins) > 1]
    touching: list[list[int]] = [[] for _ in part]
    for e, (pins, _) in enumerate(nets):
        for v in pins:
            touching[v].append(e)
    load = c.load[part]
    goal = share * float(load.sum())
    slack = max(float(load.max(initial=0.0)), 0.02 * float(load.sum()))
    best, least = np.zeros(len(part), np.int64), inf
    for _ in range(4):
        side = _grown(nets, touching, load, goal, rng)
        cut = _passes(nets, touching, load, goal, slack, side)
        if cut < least:
            best, least = side.copy(), cut
    return best


Nets = list[tuple[list[int], float]]


def _grown(
    nets: Nets, touching: list[list[int]], load: Floats, goal: float, rng: np.random.Generator
) -> Index:
    """Side 0 grown from one class along nets until it has its share."""
    side = np.ones(len(load), np.int64)
    queue, held = [int(rng.integers(len(load)))], 0.0
    seen = set(queue)
    while held < goal:
        if not queue:
            queue = [next(v for v in range(len(load)) if v not in seen)]
            seen.update(queue)
        v = queue.pop(0)
        side[v] = 0
        held += float(load[v])
        for e in touching[v]:
            for w in nets[e][0]:
                if w not in seen:
                    seen.add(w)
                    queue.append(w)
        if len(seen) == len(load) and not queue:
            break
    return side


def _passes(
    nets: Nets, touching: list[list[int]], load: Floats, goal: float, slack: float, side: Index
) -> float:
    count = [[sum(1 for v in pins if side[v] == s) for s in (0, 1)] for pins, _ in nets]
    held = float(load[side == 0].sum())
    improved = True
    while improved:
        improved = False
        for v in range(len(load)):
            s = int(side[v])
            gain = 0.0
            for e in touching[v]:
                gain += nets[e][1] * ((count[e][s] == 1) - (count[e][1 - s] == 0))
            now = held - float(load[v]) if s == 0 else held + float(load[v])
            fits = abs(now - goal) <= max(slack, abs(held - goal) - 1e-12)
            if gain > 1e-12 and fits:
                for e in touching[v]:
                    count[e][s] -= 1
                    count[e][1 - s] += 1
                side[v], held, improved = 1 - s, now, True
    return sum(w for (_, w), row in zip(nets, count, strict=True) if row[0] and row[1])


def pipedream_released(graph: PlacementGraph, work: Work) -> Answer:
    """With the edges left out that the released program leaves out."""
    return pipedream(graph, work, released=True)


Method = Callable[[PlacementGraph, Work], Answer]


def _on_accelerators(method: Method) -> Method:
    """A method that puts all nodes on accelerators.

    Raises:
        UnsupportedError: there are none.
    """

    def placed(graph: PlacementGraph, work: Work) -> Answer:
        if not graph.accelerators:
            raise UnsupportedError(
                "there is no accelerator", why="it places on accelerators only",
                hint="--accelerators 1, or choose another method",
            )  # fmt: skip
        return method(graph, work)

    return placed


CHAINS: dict[str, Method] = {
    "dpl": dpl,
    "contract-layers": contract_layers,
    "pipedream": pipedream,
    "pipedream-released": pipedream_released,
}
ANY: dict[str, Method] = {
    "local-search": _on_accelerators(local_search),
    "scotch": _on_accelerators(scotch),
    "bisection": _on_accelerators(bisection),
    "one": _on_accelerators(one_accelerator),
}
