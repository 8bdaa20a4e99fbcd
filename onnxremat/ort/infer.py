"""Shapes: bind symbolic dimensions and infer every tensor as onnxruntime does.

onnxruntime's own inference is asked, because its planner acts on it (two values may share a
buffer only when their plan-time shapes are equal), and because it knows its contrib operators.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from onnxremat.errors import ModelError, UsageError
from onnxremat.graph.chosen import chosen_by
from onnxremat.graph.dtypes import ORT_NAMES, tensor_bytes
from onnxremat.graph.ir import Graph, Op, Role, Tensor
from onnxremat.graph.onnx_io import read_small_weights, shell, to_ops
from onnxremat.graph.sparse import make_dense
from onnxremat.graph.unforeseen import foreseen
from onnxremat.graph.weights import check_sizes
from onnxremat.limits import TENSOR_BYTES, check
from onnxremat.ort.computed_sizes import Typed, as_computed
from onnxremat.ort.session import Options, open_session, session_options, signature

EXAMPLE = 8  # the size of an open dimension in a hint
BIND = "bind inputs with --shape or --dim"
_SIZED = ("Expand", "Reshape", "ConstantOfShape")  # as large as an input says
WEIGHT_INPUT = 4096  # bytes from which a weight is handed in as an input instead of a constant


def bind(
    model: onnx.ModelProto,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
) -> onnx.ModelProto:
    """The model with every input dimension a number, and sparse weights dense.

    Args:
        shapes: full shape per input name (``--shape``).
        dims: number per symbolic dimension name (``--dim``).

    Raises:
        UsageError: an unknown input or dimension, a rank that differs, or a dimension left open.
        ModelError: a weight whose bytes are not those of its type and shape.
    """
    shapes, dims = dict(shapes or {}), dict(dims or {})
    bound = constants_only(model)
    make_dense(bound.graph)
    check_sizes(bound)
    constants = {t.name for t in bound.graph.initializer}
    inputs = [value for value in bound.graph.input if value.name not in constants]
    unknown = sorted(set(shapes) - {value.name for value in inputs})
    if unknown:
        raise UsageError(
            f"--shape names no input: {', '.join(unknown)}",
            hint="inputs are " + ", ".join(value.name for value in inputs),
        )
    seen: set[str] = set()
    missing: list[str] = []
    known = _named_by_shapes(inputs, shapes, dims) | dims
    for value in inputs:
        missing += _bind_input(value, shapes.get(value.name), known, seen)
    if set(dims) - seen:
        raise UsageError(
            f"--dim names no open dimension: {', '.join(sorted(set(dims) - seen))}",
            hint=f"open dimensions are {', '.join(sorted(seen)) or '(none)'}",
        )
    if missing:
        raise UsageError(
            f"dimensions without a size: {', '.join(missing)}",
            why="bytes can only be planned for known shapes",
            hint=_binding_hint(inputs),
        )
    return bound


def constants_only(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which initializers are no inputs, as old files (IR 3) have to list them.

    Listed as inputs they would count as values the caller may replace, so that nothing could be
    inferred from them.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    if copy.ir_version < 4:
        constants = {t.name for t in copy.graph.initializer}
        inputs = [value for value in copy.graph.input if value.name not in constants]
        del copy.graph.input[:]
        copy.graph.input.extend(inputs)
        copy.ir_version = 4
    return copy


def _named_by_shapes(
    inputs: Sequence[onnx.ValueInfoProto],
    shapes: Mapping[str, Sequence[int]],
    dims: Mapping[str, int],
) -> dict[str, int]:
    """Symbolic dimensions that given shapes name a size for, first one first."""
    found: dict[str, int] = {}
    for value in inputs:
        for dim, size in zip(
            value.type.tensor_type.shape.dim, shapes.get(value.name, ()), strict=False
        ):
            if dim.dim_param and dims.get(dim.dim_param, size) != size:
                raise UsageError(
                    f"--dim {dim.dim_param}={dims[dim.dim_param]} and --shape {value.name} differ",
                    why=f"there '{dim.dim_param}' is {size}",
                )
            if dim.dim_param:
                found.setdefault(dim.dim_param, size)
    return found


def _binding_hint(inputs: Sequence[onnx.ValueInfoProto]) -> str:
    """Options that give every open dimension a size, sizes of 8 to be replaced."""
    dims: dict[str, None] = {}
    shapes = []
    for value in inputs:
        shape = value.type.tensor_type.shape.dim
        if value.type.HasField("tensor_type") and not value.type.tensor_type.HasField("shape"):
            shapes.append(f"--shape {value.name}:1,3,224,224")
        elif all(is_fixed(dim) or dim.dim_param for dim in shape):
            dims.update((dim.dim_param, None) for dim in shape if not is_fixed(dim))
        else:
            sizes = (str(dim.dim_value if is_fixed(dim) else EXAMPLE) for dim in shape)
            shapes.append(f"--shape {value.name}:{','.join(sizes)}")
    return "for example " + " ".join([f"--dim {name}={EXAMPLE}" for name in dims] + shapes)


def is_fixed(dim: onnx.TensorShapeProto.Dimension) -> bool:
    """Whether onnxruntime takes no other size: 0 is one, what is negative is none."""
    return dim.HasField("dim_value") and dim.dim_value >= 0


def _bind_input(
    value: onnx.ValueInfoProto, shape: Sequence[int] | None, dims: Mapping[str, int], seen: set[str]
) -> list[str]:
    """Fill in one input; returns the dimensions that stay open as ``name[dim]``."""
    if not value.type.HasField("tensor_type"):
        return []
    tensor = value.type.tensor_type
    if shape is not None:
        if tensor.HasField("shape") and len(tensor.shape.dim) != len(shape):
            raise UsageError(
                f"--shape {value.name} has {len(shape)} dimensions, the model says "
                f"{len(tensor.shape.dim)}"
            )
        for dim, size in zip(tensor.shape.dim, shape, strict=False):
            if is_fixed(dim) and dim.dim_value != size:
                raise UsageError(
                    f"--shape {value.name}: {size} where the model fixes {dim.dim_value}"
                )
            if dim.dim_param:
                seen.add(dim.dim_param)
        del tensor.shape.dim[:]
        tensor.shape.dim.extend(onnx.TensorShapeProto.Dimension(dim_value=d) for d in shape)
        return []
    if not tensor.HasField("shape"):
        return [f"{value.name}[?]"]
    missing = []
    for index, dim in enumerate(tensor.shape.dim):
        if dim.dim_param:
            seen.add(dim.dim_param)
            if dim.dim_param in dims:
                dim.dim_value = dims[dim.dim_param]
                continue
        if not is_fixed(dim):
            missing.append(f"{value.name}[{dim.dim_param or index}]")
    return missing


def weights_as_inputs(model: onnx.ModelProto, limit: int = WEIGHT_INPUT) -> onnx.ModelProto:
    """The same graph with each weight of at least ``limit`` bytes turned into an input, so that
    a session on it costs no weight memory; small constants (shapes, axes) stay."""
    light = onnx.ModelProto()
    light.CopyFrom(_without_weights(model, limit))
    listed = {value.name for value in light.graph.input}
    for tensor in model.graph.initializer:
        if is_big(tensor, limit) and tensor.name not in listed:
            light.graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            )
    return light


def is_big(tensor: onnx.TensorProto, limit: int = WEIGHT_INPUT) -> bool:
    """Whether a weight is handed in as an input instead of being read."""
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return True
    return tensor_bytes(tensor.data_type, tensor.dims) >= limit


def _without_weights(model: onnx.ModelProto, limit: int) -> onnx.ModelProto:
    light = onnx.ModelProto()
    for name in ("ir_version", "producer_name", "domain", "model_version"):
        setattr(light, name, getattr(model, name))
    light.opset_import.extend(model.opset_import)
    light.functions.extend(model.functions)
    graph, source = light.graph, model.graph
    graph.name = source.name or "graph"
    graph.node.extend(source.node)
    graph.input.extend(source.input)
    graph.output.extend(source.output)
    graph.value_info.extend(source.value_info)
    graph.initializer.extend(t for t in source.initializer if not is_big(t, limit))
    graph.sparse_initializer.extend(source.sparse_initializer)
    return light


def infer(
    model: onnx.ModelProto, folder: Path | None = None, *, opened: bool = True
) -> dict[str, Typed]:
    """Element type and shape of every tensor, by name, as onnxruntime infers them on load.

    Where its inference stops (an operator without a rule), a static shape that the file itself
    states is taken, and inference goes on from there. Tensors whose shape depends on data, and
    values that are no tensors, are left out.

    Args:
        opened: False where it is opened anyway: then it is only read, and whether there is a kernel
            for every op is not looked at.

    Raises:
        ModelError: onnxruntime refuses the graph (unknown operator, wrong shapes).
    """
    light = weights_as_inputs(model)
    light.ir_version = max(light.ir_version, 4)
    _drop_repeated_names(light)
    foreseen(light.graph.value_info)
    stated = {v.name: v for v in light.graph.value_info if _typed(v) is not None}
    del light.graph.value_info[:]
    wanted = {name for node in light.graph.node for name in node.output if name}
    del light.graph.output[:]
    for name in sorted(wanted):
        light.graph.output.add(name=name)

    def asked(made: onnx.ModelProto) -> dict[str, Typed]:
        return _asked(made, folder, opened)

    found = asked(light)
    helpful = [v for name, v in stated.items() if name in wanted and name not in found]
    if helpful:
        told = _told(light, helpful)
        found = told | asked(light)
    found = as_computed(light, found, asked)
    resized = _resized(light, wanted - found.keys(), found)
    if resized:
        told = _told(light, resized)
        found = as_computed(light, asked(light) | found | told, asked)
    return found


def _told(light: onnx.ModelProto, values: Sequence[onnx.ValueInfoProto]) -> dict[str, Typed]:
    """Types and shapes that are written into a model, for inference to go on from."""
    light.graph.value_info.extend(values)
    return {value.name: typed for value in values if (typed := _typed(value))}


def _resized(
    light: onnx.ModelProto, missing: Collection[str], found: Mapping[str, Typed]
) -> list[onnx.ValueInfoProto]:
    """Results of Expand, Reshape and ConstantOfShape that onnxruntime says nothing of, as ONNX
    infers them: it follows sizes through Shape and Concat, which onnxruntime only does for small
    results, by computing them. Of other ops ONNX does not always know what onnxruntime makes
    (Resize)."""
    made = {node.output[0] for node in light.graph.node if node.op_type in _SIZED}
    if not made & set(missing):
        return []
    values = inferred(_with_types(light, found)).graph.value_info
    return [v for v in values if v.name in made and v.name in missing and _typed(v)]


def _drop_repeated_names(model: onnx.ModelProto) -> None:
    """onnxruntime refuses two nodes of one name, which many exporters write."""
    seen: set[str] = set()
    for node in model.graph.node:
        if node.name in seen:
            node.name = ""
        seen.add(node.name)


def _asked(light: onnx.ModelProto, folder: Path | None, opened: bool) -> dict[str, Typed]:
    """What onnxruntime infers for a model whose every value is an output.

    It shows a value of unknown rank like a scalar; scalars are believed when ONNX's own inference
    finds them too.
    """
    options = session_options(Options(level="disable", threads=1))
    if opened:
        session = open_session(light, options, folder)
        outputs, inputs = session.get_outputs(), session.get_inputs()
    else:
        outputs, inputs = signature(light, options, folder)
    found: dict[str, Typed] = {}
    for value in (*outputs, *inputs):
        dtype = ORT_NAMES.get(value.type.removeprefix("tensor(").removesuffix(")"))
        if dtype is not None and all(isinstance(d, int) for d in value.shape):
            found[value.name] = (dtype, tuple(value.shape))
    doubtful = {name for name, (_, shape) in found.items() if not shape}
    if doubtful:
        graph = inferred(_with_types(light, {n: found[n] for n in found.keys() - doubtful})).graph
        values = (*graph.value_info, *graph.output, *graph.input)
        told = (v for v in values if v.name in doubtful)
        scalars = {v.name for v in told if (typed := _typed(v)) and not typed[1]}
        for name in doubtful - scalars:
            del found[name]
    return found


def _with_types(light: onnx.ModelProto, found: Mapping[str, Typed]) -> onnx.ModelProto:
    """The model with what is known written into it beside what it says, so that ONNX's inference
    goes on behind operators that it does not know (onnxruntime's fused ones)."""
    given = onnx.ModelProto()
    given.CopyFrom(light)
    del given.graph.value_info[:], given.graph.output[:]
    given.graph.value_info.extend(v for v in light.graph.value_info if v.name not in found)
    known = {value.name for value in given.graph.input}
    given.graph.value_info.extend(
        onnx.helper.make_tensor_value_info(name, dtype, shape)
        for name, (dtype, shape) in found.items()
        if name not in known
    )
    return given


def inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    """With what ONNX infers; as it is where that ends with an error, or where bodies in bodies
    are nested so deep that protobuf reads them no more with the types that were added."""
    try:
        return onnx.shape_inference.infer_shapes(model, data_prop=True)
    except (onnx.shape_inference.InferenceError, DecodeError):
        return model


def _typed(value: onnx.ValueInfoProto) -> Typed | None:
    """Element type and static shape, None when either is not known."""
    tensor = value.type.tensor_type
    if not tensor.elem_type or not tensor.HasField("shape"):
        return None
    if not all(dim.HasField("dim_value") for dim in tensor.shape.dim):
        return None
    return tensor.elem_type, tuple(dim.dim_value for dim in tensor.shape.dim)


def build_graph(
    model: onnx.ModelProto, folder: Path | None = None, *, opened: bool = True
) -> Graph:
    """A :class:`Graph` of a bound model, every tensor with type, shape and bytes where known.

    Args:
        opened: see :func:`infer`.

    Raises:
        ModelError: the graph is not valid, or onnxruntime refuses it.
    """
    model = read_small_weights(model, folder)
    ops = to_ops(model)
    found = infer(model, folder, opened=opened)
    tensors: dict[str, Tensor] = {}
    outputs = tuple(value.name for value in model.graph.output)
    last = set(outputs)
    for weight in model.graph.initializer:
        shape = tuple(weight.dims)
        tensors[weight.name] = Tensor(
            weight.name, weight.data_type, shape, tensor_bytes(weight.data_type, shape), Role.WEIGHT
        )
    inputs = tuple(v.name for v in model.graph.input if v.name not in tensors)
    for name in inputs:
        tensors[name] = _tensor(name, found, Role.INPUT)
    for op in ops:
        for name in op.writes:
            tensors[name] = _tensor(name, found, Role.OUTPUT if name in last else Role.ACTIVATION)
    frame = shell(model)
    _declare_outputs(frame, tensors)
    return Graph(ops, tensors, inputs, outputs, frame)


def _declare_outputs(frame: onnx.ModelProto, tensors: Mapping[str, Tensor]) -> None:
    """Give the graph outputs the shapes they have once the inputs are bound."""
    for value in frame.graph.output:
        tensor = tensors[value.name]
        if tensor.dtype and tensor.shape is not None:
            kind = onnx.helper.make_tensor_type_proto(tensor.dtype, tensor.shape)
            if value.type.denotation:
                kind.denotation = value.type.denotation
            value.type.CopyFrom(kind)


def _tensor(name: str, found: Mapping[str, Typed], role: Role) -> Tensor:
    if name not in found:
        return Tensor(name, 0, None, 0, role)
    dtype, shape = found[name]
    return Tensor(name, dtype, shape, sized(name, dtype, shape), role)


def sized(name: str, dtype: int, shape: Sequence[int]) -> int:
    """Bytes of a tensor.

    Raises:
        ModelError: more than there is memory.
    """
    size = tensor_bytes(dtype, shape)
    beside_none = tensor_bytes(dtype, [dim for dim in shape if dim])  # numpy asks for no less
    check(
        beside_none, TENSOR_BYTES, f"bytes of tensor '{name}'",
        hint="bind smaller dimensions: no machine has that much memory", kind=ModelError,
    )  # fmt: skip
    return size


def unknown_shapes(graph: Graph) -> list[tuple[str, Op]]:
    """Tensors without a known size, each with the op that makes it."""
    return [
        (name, op) for op in graph.ops for name in op.writes if graph.tensors[name].shape is None
    ]


def with_shapes(
    graph: Graph, found: Mapping[str, tuple[int, tuple[int, ...]]], seen: Collection[str] = ()
) -> Graph:
    """The graph with sizes filled in where it knows none.

    Args:
        found: element type and shape by tensor.
        seen: tensors of which a run has shown them (data-dependent shapes).
    """
    tensors = dict(graph.tensors)
    for name, (dtype, shape) in found.items():
        old = tensors.get(name)
        if old is not None and old.shape is None:
            size = tensor_bytes(dtype, shape)
            tensors[name] = Tensor(name, dtype, shape, size, old.role, name in seen)
    return graph.with_ops(graph.ops, tensors)


def _is_number(tensor: Tensor) -> bool:
    return tensor.shape is not None and prod(tensor.shape) == 1


def require_shapes(graph: Graph, hint: str = "have the model run (--measure)") -> None:
    """Raises:
    ModelError: a tensor's size is not known; ``hint`` says what to do, where inputs have sizes.
    """
    unknown = unknown_shapes(graph)
    if unknown:
        name, op = unknown[0]
        single = (each for each in chosen_by(graph, op) if _is_number(graph.tensors[each]))
        if flag := next(single, ""):
            hint += f"; what it runs follows from '{flag}', which can be given one value for good: "
            hint += f"onnxremat set-input IN OUT {flag}=VALUE"
        why = "its shape depends on data, or onnxruntime does not infer it"
        if unbound := [each for each in graph.inputs if graph.tensors[each].shape is None]:
            why, hint = f"input '{unbound[0]}' has no size", f"{BIND}; {hint}"
        raise ModelError(
            f"the size of tensor '{name}' is not known ({len(unknown)} such tensors)",
            where=f"node {op.name} ({op.op_type})",
            why=why,
            hint=hint,
        )
