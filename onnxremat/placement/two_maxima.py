"""All forwards, then all backwards: the largest forward time plus the largest backward time.

No placement has less than its max-load, so that every bound of that holds here too.
"""

from __future__ import annotations

from dataclasses import replace

from onnxremat.placement import contiguous
from onnxremat.placement.answer import Answer, Work
from onnxremat.placement.anywhere import Search, by_class
from onnxremat.placement.anywhere import solve as solve_max_load
from onnxremat.placement.chains import Chain, Chains
from onnxremat.placement.classes import Classes, condense, loads
from onnxremat.placement.graph import PlacementGraph
from onnxremat.placement.reduce import free_ends, inseparable

FIRST = 0.3  # share of the time for a first search


def chain(graph: PlacementGraph, work: Work) -> Answer:
    """The best chain of ideals, proven where ideals are few enough and time lasts.

    The least backward maximum b below a cap on the forward one is a chain; what is better than the
    best so far has a forward maximum below that of the chain, and below the best minus b. So the
    cap falls until no chain is left.

    Raises:
        InfeasibleError: proven that no chain keeps the limits.
    """
    first = contiguous.solve(graph, work.share(work.seconds / 2))
    if not graph.training or first.where is None:
        return first
    c = free_ends(condense(graph, chain=True))
    floor = sum(b.bound for b in Chains(c, two=True).balances)
    value = float(loads(c, by_class(c, first.where)).max(0).sum())
    answer = replace(first, method="dp", value=value, bound=max(floor, first.bound))
    small = inseparable(c, value)
    chains = Chains(small, two=True)
    least = chains.balances[0].bound  # of the forward maximum
    cap = value
    while work.left:
        found, proven = chains.whole(work, value - least, cap)
        if found is None and not proven:
            break
        if found is None:
            return replace(
                answer, bound=answer.value, bound_by="all chains", seconds=work.taken, notes=()
            )
        forward, backward = loads(small, found.where).max(0).tolist()
        if forward + backward < answer.value:
            answer = _with(answer, small, found, forward + backward)
            value = answer.value
        cap = min(forward, value - backward)
        if not proven:
            break
    return replace(answer, seconds=work.taken)


def _with(answer: Answer, c: Classes, found: Chain, value: float) -> Answer:
    return replace(answer, value=value, where=c.nodes(found.where), order=found.order)


def anywhere(graph: PlacementGraph, work: Work) -> Answer:
    """The best placement of any shape that is found; its bound is that of the max-load.

    Raises:
        InfeasibleError: proven that nothing fits.
    """
    first = solve_max_load(graph, work.share(FIRST * work.seconds))
    if not graph.training or first.where is None:
        return first
    search = begin(graph, first, work)
    search.run()
    return search.answer()


def begin(graph: PlacementGraph, first: Answer, work: Work) -> Search:
    """A search from the best placement of the max-load, with its bound."""
    c = free_ends(condense(graph, chain=False))
    assert first.where is not None
    search = Search(c, [by_class(c, first.where)], two=True, floor=first.bound, work=work)
    search.by = first.bound_by
    return search
