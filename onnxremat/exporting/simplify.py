"""Computations on sizes and constants folded, parameters left alone.

The exporters' own simplification folds parameters too, and what they write without it holds
hundreds of ops on shapes, and sequences, which have no gradient. So onnxscript's simplification is
run on the graph with every parameter as an input, which it cannot fold.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Collection, Sequence

import onnx
from onnx import helper

DROPPING = "onnxremat_dropping"


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
    stored = [t for t in model.graph.initializer if t.name in kept]
    others = [t for t in model.graph.initializer if t.name not in kept]
    del graph.initializer[:]
    graph.initializer.extend(others)
    graph.input.extend(helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in stored)
    _hold_dropouts(graph)
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
    added = {*(t.name for t in stored), DROPPING}
    for value in [value for value in made.graph.input if value.name in added]:
        made.graph.input.remove(value)
    made.graph.initializer.extend(stored)
    return made


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
