"""Slices and Ranges whose place only a run knows, and whose length is always the same.

``x[i : i + 1]`` in a loop is a Slice whose bounds are computed. Its size follows from how they are:
both are written as sums of what is not known, and where the difference of the two is a number,
that is the length. Such a Slice is a Gather of as many rows from its start on, which has a gradient
and a size.

A Slice cuts off what lies beyond its tensor, so that it may be shorter in some run than in others.
Then the Gather reads beyond the tensor as well, and the run ends with onnxruntime's error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import onnx
from onnx import TensorProto as T

from onnxremat.grad.control.run_sizes import DRAWN
from onnxremat.grad.lowering.writer import Writer, replaced
from onnxremat.graph.ir import Graph, Op

INTEGERS = frozenset({T.INT32, T.INT64})
FEW = 64  # numbers of a tensor that is written as sums
SAME_NUMBERS = frozenset({"Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten"})
ValueOf = Callable[[str], np.ndarray | None]
Make = Callable[[Writer], None]


@dataclass(frozen=True)
class Sum:
    """A whole number as a sum: a known part, and how often each unknown number is in it."""

    known: int
    times: Mapping[object, int]

    def plus(self, other: Sum, sign: int = 1) -> Sum:
        """The sum with another, or the difference."""
        times = dict(self.times)
        for key, count in other.times.items():
            times[key] = times.get(key, 0) + sign * count
        return Sum(self.known + sign * other.known, {k: c for k, c in times.items() if c})

    def scaled(self, factor: int) -> Sum:
        """So many times the number."""
        times = {key: count * factor for key, count in self.times.items() if factor}
        return Sum(self.known * factor, times)


@dataclass(frozen=True)
class Window:
    """What one axis is cut to: so many elements from a start that is computed.

    Attributes:
        axis: of the tensor, from 0.
        place: of the start among the starts.
        reach: from the start to the end.
        step: from one element to the next.
    """

    axis: int
    place: int
    reach: int
    step: int


def with_windows(graph: Graph, value_of: ValueOf) -> onnx.ModelProto | None:
    """The model with such Slices and Ranges written so that their sizes are known; None where
    there are none.

    Args:
        value_of: value of a tensor known before the run, else None.
    """
    sums = Sums(graph, value_of)
    return replaced(graph, [_window_of(graph, op, sums) for op in graph.ops], value_of)


def _window_of(graph: Graph, op: Op, sums: Sums) -> Make | None:
    if not op.standard or op.op_type not in ("Slice", "Range") or len(op.inputs) < 3:
        return None
    if graph.tensors[op.outputs[0]].shape is not None:
        return None
    return (_range if op.op_type == "Range" else _slice)(graph, op, sums)


class Sums:
    """Elements of small tensors of integers, as sums of what is not known."""

    def __init__(self, graph: Graph, value_of: ValueOf) -> None:
        self.graph, self.value_of = graph, value_of
        self._found: dict[str, tuple[Sum, ...] | None] = {}

    def of(self, name: str, depth: int = 0) -> tuple[Sum, ...] | None:
        """One per element, in order; None where it has too many, or how many is not known."""
        if name not in self._found:
            self._found[name] = self._sums(name, depth)
        return self._found[name]

    def _sums(self, name: str, depth: int) -> tuple[Sum, ...] | None:
        value, tensor = self.value_of(name), self.graph.tensors[name]
        shape = tensor.shape
        lists = shape is not None and (len(shape) < 2 or math.prod(shape) == 1)
        if tensor.dtype not in INTEGERS or not lists:
            return None
        if value is not None:
            return tuple(Sum(int(v), {}) for v in value.reshape(-1)) if value.size <= FEW else None
        made = None
        if depth < FEW and name in self.graph.producer:
            op = self.graph.ops[self.graph.producer[name]]
            made = self._through(op, depth + 1) if op.standard else None
        if made is not None or shape is None:
            return made
        size = math.prod(shape)
        return tuple(Sum(0, {(name, k): 1}) for k in range(size)) if size <= FEW else None

    def _through(self, op: Op, depth: int) -> tuple[Sum, ...] | None:
        """Of the result of an op that adds, multiplies by what is known, or moves."""
        if op.op_type in SAME_NUMBERS or op.op_type == "Cast":
            return self.of(op.inputs[0], depth)
        if op.op_type in ("Add", "Sub", "Mul"):
            sides = [self.of(name, depth) for name in op.inputs]
            return _computed(op.op_type, sides[0], sides[1])
        if op.op_type == "Concat":
            parts = [self.of(name, depth) for name in op.inputs]
            ranks = {len(self.graph.tensors[name].shape or ()) for name in op.inputs}
            known = ranks == {1} and all(part is not None for part in parts)
            return tuple(each for part in parts for each in part or ()) if known else None
        if op.op_type == "Gather":
            rows, places = self.of(op.inputs[0], depth), self.value_of(op.inputs[1])
            flat = len(self.graph.tensors[op.inputs[0]].shape or ()) == 1
            if rows is None or places is None or not flat:
                return None
            near = all(-len(rows) <= k < len(rows) for k in places.reshape(-1))
            return tuple(rows[int(k)] for k in places.reshape(-1)) if near else None
        return self._again(op)

    def _again(self, op: Op) -> tuple[Sum, ...] | None:
        """Of what another op has computed of the same before, by the name it has there."""
        first = self._firsts.get(_about(op))
        shape = self.graph.tensors[first].shape if first is not None else None
        if first is None or shape is None or math.prod(shape) > FEW:
            return None
        return tuple(Sum(0, {(first, k): 1}) for k in range(math.prod(shape)))

    @cached_property
    def _firsts(self) -> dict[object, str]:
        """The result of the first of all ops that compute the same."""
        found: dict[object, str] = {}
        for op in self.graph.ops:
            if op.standard and op.op_type not in DRAWN and not op.captures:
                found.setdefault(_about(op), op.outputs[0])
        return found


def _about(op: Op) -> object:
    """What it computes: equal for ops of which each makes what the other does."""
    return op.op_type, op.inputs, tuple(sorted(a.SerializeToString() for a in op.node.attribute))


def _computed(
    kind: str, a: tuple[Sum, ...] | None, b: tuple[Sum, ...] | None
) -> tuple[Sum, ...] | None:
    if a is None or b is None or (len(a) != len(b) and 1 not in (len(a), len(b))):
        return None
    size = max(len(a), len(b)) if a and b else 0
    pairs = [(a[k % len(a)], b[k % len(b)]) for k in range(size)]
    if kind != "Mul":
        return tuple(x.plus(y, 1 if kind == "Add" else -1) for x, y in pairs)
    if any(x.times and y.times for x, y in pairs):
        return None
    return tuple(y.scaled(x.known) if not x.times else x.scaled(y.known) for x, y in pairs)


# ---- Range -----------------------------------------------------------------------------------


def _range(graph: Graph, op: Op, sums: Sums) -> Make | None:
    found = [sums.of(name) for name in op.inputs]
    if any(each is None or len(each) != 1 for each in found):
        return None
    start, end, step = (each[0] for each in found if each)
    reach = end.plus(start, -1)
    if reach.times or step.times or not step.known:
        return None
    return partial(_write_range, places=np.arange(0, reach.known, step.known))


def _write_range(w: Writer, places: np.ndarray) -> None:
    kind = w.graph.tensors[w.input(0)].dtype
    first = w("Reshape", w.input(0), w.constant([1]))
    w("Add", first, w.constant(places, kind), to=w.output(0))


# ---- Slice -----------------------------------------------------------------------------------


def _slice(graph: Graph, op: Op, sums: Sums) -> Make | None:
    shape, windows = graph.tensors[op.inputs[0]].shape, list[Window]()
    starts, ends = sums.of(op.inputs[1]), sums.of(op.inputs[2])
    if shape is None or starts is None or ends is None or len(starts) != len(ends):
        return None
    given = [sums.value_of(op.inputs[k]) if len(op.inputs) > k and op.inputs[k] else None
             for k in (3, 4)]  # fmt: skip
    named = [len(op.inputs) > k and bool(op.inputs[k]) for k in (3, 4)]
    if any(n and value is None for n, value in zip(named, given, strict=True)):
        return None
    axes, steps = (None if each is None else each.reshape(-1).tolist() for each in given)
    for place, (start, end) in enumerate(zip(starts, ends, strict=True)):
        if not start.times and not end.times:
            continue
        axis = (axes[place] if axes else place) % len(shape)
        reach, step = end.plus(start, -1), steps[place] if steps else 1
        if reach.times or step < 1 or not 0 < reach.known <= shape[axis]:
            return None
        windows.append(Window(axis, place, reach.known, step))
    fixed = [k for k in range(len(starts)) if k not in {each.place for each in windows}]
    rest = [(starts[k].known, ends[k].known, axes[k] if axes else k, steps[k] if steps else 1)
            for k in fixed]  # fmt: skip
    return partial(_write_slice, windows=windows, rest=rest) if windows else None


def _write_slice(w: Writer, windows: list[Window], rest: list[tuple[int, int, int, int]]) -> None:
    name = w.input(0)
    if rest:
        name = w("Slice", name, *(w.constant(list(each)) for each in zip(*rest, strict=True)))
    for each in windows:
        length = w.shape(w.input(0))[each.axis]
        places = _places(w, each, length)
        last = each is windows[-1]
        name = w("Gather", name, places, to=w.output(0) if last else "", axis=each.axis)


def _places(w: Writer, window: Window, length: int) -> str:
    """Which elements of an axis a window has.

    Of a start below 0 that is so many from the end; where a Slice would cut such a window off, or
    find nothing in it, the places lie beyond the tensor.
    """
    starts = w.cast(w("Reshape", w.input(1), w.constant([-1])), T.INT64)
    start = w("Gather", starts, w.constant([window.place]), axis=0)
    low, high = w.constant([-length]), w.constant([-window.reach])
    from_end = w("And", w("GreaterOrEqual", start, low), w("Less", start, high))
    beyond = w.constant([length])
    turned = w("Where", from_end, w("Add", start, beyond), beyond)
    first = w("Where", w("Less", start, w.constant([0])), turned, start)
    return w("Add", first, w.constant(np.arange(0, window.reach, window.step)))
