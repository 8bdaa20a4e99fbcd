"""Changes that break a file, drawn at random: of protobuf messages field by field, of JSON values,
of text, of bytes. Equal draws give equal files."""

from __future__ import annotations

import copy
import io
import json
import zipfile
from random import Random
from typing import Any

import onnx
from google.protobuf.message import Message

NUMBERS = (
    0, 1, -1, 2, 3, 7, 31, 127, 255, 1 << 16, 1 << 22, 1 << 31, 1 << 40, 1 << 62, -(1 << 63),
)  # fmt: skip
REALS = (0.0, -1.0, 1e-320, 1e300, float("inf"), float("-inf"), float("nan"))
WORDS = (
    "", "\n", "a\0b", "../x", "/etc/hostname", "ünï,\"'\\", "%s{}", "x" * 5000, "0", "-1", "1e9",
)  # fmt: skip
OTHERS: tuple[Any, ...] = (1 << 70, True, False, None, [], {}, [[]], {"a": 1})
VALUES: tuple[Any, ...] = (*NUMBERS, *REALS, *WORDS, *OTHERS)
BYTES = 64  # of raw data that are drawn anew at most


def messages(root: Message) -> list[Message]:
    """A message and all inside of it, outermost first."""
    found = [root]
    for message in found:
        for field, value in message.ListFields():
            if field.message_type is not None:
                found += value if hasattr(value, "append") or hasattr(value, "add") else [value]
    return found


def change_message(root: Message, draw: Random, times: int) -> None:
    """Change some fields of a protobuf message, in place."""
    for _ in range(times):
        inside = messages(root)
        message = draw.choice(inside)
        fields = list(message.DESCRIPTOR.fields)
        used = [field for field, _ in message.ListFields()]
        field = draw.choice(used if used and draw.random() < 0.85 else fields)
        value = getattr(message, field.name)
        if hasattr(value, "append") or hasattr(value, "add"):
            _change_list(message, field, inside, draw)
        elif field.message_type is not None:
            _change_part(message, field, inside, draw)
        else:
            _set(message, field, _scalar(field, inside, draw), draw)


def _set(message: Message, field: Any, value: Any, draw: Random) -> None:
    try:
        setattr(message, field.name, value)
    except (ValueError, TypeError):  # out of the field's range
        message.ClearField(field.name)


def _change_list(message: Message, field: Any, inside: list[Message], draw: Random) -> None:
    rows = getattr(message, field.name)
    kept = [copy.deepcopy(row) if field.message_type else row for row in rows]
    way = draw.choice(("drop", "double", "move", "new", "all"))
    if kept and way == "drop":
        del kept[draw.randrange(len(kept))]
    elif kept and way == "double":
        kept.insert(draw.randrange(len(kept) + 1), draw.choice(kept))
    elif kept and way == "move":
        kept.insert(draw.randrange(len(kept)), kept.pop(draw.randrange(len(kept))))
    elif way == "all":
        kept = []
    elif field.message_type is not None:
        kin = [part for part in inside if part.DESCRIPTOR is field.message_type]
        if kin:
            kept.append(copy.deepcopy(draw.choice(kin)))
    else:
        kept.insert(draw.randrange(len(kept) + 1), _scalar(field, inside, draw))
        if len(kept) > 1 and draw.random() < 0.5:
            del kept[draw.randrange(len(kept))]
    message.ClearField(field.name)
    try:
        getattr(message, field.name).extend(kept)
    except (ValueError, TypeError):
        return


def _change_part(message: Message, field: Any, inside: list[Message], draw: Random) -> None:
    kin = [part for part in inside if part.DESCRIPTOR is field.message_type]
    if not kin or draw.random() < 0.3:
        message.ClearField(field.name)
        return
    other = copy.deepcopy(draw.choice(kin))
    getattr(message, field.name).CopyFrom(other)


def _scalar(field: Any, inside: list[Message], draw: Random) -> Any:
    """A value for a field: one at an edge, or one that is somewhere else in the file."""
    kind = field.cpp_type
    if kind == field.CPPTYPE_STRING:
        if field.type == field.TYPE_BYTES:
            return draw.randbytes(draw.randrange(BYTES))
        return draw.choice(WORDS) if draw.random() < 0.4 else draw.choice(_names(inside))
    if kind in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return draw.choice(REALS)
    if kind == field.CPPTYPE_BOOL:
        return draw.random() < 0.5
    if kind == field.CPPTYPE_ENUM:
        return draw.choice([value.number for value in field.enum_type.values])
    return draw.choice(NUMBERS) if draw.random() < 0.6 else draw.randrange(-2, 30)


