"""An update over ranks: each updates its own parameters, and numbers of all go round.

What needs gradients runs where the largest of them is; a norm of all gradients so is a few sums of
squares that travel to one rank, and a factor that comes back. What needs none runs where it is read
(a decayed moment), on every rank where several read it (a counter of steps). Stretches of one rank
between two of others are *phases*, which all ranks go through in the same order.
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
    key = dict[str, Phase]()  # of ops
    for op in update.ops:
        known = [name for name in op.reads if name in rank]
        if not known:
            key[op.name] = EVERYWHERE
            continue
        largest = max(update.tensors[name].bytes for name in known)
        here = min(rank[name] for name in known if update.tensors[name].bytes == largest)
        when = max(phase[name] + (rank[name] != here) for name in known)
        key[op.name] = when, here
        rank.update(dict.fromkeys(op.writes, here))
        phase.update(dict.fromkeys(op.writes, when))
    _move_to_readers(update, key)
    parts: dict[Phase, list[Op]] = {}
    for op in update.ops:
        parts.setdefault(key[op.name], []).append(op)
    return dict(sorted(parts.items()))


def _move_to_readers(update: Graph, key: dict[str, Phase]) -> None:
    """What needs no gradient, and is read on one rank only, is made there (a decayed moment): the
    others then need nothing that it reads."""
    kept = {*update.outputs}
    for op in reversed(update.ops):
        readers = [key[update.ops[k].name] for n in op.writes for k in update.readers.get(n, ())]
        ranks = {rank for _, rank in readers}
        if key[op.name] == EVERYWHERE and len(ranks) == 1 and kept.isdisjoint(op.writes):
            key[op.name] = min(readers)
