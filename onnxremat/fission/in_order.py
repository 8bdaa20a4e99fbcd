"""Images that are enlarged with their channels in order.

onnxruntime enlarges an image that comes from a convolution in blocks of channels, and then puts its
channels in order, for another operator or as an output of the graph (the classes of every pixel):
the image is there twice, once with its channels filled up to whole blocks. Put in order before, the
small image is copied, and what is handed out is made at once, by one op.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import numpy_helper

from onnxremat.fission.apart import is_copy
from onnxremat.fission.region import Region
from onnxremat.graph.axes import BLOCKED
from onnxremat.graph.dtypes import tensor_bytes
from onnxremat.graph.ir import Graph, Op, Role, Tensor
from onnxremat.graph.spans import Call, Facts

ORDERED = "/in order"  # ends the names of such ops
SAID = 11  # opset from which Resize says where its rows lie


def in_order(graph: Graph) -> Graph:
    """The graph with copies from blocks before what enlarges images in place of behind it."""
    facts, constants = Facts(graph), list[onnx.TensorProto]()
    tensors, ops, gone = dict(graph.tensors), list[Op](), set[int]()
    for place, op in enumerate(graph.ops):
        behind = _copy_behind(graph, op) if graph.opsets.get("", 1) >= SAID else None
        if behind is None:
            ops += [op] if place not in gone else []
            continue
        ops += _swapped(facts, op, graph.ops[behind], tensors, constants)
        gone.add(behind)
    if not gone:
        return graph
    made = {*graph.inputs, *(name for op in ops for name in (*op.reads, *op.writes))}
    kept = {name: tensor for name, tensor in tensors.items() if name in made}
    return graph.with_ops(ops, kept).with_weights(constants)


def as_regions(graph: Graph) -> tuple[Region, ...]:
    """A region of one part for each image that is enlarged so: it says which graph is meant."""
    made = [op for op in graph.ops if op.name.endswith(ORDERED) and op.op_type == "Resize"]
    return tuple(Region((op.name,), {op.outputs[0]: 0}, (1,), {op.outputs[0]: 1}) for op in made)


def seconds_in_order(graph: Graph, known: Mapping[str, float]) -> dict[str, float]:
    """What is known, and of these ops as of those that they stand for, a copy by its bytes."""
    found = dict(known)
    for at, op in enumerate(graph.ops):
        of = op.name.removesuffix(ORDERED)
        if op.name.endswith(ORDERED) and of in known:
            found[op.name] = known[of]
            if is_copy(op):
                large = graph.tensors[graph.ops[at + 1].outputs[0]].bytes
                found[op.name] *= graph.tensors[op.outputs[0]].bytes / large
    return found


def _copy_behind(graph: Graph, op: Op) -> int | None:
    """The copy that alone reads an image enlarged in blocks; None for other ops."""
    if op.domain != BLOCKED or op.op_type != "Upsample" or op.outputs[0] in graph.outputs:
        return None
    readers = graph.readers.get(op.outputs[0], ())
    if len(readers) != 1 or not is_copy(graph.ops[readers[0]]):
        return None
    last = any(a.name == "channels_last" and a.i for a in graph.ops[readers[0]].node.attribute)
    return None if last else readers[0]


def _swapped(
    facts: Facts, grows: Op, copies: Op, tensors: dict[str, Tensor],
    constants: list[onnx.TensorProto],
) -> list[Op]:  # fmt: skip
    """The copy, then what enlarges.

    Args:
        tensors, constants: of the graph, to be added to.
    """
    call: Call = facts.call(grows)
    image, channels = facts.shape(grows.inputs[0]), facts.shape(copies.outputs[0])[1]
    shape, dtype = (image[0], channels, *image[2:]), tensors[copies.outputs[0]].dtype
    own, scales = copies.outputs[0] + ORDERED, f"{grows.name}{ORDERED}/scales"
    tensors[own] = Tensor(own, dtype, shape, tensor_bytes(dtype, shape), Role.ACTIVATION)
    constants.append(numpy_helper.from_array(np.float32(call.attributes["scales"]), scales))
    count = len(call.attributes["scales"])
    tensors[scales] = Tensor(scales, onnx.TensorProto.FLOAT, (count,), 4 * count, Role.WEIGHT)
    copy = copies.renamed(
        copies.name + ORDERED, {copies.inputs[0]: grows.inputs[0], copies.outputs[0]: own}
    )
    inputs, name = [own, "", scales], grows.name + ORDERED
    how = {
        "mode": call.text("mode", "nearest"),
        "coordinate_transformation_mode": call.text("coordinate_transformation_mode", "asymmetric"),
        "nearest_mode": "floor",
    }
    node = onnx.helper.make_node("Resize", inputs, copies.outputs[:1], name, **how)
    return [copy, Op(name, "Resize", "", tuple(inputs), copies.outputs[:1], (), node)]
