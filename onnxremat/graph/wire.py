"""A model file without its weights, read by scanning protobuf's wire format.

Parsing a file as protobuf puts every inline weight into memory once more. The scan reads what lies
between the weights and leaves each big one where it is, as a reference into the file itself: ONNX
calls that external data, and onnxruntime maps it instead of copying it.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from onnxremat.errors import ModelError
from onnxremat.graph.onnx_io import check_external, read_model
from onnxremat.graph.protobuf import BYTES as _BYTES
from onnxremat.graph.protobuf import GRAPH as _GRAPH
from onnxremat.graph.protobuf import INITIALIZER as _INITIALIZER
from onnxremat.graph.protobuf import RAW as _RAW
from onnxremat.graph.protobuf import fields as _fields
from onnxremat.graph.protobuf import message as _message
from onnxremat.graph.unforeseen import SHOWN
from onnxremat.limits import regular

LARGE = 64 << 10  # bytes from which a weight stays in the file: each is one mapping

# Further field numbers of onnx.proto.
_METADATA = 14  # of ModelProto
_NODE, _OUTPUT = 1, 12  # of GraphProto
_EXTERNAL, _LOCATION = 13, 14  # of TensorProto


@dataclass(frozen=True)
class Light:
    """A model file less its big weights.

    Attributes:
        content: the serialised model; big weights refer to the file they are in.
        head: metadata, and the weights that the file itself keeps in others; nothing else.
        weights: bytes left in the file.
    """

    content: bytes
    head: onnx.ModelProto
    weights: int

    @property
    def elsewhere(self) -> bool:
        """Whether the file keeps weights in other files."""
        return bool(self.head.graph.initializer)


def existing(path: str | os.PathLike[str]) -> Path:
    """Raises:
    ModelError: there is no such file.
    """
    file = Path(path)
    if not file.is_file():
        read_model(file)  # says so
    return file


def read_light(path: Path, without: str = "") -> Light:
    """Read a model file without its big weights.

    Args:
        without: leave out nodes whose names begin so, if what they read is read by others or leaves
            the graph, and what they make is read by nobody; shapes that are found as it runs
            (:mod:`onnxremat.graph.unforeseen`), which are read as they are; and what is said about
            nodes for people and tools (metadata and doc strings: PyTorch's exporter writes stack
            traces), which a session would keep.

    Raises:
        ModelError: as :func:`onnxremat.graph.onnx_io.read_model`.
    """
    try:
        with (
            existing(path).open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            found = _model(data, path.resolve().name, without)
    except (OSError, ValueError, IndexError, DecodeError):
        read_model(path)  # says what is wrong with the file
        raise ModelError(f"cannot read {path}", why="its fields do not add up") from None
    check_external(found.head, path.parent)
    return found


def scanned(path: Path, large: int) -> Light | None:
    """A model file without its weights of ``large`` bytes and more; external ones are not looked
    for. None where it is no model."""
    try:
        with (
            regular(path).open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            return _model(data, path.resolve().name, "", large)
    except (OSError, ValueError, IndexError, DecodeError):
        return None


def _model(data: mmap.mmap, name: str, without: str, large: int = LARGE) -> Light:
    head = onnx.ModelProto()
    parts: list[bytes] = []
    weights, nodes = 0, False
    for number, kind, begin, inside, end in _fields(data, 0, len(data)):
        if number == _GRAPH and kind == _BYTES:
            graph = _Graph(head, name, without)
            graph.large = large
            graph.read(data, inside, end)
            parts += _message(_GRAPH, b"".join(graph.parts))
            weights, nodes = weights + graph.weights, nodes or bool(graph.nodes)
            continue
        if number == _METADATA:
            head.metadata_props.append(onnx.StringStringEntryProto.FromString(data[inside:end]))
        parts.append(data[begin:end])
    if not nodes:
        raise ValueError("no graph")
    return Light(b"".join(parts), head, weights)


class _Graph:
    """A graph less its big weights, field by field in ``parts``."""

    large = LARGE

    def __init__(self, head: onnx.ModelProto, name: str, without: str) -> None:
        self.parts: list[bytes] = []
        self.weights, self.nodes = 0, 0
        self._head, self._name, self._without = head, name, without
        self._dropped: list[tuple[int, onnx.NodeProto]] = []
        self._read: set[str] = set()  # by nodes that stay, or leaves the graph
        self._shown = dict[str, str]()  # what shows a shape only as it runs to what it shows

    def read(self, data: mmap.mmap, begin: int, end: int) -> None:
        for number, kind, start, inside, stop in _fields(data, begin, end):
            if number == _INITIALIZER and kind == _BYTES:
                self._initializer(data, start, inside, stop)
                continue
            self.parts.append(data[start:stop])
            if number == _NODE:
                self.nodes += 1
                if self._without:
                    self._node(onnx.NodeProto.FromString(data[inside:stop]))
            elif number == _OUTPUT:
                self._read.add(onnx.ValueInfoProto.FromString(data[inside:stop]).name)
        for at, node in self._dropped:
            if self._read.issuperset(node.input) and not self._read.intersection(node.output):
                self.parts[at] = b""

    def _node(self, node: onnx.NodeProto) -> None:
        if node.name.startswith(self._without):
            self._dropped.append((len(self.parts) - 1, node))
            return
        if node.name.startswith(SHOWN):  # listed before all others
            self._shown[node.output[0]] = node.input[0]
            self.parts.pop()
            return
        shown = not self._shown.keys().isdisjoint(node.input)
        if shown:
            node.input[:] = [self._shown.get(name, name) for name in node.input]
        self._read.update(node.input)
        if shown or node.metadata_props or node.doc_string:
            node.ClearField("metadata_props")
            node.ClearField("doc_string")
            self.parts[-1] = b"".join(_message(_NODE, node.SerializeToString()))

    def _initializer(self, data: mmap.mmap, start: int, inside: int, stop: int) -> None:
        raw = _raw_data(data, inside, stop, self.large)
        if raw is not None:
            self.parts += _message(_INITIALIZER, _referring(data, (inside, stop), raw, self._name))
            self.weights += raw[1] - raw[0]
            return
        self.parts.append(data[start:stop])
        if stop - inside < LARGE:  # of one that lies elsewhere this is all
            small = onnx.TensorProto.FromString(data[inside:stop])
            if self._without and small.name.startswith(SHOWN):
                self.parts.pop()
            if small.data_location == onnx.TensorProto.EXTERNAL:
                self._head.graph.initializer.append(small)


def _raw_data(data: mmap.mmap, begin: int, end: int, large: int) -> tuple[int, int] | None:
    """Where the content of a big inline weight lies in the file; None of any other."""
    if end - begin < large:
        return None
    fields = _fields(data, begin, end)
    raws = [(i, e) for n, k, _, i, e in fields if n == _RAW and k == _BYTES and e - i >= large]
    return raws[0] if len(raws) == 1 else None


def _referring(data: mmap.mmap, whole: tuple[int, int], raw: tuple[int, int], name: str) -> bytes:
    """A weight that refers to the part of the file where its content is."""
    parts = [
        data[begin:end]
        for number, _, begin, _, end in _fields(data, *whole)
        if number not in (_RAW, _EXTERNAL, _LOCATION)
    ]
    tail = onnx.TensorProto(data_location=onnx.TensorProto.EXTERNAL)
    where = {"location": name, "offset": raw[0], "length": raw[1] - raw[0]}
    for key, value in where.items():
        tail.external_data.add(key=key, value=str(value))
    return b"".join([*parts, tail.SerializeToString()])
