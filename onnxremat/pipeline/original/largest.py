"""How large values can be whose sizes depend on data: NonZero finds no more than there is."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace

from onnxremat.errors import OnnxrematError
from onnxremat.grad.control.run_sizes import RunSizes
from onnxremat.grad.forward import with_run_sizes
from onnxremat.graph.dtypes import tensor_bytes
from onnxremat.graph.ir import Graph
from onnxremat.pipeline.original.sizes import seen_sizes


def at_largest(graph: Graph) -> Graph | None:
    """The graph with each such value as large as it can be; None where that does not follow.

    Sizes are written with numbers that stand for what is found
    (:mod:`onnxremat.grad.control.run_sizes`). That they are written right is seen by putting in
    what a run has found: the sizes of that run have to come out.
    """
    seen, sizes = seen_sizes(graph), RunSizes()
    try:
        shapes = _written(graph, seen, sizes)
    except OnnxrematError:  # onnxruntime infers what does not fit
        return None
    found, most = _found(graph, sizes), _most(graph, shapes, sizes)
    if found is None or most is None:
        return None
    tensors = dict(graph.tensors)
    for name in seen:
        tensor, shape = tensors[name], shapes.get(name)
        if shape is None or tuple(_size(size, sizes, found) for size in shape) != tensor.shape:
            return None
        largest = tuple(_size(size, sizes, most) for size in shape)
        size = tensor_bytes(tensor.dtype, largest)
        tensors[name] = replace(tensor, shape=largest, bytes=size)
    return graph.with_ops(graph.ops, tensors)


def _written(
    graph: Graph, seen: Collection[str], sizes: RunSizes
) -> Mapping[str, tuple[int, ...] | None]:
    """Shapes with numbers in the place of what is found."""
    tensors = dict(graph.tensors)
    for name in seen:
        tensors[name] = replace(tensors[name], dtype=0, shape=None, bytes=0, seen=False)
    made = with_run_sizes(graph.with_ops(graph.ops, tensors), sizes)
    return {name: tensor.shape for name, tensor in made.tensors.items()}


def _found(graph: Graph, sizes: RunSizes) -> dict[int, int] | None:
    """What a run has found, by the number that stands for it."""
    made = {}
    for number, place in sizes.places.items():
        shape = graph.tensors[place.name].shape
        if shape is None:
            return None
        made[number] = shape[place.axis] // place.times
    return made


def _most(
    graph: Graph, shapes: Mapping[str, tuple[int, ...] | None], sizes: RunSizes
) -> dict[int, int] | None:
    """The most that can be found: as many as there are elements to look at."""
    made: dict[int, int] = {}
    for number, place in sizes.places.items():
        op = graph.ops[graph.producer[place.name]]
        looked_at = shapes.get(op.inputs[0]) or graph.tensors[op.inputs[0]].shape
        if op.op_type not in ("NonZero", "Unique") or looked_at is None:
            return None
        count = math.prod(_size(size, sizes, made) for size in looked_at)
        made[number] = count // place.times
    return made


def _size(size: int, sizes: RunSizes, values: Mapping[int, int]) -> int:
    """A size with values in the place of the numbers that stand for them."""
    plain, numbers = sizes.factors(size)
    return math.prod((values.get(number, number) for number in numbers), start=plain)
