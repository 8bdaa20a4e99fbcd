"""Protobuf's wire format: the fields of a message, one after the other, nothing parsed.

https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator

# Field numbers of onnx.proto on the way to the bytes of a weight.
GRAPH = 7  # of ModelProto
INITIALIZER = 5  # of GraphProto
RAW = 9  # of TensorProto
BYTES = 2  # wire type of strings, bytes and messages
_WIDTH = {1: 8, 5: 4}  # wire type to bytes, of numbers of fixed width

Buffer = mmap.mmap | bytes
Field = tuple[int, int, int, int, int]  # number, wire type, begin, begin of its content, end


def fields(data: Buffer, at: int, end: int) -> Iterator[Field]:
    """Raises ValueError where the bytes are no protobuf message."""
    while at < end:
        begin = at
        key, at = _number(data, at)
        kind = key & 7
        if kind == BYTES:
            length, inside = _number(data, at)
            at = inside + length
        elif kind == 0:
            inside = at
            _, at = _number(data, at)
        elif kind in _WIDTH:
            inside, at = at, at + _WIDTH[kind]
        else:
            raise ValueError(f"wire type {kind}")
        if at > end or key < 8:
            raise ValueError("a field ends behind its message")
        yield key >> 3, kind, begin, inside, at


def _number(data: Buffer, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than ten bytes")


def varint(value: int) -> bytes:
    """A number as protobuf writes it."""
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def opening(number: int, length: int) -> bytes:
    """What stands before the content of a field of so many bytes."""
    return varint(number << 3 | BYTES) + varint(length)


def message(number: int, content: bytes) -> tuple[bytes, bytes]:
    """A field that holds a message."""
    return opening(number, len(content)), content
