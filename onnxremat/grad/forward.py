"""The forward graph, made ready: one opset that has what the backward ops need, functions
expanded, every shape a number, normalization and dropout in training mode."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import onnx
from onnx import helper, numpy_helper

from onnxremat.errors import ModelError, UnsupportedError
from onnxremat.grad.constants import Constants
from onnxremat.grad.control.apart import results_of_loops
from onnxremat.grad.control.appended import with_rows
from onnxremat.grad.control.run_sizes import RunSizes
from onnxremat.grad.control.windows import with_windows
from onnxremat.grad.lowering.decompose import decomposed
from onnxremat.grad.lowering.equivalents import bias_apart, pool_first, without_odd_bias
from onnxremat.grad.lowering.fusion import GELU_OPSET, fuse_gelu
from onnxremat.grad.lowering.in_single import between_casts
from onnxremat.grad.lowering.upgraded import upgraded, with_metadata
from onnxremat.grad.registry import has_rule
from onnxremat.graph.dtypes import tensor_bytes
from onnxremat.graph.ir import Graph, Role, Tensor
from onnxremat.graph.onnx_io import read_small_weights, shell, to_model, to_ops
from onnxremat.graph.sequences import without_sequences
from onnxremat.ort.functions import inline_functions
from onnxremat.ort.infer import (
    build_graph,
    inferred,
    require_shapes,
    sized,
    unknown_shapes,
    weights_as_inputs,
    with_shapes,
)

FLOAT, BOOL = onnx.TensorProto.FLOAT, onnx.TensorProto.BOOL
ROUNDS = 64  # of writing out and inferring sizes
IDLE = 4  # such rounds that may find no further size before one does
OLDEST = 18  # the first opset with scatter-add and axes as inputs in all reductions


def read_forward(
    model: onnx.ModelProto,
    folder: Path | None,
    opset: int = OLDEST,
    variable: Collection[str] = (),
    sizes: RunSizes | None = None,
) -> Graph:
    """The graph of a model at opset 18 (or a later one) or later, its big weights turned into
    inputs.

    Args:
        variable: initializers that may be trained, so that nothing is folded from them.
        sizes: gives numbers to sizes that depend on data; None to refuse them.

    Raises:
        ModelError: the model is not valid, or a size in it is not known.
        UnsupportedError: an operator cannot be brought to opset 18.
    """
    model = read_small_weights(inline_functions(model), folder)
    light = _without_listed_weights(weights_as_inputs(model))
    return settled(_with_gelu(_expanded(upgraded(light, opset))), variable, sizes)


def settled(
    light: onnx.ModelProto, variable: Collection[str] = (), sizes: RunSizes | None = None
) -> Graph:
    """The graph of a model that is at its opset: what has no rule written out, every size known.

    Args:
        variable, sizes: see :func:`read_forward`.

    Raises:
        ModelError: the model is not valid, or a size in it is not known.
    """
    graph = _typed(light)
    least, idle = len(graph.tensors), 0
    for _ in range(ROUNDS):  # sizes decide on branches, and branches hold sizes
        written_out = decomposed(graph, variable)
        if written_out is None:
            written_out = without_sequences(graph, Constants(graph, variable))
        if written_out is not None:
            graph, idle = _told(_expanded(written_out), sizes), 0
            continue
        of_loops = results_of_loops(graph, Constants(graph, variable), settled)
        left = len(unknown_shapes(graph))
        idle = 0 if left < least or of_loops else idle + 1
        least = min(least, left)
        sized_apart = _with_sizes(graph, variable) if left and idle else None
        if sized_apart is not None:
            graph, idle = _told(_expanded(sized_apart), sizes), 0
            continue
        if left and sizes is not None and idle and sizes.name(graph, variable, sure=idle <= IDLE):
            idle = 0
        elif left and sizes is not None and idle:
            of_loops = results_of_loops(graph, Constants(graph, variable), settled, sizes)
            idle = 0 if of_loops else idle
        if not left or idle > IDLE:
            break
        model = _folded(graph, variable)
        model.graph.value_info.extend(of_loops)
        graph = _inferred_on(_told(model, sizes))
    require_shapes(
        graph,
        "where the loss does not need it, name what it compares: --prediction; a training step "
        "needs sizes that do not depend on data",
    )
    graph = _with_tensor_inputs(graph)
    graph = without_odd_bias(graph, Constants(graph, variable))
    return bias_apart(pool_first(fuse_gelu(graph)))


def _with_sizes(graph: Graph, variable: Collection[str]) -> onnx.ModelProto | None:
    """What has no size as it stands in a form that has one; None where there is no such."""
    value_of = Constants(graph, variable)
    return with_windows(graph, value_of) or with_rows(graph, value_of)


def _told(model: onnx.ModelProto, sizes: RunSizes | None) -> Graph:
    """Types and shapes, with what is known of sizes that depend on data.

    Raises:
        UnsupportedError: two such sizes would have to be equal, or one of them a fixed one.
    """
    if sizes is None:
        return _typed(model)
    try:
        return _typed(sizes.state(model))
    except ModelError as error:
        if not sizes.places:
            raise
        raise UnsupportedError(
            "sizes that depend on data do not fit each other",
            why="nothing in the model says that they are equal: "
            + str(error.why).strip().splitlines()[0][:300],
            hint="export the model with one mask for what is taken by one choice of rows",
        ) from error


def with_run_sizes(graph: Graph, sizes: RunSizes) -> Graph:
    """A graph with a number in the place of each size that depends on data; what shapes follow
    from is folded. Sizes that do not follow are left open."""
    least = len(unknown_shapes(graph)) + 1
    for _ in range(ROUNDS):
        left = len(unknown_shapes(graph))
        if not left or (left >= least and not sizes.name(graph, (), sure=False)):
            break
        least = min(least, left)
        graph = _inferred_on(_told(_folded(graph, ()), sizes))
    return graph


def _without_listed_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Old files list their initializers as inputs too."""
    stored = {tensor.name for tensor in model.graph.initializer}
    kept = [value for value in model.graph.input if value.name not in stored]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    return model


