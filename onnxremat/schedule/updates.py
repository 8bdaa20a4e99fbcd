"""Updates in place: a new value may replace the old one only after its last reader."""

from __future__ import annotations

from collections.abc import Sequence

from onnxremat.graph.ir import Graph


def updates_last(
    graph: Graph, sequence: Sequence[str], pairs: Sequence[tuple[str, str]]
) -> list[str]:
    """The sequence with every update moved behind the last reader of the value it replaces.

    A trainer binds a parameter's input and its updated output to one buffer. The order of the
    graph makes that right; a recomputation may read the old value again later. The update then
    waits: its gradient stays instead of the new value, which has the same size.

    Args:
        sequence: op names in execution order.
        pairs: (input, output) tensors that share a buffer.
    """
    made, names = graph.producer, list(sequence)
    readers: dict[str, list[str]] = {}
    for op in graph.ops:
        for tensor in op.reads:
            readers.setdefault(tensor, []).append(op.name)
    place = {name: step for step, name in enumerate(names)}  # last run of each op
    moves: dict[int, list[str]] = {}
    dropped: set[int] = set()
    for old, new in pairs:
        if new not in made:
            continue
        update = graph.ops[made[new]].name
        last = max((place[r] for r in readers.get(old, ()) if r != update), default=-1)
        if last > place[update]:
            moves.setdefault(last, []).append(update)
            dropped.add(place[update])
    order: list[str] = []
    for step, name in enumerate(names):
        if step not in dropped:
            order.append(name)
        order += moves.get(step, [])
    return order