def _names(inside: list[Message]) -> list[str]:
    found = [part.name for part in inside if isinstance(getattr(part, "name", None), str)]
    for part in inside:
        if isinstance(part, onnx.NodeProto):
            found += [*part.input, *part.output, part.op_type]
    return found or ["x"]


def change_json(data: Any, draw: Random, times: int) -> Any:
    """A JSON value with some of its parts replaced, dropped or repeated."""
    for _ in range(times):
        places = list(_places(data))
        if not places:
            return draw.choice(VALUES)
        holder, key = draw.choice(places)
        way = draw.choice(("value", "value", "drop", "other", "deep", "many"))
        if way == "drop":
            del holder[key]
        elif way == "other":
            other, there = draw.choice(places)
            holder[key] = copy.deepcopy(other[there]) if there in _keys(other) else None
        elif way == "deep":
            for _ in range(draw.choice((3, 150))):
                holder[key] = [holder[key]]
        elif way == "many" and isinstance(holder, list):
            holder[key:key] = [holder[key]] * draw.choice((1, 50))
        else:
            holder[key] = draw.choice(VALUES)
    return data


def _keys(holder: Any) -> Any:
    return holder if isinstance(holder, dict) else range(len(holder))


def _places(data: Any) -> Any:
    waiting = [data]
    while waiting:
        holder = waiting.pop()
        if isinstance(holder, dict | list):
            keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
            for key in keys:
                yield holder, key
                waiting.append(holder[key])


def change_text(text: str, draw: Random, times: int) -> str:
    """Text with some of its words replaced, and lines dropped, repeated or moved."""
    lines = text.splitlines() or [""]
    for _ in range(times):
        at = draw.randrange(len(lines))
        way = draw.choice(("word", "word", "drop", "double", "new"))
        if way == "word":
            parts = lines[at].replace(";", " ; ").replace("=", " = ").split(" ")
            parts[draw.randrange(len(parts))] = str(draw.choice(VALUES))
            lines[at] = " ".join(parts).replace(" ; ", ";")
        elif way == "drop" and len(lines) > 1:
            del lines[at]
        elif way == "double":
            lines[at:at] = [lines[at]] * draw.choice((1, 100))
        else:
            lines.insert(at, str(draw.choice(VALUES)))
    return "\n".join(lines)


def change_bytes(data: bytes, draw: Random, times: int) -> bytes:
    """Bytes of which some are others, gone, or there twice."""
    found = bytearray(data)
    for _ in range(times):
        at = draw.randrange(len(found) + 1)
        way = draw.choice(("flip", "cut", "insert", "double"))
        if way == "flip" and at < len(found):
            found[at] ^= 1 << draw.randrange(8)
        elif way == "cut":
            del found[at : at + draw.choice((1, 8, 1 << 20))]
        elif way == "insert":
            found[at:at] = draw.randbytes(draw.choice((1, 8, 100)))
        else:
            found[at:at] = found[at : at + 64]
    return bytes(found)


def change_archive(data: bytes, draw: Random, times: int) -> bytes:
    """A zip archive whose members are changed, renamed, dropped, or the archive itself."""
    if draw.random() < 0.3:
        return change_bytes(data, draw, times)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    target = io.BytesIO()
    victim = draw.choice(sorted(members))
    with zipfile.ZipFile(target, "w", draw.choice((0, zipfile.ZIP_DEFLATED))) as archive:
        for name, content in members.items():
            if name != victim:
                archive.writestr(name, content)
            elif draw.random() < 0.8:
                other = draw.choice((name, name.removesuffix(".npy"), "../" + name))
                kind = draw.choice((b"<f4", b"|O ", b"<U9", b"<c8"))
                header = content[:128].replace(b"<f4", kind)
                changed = change_bytes(header, draw, draw.randrange(3)) + content[128:]
                archive.writestr(other, changed)
    return target.getvalue()


def change_header(data: bytes, draw: Random, times: int) -> bytes:
    """A safetensors file with another header."""
    length = int.from_bytes(data[:8], "little")
    header = change_json(json.loads(data[8 : 8 + length]), draw, times)
    text = json.dumps(header).encode()
    size = len(text) if draw.random() < 0.9 else draw.choice((0, 1 << 40, 1 << 63))
    return size.to_bytes(8, "little") + text + data[8 + length :]
