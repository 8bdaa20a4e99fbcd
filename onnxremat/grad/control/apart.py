"""A body of If, Loop or Scan as a model of its own, and what it tells of sizes of a Loop's results.

A Loop may change the size of its states from run to run, so no runtime infers one. Where the body
returns each state in the size that it was given at first, sizes stay as they are, by induction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper, numpy_helper

from onnxremat.errors import ModelError, UnsupportedError
from onnxremat.grad.control.loops import count_of_loop
from onnxremat.grad.control.run_sizes import RunSizes
from onnxremat.grad.tape import FLOATS
from onnxremat.graph.ir import Graph, Op, Tensor, captures

FEW = 64  # floating-point numbers of a constant that may have to be known (bounds, scales)
Typed = tuple[int, tuple[int, ...]]
ValueOf = Callable[[str], np.ndarray | None]


def body_apart(
    body: onnx.GraphProto, given: Sequence[Typed | np.ndarray], tensors: Mapping[str, Tensor],
    value_of: ValueOf, opsets: Mapping[str, int],
) -> onnx.ModelProto:  # fmt: skip
    """A body as a model. Its inputs are those of the body, then what it reads from outside; known
    ones are initializers. Each output is made by a node of its own.

    Args:
        given: type and shape of each input of the body, or its value.
        tensors: what is outside.
        value_of: value of a tensor outside that is known before the run.
        opsets: operator set version per domain.

    Raises:
        UnsupportedError: it reads something of unknown size, or no tensor.
    """
    model = onnx.ModelProto(ir_version=10)
    model.opset_import.extend(helper.make_opsetid(d, v) for d, v in opsets.items())
    graph = model.graph
    graph.name = body.name or "body"
    graph.node.extend(body.node)
    graph.initializer.extend(body.initializer)
    for value, about in zip(body.input, given, strict=True):
        _give(graph, value.name, about)
    for name in outside(body):
        tensor = tensors.get(name)
        if tensor is None or tensor.shape is None or not tensor.dtype:
            raise UnsupportedError(f"its body reads '{name}', which is no tensor of known size")
        value = value_of(name)
        known = value is not None and (tensor.dtype not in FLOATS or value.size <= FEW)
        _give(graph, name, value if known and value is not None else (tensor.dtype, tensor.shape))
    _return(graph, body)
    return model


def outside(body: onnx.GraphProto) -> tuple[str, ...]:
    """What a body reads from outside."""
    return captures(helper.make_node("If", [], [], body=body))


def _give(graph: onnx.GraphProto, name: str, about: Typed | np.ndarray) -> None:
    if isinstance(about, np.ndarray):
        graph.initializer.append(numpy_helper.from_array(about, name))
    else:
        graph.input.append(helper.make_tensor_value_info(name, *about))


def _return(graph: onnx.GraphProto, body: onnx.GraphProto) -> None:
    """Outputs, each of an op of its own."""
    made = {name for node in body.node for name in node.output}
    names = list[str]()
    for k, value in enumerate(body.output):
        name = value.name
        if name not in made or name in names:
            name = f"{name}__returned{k}"
            graph.node.add(op_type="Identity", input=[value.name], output=[name], name=name)
        names.append(name)
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)


def given_to_loop(
    op: Op, body: onnx.GraphProto, tensors: Mapping[str, Tensor]
) -> list[Typed | np.ndarray]:
    """Types and shapes of what each run of a Loop is given; the condition holds, or there would be
    no such run.

    Raises:
        UnsupportedError: a state is no tensor, or of unknown size.
    """
    given: list[Typed | np.ndarray] = [(T.INT64, _ones(body.input[0]))]
    given.append(np.ones(_ones(body.input[1]), bool))
    for name in op.inputs[2:]:
        tensor = tensors[name]
        if tensor.shape is None or not tensor.dtype:
            raise UnsupportedError(f"its state '{name}' is no tensor of known size")
        given.append((tensor.dtype, tensor.shape))
    return given


def _ones(value: onnx.ValueInfoProto) -> tuple[int, ...]:
    """Number of the run and condition are scalars, or lists of one."""
    return (1,) * len(value.type.tensor_type.shape.dim)


def results_of_loops(
    graph: Graph,
    value_of: ValueOf,
    settle: Callable[[onnx.ModelProto], Graph],
    sizes: RunSizes | None = None,
) -> list[onnx.ValueInfoProto]:
    """Types and sizes of results of Loops that are not known yet.

    Args:
        sizes: gives numbers to counts of runs that depend on data; None to leave such sizes open.
        settle: types and sizes of all values of a model; a ModelError or UnsupportedError where it
            does not find them.
    """
    found = []
    for op in graph.ops:
        unknown = [n for n in op.writes if graph.tensors[n].shape is None]
        if op.op_type == "Loop" and op.standard and unknown:
            kinds = _results(graph, op, value_of, settle, sizes)
            found += [helper.make_tensor_value_info(n, *kinds[n]) for n in unknown if n in kinds]
    return found


def _results(
    graph: Graph,
    op: Op,
    value_of: ValueOf,
    settle: Callable[[onnx.ModelProto], Graph],
    sizes: RunSizes | None,
) -> dict[str, Typed]:
    body = next(each.g for each in op.node.attribute if each.name == "body")
    try:
        given = given_to_loop(op, body, graph.tensors)
        made = settle(body_apart(body, given, graph.tensors, value_of, graph.opsets))
    except (ModelError, UnsupportedError):
        return {}
    kinds = [(made.tensors[n].dtype, made.tensors[n].shape or ()) for n in made.outputs[1:]]
    states = given[2:]
    if kinds[: len(states)] != states:
        return {}
    runs = count_of_loop(graph, op, {n: v for n in op.reads if (v := value_of(n)) is not None})
    rows = next(filter(None, op.outputs[len(states) :]), None)
    if runs is None and sizes is not None and rows is not None:
        runs = sizes.runs_of(graph, op, rows)
    each = [(kind, (runs or 0, *shape)) for kind, shape in kinds[len(states) :]]
    known = kinds[: len(states)] + ([] if runs is None else each)
    return dict(zip(op.outputs, known, strict=False))
