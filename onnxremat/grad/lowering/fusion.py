"""Forward ops joined before they are differentiated, where that was measured to pay.

A Gelu written out (five to ten elementwise ops) costs a pass over memory per op, forward and
backward, and keeps most of the values between alive. As one op it takes a third of the time
forward and keeps its input only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper

from onnxremat.grad.constants import Constants
from onnxremat.graph.ir import Graph, Op

GELU_OPSET = 20
LONGEST = 6  # ops after the Erf or Tanh
_INNER = frozenset({"Add", "Sub", "Mul", "Div", "Pow", "Sqrt", "Neg"})


@dataclass(frozen=True)
class _Region:
    """Ops that compute ``result`` from ``source`` and constants only."""

    ops: tuple[Op, ...]
    source: str
    result: str
    constants: dict[str, np.ndarray]


def fuse_gelu(graph: Graph) -> Graph:
    """Gelu in place of ops that compute it; what they compute is found by running them."""
    if graph.opsets.get("", 0) < GELU_OPSET:
        return graph
    constant_of = Constants(graph)
    replaced: dict[str, Op] = {}
    gone: set[str] = set()
    for op in graph.ops:
        if op.op_type not in ("Erf", "Tanh") or not op.standard:
            continue
        region = _around(graph, op, constant_of)
        if region is None:
            continue
        last = region.ops[-1]
        form = "tanh" if op.op_type == "Tanh" else "none"
        node = helper.make_node("Gelu", [region.source], [region.result], approximate=form)
        replaced[last.name] = Op(
            last.name, "Gelu", "", (region.source,), (region.result,), (), node
        )
        gone |= {each.name for each in region.ops[:-1]}
    if not replaced:
        return graph
    return graph.with_ops(replaced.get(op.name, op) for op in graph.ops if op.name not in gone)


def _around(
    graph: Graph, core: Op, constant_of: Callable[[str], np.ndarray | None]
) -> _Region | None:
    """The region from the argument of a Gelu to its result, None when ``core`` is in none."""
    before = _before(graph, core.inputs[0], constant_of)
    if before is None:
        return None
    ops, source, constants = before
    ops = {**ops, graph.producer[core.outputs[0]]: core}
    current = core.outputs[0]
    for _ in range(LONGEST):
        readers = graph.readers.get(current, ())
        if len(readers) != 1 or current in graph.outputs:
            return None
        op = graph.ops[readers[0]]
        if op.op_type not in ("Add", "Mul", "Div") or not op.standard:
            return None
        for name in op.inputs:
            if name in (current, source):
                continue
            side = _before(graph, name, constant_of, source)
            if side is None or side[1] not in ("", source):
                return None
            ops, constants = {**ops, **side[0]}, {**constants, **side[2]}
        ops[readers[0]] = op
        current = op.outputs[0]
        region = _Region(tuple(ops[k] for k in sorted(ops)), source, current, constants)
        if op.op_type != "Add" and _is_gelu(region, core.op_type):
            return region
    return None


_Part = tuple[dict[int, Op], str, dict[str, np.ndarray]]


def _before(
    graph: Graph, name: str, constant_of: Callable[[str], np.ndarray | None], source: str = ""
) -> _Part | None:
    """Ops leading to a tensor from one source: a tensor that several ops read."""
    ops: dict[int, Op] = {}
    constants: dict[str, np.ndarray] = {}
    waiting = [name]
    while waiting:
        current = waiting.pop()
        if current == source:
            continue
        value = constant_of(current)
        if value is not None:
            if value.size != 1:
                return None
            constants[current] = value
            continue
        index = graph.producer.get(current)
        single = len(graph.readers.get(current, ())) == 1 and current not in graph.outputs
        if single and index is not None and graph.ops[index].op_type in _INNER:
            ops[index] = graph.ops[index]
            waiting += graph.ops[index].reads
        elif source:
            return None
        else:
            source = current
    return (ops, source, constants) if source else None


def _is_gelu(region: _Region, core: str) -> bool:
    """Whether the ops give Gelu's values at some points."""
    points = np.linspace(-6.0, 6.0, 97, dtype=np.float32)
    nodes = []
    for op in region.ops:
        node = onnx.NodeProto()
        node.CopyFrom(op.node)
        node.input[:], node.output[:] = op.inputs, op.outputs
        nodes.append(node)
    stored = [
        onnx.numpy_helper.from_array(value.astype(np.float32).reshape(()), name)
        for name, value in region.constants.items()
    ]
    kind = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "gelu",
        [helper.make_tensor_value_info(region.source, kind, points.shape)],
        [helper.make_tensor_value_info(region.result, kind, points.shape)],
        stored,
    )
    from onnx.reference import ReferenceEvaluator  # long to import, seldom needed

    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", GELU_OPSET)])
    try:
        (found,) = ReferenceEvaluator(model).run(None, {region.source: points})
    except Exception:  # whatever numpy raises: then it is something else
        return False
    wide = points.astype(np.float64)
    if core == "Erf":
        bent = np.array([math.erf(x / math.sqrt(2.0)) for x in wide])
    else:
        bent = np.tanh(math.sqrt(2.0 / math.pi) * (wide + 0.044715 * wide**3))
    return bool(np.allclose(found, 0.5 * wide * (1.0 + bent), rtol=1e-4, atol=2e-6))
