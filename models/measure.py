"""Rough sizes of a model: its parameters and the memory of its activations."""

import math

import onnx
from onnx import helper, shape_inference

from models.builder import WEIGHT_DOC

RUNNING = (".running_mean", ".running_var")


def parameter_count(model: onnx.ModelProto) -> int:
    """Trainable parameters of a model made by this package, as papers count them.

    Running statistics and constants (whose names begin with ``/``) do not count.
    """
    shapes = {tensor.name: list(tensor.dims) for tensor in model.graph.initializer}
    for info in model.graph.input:
        if info.doc_string == WEIGHT_DOC:
            shapes[info.name] = [dim.dim_value for dim in info.type.tensor_type.shape.dim]
    return sum(
        math.prod(shape)
        for name, shape in shapes.items()
        if not name.startswith("/") and not name.endswith(RUNNING)
    )


def activation_bytes(model: onnx.ModelProto) -> tuple[int, int]:
    """Bytes of all activations together, and of those alive at once in the file's order.

    Inputs count, what only depends on constants does not. The second figure frees a tensor
    after its last use and works nothing in place. The batch must be static.
    """
    sizes = _tensor_bytes(model)
    graph = model.graph
    fixed = {tensor.name for tensor in graph.initializer}
    steps = []
    for node in graph.node:
        if fixed.issuperset(name for name in node.input if name):
            fixed.update(node.output)
        else:
            steps.append(node)
    last_use = {name: at for at, node in enumerate(steps) for name in node.input}
    last_use.update({info.name: len(steps) for info in graph.output})
    alive = {info.name for info in graph.input if info.name not in fixed}
    total = sum(sizes[name] for name in alive)
    peak = now = total
    for at, node in enumerate(steps):
        # ONNX infers no shape for the unused mask of an old Dropout
        made = [name for name in node.output if name in sizes]
        now += sum(sizes[name] for name in made)
        total += sum(sizes[name] for name in made)
        peak = max(peak, now)
        alive.update(made)
        done = {name for name in (*node.input, *made) if last_use.get(name, at) <= at}
        now -= sum(sizes[name] for name in done & alive)
        alive -= done
    return total, peak


def _tensor_bytes(model: onnx.ModelProto) -> dict[str, int]:
    """Bytes of every tensor whose shape ONNX infers."""
    inferred = shape_inference.infer_shapes(model, data_prop=True).graph
    sizes: dict[str, int] = {}
    for info in (*inferred.input, *inferred.value_info, *inferred.output):
        tensor = info.type.tensor_type
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        sizes[info.name] = math.prod(dim.dim_value for dim in tensor.shape.dim) * dtype.itemsize
    return sizes
