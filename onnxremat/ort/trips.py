"""How many ops the bodies of loops and scans run in one run of a model, as far as the file says how
often they run: trip counts, and lengths of what is scanned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx
from onnx import numpy_helper

from onnxremat.errors import ModelError
from onnxremat.graph.ir import subgraphs
from onnxremat.limits import BODY_RUNS, check

Known = Mapping[str, onnx.TensorProto]
Sizes = Mapping[str, tuple[int, ...]]


def require_few_trips(model: onnx.ModelProto) -> None:
    """Raises:
    ModelError: bodies run more ops than a profile holds, or a loop never ends.
    """
    check(
        _runs(model.graph, {}, {}), BODY_RUNS, "runs of ops in the bodies of loops, in one run",
        hint="plan without running the model: --no-measure", kind=ModelError,
    )  # fmt: skip


def _runs(graph: onnx.GraphProto, outer: Known, beyond: Sizes) -> int:
    """Runs of ops in bodies, in one run of a graph."""
    known = {**outer, **{tensor.name: tensor for tensor in graph.initializer}}
    known.update(_constants(graph.node))
    sizes = {**beyond, **_sizes(graph)}
    total = 0
    for node in graph.node:
        for body in subgraphs(node):
            trips = _trips(node, known) if node.op_type == "Loop" else 1
            trips = _steps(node, sizes) if node.op_type == "Scan" else trips
            total += trips * (1 + len(body.node) + _runs(body, known, sizes))
    return total


def _sizes(graph: onnx.GraphProto) -> dict[str, tuple[int, ...]]:
    """Shapes that a graph states, 0 for open dimensions."""
    values = (*graph.input, *graph.value_info, *graph.output)
    found = {v.name: tuple(d.dim_value for d in v.type.tensor_type.shape.dim) for v in values}
    return {**found, **{tensor.name: tuple(tensor.dims) for tensor in graph.initializer}}


def _steps(scan: onnx.NodeProto, sizes: Sizes) -> int:
    """How often a Scan runs its body: the length of what it scans; 1 where that is not known."""
    given = {attribute.name: attribute for attribute in scan.attribute}
    count = given["num_scan_inputs"].i if "num_scan_inputs" in given else 0
    axes = list(given["scan_input_axes"].ints) if "scan_input_axes" in given else []
    names = list(scan.input)[len(scan.input) - count :] if 0 < count <= len(scan.input) else []
    shapes = [sizes.get(name, ()) for name in names]
    axes += [0] * (len(names) - len(axes))
    lengths = [
        shape[axis]
        for shape, axis in zip(shapes, axes, strict=False)
        if -len(shape) <= axis < len(shape)
    ]
    return max((1, *lengths))


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
    write as a loop of as many trips as there are numbers, with a condition that is computed.

    Raises:
        ModelError: it has no trip count, and a condition that does not change.
    """
    count, begins = (*loop.input, "", "")[:2]
    if begins and _truth(known.get(begins)) is False:
        return 0
    if not count and _goes_on(loop, known):
        raise ModelError(
            f"the Loop '{loop.name or loop.output[0]}' never ends",
            why="it has no trip count, and its condition is the same after each trip",
            hint="export the model again; --no-measure plans without running it",
        )
    value = _number(known.get(count))
    trips = 1 if value is None else max(0, int(value))
    return 1 if trips > BODY_RUNS and not _goes_on(loop, known) else trips


def _goes_on(loop: onnx.NodeProto, known: Known) -> bool:
    """Whether a trip is followed by another is settled before the loop begins, and so it is, as far
    as the file says."""
    for body in subgraphs(loop):
        inside = {**known, **{tensor.name: tensor for tensor in body.initializer}}
        inside.update(_constants(body.node))
        made = {name: node for node in body.node for name in node.output}
        name = body.output[0].name if body.output else ""
        while name in made and made[name].op_type == "Identity":
            name = made[name].input[0]
        carried = {value.name for value in body.input} - {value.name for value in body.input[1:2]}
        computed = name in made and made[name].op_type != "Constant"
        if computed or name in carried or _truth(inside.get(name)) is False:
            return False
    return True


def _truth(tensor: onnx.TensorProto | None) -> bool | None:
    value = _number(tensor)
    return None if value is None else bool(value)


def _number(tensor: onnx.TensorProto | None) -> float | None:
    """The one number of a tensor; None where that is not known."""
    if tensor is None or tensor.data_location == onnx.TensorProto.EXTERNAL:
        return None
    try:
        return numpy_helper.to_array(tensor).reshape(()).item()
    except (ValueError, TypeError):
        return None