def _with_tensor_inputs(graph: Graph) -> Graph:
    """The graph without inputs that are no tensors (sequences, maps, optionals) and that no op
    reads: a training loop feeds tensors.

    Raises:
        UnsupportedError: an op reads one.
    """
    others = [name for name in graph.inputs if graph.tensors[name].shape is None]
    if not others:
        return graph
    for op in graph.ops:
        for name in set(others).intersection(op.reads):
            raise UnsupportedError(
                f"input '{name}' is no tensor",
                where=f"read by node {op.name} ({op.op_type})",
                why="a training loop feeds tensors of known shapes",
                hint="export the model with plain tensors as inputs; of an optional one, put the "
                "tensor in place of what OptionalGetElement makes, true (or false, and leave it "
                "out) in place of what OptionalHasElement does",
            )
    frame = onnx.ModelProto()
    frame.CopyFrom(graph.model)
    del frame.graph.input[:]
    frame.graph.input.extend(v for v in graph.model.graph.input if v.name not in others)
    inputs = tuple(name for name in graph.inputs if name not in others)
    return replace(graph, inputs=inputs, model=frame)


def _with_gelu(model: onnx.ModelProto) -> onnx.ModelProto:
    """A model that may hold a Gelu written out, at the first opset with one, if it gets there."""
    from onnx import version_converter

    version = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)
    types = {node.op_type for node in model.graph.node}
    if version >= GELU_OPSET or types.isdisjoint({"Erf", "Tanh"}):
        return model
    try:
        converted = version_converter.convert_version(model, GELU_OPSET)
        onnx.checker.check_model(converted)
    except Exception:  # nothing is lost but the fusion
        return model
    return with_metadata(converted, model)


def _expanded(model: onnx.ModelProto) -> onnx.ModelProto:
    """Operators without a rule of their own replaced by the function ONNX defines them as."""
    from onnx import inliner

    model = between_casts(model)
    for _ in range(4):
        missing = {
            (node.domain, node.op_type)
            for node in model.graph.node
            if not has_rule(node.op_type, node.domain) and _is_function(node, model)
        }
        if not missing:
            break
        for node in model.graph.node:
            if (node.domain, node.op_type) in missing:
                _refuse_past(node)
                _spell_out(node, model)
        typed = _with_types(model)
        try:
            model = inliner.inline_selected_functions(
                typed, sorted(missing), inline_schema_functions=True
            )
        except RuntimeError as error:  # a bare one, as where onnx infers no type of an input
            raise UnsupportedError(
                f"onnx cannot write out {', '.join(sorted(name for _, name in missing))}",
                why=str(error).strip().splitlines()[0][:300],
                hint="export the model again at an earlier opset, where it is written out",
            ) from error
        del model.graph.value_info[:]
    return model


def _with_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """A model that states the type of every value, as functions that depend on types need."""
    model = onnx.shape_inference.infer_shapes(model)
    known = [(t.name, t.data_type, t.dims) for t in model.graph.initializer]
    known.append(("", onnx.TensorProto.FLOAT, ()))  # asked for of an input that is left out
    model.graph.value_info.extend(helper.make_tensor_value_info(*each) for each in known)
    return model


