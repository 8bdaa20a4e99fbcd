"""Updates in place: a new value may replace the old one only after its last reader, and takes no
bytes of its own."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from onnxremat.graph.ir import Graph, Role
from onnxremat.graph.overwriting import readers_of_views


def updates_last(
    graph: Graph, sequence: Sequence[str], pairs: Sequence[tuple[str, str]]
) -> list[str]:
    """The sequence with every update moved behind the last reader of the value it replaces.

    A trainer binds a parameter's input and its updated output to one buffer. The order of the
    graph makes that right; a recomputation may read the old value, or a view of it, again later.
    The update then waits: its gradient stays instead of the new value, which has the same size.

    Args:
        sequence: op names in execution order.
        pairs: (input, output) tensors that share a buffer.
    """
    made, names = graph.producer, list(sequence)
    readers = readers_of_views(graph.ops, [old for old, _ in pairs])
    place = {name: step for step, name in enumerate(names)}  # last run of each op
    moves: dict[int, list[str]] = {}
    dropped: set[int] = set()
    for old, new in pairs:
        if new not in made:
            continue
        update = graph.ops[made[new]].name
        reads = (graph.ops[index].name for index in readers[old])
        last = max((place[name] for name in reads if name != update), default=-1)
        if last > place[update]:
            moves.setdefault(last, []).append(update)
            dropped.add(place[update])
    order: list[str] = []
    for step, name in enumerate(names):
        if step not in dropped:
            order.append(name)
        order += moves.get(step, [])
    return order


def written_over(graph: Graph, outputs: Collection[str]) -> Graph:
    """The graph in which results that are written into memory which is there take no bytes of
    their own."""
    tensors = dict(graph.tensors)
    for name in outputs:
        if name in tensors and tensors[name].role is Role.OUTPUT:
            tensors[name] = replace(tensors[name], bytes=0)
    return graph.with_ops(graph.ops, tensors)


def given_memory(graph: Graph) -> tuple[str, ...]:
    """The results that :func:`written_over` has made such."""
    found = ((name, graph.tensors[name]) for name in graph.outputs)
    return tuple(
        name for name, t in found if not t.bytes and t.shape is not None and 0 not in t.shape
    )
