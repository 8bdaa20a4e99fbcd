"""Where the bytes of external weights lie, as a model file says it; nothing of it is believed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx

from onnxremat.errors import ModelError
from onnxremat.graph.dtypes import tensor_bytes
from onnxremat.graph.ir import all_nodes, subgraphs
from onnxremat.graph.weights import Place, stretch, values_of

AGAIN = "the file is damaged; export it again"


def said_place(tensor: onnx.TensorProto) -> Place:
    """Where the bytes of an external weight are said to lie.

    Raises:
        ModelError: an offset or length is no number, or the length is not that of the weight.
    """
    entry = {item.key: item.value for item in tensor.external_data}
    whole = tensor_bytes(tensor.data_type, tensor.dims)
    length = _count(tensor, entry, "length") or whole
    if length != whole:  # which onnxruntime refuses, too
        off = "short" if length < whole else "long"
        raise ModelError(
            f"the external data of weight '{tensor.name}' are too {off}",
            why=f"{length} bytes, its type and shape need {whole}",
            hint=AGAIN,
        )
    return Place(entry.get("location", ""), _count(tensor, entry, "offset"), length)


def _count(tensor: onnx.TensorProto, entry: dict[str, str], key: str) -> int:
    text = entry.get(key, "0")
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise ModelError(
            f"the external data of weight '{tensor.name}' has {key} '{text[:40]}'", hint=AGAIN
        )
    return int(text)


def external_file(folder: Path, location: str) -> Path:
    """The file of a location in the folder of its model.

    Raises:
        ModelError: it is missing, or not in that folder: then nothing of it is read.
    """
    file, short = folder / location, location if len(location) < 80 else location[:80] + "..."
    try:
        there = file.is_file()
        inside = file.resolve().is_relative_to(folder.resolve())
    except (OSError, ValueError):  # a name that no file system takes
        there, inside = False, True
    if not inside or Path(location).is_absolute():
        raise ModelError(
            f"external weights lie outside of the model's folder: {short}",
            why="a model may name files beside it only; onnxruntime refuses others, too",
            hint="copy the file beside the .onnx file, and let the model name it: onnx.load, then "
            "onnx.save(model, OUT, save_as_external_data=True)",
        )
    if not there:
        raise ModelError(
            f"external weights are missing: {folder / short}",
            why="the model stores its weights in that file",
            hint="keep the weight files beside the .onnx file",
        )
    return file


def check_length(file: Path, end: int) -> None:
    """Raises:
    ModelError: the file has less than ``end`` bytes.
    """
    size = file.stat().st_size
    if size < end:
        raise ModelError(
            f"external weights are truncated: {file}",
            why=f"{size} bytes, the model needs {end}",
            hint="copy or download the file again",
        )


def read_in(tensor: onnx.TensorProto, folder: Path) -> None:
    """Let a tensor hold its external bytes itself.

    Raises:
        ModelError: see :func:`said_place` and :func:`external_file`.
    """
    location, start, length = said_place(tensor)
    file = external_file(folder, location)
    check_length(file, start + length)
    with file.open("rb") as source:
        data = b"".join(stretch(source, start, length))
    tensor.ClearField("external_data")
    tensor.data_location = onnx.TensorProto.DEFAULT
    tensor.raw_data = data


def read_values(model: onnx.ModelProto, folder: Path) -> None:
    """Let all that lies in files be held by the model, but for its own dense weights: values of
    Constants, weights of bodies, sparse ones. Whoever asks for one knows no folder.

    Raises:
        ModelError: see :func:`said_place` and :func:`external_file`.
    """
    for tensor in _held_beside(model):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            read_in(tensor, folder)


def _held_beside(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """The tensors of a model that are no dense initializers of its own."""
    sparse = list(model.graph.sparse_initializer)
    for part in (model.graph, *model.functions):
        nodes = list(all_nodes(part))
        yield from values_of(nodes)
        for node in nodes:
            for attribute in node.attribute:
                sparse += [attribute.sparse_tensor, *attribute.sparse_tensors]
            for body in subgraphs(node):
                yield from body.initializer
                sparse += body.sparse_initializer
    for each in sparse:
        yield from (each.values, each.indices)
