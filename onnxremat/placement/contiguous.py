"""Least largest load of a chain of devices: an upper bound from orders, then all ideals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from math import inf

import numpy as np

from onnxremat.graph.topological import first_come, last_come, least_first, picked
from onnxremat.placement import limits
from onnxremat.placement.answer import Answer, Work
from onnxremat.placement.balance import within_memory
from onnxremat.placement.chains import HUGE, Chain, Chains
from onnxremat.placement.classes import Classes, condense
from onnxremat.placement.graph import PlacementGraph
from onnxremat.placement.reduce import free_ends, inseparable
from onnxremat.placement.spine import spine_bound

ORDERS = 6  # linear orders tried before all ideals are
FORGETTING = 0.5  # of the time, for chains without the bytes of classes that take no time
LISTING = 0.3  # of the time left, for listing all ideals: the rest is for what comes of them


def solve(graph: PlacementGraph, work: Work, method: str = "dp") -> Answer:
    """The best chain, proven where the ideals are few enough and time lasts.

    Raises:
        InfeasibleError: proven that no chain keeps the limits.
    """
    raw = condense(graph, chain=True)
    why = limits.reason(raw)
    if why:
        raise limits.refuse(graph, why)
    return best_chain(raw, work, method)


def best_chain(raw: Classes, work: Work, method: str) -> Answer:
    """The same for classes with any precedence."""
    c, light = free_ends(raw), free_ends(raw, weightless=True)
    chains = Chains(c)
    floor, by, proven = max(chains.balances[1].bound, within_memory(c)), "balance", False
    best, home = _first(chains, work), c
    if light.count < c.count:
        found, joined, ended = _whole(light, best, work.share(work.left * FORGETTING))
        fits = found is not None and _fits(joined, found)
        if found and ended and found.value > floor:
            floor, by = found.value, "all chains without the bytes of what takes no time"
        if found and fits:
            best, home = found, joined
        proven = ended and (found is None or fits)
    if not proven:
        found, joined, proven = _whole(c, best, work)
        if found:
            best, home = found, joined
    if proven and best is None:
        raise limits.refuse(c.graph, "every chain of pieces was tried")
    answer = Answer(method, inf, floor, by, None, seconds=work.taken)
    if best is None:
        return answer
    if not proven:
        raised = spine_bound(c, best.value)
        floor, by = (raised, "balance and cuts of a path") if raised > floor else (floor, by)
        best, home = _better(chains, floor, best, home, work)
    bound, by = (best.value, "all chains") if proven else (floor, by)
    notes = () if proven else ("more chains than time or memory for all of them",)
    return replace(
        answer, value=best.value, bound=bound, bound_by=by, notes=notes,
        where=home.nodes(best.where), order=best.order, seconds=work.taken,
    )  # fmt: skip


def _whole(c: Classes, best: Chain | None, work: Work) -> tuple[Chain | None, Classes, bool]:
    """The best of all chains if it is below the best so far, the classes it is of, and whether that
    is proven."""
    upper = best.value if best else HUGE
    small = inseparable(c, upper)
    exact = Chains(small)
    if exact.lattice(work.share(work.left * LISTING)) is None:
        return None, small, False
    found, proven = exact.whole(work, upper)
    return found, small, proven


def _fits(c: Classes, chain: Chain) -> bool:
    """Every accelerator holds all bytes of its nodes, those that classes have forgotten too."""
    count = c.graph.accelerators
    held = np.bincount(c.nodes(chain.where), c.graph.size, count)[:count]
    return bool((held <= c.graph.memory).all())


def _first(chains: Chains, work: Work) -> Chain | None:
    """The best chain along a few orders."""
    best = None
    for order, _ in zip(orders(chains.c), range(ORDERS), strict=False):
        found = chains.along(order, best.value if best else HUGE)
        best = found or best
        if work.left <= 0:
            break
    return best


def _better(
    chains: Chains, floor: float, best: Chain, home: Classes, work: Work
) -> tuple[Chain, Classes]:
    """Chains along other orders until time is up: near the best one's, or drawn afresh."""
    rng = np.random.default_rng(work.seed)
    c = chains.c
    near = _order_of(c, home, best)
    for turn in count():
        if work.left <= 0 or work.met(best.value, floor):
            return best, home
        if turn % 4 == 3:
            rank = rng.random(c.count)
        else:
            rank = np.empty(c.count)
            rank[near] = np.arange(c.count)
            rank += rng.random(c.count) * c.count * rng.choice([0.01, 0.05, 0.2])
        order = least_first(c.before, rank.tolist())
        found = chains.along(order, best.value)
        if found:
            best, home, near = found, c, order
            work.progress(best.value, floor, "orders")
    raise AssertionError


def _order_of(c: Classes, home: Classes, chain: Chain) -> list[int]:
    """An order of c along which a chain of joined classes lies."""
    stage = {device: i for i, device in enumerate(chain.order)}
    where = np.zeros(c.count, np.int64)
    where[c.of] = home.nodes(chain.where)
    return least_first(c.before, [float(stage[d]) for d in where.tolist()])


def orders(c: Classes) -> Iterator[list[int]]:
    """Topological orders: depth first, breadth first, then mixed at random."""
    yield depth_first(c)
    yield first_come(c.before, c.after)
    for seed in count(2):
        rng = np.random.default_rng(seed)

        def draw(ready: list[int], rng: np.random.Generator = rng) -> int:
            return int(rng.integers(len(ready))) if rng.random() < 0.3 else len(ready) - 1

        yield picked(c.before, c.after, draw)


def depth_first(c: Classes) -> list[int]:
    """A topological order that follows one branch as far as it goes."""
    return last_come(c.before, c.after)
