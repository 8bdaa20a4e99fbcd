"""Tensors in the safetensors format, written so that a kill loses at most the newest.

A file is eight bytes with the length of a JSON header, the header (per tensor its type, shape
and place), and the raw values. Any safetensors reader opens it.
"""

from __future__ import annotations

import glob
import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
from onnx import TensorProto as T
from onnx import helper

from onnxremat import plain_json
from onnxremat.errors import ModelError
from onnxremat.graph.atomic import atomic
from onnxremat.limits import regular

# Names the format gives element types.
NAMES = {
    T.FLOAT: "F32", T.DOUBLE: "F64", T.FLOAT16: "F16", T.BFLOAT16: "BF16", T.INT64: "I64",
    T.INT32: "I32", T.INT16: "I16", T.INT8: "I8", T.UINT8: "U8", T.BOOL: "BOOL",
}  # fmt: skip
KINDS = {name: kind for kind, name in NAMES.items()}
DEAD = 600.0  # seconds after which nobody goes on with a file that was not finished


def write_tensors(
    path: Path, tensors: Mapping[str, np.ndarray], facts: Mapping[str, str] | None = None
) -> None:
    """Write tensors and facts; the old file stays until the new one is complete on disk.

    Raises:
        UsageError: the folder is not writable, or the disk is full.
    """
    header: dict[str, object] = {"__metadata__": dict(facts or {})}
    place = 0
    for name, array in tensors.items():
        kind = NAMES[helper.np_dtype_to_tensor_dtype(array.dtype)]
        end = place + array.nbytes
        header[name] = {
            "dtype": kind, "shape": list(array.shape), "data_offsets": [place, end]
        }  # fmt: skip
        place = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with atomic(path) as temporary, temporary.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for array in tensors.values():
            file.write(np.ascontiguousarray(array).tobytes())
        file.flush()
        os.fsync(file.fileno())


def drop_leftovers(path: Path) -> None:
    """Remove what writes of a checkpoint left behind that were killed half-way; what was written to
    a moment ago may be another process's that goes on."""
    path = path.resolve() if path.is_symlink() else path  # where they were written
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.????????"):  # as `atomic` names
        with suppress(OSError):  # gone meanwhile
            if time.time() - leftover.stat().st_mtime > DEAD:
                leftover.unlink()


def read_tensors(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Tensors and facts of a file.

    Raises:
        ModelError: missing, truncated or another kind of file.
    """
    try:
        data = regular(path).read_bytes()
        length = int.from_bytes(data[:8], "little")
        header = plain_json.loads(data[8 : 8 + length])
        facts = header.pop("__metadata__", {})
        tensors = {}
        for name, entry in header.items():
            first, last = entry["data_offsets"]
            if not all(type(n) is int and 0 <= n < 1 << 60 for n in (first, last, *entry["shape"])):
                raise ValueError("a size is no number")
            kind = helper.tensor_dtype_to_np_dtype(KINDS[entry["dtype"]])
            raw = data[8 + length + first : 8 + length + last]
            tensors[name] = np.frombuffer(raw, kind).reshape(entry["shape"]).copy()
        if not all(isinstance(fact, str) for fact in facts.values()):
            raise ValueError("a fact is no text")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        known = isinstance(error, OSError) and error.strerror
        raise ModelError(
            f"cannot read the tensors in {path}",
            why=known or "it is cut short, or another kind of file",
            hint="give a .safetensors file (a checkpoint, or a state dict)",
        ) from error
    return tensors, facts
