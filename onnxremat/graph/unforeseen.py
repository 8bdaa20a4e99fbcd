"""Shapes that a session learns only while it runs.

Under default options onnxruntime holds a dead buffer for the next value whose shape it knows to be
the same when it loads the file (``allocation_planner.cc``, ``FindReusableTensor``). Parts of a
region are of one shape, so that the buffers of a part would wait for the next one, and nothing
would be gained. Where bounds are sums with a zero that is found at run time, no shape behind them
follows at load; files give each a name instead, and a buffer is given back when its value is dead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from onnxremat.graph.ir import Graph, Op, Role, Tensor
from onnxremat.graph.traits import takeover_inputs

ZERO = "fission/zero"  # the lesser of 0 and the size of an input
ADDED = "onnxremat."
BOUNDS = {"Slice": 2, "Reshape": 1}  # input that says how large the output is
FIRST = 12  # opset from which the lesser of two integers is there


def unforeseen(graph: Graph, bounds: Iterable[str]) -> Graph:
    """The graph with these constants, the bounds of its Slices and Reshapes, found as it runs.

    Args:
        bounds: lists of integers among the weights.
    """
    wanted = frozenset(bounds)
    if not wanted or not graph.inputs or graph.opsets.get("", 1) < FIRST:
        return graph
    tensors, frame = dict(graph.tensors), onnx.ModelProto()
    frame.CopyFrom(graph.model)
    none = numpy_helper.from_array(np.zeros((), np.int64), f"{ZERO}/none")
    frame.graph.initializer.append(none)
    tensors[none.name] = Tensor(none.name, TensorProto.INT64, (), 8, Role.WEIGHT)

    def op(kind: str, inputs: list[str], output: str, shape: tuple[int, ...]) -> Op:
        size = 8 * int(np.prod(shape))
        tensors[output] = Tensor(output, TensorProto.INT64, shape, size, Role.ACTIVATION)
        node = onnx.helper.make_node(kind, inputs, [output], name=output)
        return Op(output, kind, "", tuple(inputs), (output,), (), node)

    ops = [
        op("Size", [graph.inputs[0]], f"{ZERO}/size", ()),
        op("Min", [f"{ZERO}/size", none.name], ZERO, ()),
    ]
    made = dict[str, str]()
    for each in graph.ops:
        at = BOUNDS.get(each.op_type, len(each.inputs)) if each.standard else len(each.inputs)
        name = each.inputs[at] if at < len(each.inputs) else ""
        if name in wanted:
            if name not in made:
                made[name] = f"{ZERO}/{name}"
                shape = tensors[name].shape or ()
                ops.append(op("Add", [name, ZERO], made[name], shape))
            inputs = (*each.inputs[:at], made[name], *each.inputs[at + 1 :])
            each = replace(each, inputs=inputs)
        ops.append(each)
    return replace(graph, ops=tuple(ops), tensors=tensors, model=frame) if made else graph


def foreseen(values: Iterable[onnx.ValueInfoProto]) -> None:
    """Have what a file says of its values tell the number behind a name (:func:`told`)."""
    for value in values:
        for dim in value.type.tensor_type.shape.dim[:1]:
            size, _, name = dim.dim_param.removeprefix(ADDED).partition("/")
            if dim.dim_param.startswith(ADDED) and size.isdecimal() and name:
                dim.dim_value = int(size)


def told(graph: Graph) -> Iterator[tuple[str, tuple[int | str, ...]]]:
    """The shape of each value that ops write, as a file may say it.

    Of what is made of the zero the first dimension is a name, the number in it: one for a value and
    those that take over its buffer. onnxruntime lets a value take over another's only where it
    knows the same of both.
    """
    names, readers = dict[str, str](), graph.readers if ZERO in graph.tensors else {}
    for place, op in enumerate(graph.ops):
        behind = bool(readers) and any(n in names or n.startswith(ZERO) for n in op.reads)
        for output in op.writes:
            tensor = graph.tensors.get(output)
            if tensor is None or tensor.shape is None:
                continue
            if not behind or not tensor.shape:
                yield output, tensor.shape
                continue
            taken = [
                op.inputs[at] for at in takeover_inputs(op)
                if op.inputs[at] in names and readers[op.inputs[at]][-1] == place
                and graph.tensors[op.inputs[at]].shape == tensor.shape
            ]  # fmt: skip
            names[output] = names[taken[0]] if taken else output
            name = f"{ADDED}{tensor.shape[0]}/{names[output]}"
            yield output, (name, *tensor.shape[1:])
