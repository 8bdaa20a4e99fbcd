"""Random choices, and what a drawn node is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

import numpy as np
import onnx
from onnx import helper, numpy_helper

K = TypeVar("K")
Array = np.ndarray
Key = tuple[str, str]  # domain, operator
MS = "com.microsoft"


class Draw:
    """Random choices, equal for equal seeds.

    Attributes:
        dtype: of the floating-point numbers.
    """

    def __init__(self, seed: str, dtype: type = np.float32) -> None:
        self.random, self.dtype = Random(seed), dtype
        self.numbers = np.random.default_rng(self.random.getrandbits(63))

    def of(self, values: Sequence[K]) -> K:
        """One of them."""
        return self.random.choice(values)

    def word(self, text: str) -> str:
        """One of its words."""
        return self.of(text.split())

    def whole(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        return self.random.randint(low, high)

    def wholes(self, low: int, high: int, many: int) -> list[int]:
        """Several."""
        return [self.whole(low, high) for _ in range(many)]

    def chance(self, share: float) -> bool:
        """True in such a share of the draws."""
        return self.random.random() < share

    def shape(self, low: int = 1, high: int = 4, least: int = 1, most: int = 4) -> tuple[int, ...]:
        """Sizes from low to high, of a rank from least to most."""
        return tuple(self.wholes(low, high, self.whole(least, most)))

    def normal(self, *shape: int) -> Array:
        """Normal numbers."""
        return self.numbers.standard_normal(shape).astype(self.dtype)

    def away(self, least: float, *shape: int) -> Array:
        """Normal numbers, pushed away from 0."""
        made = self.numbers.standard_normal(shape)
        return (np.where(made < 0, -1.0, 1.0) * (np.abs(made) + least)).astype(self.dtype)

    def positive(self, *shape: int) -> Array:
        """Numbers above 0.2."""
        return np.abs(self.away(0.2, *shape)).astype(self.dtype)

    def between(self, low: float, high: float, *shape: int) -> Array:
        """Even numbers."""
        return np.asarray(self.numbers.uniform(low, high, shape)).astype(self.dtype)

    def indices(self, low: int, high: int, shape: Sequence[int]) -> Array:
        """Whole numbers below high, of 64 bits."""
        return np.asarray(self.numbers.integers(low, high, tuple(shape)), np.int64)

    def truths(self, *shape: int) -> Array:
        """True in 7 of 10 places."""
        return np.asarray(self.numbers.random(shape) < 0.7)

    def spelled(self, axis: int, rank: int) -> int:
        """An axis as it is, or counted from the end."""
        return axis - rank if self.chance(0.5) else axis

    def axes(self, rank: int, least: int = 1) -> list[int]:
        """Several axes, in any order."""
        return self.random.sample(range(rank), self.whole(least, rank))

    def broadcastable(self, shape: Sequence[int]) -> tuple[int, ...]:
        """A shape that goes into another one: some sizes 1, some axes left out."""
        made = tuple(size if self.chance(0.7) else 1 for size in shape)
        return made[self.whole(0, len(made)) :]

    def some(self, **values: Any) -> dict[str, Any]:
        """Each of the attributes in half of the draws."""
        return {name: value for name, value in values.items() if self.chance(0.5)}


def wholes(*values: int) -> Array:
    """A vector of 64 bits."""
    return np.array(values, np.int64).reshape(-1)


@dataclass(frozen=True)
class Node:
    """One node with its inputs.

    Attributes:
        inputs: None for one that is left out.
        opset: of ONNX's own operators.
        outputs: how many there are.
        fixed: positions of inputs that have to be constants.
    """

    op: str
    inputs: Sequence[Array | None]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    opset: int = 18
    outputs: int = 1
    domain: str = ""
    fixed: Sequence[int] = ()

    def model(self, stored: Sequence[int] = ()) -> tuple[onnx.ModelProto, list[Array]]:
        """The node alone, and what it is fed with.

        Args:
            stored: further positions of inputs that are constants.
        """
        given = list(self.inputs)
        while given and given[-1] is None:
            given.pop()
        names = ["" if each is None else f"x{k}" for k, each in enumerate(given)]
        outputs = [f"y{k}" for k in range(self.outputs)]
        node = helper.make_node(self.op, names, outputs, domain=self.domain, **self.attributes)
        inputs, constants, feeds = [], [], []
        for k, (name, array) in enumerate(zip(names, given, strict=True)):
            if array is None:
                continue
            array = np.asarray(array)
            if k in self.fixed or k in stored:
                constants.append(numpy_helper.from_array(array, name))
                continue
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            inputs.append(helper.make_tensor_value_info(name, kind, array.shape))
            feeds.append(array)
        made = [onnx.ValueInfoProto(name=name) for name in outputs]
        return of_nodes([node], inputs, made, constants, self.opset), feeds


def of_nodes(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    constants: Sequence[onnx.TensorProto],
    opset: int,
) -> onnx.ModelProto:
    """A model of nodes."""
    graph = helper.make_graph(nodes, "drawn", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(MS, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


Drawer = Callable[[Draw, str], Node | None]
DRAWERS: dict[Key, Drawer] = {}


def draws(operators: str, domain: str = "") -> Callable[[Drawer], Drawer]:
    """Register what draws nodes of some operators, given by name."""

    def register(drawer: Drawer) -> Drawer:
        for name in operators.split():
            DRAWERS[domain, name] = drawer
        return drawer

    return register
