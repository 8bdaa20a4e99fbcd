"""Big weights in a file of their own while a model is worked on.

A rewrite copies a model many times, and every session is given one. With the weights apart a model
says of each where its bytes lie, in the words of ONNX's external data: a copy is then a copy of the
structure, and onnxruntime maps the bytes from the one file. They begin at multiples of a page:
kernels are slower on weights that lie oddly, and sums over these differ in their last bits.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Container, Iterable, Iterator
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import onnx

from onnxremat.errors import ExhaustedError, ModelError
from onnxremat.graph.dtypes import tensor_bytes
from onnxremat.graph.filling import Filling, filled
from onnxremat.graph.ir import all_nodes
from onnxremat.graph.protobuf import RAW
from onnxremat.graph.temporary import make_folder, no_room, remove_folder

APART = 1 << 20  # bytes from which a weight is kept apart; the values of smaller ones are looked at
LIGHT = (
    16 << 20
)  # bytes of such weights below which a model keeps them: copies cost less than files
PAGE = 4096
_COMPLEX = (onnx.TensorProto.COMPLEX64, onnx.TensorProto.COMPLEX128)
ODD = 4096  # bytes of a weight in a model's file from which its place there is chosen
CHUNK = 8 << 20

if sys.platform == "win32":
    from pathlib import WindowsPath as _Path
else:
    from pathlib import PosixPath as _Path


class WeightFolder(_Path):
    """A temporary folder with weights; :meth:`make` gives one that is removed when nobody holds it
    any more, or the process ends. A weight in it counts as one that its model holds itself."""

    @classmethod
    def make(cls) -> WeightFolder:
        """A new, empty one, in the system's folder for temporary files (``TMPDIR``).

        Raises:
            ExhaustedError: no such folder can be made.
        """
        try:
            folder = cls(make_folder())
        except OSError as error:
            raise _no_room(error) from error
        weakref.finalize(folder, remove_folder, str(folder))
        return folder

    def keep(self, weights: Iterable[tuple[onnx.TensorProto, Iterable[bytes]]]) -> None:
        """Write the bytes of weights to a new file, and say in each where they are.

        Args:
            weights: a tensor, and its raw data in pieces. Its own raw data goes.

        Raises:
            ExhaustedError: the disk is full.
        """
        name = f"weights{sum(1 for _ in self.iterdir())}.data"
        try:
            with (Path(self) / name).open("xb") as file:
                lay_out(weights, file, name)
        except OSError as error:
            raise _no_room(error) from error


def lay_out(
    weights: Iterable[tuple[onnx.TensorProto, Iterable[bytes]]], file: BinaryIO, name: str
) -> None:
    """Write the bytes of weights to a file of this name, each from a multiple of a page, and say in
    each where they are; its own raw data goes."""
    for tensor, content in weights:
        file.write(b"\0" * (-file.tell() % PAGE))
        start = file.tell()
        file.writelines(content)
        refer(tensor, Place(name, start, file.tell() - start))


def _no_room(error: OSError) -> ExhaustedError:
    why = error.strerror or str(error)
    return no_room("the weights cannot be kept in a temporary file", why)


class Place(NamedTuple):
    """Where the bytes of a weight lie: file in the weights' folder, first byte, how many."""

    location: str
    start: int
    length: int


def place(tensor: onnx.TensorProto) -> Place | None:
    """Where the bytes of an external weight lie, None for one that its model holds."""
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        return None
    said = {entry.key: entry.value for entry in tensor.external_data}
    length = int(said.get("length") or 0) or tensor_bytes(tensor.data_type, tensor.dims)
    return Place(said.get("location", ""), int(said.get("offset") or 0), length)


def refer(tensor: onnx.TensorProto, where: Place) -> None:
    """Let a tensor say that its bytes lie there; it no longer holds them itself."""
    tensor.ClearField("raw_data")
    del tensor.external_data[:]
    for key, value in zip(("location", "offset", "length"), where, strict=True):
        tensor.external_data.add(key=key, value=str(value))
    tensor.data_location = onnx.TensorProto.EXTERNAL


def held(tensor: onnx.TensorProto) -> onnx.TensorProto:
    """A copy that says nothing of a file, and holds no bytes."""
    copy = onnx.TensorProto()
    _merge(copy, tensor, ("raw_data", "external_data", "data_location"))
    return copy


def set_apart(model: onnx.ModelProto, folder: Path | None) -> tuple[onnx.ModelProto, Path | None]:
    """The model with its big weights in a :class:`WeightFolder`, and that folder; or both as they
    are, where there is little to be gained.

    Args:
        folder: where external weights of ``model`` lie; a WeightFolder takes the new ones, out of
            another one the weights of the model are copied.
    """
    graph = model.graph
    big = {i for i, t in enumerate(graph.initializer) if len(t.raw_data) >= APART}
    if sum(len(graph.initializer[i].raw_data) for i in big) < LIGHT:
        return model, folder
    target = folder if isinstance(folder, WeightFolder) else WeightFolder.make()
    others = set() if target is folder else {i for i, t in enumerate(graph.initializer) if place(t)}
    made, waiting = without_bytes(model, big | others, folder)
    target.keep(waiting)
    return made, target


