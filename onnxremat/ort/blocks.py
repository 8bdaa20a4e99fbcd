"""onnxruntime's blocked layout: which block this processor has, and files made for one.

onnxruntime runs convolutions with 8 or 16 channels innermost, depending on the processor, in
operators of an internal domain of the CPU provider. Weights that lie in blocks of one size give
wrong results, and no error, where the processor has the other. A file with such operators
therefore says in its metadata which block it is made for, and has a guard: a few ops that lay out
a few numbers and look one of them up, which end in an error where it lies elsewhere.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Protocol

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxremat.errors import ModelError
from onnxremat.graph.dtypes import tensor_bytes
from onnxremat.graph.ir import Graph, Op, Role, Tensor
from onnxremat.ort.session import Options, open_session, session_options

DOMAIN = "com.microsoft.nchwc"
LAYOUTS = ("ReorderInput", "ReorderOutput")  # copies into blocks and back
KEY = "onnxremat.block"  # metadata of a file with blocked convolutions: channels per block
GUARD = "onnxremat.block"  # names of the guard's ops and tensors begin with it
PROBED, GUARDED = (1, 64, 1, 2), (1, 16, 1, 2)  # shapes of the numbers that are laid out


@cache
def block_size() -> int:
    """Channels per block on this machine: where the second pixel of channel 0 goes.

    Raises:
        ModelError: this onnxruntime has no blocked layout.
    """
    graph = helper.make_graph(
        [helper.make_node("ReorderInput", ["x"], ["y"], domain=DOMAIN)],
        "probe",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, PROBED)],
        [onnx.ValueInfoProto(name="y")],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    session = open_session(model, session_options(Options(threads=1)))
    (found,) = session.run(None, {"x": _ramp(PROBED)})
    return int(np.flatnonzero(found.reshape(-1) == 1.0)[0])


class Named(Protocol):
    """An op of a graph, or a kernel that ran."""

    @property
    def name(self) -> str:
        """Of the node."""

    @property
    def op_type(self) -> str:
        """Its kind."""


def known_as(op: Named) -> str:
    """The name of an op that a session makes at load; of a copy between layouts, which is numbered
    by chance, its kind."""
    return op.op_type if op.op_type in LAYOUTS else op.name


def name_layouts(graph: onnx.GraphProto) -> None:
    """Name copies out of blocks after what they make: onnxruntime numbers them otherwise each time
    that it optimises the same model."""
    taken = {node.name for node in graph.node}
    for node in graph.node:
        if node.op_type == "ReorderOutput" and node.domain == DOMAIN:
            name = f"{node.output[0]}/{node.op_type}"
            node.name = name if name not in taken else node.name


def _ramp(shape: tuple[int, ...]) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.arange(math.prod(shape), dtype=np.float32).reshape(shape)


def require_block(model: onnx.ModelProto) -> None:
    """Raises ModelError for a file made for processors with another block: it would stop in its
    guard, and without one compute something else."""
    made_for = next((int(e.value) for e in model.metadata_props if e.key == KEY), 0)
    if made_for and made_for != block_size():
        raise ModelError(
            "the model was made for another kind of processor",
            why=f"its convolutions take channels in blocks of {made_for}, here {block_size()}",
            hint="make it on this machine, or anywhere with --target portable",
        )


def add_guard(graph: Graph, block: int | None = None) -> Graph:
    """The graph with a guard listed first, where it has blocked operators and no guard yet.

    The guard's last op takes element ``i`` of a list of one, where ``i`` is 0 on the right kind of
    processor. Nobody reads its result; onnxruntime removes no such op. It runs once, in some 10 us.

    Args:
        block: channels per block that the graph is made for; this machine's when None.
    """
    if not any(op.domain == DOMAIN for op in graph.ops) or any(map(_guards, graph.ops)):
        return graph
    block = block or block_size()
    name = f"{GUARD}{block}"
    numbers = {
        "ramp": _ramp(GUARDED),
        "flat": np.array([-1], np.int64),
        "place": np.array([block], np.int64),
        "one": np.array([1.0], np.float32),
        "list": np.zeros(1, np.int64),
    }
    weights = [numpy_helper.from_array(value, f"{name}_{key}") for key, value in numbers.items()]
    tensors = dict(graph.tensors)
    for each in weights:
        tensors[each.name] = _tensor(each.name, each.data_type, tuple(each.dims), Role.WEIGHT)
    ops = []
    for op_type, read, made, dtype, shape in _STEPS:
        inputs, output = [f"{name}_{each}" for each in read.split()], f"{name}_{made}"
        domain = DOMAIN if op_type == "ReorderInput" else ""
        node = helper.make_node(op_type, inputs, [output], name=output, domain=domain)
        if op_type == "Cast":
            node.attribute.append(helper.make_attribute("to", dtype))
        tensors[output] = _tensor(output, dtype, shape, Role.ACTIVATION)
        ops.append(Op(output, op_type, domain, tuple(inputs), (output,), (), node))
    known = {each.name for each in graph.model.graph.initializer}
    added = [each for each in weights if each.name not in known]
    return graph.with_ops((*ops, *graph.ops), tensors).with_weights(added)


# Operator, inputs, output, element type and shape of the guard's ops.
_STEPS: tuple[tuple[str, str, str, int, tuple[int, ...]], ...] = (
    ("ReorderInput", "ramp", "laid", TensorProto.FLOAT, GUARDED),
    ("Reshape", "laid flat", "line", TensorProto.FLOAT, (math.prod(GUARDED),)),
    ("Gather", "line place", "found", TensorProto.FLOAT, (1,)),
    ("Sub", "found one", "off", TensorProto.FLOAT, (1,)),
    ("Cast", "off", "index", TensorProto.INT64, (1,)),
    ("Gather", "list index", "made_for_processors_with_this_block", TensorProto.INT64, (1,)),
)


def _guards(op: Op) -> bool:
    return op.name.startswith(GUARD)


def _tensor(name: str, dtype: int, shape: tuple[int, ...], role: Role) -> Tensor:
    return Tensor(name, dtype, shape, tensor_bytes(dtype, shape), role)
