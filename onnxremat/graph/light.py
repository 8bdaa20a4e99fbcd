"""Model files read without their big weights."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import onnx
from google.protobuf.message import DecodeError

from onnxremat.graph.external import read_values
from onnxremat.graph.onnx_io import read_model
from onnxremat.graph.text import check_attributes, check_text
from onnxremat.graph.weights import APART, LIGHT, WeightFolder, place, stretch
from onnxremat.graph.wire import Light, scanned


def read_light(
    path: str | os.PathLike[str], into: WeightFolder | None = None
) -> tuple[onnx.ModelProto, Path]:
    """A model whose big weights stay out of memory, and the folder where they lie: they are copied
    from the file to a :class:`WeightFolder`. A file with few of them, or with external weights, is
    read as it is.

    Args:
        into: takes the weights however few they are, and holds all external ones already.

    Raises:
        As :func:`read_model`; and UsageError: no room for the weights.
    """
    file = Path(path)
    found = _scanned(file, LIGHT if into is None else 1)
    if found is None:
        if into is None:
            return read_model(file), file.parent
        return onnx.load_model(str(file), load_external_data=False), into
    if into is None and found.elsewhere:
        return read_model(file), file.parent
    model = onnx.load_model_from_string(found.content)
    check_text(model, str(file))
    check_attributes(model, str(file))
    if into is None:
        read_values(model, file.parent)
    name = file.resolve().name
    inside = [t for t in model.graph.initializer if (where := place(t)) and where.location == name]
    folder = into if into is not None else WeightFolder.make()
    with file.open("rb") as source:
        folder.keep((tensor, _bytes(source, tensor)) for tensor in inside)
    return model, folder


def _bytes(file: BinaryIO, tensor: onnx.TensorProto) -> Iterator[bytes]:
    where = place(tensor)
    assert where is not None
    return stretch(file, where.start, where.length)


def read_structure(path: str | os.PathLike[str]) -> onnx.ModelProto:
    """A model without the bytes of its big weights, for those who ask for names, types and shapes.

    Raises:
        DecodeError: it is no model.
    """
    found = _scanned(Path(path), 1)
    if found is None:
        return onnx.load_model(str(path), load_external_data=False)
    return onnx.load_model_from_string(found.content)


def _scanned(file: Path, least: int) -> Light | None:
    """A model file without its big weights; None where these are less than ``least`` bytes, or it
    is no such file."""
    try:
        if file.stat().st_size < least:
            return None
        found = scanned(file, APART)
        if found is None or found.weights < least:
            return None
        onnx.load_model_from_string(found.content)
    except (OSError, DecodeError):
        return None
    return found
