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
ALIGN = 64  # bytes; sums over weights that lie oddly differ in their last bits, and take longer


def filled(model: bytes, tensors: Sequence[tuple[bytes, Filling, bytes] | None]) -> list[Part]:
    """The pieces of a model file in which some initializers have their raw data, each beginning at
    a multiple of :data:`ALIGN` in the file.

    Args:
        model: serialised, its initializers in their order.
        tensors: for each initializer None, where it stays as it is, or its fields before and
            behind the raw data, and the raw data.
    """
    fields_ = fields(model, 0, len(model))
    graph = Field(*next(field for field in fields_ if field[0] == GRAPH))
    width, size = 0, 1
    while width != len(opening(GRAPH, size)):  # which moves what follows
        width = len(opening(GRAPH, size))
        parts, size = _graph(model, graph, tensors, graph.begin + width)
    return [model[: graph.begin] + opening(GRAPH, size), *parts, model[graph.end :]]


class Field(NamedTuple):
    """A field of a message in a serialised model; its content from ``inside`` on."""

    number: int
    kind: int
    begin: int
    inside: int
    end: int


def _graph(
    model: bytes, graph: Field, tensors: Sequence[tuple[bytes, Filling, bytes] | None], start: int
) -> tuple[list[Part], int]:
    """The pieces of the graph that is written from ``start`` on, and its bytes."""
    parts: list[Part] = []
    at, copied, index = start, graph.inside, 0
    for number, _, begin, _, end in fields(model, graph.inside, graph.end):
        if number != INITIALIZER:
            continue
        tensor, index = tensors[index], index + 1
        if tensor is None:
            continue
        at += begin - copied
        head = _head(tensor, at)
        _, raw, behind = tensor
        parts += [model[copied:begin], head, raw, behind]
        at += len(head) + raw.length + len(behind)
        copied = end
    parts.append(model[copied : graph.end])
    return parts, at + graph.end - copied - start


def _head(tensor: tuple[bytes, Filling, bytes], at: int) -> bytes:
    """An initializer's bytes up to its raw data, which begins at a multiple of ALIGN where this is
    written ``at`` there. A field that is there twice counts as what it is last: raw data of a few
    zeros goes before the real one."""
    before, raw, behind = tensor
    for zeros in range(-1, 2 * ALIGN):
        more = b"" if zeros < 0 else opening(RAW, zeros) + bytes(zeros)
        inner = before + more + opening(RAW, raw.length)
        head = opening(INITIALIZER, len(inner) + raw.length + len(behind)) + inner
        if (at + len(head)) % ALIGN == 0:
            return head
    raise AssertionError(at)