def _schema(node: onnx.NodeProto, model: onnx.ModelProto) -> onnx.defs.OpSchema | None:
    versions = {o.domain: o.version for o in model.opset_import}
    try:
        return onnx.defs.get_schema(node.op_type, versions.get(node.domain, 1), node.domain)
    except onnx.defs.SchemaError:
        return None


def _is_function(node: onnx.NodeProto, model: onnx.ModelProto) -> bool:
    schema = _schema(node, model)
    return bool(schema and (schema.has_function or schema.has_context_dependent_function))


def _refuse_past(node: onnx.NodeProto) -> None:
    """Raises:
    UnsupportedError: causal Attention behind keys of the past: which of them a query may look at is
        another matter in the function by which ONNX defines it than in onnxruntime's kernel.
    """
    causal = any(each.name == "is_causal" and each.i for each in node.attribute)
    if node.op_type == "Attention" and not node.domain and causal and any(node.input[4:6]):
        raise UnsupportedError(
            f"node '{node.name}' (Attention) is not differentiated",
            why="it is causal and has keys of the past, and onnx and onnxruntime do not agree on "
            "which of these a query may look at",
            hint="train without a past: whole sequences, with past_key and past_value left out",
        )


def _spell_out(node: onnx.NodeProto, model: onnx.ModelProto) -> None:
    """Write default attributes into a node: the inliner drops those that are missing."""
    schema = _schema(node, model)
    present = {attribute.name for attribute in node.attribute}
    for name, attribute in (schema.attributes if schema else {}).items():
        if name not in present and attribute.default_value.type:
            node.attribute.add().CopyFrom(attribute.default_value)


def _typed(model: onnx.ModelProto) -> Graph:
    """Types and shapes by onnxruntime, or by onnx for models it has no kernels for (float64
    and bfloat16 convolutions on the CPU, say)."""
    try:
        return build_graph(model)
    except ModelError:
        try:
            known = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
        except Exception:  # then onnxruntime's message is the better one
            known = None
        if known is None:
            raise
    return _graph_of(known)


def _inferred_on(graph: Graph) -> Graph:
    """Sizes that onnx infers from those that onnxruntime found."""
    if not unknown_shapes(graph):
        return graph
    known = _graph_of(inferred(to_model(graph))).tensors
    found = {
        name: (tensor.dtype, tensor.shape)
        for name, tensor in known.items()
        if tensor.dtype and tensor.shape is not None
    }
    return with_shapes(graph, found)


def _graph_of(model: onnx.ModelProto) -> Graph:
    graph = model.graph
    tensors: dict[str, Tensor] = {}
    for value in (*graph.value_info, *graph.input, *graph.output):
        kind = value.type.tensor_type
        shape = None
        if kind.HasField("shape") and all(dim.HasField("dim_value") for dim in kind.shape.dim):
            shape = tuple(dim.dim_value for dim in kind.shape.dim)
        size = sized(value.name, kind.elem_type, shape) if shape is not None else 0
        tensors[value.name] = Tensor(value.name, kind.elem_type, shape, size, Role.ACTIVATION)
    for weight in graph.initializer:
        shape = tuple(weight.dims)
        size = tensor_bytes(weight.data_type, shape)
        tensors[weight.name] = Tensor(weight.name, weight.data_type, shape, size, Role.WEIGHT)
    ops = to_ops(model)
    for op in ops:
        for name in op.writes:
            tensors.setdefault(name, Tensor(name, 0, None, 0, Role.ACTIVATION))
    stored = {weight.name for weight in graph.initializer}
    inputs = tuple(value.name for value in graph.input if value.name not in stored)
    outputs = tuple(value.name for value in graph.output)
    return Graph(ops, tensors, inputs, outputs, shell(model))


def _folded(graph: Graph, variable: Collection[str]) -> onnx.ModelProto:
    """Known values that shapes depend on turned into initializers."""
    constant_of = Constants(graph, variable)
    model = onnx.ModelProto()
    model.CopyFrom(graph.model)
    for op in graph.ops:
        values = {name: constant_of(name) for name in op.writes}
        if values and all(value is not None for value in values.values()):
            model.graph.initializer.extend(
                numpy_helper.from_array(value, name)
                for name, value in values.items()
                if value is not None
            )
            continue
        node = model.graph.node.add()
        node.CopyFrom(op.node)
        node.name = op.name
    return model
