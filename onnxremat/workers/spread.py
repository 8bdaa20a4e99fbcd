"""An update over ranks: each updates its own parameters, and numbers of all go round.

What needs no gradient (a counter of steps) runs on every rank. What needs gradients runs where the
largest of them is; a norm of all gradients so is a few sums of squares that travel to one rank, and
a factor that comes back. Stretches of one rank between two of others are *phases*, which all ranks
go through in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping

from onnxremat.graph.ir import Graph, Op

Phase = tuple[int, int]  # (phase, rank)
EVERYWHERE = (-1, -1)


def spread(update: Graph, homes: Mapping[str, int]) -> dict[Phase, list[Op]]:
    """The update's ops by phase and rank.

    Args:
        homes: rank of every sum of gradients.
    """
    rank, phase = dict(homes), dict.fromkeys(homes, 0)  # of values
    parts: dict[Phase, list[Op]] = {EVERYWHERE: []}
    for op in update.ops:
        known = [name for name in op.reads if name in rank]
        if not known:
            parts[EVERYWHERE].append(op)
            continue
        largest = max(update.tensors[name].bytes for name in known)
        here = min(rank[name] for name in known if update.tensors[name].bytes == largest)
        when = max(phase[name] + (rank[name] != here) for name in known)
        parts.setdefault((when, here), []).append(op)
        rank.update(dict.fromkeys(op.writes, here))
        phase.update(dict.fromkeys(op.writes, when))
    return {key: ops for key, ops in sorted(parts.items()) if ops}