def without_bytes(
    model: onnx.ModelProto, chosen: Container[int], folder: Path | None
) -> tuple[onnx.ModelProto, list[tuple[onnx.TensorProto, Iterator[bytes]]]]:
    """A copy in which chosen initializers (their numbers) hold no bytes and say nothing of a file;
    and these, each with its bytes in pieces."""
    made, waiting = onnx.ModelProto(), []
    _merge(made, model, ("graph",))
    _merge(made.graph, model.graph, ("initializer",))
    for index, tensor in enumerate(model.graph.initializer):
        if index not in chosen:
            made.graph.initializer.append(tensor)
            continue
        made.graph.initializer.append(held(tensor))
        waiting.append((made.graph.initializer[-1], pieces(tensor, folder)))
    return made, waiting


def check_sizes(model: onnx.ModelProto) -> None:
    """Look at what a model holds itself, values of Constants included.

    Raises:
        ModelError: a weight has a negative dimension, or other bytes than its type and shape need;
            or is a piece of one.
    """
    for tensor in _held(model):
        name = f"weight '{tensor.name}'" if tensor.name else "the value of a Constant"
        if tensor.HasField("segment"):
            raise ModelError(
                f"{name} is a segment of a tensor",
                why="onnx reads whole ones alone",
                hint="clear the field 'segment' of the tensor where it holds all of it",
            )
        needed = tensor_bytes(tensor.data_type, tensor.dims)
        wrong = min(tensor.dims, default=0) < 0
        if tensor.HasField("raw_data") and place(tensor) is None:
            wrong = wrong or len(tensor.raw_data) != needed
        numbers, each = _numbers(tensor), tensor.data_type not in _COMPLEX
        if each and needed >= prod(tensor.dims):  # several of less than a byte lie in one number
            wrong = wrong or 0 < numbers != prod(tensor.dims)
        if wrong:
            raise ModelError(
                f"{name} is damaged",
                why=f"shape {list(tensor.dims)}, which needs {needed} bytes; it has "
                + (f"{numbers} numbers" if numbers else f"{len(tensor.raw_data)}"),
                hint="export the model again",
            )


def _numbers(tensor: onnx.TensorProto) -> int:
    """How many a tensor lists, where it does not hold their bytes."""
    listed = (tensor.float_data, tensor.int32_data, tensor.int64_data, tensor.double_data)
    return max(len(numbers) for numbers in (*listed, tensor.uint64_data))


def values_of(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    """Tensors in the attributes of nodes."""
    for node in nodes:
        for entry in node.attribute:
            if entry.HasField("t"):
                yield entry.t
            yield from entry.tensors


def _held(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    yield from model.graph.initializer
    for nodes in (all_nodes(model.graph), *(all_nodes(f) for f in model.functions)):
        yield from values_of(nodes)


def pieces(tensor: onnx.TensorProto, folder: Path | None) -> Iterator[bytes]:
    """The raw data of a weight, a little at a time where it lies in a file of ``folder``."""
    where = place(tensor)
    if where is None:
        yield tensor.raw_data
        return
    with (Path(folder or ".") / where.location).open("rb") as file:
        yield from stretch(file, where.start, where.length)


def stretch(file: BinaryIO, start: int, length: int) -> Iterator[bytes]:
    """Bytes of a file, a little at a time.

    Raises:
        OSError: the file ends before.
    """
    file.seek(start)
    while length:
        piece = file.read(min(CHUNK, length))
        if not piece:
            raise OSError(f"{file.name} ends too early")
        length -= len(piece)
        yield piece


def weight_bytes(tensor: onnx.TensorProto) -> int:
    """Bytes of a weight that its model holds, or a file holds for it."""
    return where.length if (where := place(tensor)) else len(tensor.raw_data)


def write_whole(model: onnx.ModelProto, folder: Path | None, file: BinaryIO) -> None:
    """Write a model with the weights that lie in ``folder`` in it, one at a time: what it would be
    if it had held them. Weights that are not small begin at multiples of 64 bytes in the file, as
    sessions want them that map it."""
    weights = model.graph.initializer
    tensors = [_around(index, tensor) for index, tensor in enumerate(weights)]
    for part in filled(model.SerializeToString(), tensors):
        if isinstance(part, Filling):
            file.writelines(pieces(weights[part.key], folder))
        else:
            file.write(part)


def _around(index: int, tensor: onnx.TensorProto) -> tuple[bytes, Filling, bytes] | None:
    """The fields of a weight before and behind its raw data, in the order of their numbers, and
    how long that is; None of one that stays as it is."""
    where = place(tensor)
    length = len(tensor.raw_data) if where is None else where.length
    if where is None and length < ODD:
        return None
    before, behind = held(tensor), held(tensor)
    for field, _ in before.ListFields():
        (before if field.number > RAW else behind).ClearField(field.name)
    raw = Filling(index, length)
    return before.SerializeToString(), raw, behind.SerializeToString()


def _merge(target: Any, source: Any, skip: tuple[str, ...]) -> None:
    """Copy the fields of a message, some left out (they may be big)."""
    for field, value in source.ListFields():
        if field.name in skip:
            continue
        if hasattr(value, "extend"):
            getattr(target, field.name).extend(value)
        elif field.message_type is not None:
            getattr(target, field.name).CopyFrom(value)
        else:
            setattr(target, field.name, value)
