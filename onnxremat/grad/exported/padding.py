"""Rows of embeddings that PyTorch keeps for padding (``padding_idx``) and does not train.

Its default exporter says in the file which they are (``Reading.padding`` in ``marks.py``), and so
does :func:`onnxremat.export` where the older one made the file; the rule of Gather keeps to it.
Other files do not; but such a row holds zeros from the beginning.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
import onnx

from onnxremat.grad.exported.marks import first_of, module_of, reading_of
from onnxremat.grad.exported.stored import Stored

TABLE = 0  # input of Gather
_KEY = "onnxremat.padding"


def padding_of(node: onnx.NodeProto) -> int | None:
    """Row of an embedding's table that PyTorch does not train, None where the file tells none."""
    told = next((entry.value for entry in node.metadata_props if entry.key == _KEY), "")
    if told.isdecimal():
        return int(told)
    about = reading_of(node)
    return None if about is None else about.padding


def tell_padding(model: onnx.ModelProto, rows: Mapping[str, int]) -> None:
    """Write down which rows the embeddings of a module keep for padding, on nodes of which the
    exporter says nothing.

    Args:
        model: changed in place.
        rows: by the name of the embedding, as names of nodes of PyTorch's older exporter have it.
    """
    for node in model.graph.node:
        row = rows.get(module_of(node)) if node.op_type == "Gather" else None
        if row is not None and reading_of(node) is None:
            node.metadata_props.add(key=_KEY, value=str(row))


def by_frequency(model: onnx.ModelProto) -> list[str]:
    """A warning about tables whose gradients PyTorch divides by how often a batch reads a row
    (``scale_grad_by_freq``), if there are any: no rule of ours does."""
    said = ((node, reading_of(node)) for node in model.graph.node if node.op_type == "Gather")
    names = dict.fromkeys(node.input[TABLE] for node, about in said if about and about.by_frequency)
    if not names:
        return []
    return [
        f"gradients of {len(names)} tables ({first_of([*names], 4)}) are those of what they give: "
        "PyTorch divides them by how often a batch reads each row (scale_grad_by_freq)"
    ]


def likely_padding(
    model: onnx.ModelProto, folder: Path | None, learned: Collection[str]
) -> dict[str, int]:
    """Tables of which one row alone is zeros, where the file does not say what it is for.

    Args:
        folder: where external weights lie.
        learned: initializers that may be such tables.
    """
    stored = Stored(model, folder)
    found: dict[str, int] = {}
    tables = {*learned}
    tables -= {n.input[TABLE] for n in model.graph.node if n.input and padding_of(n) is not None}
    for node in model.graph.node:
        if node.op_type != "Gather" or node.input[TABLE] not in tables:
            continue
        name, first = node.input[TABLE], not any(a.name == "axis" and a.i for a in node.attribute)
        told = reading_of(node) is not None or len(stored.shape(name)) != 2
        if told or not first or name in found or not stored.readable(name):
            continue
        empty = np.flatnonzero(~stored.value(name).any(axis=1))
        if len(empty) == 1:
            found[name] = int(empty[0])
    return found
