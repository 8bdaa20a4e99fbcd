"""Model files read without their big weights."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from onnxremat.graph.onnx_io import external_files, read_model
from onnxremat.graph.outline import Malformed, Outline, outline
from onnxremat.graph.weights import APART, LIGHT, WeightFolder, stretch


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
    found = _outlined(file, LIGHT if into is None else 1)
    if found is None:
        if into is None:
            return read_model(file), file.parent
        return onnx.load_model(str(file), load_external_data=False), into
    try:
        model = onnx.load_model_from_string(found.data)
    except DecodeError:
        return read_model(file), file.parent  # which says what is wrong
    if into is None and (external_files(model) or not model.graph.node):
        return read_model(file), file.parent
    folder = into if into is not None else WeightFolder.make()
    weights = model.graph.initializer
    with file.open("rb") as source:
        folder.keep((weights[c.index], stretch(source, c.start, c.length)) for c in found.cuts)
    return model, folder


def read_structure(path: str | os.PathLike[str]) -> onnx.ModelProto:
    """A model without the bytes of its big weights, for those who ask for names, types and shapes.

    Raises:
        DecodeError: it is no model.
    """
    found = _outlined(Path(path), 1)
    if found is None:
        return onnx.load_model(str(path), load_external_data=False)
    return onnx.load_model_from_string(found.data)


def _outlined(file: Path, least: int) -> Outline | None:
    """A model file without its big weights; None where these are less than ``least`` bytes, or it
    is no such file."""
    try:
        if file.stat().st_size < least:
            return None
        with (
            file.open("rb") as source,
            mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
            memoryview(mapped) as buffer,
        ):
            found = outline(buffer, APART)
    except (OSError, Malformed, ValueError):
        return None
    return found if sum(cut.length for cut in found.cuts) >= least else None
