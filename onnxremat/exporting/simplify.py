"""Computations on sizes and constants folded, parameters left alone.

The exporters' own simplification folds parameters too, and what they write without it holds
hundreds of ops on shapes, and sequences, which have no gradient. So onnxscript's simplification is
run on the graph with every parameter as an input, which it cannot fold. So it is with numbers next
to 0 and 1, which it takes for these: ``sqrt(x + 1e-8)`` would become ``sqrt(x)``. Where gradients
stop, an op stands that it has to leave, or ``(x - y) ** 2 + (x.detach() - y) ** 2`` would become
twice the first.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Collection, Sequence

import onnx
from onnx import helper, numpy_helper
from onnx.external_data_helper import uses_external_data

from onnxremat.grad.exported.detached import is_stop
from onnxremat.grad.tape import FLOATS
from onnxremat.graph.ir import all_nodes

DROPPING = "onnxremat_dropping"
STOPPING = "onnxremat_stopping"
TO_ZERO, TO_ONE = 2e-8, 2e-5  # onnxscript 0.7 takes 1e-8 for 0, and 1 + 1e-5 for 1


def simplified(model: onnx.ModelProto, kept: Collection[str]) -> onnx.ModelProto:
    """An equal model of fewer ops; the same one where onnxscript is missing or cannot.

    Args:
        kept: initializers that stay as they are, under their names.
    """
    try:
        from onnxscript import optimizer
    except ImportError:
        return model
    light = onnx.ModelProto()
    light.CopyFrom(model)
    graph = light.graph
    _store_numbers(graph)
    numbers = [_copy(t) for t in graph.initializer if t.name not in kept and _is_next_to(t)]
    apart = {*kept, *(t.name for t in numbers)}
    stored = [*(t for t in model.graph.initializer if t.name in kept), *numbers]
    others = [t for t in model.graph.initializer if t.name not in apart]
    del graph.initializer[:]
    graph.initializer.extend(others)
    graph.input.extend(helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in stored)
    _hold_dropouts(graph)
    _hold_stops(graph)
    logger = logging.getLogger("onnxscript")
    level = logger.level
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            logger.setLevel(logging.CRITICAL)
            made: onnx.ModelProto = optimizer.optimize(light)
    except Exception:  # then it stays as it was exported
        return model
    finally:
        logger.setLevel(level)
    _give_back_stops(made.graph)
    added = {*(t.name for t in stored), DROPPING, STOPPING}
    for value in [value for value in made.graph.input if value.name in added]:
        made.graph.input.remove(value)
    made.graph.initializer.extend(stored)
    return made


def _copy(tensor: onnx.TensorProto) -> onnx.TensorProto:
    return onnx.TensorProto.FromString(tensor.SerializeToString())


def _store_numbers(graph: onnx.GraphProto) -> None:
    """Constant nodes of numbers next to 0 and 1 become initializers."""
    stored = list[int]()
    for place, node in enumerate(graph.node):
        constant = node.op_type == "Constant" and not node.domain
        value = next((a.t for a in node.attribute if constant and a.name == "value"), None)
        if value is not None and _is_next_to(value):
            graph.initializer.append(value)
            graph.initializer[-1].name = node.output[0]
            stored.append(place)
    for place in reversed(stored):
        del graph.node[place]


def _is_next_to(tensor: onnx.TensorProto) -> bool:
    """A single number that the simplification would take for 0 or 1, and is not."""
    if tensor.data_type not in FLOATS or math.prod(tensor.dims) != 1 or uses_external_data(tensor):
        return False
    number = float(numpy_helper.to_array(tensor).reshape(()))
    return number not in (0.0, 1.0) and (abs(number) <= TO_ZERO or abs(number - 1.0) <= TO_ONE)


def _hold_dropouts(graph: onnx.GraphProto) -> None:
    """Dropouts made to depend on an input, or they would be folded away."""
    found = [n for n in graph.node if n.op_type == "Dropout" and not n.domain]
    for node in found:
        while len(node.input) < 2:
            node.input.append("")
        del node.input[2:]
        node.input.append(DROPPING)
    if found:
        graph.input.append(helper.make_tensor_value_info(DROPPING, onnx.TensorProto.BOOL, []))


def _hold_stops(graph: onnx.GraphProto) -> None:
    """Stops of gradients become a choice of one of two equal values by an input."""
    found = [node for node in all_nodes(graph) if is_stop(node)]
    for node in found:
        node.op_type = "Where"
        node.input[:] = [STOPPING, node.input[0], node.input[0]]
    if found:
        graph.input.append(helper.make_tensor_value_info(STOPPING, onnx.TensorProto.BOOL, []))


def _give_back_stops(graph: onnx.GraphProto) -> None:
    for node in all_nodes(graph):
        if node.op_type == "Where" and node.input[0] == STOPPING:
            node.op_type = "Identity"
            node.input[:] = node.input[1:2]


def name_outputs(graph: onnx.GraphProto, wanted: Sequence[str] | None) -> None:
    """Give outputs the names that are wanted, and each that is an input, a weight or another output
    one of its own: exporters give it the other's, and simplifying would rename an input then.

    Args:
        wanted: names of the outputs, if the caller chose them.
    """
    taken = {v.name for v in graph.input} | {t.name for t in graph.initializer}
    known = taken | {name for node in graph.node for name in node.output}
    for k, value in enumerate(graph.output):
        old = value.name
        own = wanted[k] if wanted and k < len(wanted) else f"{old}_out" if old in taken else old
        if own != old:
            while own in known:
                own += "_"
            graph.node.append(helper.make_node("Identity", [old], [own]))
            value.name = own
        taken.add(value.name)
        known.add(value.name)
