"""Why no placement can keep the limits of a graph, where one look says so.

With a CPU everything fits there; without one, nodes may not be supported, or be too many bytes.
"""

from __future__ import annotations

import numpy as np

from onnxremat.errors import InfeasibleError
from onnxremat.placement.classes import Classes
from onnxremat.placement.graph import PlacementGraph

HINT = "give a CPU (--cpus 1), more memory (--memory) or more accelerators (--accelerators)"


def reason(c: Classes) -> str:
    """Why nothing fits, "" where no look says so."""
    graph = c.graph
    if graph.cpus:
        return ""
    bad = np.flatnonzero(~c.supported)
    if bad.size:
        node = next(
            v for v in range(graph.count) if c.of[v] == bad[0] and not graph.supported[v]
        )  # fmt: skip
        return f"{graph.shown(node)} cannot run on an accelerator, and there is no CPU"
    heavy = int(np.argmax(c.size))
    if c.size[heavy] > graph.memory:
        size, limit = (f"{x / graph.unit:,.15g}" for x in (c.size[heavy], graph.memory))
        first = graph.shown(int(np.flatnonzero(c.of == heavy)[0]))
        return f"the nodes that must share a device with {first} take {size} bytes, one has {limit}"
    total = float(c.size.sum())
    if total > graph.accelerators * graph.memory:
        size, limit = (
            f"{x / graph.unit:,.15g}" for x in (total, graph.accelerators * graph.memory)
        )
        return f"all nodes take {size} bytes, all accelerators together have {limit}"
    return ""


def refuse(graph: PlacementGraph, why: str) -> InfeasibleError:
    """The error for a graph that nothing fits."""
    return InfeasibleError(
        "no placement keeps the limits of this graph",
        where=f"{graph.accelerators} accelerators of {graph.memory / graph.unit:,.15g} bytes, "
        f"{graph.cpus} CPUs",
        why=f"proven: {why}",
        hint=HINT,
    )
