"""A model file put together from a model and big weights that lie elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from onnxremat.graph.protobuf import GRAPH, INITIALIZER, RAW, fields, opening


class Filling(NamedTuple):
    """Raw data that stands in a written model: of which weight, and how many bytes."""

    key: int
    length: int


Part = bytes | Filling


def filled(model: bytes, tensors: Sequence[tuple[bytes, Filling, bytes] | None]) -> list[Part]:
    """The pieces of a model file in which some initializers have their raw data.

    Args:
        model: serialised, its initializers in their order.
        tensors: for each initializer None, where it stays as it is, or its fields before and
            behind the raw data, and the raw data.
    """
    graph = next(field for field in fields(model, 0, len(model)) if field[0] == GRAPH)
    _, _, begin, copied, end = graph
    parts: list[Part] = []
    size, index = 0, 0
    for number, _, start, _, stop in fields(model, copied, end):
        if number != INITIALIZER:
            continue
        tensor, index = tensors[index], index + 1
        if tensor is None:
            continue
        before, raw, behind = tensor
        start_of_raw = opening(RAW, raw.length)
        length = len(before) + len(start_of_raw) + raw.length + len(behind)
        head = opening(INITIALIZER, length)
        parts += [model[copied:start], head + before + start_of_raw, raw, behind]
        size += start - copied + len(head) + length
        copied = stop
    parts.append(model[copied:end])
    size += end - copied
    return [model[:begin] + opening(GRAPH, size), *parts, model[end:]]
