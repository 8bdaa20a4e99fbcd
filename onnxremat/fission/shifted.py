"""Images that are shifted (rolled) along an axis, which onnxruntime writes as a Split and a Concat.

A Split makes all of its outputs at once, and none in parts along its own axis. As one Slice per
output the rows of a shifted image are made part by part, as of windows in a shifted place.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import numpy as np
import onnx
from onnx import numpy_helper

from onnxremat.graph.ir import Graph, Op, Role, Tensor
from onnxremat.graph.spans import Call, CannotSplitError, Facts

SHIFTED = "/shifted to/"  # between the names of a Split and the value that a Slice of it makes
LISTED = 10  # opset from which Slice reads its bounds as inputs


def shifted(graph: Graph, which: Collection[str] | None = None) -> Graph:
    """The graph with a Slice for each output of a Split that Concats along its axis read alone.

    Args:
        which: names of the Splits; all by default.
    """
    facts, constants = Facts(graph), dict[str, onnx.TensorProto]()
    ops, listed = list[Op](), graph.opsets.get("", 1) >= LISTED
    for op in graph.ops:
        axis = _axis(graph, facts, op) if which is None or op.name in which else None
        ops += [op] if axis is None else _slices(facts, op, axis, constants if listed else None)
    if len(ops) == len(graph.ops):
        return graph
    constants = {name: each for name, each in constants.items() if name not in graph.tensors}
    tensors = {**graph.tensors, **{name: _listed(name) for name in constants}}
    return graph.with_ops(ops, tensors).with_weights(constants.values())


def shifted_for(graph: Graph, names: Collection[str]) -> Graph:
    """The graph with those Splits written so that some of these ops belong to."""
    which = {name.partition(SHIFTED)[0] for name in names if SHIFTED in name}
    return shifted(graph, which) if which else graph


def seconds_shifted(graph: Graph, known: Mapping[str, float]) -> dict[str, float]:
    """What is known, and of each Slice its share of its Split."""
    found, size = dict(known), dict[str, int]()
    slices = [(op, op.name.partition(SHIFTED)[0]) for op in graph.ops if SHIFTED in op.name]
    for op, of in slices:
        size[of] = size.get(of, 0) + graph.tensors[op.outputs[0]].bytes
    for op, of in slices:
        if of in known:
            found[op.name] = known[of] * graph.tensors[op.outputs[0]].bytes / size[of]
    return found


def _axis(graph: Graph, facts: Facts, op: Op) -> int | None:
    """The axis of a Split that Concats along it read alone, None for other ops."""
    if not op.standard or op.op_type != "Split" or len(op.writes) < 2:
        return None
    try:
        call = facts.call(op)
        axis = call.attributes.get("axis", 0) % len(call.out)
        shapes = [facts.shape(name) for name in op.writes]
    except CannotSplitError:
        return None
    if len(op.writes) < len(op.outputs) or not all(shape[axis] for shape in shapes):
        return None
    readers = [at for name in op.writes for at in graph.readers.get(name, ())]
    joined = all(_joins(facts.call(graph.ops[at]), axis) for at in readers)
    handed = set(op.writes).intersection(graph.outputs)
    return axis if readers and joined and not handed else None


def _joins(call: Call, axis: int) -> bool:
    """An op joins along an axis."""
    try:
        return call.op.op_type == "Concat" and call.attributes["axis"] % len(call.out) == axis
    except CannotSplitError:
        return False


def _slices(
    facts: Facts, op: Op, axis: int, constants: dict[str, onnx.TensorProto] | None
) -> Iterator[Op]:
    """An op for each output.

    Args:
        constants: that they read, to be added to; None where their bounds are attributes.
    """
    first = 0
    for output in op.outputs:
        end = first + facts.shape(output)[axis]
        name, inputs = f"{op.name}{SHIFTED}{output}", list(op.inputs[:1])
        bounds = {"starts": [first], "ends": [end], "axes": [axis]}
        if constants is not None:
            for (value,) in bounds.values():
                inputs.append(SHIFTED + str(value))
                constants[inputs[-1]] = numpy_helper.from_array(
                    np.asarray([value], np.int64), inputs[-1]
                )
            bounds = {}
        node = onnx.helper.make_node("Slice", inputs, [output], name, **bounds)
        yield Op(name, "Slice", "", tuple(inputs), (output,), (), node)
        first = end


def _listed(name: str) -> Tensor:
    """Of one integer."""
    return Tensor(name, onnx.TensorProto.INT64, (1,), 8, Role.WEIGHT)
