"""Ops listed so that onnxruntime makes each gradient of weights as soon as it can.

onnxruntime's default order walks back from what nobody reads, the last in the file first. Where
that needs all of the backward pass, as the gradient of the first layer does, other gradients come
after it, when what they read has left the caches, and all of it is kept until then. So what nobody
reads is listed in reverse: first what is ready last.
"""

from __future__ import annotations

from onnxremat.graph.ir import Graph, Op


def last_first(graph: Graph) -> Graph:
    """The same graph with what leads to one end alone behind the rest, the end that is ready last
    first."""
    place = {name: at for at, op in enumerate(graph.ops) for name in op.writes}
    end: dict[int, int] = {}  # the only op without readers that an op leads to; -1 for several
    for at in reversed(range(len(graph.ops))):
        led = {end[k] for name in graph.ops[at].writes for k in graph.readers.get(name, ())}
        end[at] = at if not led else led.pop() if len(led) == 1 else -1
    ready: dict[int, int] = {}
    ends: dict[int, list[Op]] = {}
    for at, op in enumerate(graph.ops):
        before = [place[n] for n in op.reads if n in place and end[place[n]] != end[at]]
        ready[end[at]] = max([ready.get(end[at], -1), *before])
        ends.setdefault(end[at], []).append(op)
    rest = ends.pop(-1, [])
    turn = sorted(ends, key=lambda last: ready[last], reverse=True)
    return graph.with_ops([*rest, *(op for last in turn for op in ends[last])])
