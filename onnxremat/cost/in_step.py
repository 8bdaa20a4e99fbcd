"""Costs of two graphs of one model, made comparable.

Two graphs that are measured one after the other, the whole and one with something in parts, are
measured by a machine that was busier during one of them. Ops that both have tell by how much: so
the quicker graph is the one that is quicker, not the one that was measured in a quieter moment.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import replace

from onnxremat.cost.table import CostTable, signatures
from onnxremat.graph.ir import Graph

MEASURED = frozenset({"measured", "cached"})  # sources
ENOUGH = 0.05  # share of a run that both graphs have, from which the others are scaled by it


def in_step(table: CostTable, graph: Graph, other: CostTable, of: Graph) -> CostTable:
    """Costs of a graph by the clock of another's: ops that both have cost what they do there, all
    others are scaled by what that changes. As they are, where one of both was not measured.

    Args:
        table: costs of ``graph``, in seconds.
        other: costs of ``of``.
    """
    if table.source not in MEASURED or other.source not in MEASURED:
        return table
    each = defaultdict(list)
    for name, key in signatures(of).items():
        each[key].append(other.seconds[name])
    known = {key: statistics.median(seconds) for key, seconds in each.items()}
    keys = signatures(graph)
    both = {name: known[key] for name, key in keys.items() if key in known}
    here = sum(table.seconds[name] for name in both)
    if here < ENOUGH * table.total or not here:
        return table
    scale = sum(both.values()) / here
    seconds = {n: both[n] if n in both else scale * each for n, each in table.seconds.items()}
    return replace(table, seconds=seconds, dispatch=scale * table.dispatch)
