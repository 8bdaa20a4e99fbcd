"""How many ops the bodies of loops run in one run of a model, as far as their trip counts are
written into it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx
from onnx import numpy_helper

from onnxremat.errors import ModelError
from onnxremat.graph.ir import subgraphs
from onnxremat.limits import BODY_RUNS, check

Known = Mapping[str, onnx.TensorProto]


def require_few_trips(model: onnx.ModelProto) -> None:
    """Raises:
    ModelError: bodies run more ops than a profile holds.
    """
    check(
        _runs(model.graph, {}), BODY_RUNS, "runs of ops in the bodies of loops, in one run",
        hint="plan without running the model: --no-measure", kind=ModelError,
    )  # fmt: skip


def _runs(graph: onnx.GraphProto, outer: Known) -> int:
    """Runs of ops in bodies, in one run of a graph."""
    known = {**outer, **{tensor.name: tensor for tensor in graph.initializer}}
    known.update(_constants(graph.node))
    total = 0
    for node in graph.node:
        for body in subgraphs(node):
            trips = _trips(node, known) if node.op_type == "Loop" else 1
            total += trips * (1 + len(body.node) + _runs(body, known))
    return total


def _constants(nodes: Iterable[onnx.NodeProto]) -> dict[str, onnx.TensorProto]:
    return {
        node.output[0]: attribute.t
        for node in nodes
        if node.op_type == "Constant" and node.output
        for attribute in node.attribute
        if attribute.name == "value"
    }


def _trips(loop: onnx.NodeProto, known: Known) -> int:
    """How often a loop runs at most; 1 where that is not known, as of a while loop, which exporters
    write as a loop of as many trips as there are numbers, with a condition that is computed."""
    tensor = known.get(loop.input[0]) if loop.input else None
    if tensor is None or tensor.data_location == onnx.TensorProto.EXTERNAL:
        return 1
    try:
        trips = max(0, int(numpy_helper.to_array(tensor).reshape(())))
    except (ValueError, TypeError):
        return 1
    return 1 if trips > BODY_RUNS and _may_end(loop) else trips


def _may_end(loop: onnx.NodeProto) -> bool:
    """Whether the loop goes on is computed by its body."""
    for body in subgraphs(loop):
        made = {name: node for node in body.node for name in node.output}
        name = body.output[0].name if body.output else ""
        while name in made and made[name].op_type == "Identity":
            name = made[name].input[0]
        if name in made and made[name].op_type != "Constant":
            return True
    return False
