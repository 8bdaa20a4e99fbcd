"""Tensors that are a part of another one: what exporters compute of a slice of a parameter, as of
a table of positions that two layers read to different lengths."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxremat.grad.exported.marks import Marks, parameters_among
from onnxremat.grad.exported.patterns import made_by_code
from onnxremat.grad.exported.restored import Restored
from onnxremat.grad.exported.signature import PARAMETER
from onnxremat.grad.exported.stored import Stored

BOUNDS = ("starts", "ends", "axes")  # inputs of Slice


SMALLEST = 16  # elements from which equal irregular values are no chance
LEAST = 2  # where the file says that two tensors were made of one parameter


def parts_among(
    names: Sequence[str], stored: Stored, may_be: Callable[[str], bool], marks: Marks
) -> list[Restored]:
    """Which tensors are a part of another one, cut from it along one axis, and hold irregular
    numbers.

    Args:
        names: tensors to look at; those of few elements are parts only of what the file says was
            made of the same parameter.
        may_be: whether a tensor of this name may be such a part.
    """
    source = {name: _source(name, marks) for name in names}
    names = [n for n in names if stored.size(n) >= (LEAST if source[n] else SMALLEST)]
    heads: dict[str, float] = {}  # first element of what may be a part
    for name in filter(may_be, names):
        value = stored.value(name)
        small = stored.size(name) < SMALLEST
        if (np.unique(value).size == value.size) if small else not made_by_code(value):
            heads[name] = value.flat[0]
    found: dict[str, Restored] = {}
    for whole in sorted(names, key=stored.size, reverse=True):
        shape = stored.shape(whole)
        fits = {n: axis for n in heads if n not in found and n != whole
                if stored.size(n) >= SMALLEST or source[n] == source[whole]
                if (axis := _axis(shape, stored.shape(n))) is not None}  # fmt: skip
        if not fits or whole in found:
            continue
        value = stored.value(whole)
        for name, axis in fits.items():
            if start := _start(value, axis, heads[name], stored, name):
                places = (axis, start - 1, start - 1 + stored.shape(name)[axis])
                found[name] = Restored("part", whole, name, axes=places)
    return list(found.values())


def _source(name: str, marks: Marks) -> str:
    """The only parameter that the file says a tensor was made of, or is; "" where it does not say
    so, or that its numbers were changed."""
    if marks.kinds.get(name) == PARAMETER:
        return name
    sources = parameters_among(marks.folded.get(name, ()), marks.kinds)
    return sources[0] if len(sources) == 1 and name not in marks.computed else ""


def _axis(whole: Sequence[int], part: Sequence[int]) -> int | None:
    """The only axis along which a part is shorter."""
    apart = [k for k, (a, b) in enumerate(zip(whole, part, strict=False)) if a != b]
    one = len(whole) == len(part) and len(apart) == 1 and part[apart[0]] < whole[apart[0]]
    return apart[0] if one else None


def _start(value: np.ndarray, axis: int, head: float, stored: Stored, name: str) -> int:
    """Where a part begins in a tensor, counted from 1; 0 where it is no part of it."""
    rows = np.moveaxis(value, axis, 0)
    places = np.flatnonzero(rows.reshape(len(rows), -1)[:, 0] == head)
    if not places.size:
        return 0
    wanted = np.moveaxis(stored.value(name), axis, 0)
    for place in places:
        if np.array_equal(rows[place : place + len(wanted)], wanted):
            return int(place) + 1
    return 0


def cut(
    entry: Restored, _: Stored, nodes: list[onnx.NodeProto], added: list[onnx.TensorProto]
) -> None:
    """The part, made from the parameter."""
    axis, start, stop = entry.axes
    names = [f"{entry.tensor}/{each}" for each in BOUNDS]
    for name, value in zip(names, (start, stop, axis), strict=True):
        added.append(numpy_helper.from_array(np.array([value], np.int64), name))
    inputs, name = [entry.parameter, *names], f"{entry.tensor}/Slice"
    nodes.append(helper.make_node("Slice", inputs, [entry.tensor], name=name))


def uncut(entry: Restored, value: np.ndarray) -> np.ndarray:
    """The part of a parameter's value."""
    axis, start, stop = entry.axes
    found: np.ndarray = np.take(value, range(start, stop), axis)
    return found
