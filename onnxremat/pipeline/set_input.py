"""Inputs that always have one value: flags that choose a branch, sampling rates, counts of runs.

A model whose branches and loops follow from such an input is another graph for each value. With the
value in the file that graph is known before the run, and can be planned and trained.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxremat.errors import UsageError
from onnxremat.grad import is_step
from onnxremat.graph.onnx_io import write_model
from onnxremat.limits import TENSOR_BYTES
from onnxremat.pipeline.original.source import Source, files_read, read_source
from onnxremat.rewrite.restore import restored

WORDS = {"true": 1, "false": 0}


def set_inputs(
    source: Source, target: str | os.PathLike[str], values: Mapping[str, str]
) -> dict[str, Any]:
    """Write the model with constants in the place of some inputs; returns what was set. The plan of
    a planned model is left out.

    Args:
        values: text by the name of an input: a number or true or false, which all elements get, or
            one for each, separated by commas.

    Raises:
        UsageError: no such input, a value that its type does not hold, a shape that is not known or
            that another input shares; the model is a training step.
    """
    model, folder, name = read_source(source)
    if is_step(model):
        raise UsageError(
            "the model is a training step",
            hint="set inputs of the inference model, then make the step again",
        )
    keep, before = files_read(source, model, folder), restored(model)
    made = onnx.ModelProto()
    made.CopyFrom(before)
    facts: dict[str, Any] = {"model": name, "plan_left_out": before is not model, "inputs": {}}
    for each, text in values.items():
        tensor = _constant(made, each, text)
        _refuse_shared(made, each, values)
        kept = [value for value in made.graph.input if value.name != each]
        stored = [value for value in made.graph.initializer if value.name != each]
        del made.graph.input[:], made.graph.initializer[:]
        made.graph.input.extend(kept)
        made.graph.initializer.extend([*stored, tensor])
        facts["inputs"][each] = {"value": text, "shape": list(tensor.dims)}
    write_model(made, target, folder, keep)
    return facts


def _refuse_shared(model: onnx.ModelProto, name: str, setting: Collection[str]) -> None:
    """Raises:
    UsageError: the length of an input is open and that of another one, which stays open.
    """
    names = {value.name: _open(value) for value in model.graph.input}
    for other, dims in names.items():
        shared = sorted(names[name] & dims)
        if shared and other not in setting:
            raise UsageError(
                f"input '{name}' cannot be set",
                why=f"its length '{shared[0]}' is that of '{other}' too, which it would not follow",
                hint=f"bind '{shared[0]}' in the file first, say with set-batch",
            )


def _open(value: onnx.ValueInfoProto) -> set[str]:
    """Dimensions of an input that have a name instead of a size."""
    return {dim.dim_param for dim in value.type.tensor_type.shape.dim if dim.dim_param}


def _constant(model: onnx.ModelProto, name: str, text: str) -> onnx.TensorProto:
    """The initializer in the place of an input."""
    found = next((value for value in model.graph.input if value.name == name), None)
    if found is None or not found.type.HasField("tensor_type"):
        names = ", ".join(value.name for value in model.graph.input) or "none"
        why = "" if found is None else "it is no tensor"
        raise UsageError(f"input '{name}' cannot be set", why=why, hint=f"inputs are {names}")
    kind = found.type.tensor_type
    numbers = [_number(part, kind.elem_type, name) for part in text.split(",")]
    dims = [dim.dim_value if dim.HasField("dim_value") else None for dim in kind.shape.dim]
    if len(dims) == 1 and dims[0] is None:
        dims = [len(numbers)]
    shape = [size for size in dims if size is not None]
    if len(shape) < len(dims) or not kind.HasField("shape") or math.prod(shape) > TENSOR_BYTES:
        raise UsageError(
            f"input '{name}' cannot be set",
            why="its shape is not known" if len(shape) < len(dims) else f"its shape is {shape}",
            hint="set-input is for flags and numbers, whose sizes are in the file; a state, which "
            "changes from run to run, stays an input: other commands bind its sizes with --dim",
        )
    if len(numbers) not in (1, math.prod(shape)):
        raise UsageError(
            f"input '{name}' has shape {shape}, not {len(numbers)} values",
            hint="give one for all elements, or one for each",
        )
    dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
    given = numbers if len(numbers) == math.prod(shape) else numbers * math.prod(shape)
    return numpy_helper.from_array(np.array(given, dtype).reshape(shape), name)


def _number(text: str, kind: int, name: str) -> float:
    """A value of a text, as the type holds it.

    Raises:
        UsageError: it is none.
    """
    word, dtype = text.strip().lower(), helper.tensor_dtype_to_np_dtype(kind)
    low, high = -math.inf, math.inf
    if dtype.kind in "iu":
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    elif dtype.kind == "b":
        low, high = 0, 1
    elif dtype.kind == "f" and word.lstrip("+-") not in ("inf", "infinity"):
        high = float(np.finfo(dtype).max)
        low = -high
    try:
        number = WORDS[word] if word in WORDS else float(word) if dtype.kind == "f" else int(word)
        if dtype.kind not in "iubf" or not low <= number <= high:
            raise ValueError
    except ValueError:
        raise UsageError(
            f"'{text.strip()}' is no value of input '{name}'",
            why=f"its type is {onnx.TensorProto.DataType.Name(kind).lower()}",
            hint="a number, true or false, or several, separated by commas",
        ) from None
    return number
