"""Constants made of numbers that stand for sizes of a run, replaced by ops that compute them.

A number that is a multiple of such a prime is a product with that size: of elements, of a slice, of
a mean. The ops are placed behind the one that makes a tensor of that size.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper, numpy_helper

from onnxremat.errors import UnsupportedError
from onnxremat.grad.control.run_sizes import FAR, RunSizes
from onnxremat.grad.roles import PHASE
from onnxremat.graph.ir import captures, rename_captures, subgraphs

WHOLE = frozenset({T.INT64, T.INT32})
REAL = frozenset({T.FLOAT, T.DOUBLE})
MOST = 64  # numbers in a list that is looked at
NEAR = 1e-6  # how exact the reciprocal of a size is
SCOPE = "sizes"


@dataclass
class _Sizes:
    """Writes the ops.

    Attributes:
        model: gets them.
        behind: the nodes to be placed behind each node, by its number.
    """

    model: onnx.ModelProto
    sizes: RunSizes
    behind: dict[int, list[onnx.NodeProto]] = field(default_factory=dict)
    place: dict[str, int] = field(default_factory=dict)
    made: dict[object, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        graph = self.model.graph
        taken = {name for node in graph.node for name in (node.name, *node.output)}
        self.taken = taken | {t.name for t in graph.initializer} | {v.name for v in graph.input}
        for index, node in enumerate(graph.node):
            self.place.update(dict.fromkeys(node.output, index))

    def size(self, number: int) -> str:
        """The size that a number stands for, [1]."""
        at = self.sizes.places[number]
        if at.name not in self.place:
            raise UnsupportedError(
                f"the size of tensor '{at.name}', which depends on data, is needed, but the tensor "
                "is not",
                hint="export the model with fixed sizes",
            )
        found = self._op("Shape", at.name, start=at.axis, end=at.axis + 1)
        return found if at.times == 1 else self._op("Div", found, self.listed([at.times]))

    def product(self, value: int) -> str | None:
        """A number that is no plain one, [1]; None for a plain one."""
        plain, numbers = self.sizes.factors(value)
        if not numbers:
            return None
        result, *others = [self.size(number) for number in numbers]
        for other in others:
            result = self._op("Mul", result, other)
        return result if plain == 1 else self._op("Mul", result, self.listed([plain]))

    def list_of(self, values: list[int]) -> str:
        """A list of whole numbers."""
        parts: list[str] = []
        plain: list[int] = []
        for value in values:
            made = self.product(value)
            if made is None:
                plain.append(value)
                continue
            parts += [self.listed(plain), made] if plain else [made]
            plain = []
        parts += [self.listed(plain)] if plain else []
        return parts[0] if len(parts) == 1 else self._op("Concat", *parts, axis=0)

    def shaped(self, made: str, tensor: onnx.TensorProto) -> str:
        """A list of whole numbers as the constant that it replaces has them."""
        if tensor.data_type != T.INT64:
            made = self._op("Cast", made, to=tensor.data_type)
        if len(tensor.dims) != 1:
            made = self._op("Reshape", made, self.listed(list(tensor.dims)))
        return made

    def real(self, tensor: onnx.TensorProto) -> str | None:
        """A single number that is a size or what a mean divides by it; None for a plain one."""
        value = float(numpy_helper.to_array(tensor).reshape(-1)[0])
        if not 0 < abs(value) < FAR or not np.isfinite(value):
            return None
        if value == int(value):
            made = self.product(int(value))
            return None if made is None else self.shaped(made, tensor)
        whole = round(1.0 / value)
        if abs(whole * value - 1.0) > NEAR or (made := self.product(whole)) is None:
            return None
        return self._op("Reciprocal", self.shaped(made, tensor))

    def listed(self, values: list[int]) -> str:
        """A constant list of whole numbers."""
        key = tuple(values)
        if key not in self.made:
            name = self._fresh("constant")
            array = np.array(values, np.int64).reshape(-1)
            self.model.graph.initializer.append(numpy_helper.from_array(array, name))
            self.made[key] = name
        return self.made[key]

    def _op(self, kind: str, *inputs: str, **attributes: int) -> str:
        key = (kind, inputs, tuple(attributes.items()))
        if key not in self.made:
            name = self._fresh(kind)
            node = helper.make_node(kind, inputs, [name], name=name, **attributes)
            node.metadata_props.add(key=PHASE, value="forward")
            at = max(self.place[each] for each in inputs if each in self.place)
            self.place[name] = at
            self.behind.setdefault(at, []).append(node)
            self.made[key] = name
        return self.made[key]

    def _fresh(self, kind: str) -> str:
        count = 0
        while (name := f"{SCOPE}/{kind}_{count}") in self.taken:
            count += 1
        self.taken.add(name)
        return name


def sized_at_run(
    model: onnx.ModelProto, sizes: RunSizes, given: Collection[str]
) -> onnx.ModelProto:
    """The model with the constants that came of sizes of a run computed as it runs.

    Args:
        model: changed in place.
        given: initializers of the user, none of which came of a size.

    Raises:
        UnsupportedError: a size is needed of a tensor that the model does not make.
    """
    if not sizes.places:
        return model
    writer = _Sizes(model, sizes)
    _explicit_shapes(writer)
    replaced: dict[str, str] = {}
    for tensor in list(model.graph.initializer):
        made = None if tensor.name in given else _computed(writer, tensor)
        if made is not None:
            replaced[tensor.name] = made
    nodes = list(model.graph.node)
    del model.graph.node[:]
    for index, node in enumerate(nodes):
        if node.op_type == "Reshape" and node.input[1] in replaced:
            _take_zeros(node)
        made = rename_captures(node, replaced) if subgraphs(node) else node
        made.input[:] = [replaced.get(name, name) for name in made.input]
        model.graph.node.extend([made, *writer.behind.get(index, ())])
    read = {name for node in model.graph.node for name in (*node.input, *captures(node))}
    read |= {*given, *(value.name for value in model.graph.output)}
    kept = [tensor for tensor in model.graph.initializer if tensor.name in read]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    return model


def _computed(writer: _Sizes, tensor: onnx.TensorProto) -> str | None:
    """What takes the place of a constant, None where it is a plain one."""
    count = int(np.prod(tensor.dims))
    if tensor.data_type in WHOLE and 0 < count <= MOST:
        values = [int(value) for value in numpy_helper.to_array(tensor).reshape(-1)]
        if any(writer.sizes.varies(value) for value in values):
            return writer.shaped(writer.list_of(values), tensor)
    if tensor.data_type in REAL and count == 1:
        return writer.real(tensor)
    return None


def _explicit_shapes(writer: _Sizes) -> None:
    """Reshapes to what has a size of a run, with all sizes given as they are: a 0 would mean that
    of the input, and beside a size that turns out as 0, -1 has no meaning."""
    graph = writer.model.graph
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim]
              for v in (*graph.value_info, *graph.output)}  # fmt: skip
    stored = {t.name: t for t in graph.initializer}
    for node in graph.node:
        if node.op_type != "Reshape" or node.input[1] not in stored:
            continue
        shape = shapes.get(node.output[0], [])
        if any(writer.sizes.varies(dim) for dim in shape):
            node.input[1] = writer.listed(shape)


def _take_zeros(node: onnx.NodeProto) -> None:
    """Have a 0 in the shape mean 0."""
    kept = [each for each in node.attribute if each.name != "allowzero"]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute("allowzero", 1)])
