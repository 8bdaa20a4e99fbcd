"""Where nodes read one tensor for several, which PyTorch's exporter merged as they were equal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import onnx

from onnxremat.grad.marks import Marks

Place: TypeAlias = tuple[onnx.NodeProto, int]  # a node, and which of its inputs


def merged(marks: Marks, places: Sequence[Place], tokens: Sequence[str]) -> list[tuple[Place, str]]:
    """Where the nodes of one call of PyTorch's graph read another tensor than the call did, and
    what it read there: what has the same last name, else by order, where as many are left of both.

    Args:
        places: where they read floating-point initializers.
        tokens: what the call read, by PyTorch's names.
    """
    named = [(place, marks.token_of(place[0].input[place[1]])) for place in places]
    there = {own for _, own in named}
    waiting = [token for token in tokens if token not in there]
    found, left = [], []
    for place, own in named:
        if not own or own in tokens:
            continue
        same = [token for token in waiting if marks.alike(token, own)]
        if len(same) == 1:
            found.append((place, same[0]))
            waiting.remove(same[0])
        else:
            left.append(place)
    return found + (list(zip(left, waiting, strict=True)) if len(left) == len(waiting) else [])
