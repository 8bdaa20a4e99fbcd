"""What a model is read from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

import onnx

from onnxremat.graph.light import read_light
from onnxremat.graph.onnx_io import files_of, from_object
from onnxremat.graph.text import check_attributes, check_text
from onnxremat.graph.weights import set_apart

Source: TypeAlias = str | os.PathLike[str] | onnx.ModelProto


def read_source(source: Source) -> tuple[onnx.ModelProto, Path | None, str]:
    """A model, the folder of its external weights, and a name for people. Big weights that the
    model held itself are kept apart: that folder is then a temporary one.

    Args:
        source: a file, an ``onnx.ModelProto``, or what :func:`from_object` takes.

    Raises:
        ModelError: see :func:`read_model`.
        UsageError: something else.
    """
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        return *read_light(path), path.name
    model = source if isinstance(source, onnx.ModelProto) else from_object(source)
    check_text(model, "the model")
    check_attributes(model, "the model")
    return *set_apart(model, None), model.graph.name or "model"


def files_read(source: Source, model: onnx.ModelProto, folder: Path | None) -> tuple[Path, ...]:
    """Files that a model and its weights were read from."""
    own = (Path(source),) if isinstance(source, str | os.PathLike) else ()
    return (*own, *files_of(model, folder))
