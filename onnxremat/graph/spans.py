"""Stretches of a tensor along one axis, and what an op needs to compute a stretch of its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from onnxremat.graph.ir import Graph, Op

REMEMBERED = 100_000  # stretches of ops


class CannotSplitError(Exception):
    """An op cannot compute a stretch of its result along an axis; the text says why."""


class UnevenError(CannotSplitError):
    """Bounds of a stretch are not where rows of an input begin.

    Attributes:
        multiple: of which they have to be.
    """

    def __init__(self, multiple: int) -> None:
        super().__init__("its rows are no whole rows of its input")
        self.multiple = multiple


@dataclass(frozen=True, slots=True)
class Span:
    """Indices ``first`` to ``end`` (excluded) along one axis."""

    axis: int
    first: int
    end: int

    @property
    def size(self) -> int:
        """How many indices."""
        return self.end - self.first

    def hull(self, other: Span) -> Span:
        """The smallest span that holds both, which are along one axis."""
        first, end = self.first, self.end  # asked millions of times in a search
        if first <= other.first and end >= other.end:
            return self
        return Span(self.axis, min(first, other.first), max(end, other.end))

    def overlap(self, other: Span) -> Span:
        """What is in both; of no or negative size where there is nothing."""
        return Span(self.axis, max(self.first, other.first), min(self.end, other.end))

    def along(self, axis: int) -> Span:
        """The same indices of another axis."""
        return Span(axis, self.first, self.end)


@dataclass(frozen=True, slots=True)
class Piece:
    """How an op computes a stretch of its outputs.

    Attributes:
        reads: per input the stretch that is read, None for all of it.
        made: the stretch that comes out: what was asked for, or a little more, to be cropped.
        attributes: attributes with other values; None for one that is left out.
        constants: integer inputs (shapes) with other values.
        unread: positions of inputs that this stretch does not need; what is said to be read of
            these is what another stretch would read.
    """

    reads: tuple[Span | None, ...]
    made: Span
    attributes: Mapping[str, Any] = field(default_factory=dict)
    constants: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    unread: tuple[int, ...] = ()

    def taken(self, inputs: Sequence[str]) -> list[tuple[str, Span | None]]:
        """What is read of the inputs with these names, but for those with other values."""
        both = zip(inputs, self.reads, strict=True)
        if not self.constants and not self.unread:
            return list(both)
        left = {*self.constants, *self.unread}
        return [each for index, each in enumerate(both) if index not in left]

    def sample(self, inputs: Sequence[str]) -> list[tuple[str, Span | None]]:
        """What is read of them by this stretch or, where it needs none of an input, by another."""
        both = zip(inputs, self.reads, strict=True)
        return [each for index, each in enumerate(both) if index not in self.constants]


class Facts:
    """Shapes and constants of a graph, looked up once.

    Attributes:
        pieces: how ops, by name, compute stretches of their outputs; of the last that were asked.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.opset = graph.opsets.get("", 1)
        self._calls: dict[str, Call] = {}
        self.pieces: dict[tuple[str, Span], Piece] = {}

    def remember(self, key: tuple[str, Span], piece: Piece) -> None:
        """Keep what was found of a stretch of an op."""
        if len(self.pieces) >= REMEMBERED:
            self.pieces.clear()
        self.pieces[key] = piece

    def call(self, op: Op) -> Call:
        """An op as the rules see it."""
        if op.name not in self._calls:
            self._calls[op.name] = Call(op, self)
        return self._calls[op.name]

    @cached_property
    def _stored(self) -> dict[str, onnx.TensorProto]:
        return {tensor.name: tensor for tensor in self.graph.model.graph.initializer}

    def shape(self, name: str) -> tuple[int, ...]:
        """Dimensions of a tensor.

        Raises:
            CannotSplitError: they are not known, or depend on data.
        """
        tensor = self.graph.tensors.get(name)
        if tensor is None or tensor.shape is None or tensor.seen:
            raise CannotSplitError(f"the shape of '{name}' is not known")
        return tensor.shape

    def constant(self, name: str) -> np.ndarray | None:
        """Values of a small constant, None for what is computed or big."""
        tensor = self._stored.get(name)
        if tensor is not None:
            external = tensor.data_location == onnx.TensorProto.EXTERNAL
            return None if external else numpy_helper.to_array(tensor)
        made = self.graph.producer.get(name)
        if made is None or self.graph.ops[made].op_type != "Constant":
            return None
        for each in self.graph.ops[made].node.attribute:
            if each.name == "value":
                return numpy_helper.to_array(each.t)
            if each.name in ("value_int", "value_ints", "value_float", "value_floats"):
                return np.asarray(onnx.helper.get_attribute_value(each))
        return None


class Call:
    """One op as the rules see it: attributes, shapes, constant inputs."""

    def __init__(self, op: Op, facts: Facts) -> None:
        self.op, self.facts = op, facts

    @property
    def opset(self) -> int:
        """Version of the default domain."""
        return self.facts.opset

    @cached_property
    def attributes(self) -> dict[str, Any]:
        """By name."""
        return {a.name: onnx.helper.get_attribute_value(a) for a in self.op.node.attribute}

    def text(self, name: str, default: str) -> str:
        """A string attribute."""
        found = self.attributes.get(name, default)
        return found.decode() if isinstance(found, bytes) else str(found)

    def shape(self, position: int) -> tuple[int, ...]:
        """Dimensions of an input."""
        return self.facts.shape(self.op.inputs[position])

    def has(self, position: int) -> bool:
        """Whether an input is given."""
        return position < len(self.op.inputs) and bool(self.op.inputs[position])

    @cached_property
    def out(self) -> tuple[int, ...]:
        """Dimensions of the first output that is given."""
        return self.facts.shape(self.op.writes[0])

    def integers(self, position: int, attribute: str = "") -> tuple[int, ...] | None:
        """Integers given as a constant input, or in older versions as an attribute; None where
        they are left out.

        Raises:
            CannotSplitError: they are computed.
        """
        if attribute and attribute in self.attributes:
            found = self.attributes[attribute]
            return tuple(found) if isinstance(found, list | tuple) else (int(found),)
        if not self.has(position):
            return None
        values = self.facts.constant(self.op.inputs[position])
        if values is None:
            raise CannotSplitError(f"input {position} of {self.op.op_type} is computed")
        return tuple(int(value) for value in values.ravel())

    def none(self) -> list[Span | None]:
        """Every input read whole."""
        return [None] * len(self.op.inputs)

    def broadcast(self, position: int, span: Span) -> Span | None:
        """The stretch of an input that is broadcast to the output; None for all of it."""
        if not self.has(position):
            return None
        shape = self.shape(position)
        axis = span.axis - (len(self.out) - len(shape))
        if axis < 0 or shape[axis] != self.out[span.axis]:
            return None
        return span.along(axis)

    def broadcast_first(self, position: int, span: Span) -> Span | None:
        """The stretch of an input along its own leading axis, all of it where that has one entry
        for all."""
        return span.along(0) if self.shape(position)[:1] == self.out[:1] else None


Rule = Callable[[Call, Span], Piece]
