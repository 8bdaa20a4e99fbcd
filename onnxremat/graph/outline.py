"""Big weights found in a model file without parsing them: its protobuf fields, walked by length.

https://protobuf.dev/programming-guides/encoding/. Only what leads to the weights is looked into:
ModelProto.graph, GraphProto.initializer, TensorProto.raw_data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

GRAPH, INITIALIZER, RAW = 7, 5, 9  # field numbers
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types

Buffer = memoryview


class Malformed(ValueError):  # noqa: N818
    """These bytes are no ONNX model with one graph."""


class _Field(NamedTuple):
    """One field: where it begins, and for bytes where its content lies."""

    number: int
    kind: int
    begin: int
    start: int
    end: int


@dataclass(frozen=True)
class Cut:
    """A weight whose raw data was left out.

    Attributes:
        index: place among the initializers.
        start, length: where its raw data lies in the file.
    """

    index: int
    start: int
    length: int


@dataclass(frozen=True)
class Outline:
    """A model file less the raw data of its big weights.

    Attributes:
        data: a model; the weights of ``cuts`` are there, empty.
    """

    data: bytes
    cuts: tuple[Cut, ...]


def outline(buffer: Buffer, least: int) -> Outline:
    """The model in ``buffer`` without raw data of ``least`` bytes and more.

    Raises:
        Malformed: these bytes are no model.
    """
    fields = list(_fields(buffer, 0, len(buffer)))
    graphs = [field for field in fields if field.number == GRAPH and field.kind == _BYTES]
    if len(graphs) != 1:
        raise Malformed("not one graph")
    (graph,) = graphs
    pieces: list[Buffer | bytes] = []
    cuts: list[Cut] = []
    index, copied = 0, graph.start
    for field in _fields(buffer, graph.start, graph.end):
        if field.number != INITIALIZER or field.kind != _BYTES:
            continue
        raw = _raw_data(buffer, field) if field.end - field.start >= least else None
        if raw is not None and raw.end - raw.start >= least:
            cuts.append(Cut(index, raw.start, raw.end - raw.start))
            rest = field.end - field.start - (raw.end - raw.begin)
            pieces += [buffer[copied : field.begin], _tag(INITIALIZER) + varint(rest)]
            pieces += [buffer[field.start : raw.begin], buffer[raw.end : field.end]]
            copied = field.end
        index += 1
    pieces.append(buffer[copied : graph.end])
    size = sum(len(piece) for piece in pieces)
    pieces = [buffer[: graph.begin], _tag(GRAPH) + varint(size), *pieces, buffer[graph.end :]]
    return Outline(b"".join(pieces), tuple(cuts))


def _raw_data(buffer: Buffer, tensor: _Field) -> _Field | None:
    for field in _fields(buffer, tensor.start, tensor.end):
        if field.number == RAW and field.kind == _BYTES:
            return field
    return None


def _fields(buffer: Buffer, start: int, end: int) -> Iterator[_Field]:
    """The fields of a message, one after the other."""
    at = start
    while at < end:
        begin = at
        tag, at = _read_varint(buffer, at, end)
        number, kind = tag >> 3, tag & 7
        content = at
        if kind == _BYTES:
            length, content = _read_varint(buffer, at, end)
            at = content + length
        elif kind == _VARINT:
            _, at = _read_varint(buffer, at, end)
        elif kind in (_FIXED32, _FIXED64):
            at += 4 if kind == _FIXED32 else 8
        else:
            raise Malformed(f"wire type {kind}")
        if at > end or not number:
            raise Malformed("a field goes beyond its message")
        yield _Field(number, kind, begin, content, at)


def _read_varint(buffer: Buffer, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 64:
        byte = buffer[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise Malformed("a number without an end")


def varint(value: int) -> bytes:
    """A number as protobuf writes it."""
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    made.append(value)
    return bytes(made)


def _tag(number: int) -> bytes:
    return varint(number << 3 | _BYTES)


class Filling(NamedTuple):
    """Bytes of a file that stand in a written model: ``length`` of them from ``start`` on."""

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
    buffer = memoryview(model)
    graph = next(f for f in _fields(buffer, 0, len(buffer)) if f.number == GRAPH)
    parts: list[Part] = []
    size, index, copied = 0, 0, graph.start
    for field in _fields(buffer, graph.start, graph.end):
        if field.number != INITIALIZER:
            continue
        tensor, index = tensors[index], index + 1
        if tensor is None:
            continue
        before, raw, behind = tensor
        opening = _tag(RAW) + varint(raw.length)
        length = len(before) + len(opening) + raw.length + len(behind)
        head = _tag(INITIALIZER) + varint(length)
        parts += [bytes(buffer[copied : field.begin]), head + before + opening, raw, behind]
        size += field.begin - copied + len(head) + length
        copied = field.end
    parts.append(bytes(buffer[copied : graph.end]))
    size += graph.end - copied
    head = bytes(buffer[: graph.begin]) + _tag(GRAPH) + varint(size)
    return [head, *parts, bytes(buffer[graph.end :])]
