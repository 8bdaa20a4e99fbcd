"""Sizes that onnxruntime (1.31) computes otherwise than it infers them.

Pooling with ``ceil_mode`` leaves out a last window that begins behind the image and its first
padding, pooling with ``auto_pad`` and dilations pads for windows without dilations
(``PoolAttributes::ComputeSizePadDilations`` in ``core/providers/cpu/nn/pool_attributes.h``), and a
ConvTranspose whose output's size is given, or follows from ``auto_pad``, has that one
(``conv_transpose_attributes.h``); ONNX's inference does not know it. A Resize that keeps the aspect
of axes counted from the end has sizes that only a run shows. A letter of an Einsum that is 1 in one
operand and more in another is more (``einsum_utils/einsum_compute_preprocessor.cc``); inferred is
that of the first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import onnx

Typed: TypeAlias = tuple[int, tuple[int, ...]]  # element type, shape
Right: TypeAlias = tuple[int, tuple[int, ...] | None]  # the same, None for what only a run shows
Ask: TypeAlias = Callable[[onnx.ModelProto], dict[str, Typed]]
POOLS = ("MaxPool", "AveragePool", "LpPool")
DOMAINS = ("", "ai.onnx", "com.microsoft.nchwc")
INFERRED = "/as inferred"  # of the names of what is given its right size


def as_computed(model: onnx.ModelProto, found: dict[str, Typed], ask: Ask) -> dict[str, Typed]:
    """Types and shapes as they are in a run.

    Args:
        model: every value of it is an output.
        found: as inferred.
        ask: infers them for a model.
    """
    right = _corrections(model, found)
    while right:
        model = _with_inputs(model, right)
        found = {**ask(model)}
        right = _corrections(model, found)
    return {name: typed for name, typed in found.items() if not name.endswith(INFERRED)}


def is_misinferred(
    node: onnx.NodeProto, opset: int, given: Mapping[str, Typed], made: Sequence[int]
) -> bool:
    """Whether ONNX infers another shape than the node makes: onnxruntime refuses many a graph in
    which both meet.

    Args:
        given: its inputs.
        made: shape of its first output.
    """
    schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
    types = {name: onnx.helper.make_tensor_type_proto(*typed) for name, typed in given.items()}
    known = onnx.shape_inference.infer_node_outputs(schema, node, types)
    kind = known[node.output[0]].tensor_type
    return [dim.dim_value for dim in kind.shape.dim] != [*made]


def _corrections(model: onnx.ModelProto, found: Mapping[str, Typed]) -> dict[str, Right]:
    right: dict[str, Right] = {}
    stored = {each.name: (each.data_type, (*each.dims,)) for each in model.graph.initializer}
    found = {**stored, **found}
    for node in model.graph.node:
        done = any(name.endswith(INFERRED) for name in node.output)
        if node.domain not in DOMAINS or not node.input or done:
            continue
        sizes = None
        if node.op_type == "Resize" and node.output[0] in found and _by_policy(node):
            right[node.output[0]] = found[node.output[0]][0], None
        if node.op_type == "Einsum" and {*node.input} <= found.keys():
            right |= _contracted(node, found)
        if node.op_type in POOLS and node.input[0] in found:
            sizes = _pooled(node, found[node.input[0]][1])
        if node.op_type == "ConvTranspose" and {*node.input[:2]} <= found.keys():
            sizes = _transposed(node, *(found[name][1] for name in node.input[:2]))
        for place, name in enumerate(node.output):
            known = found.get(name)
            if sizes and name and (known is None or known[1][2:] != sizes):
                dtype = known[0] if known else _dtype(found[node.input[0]][0], place)
                right[name] = dtype, (*_lead(node, found), *sizes)
    return right


def _by_policy(node: onnx.NodeProto) -> bool:
    """Whether a Resize keeps the aspect of some axes, of which onnxruntime gets axes that are
    counted from the end wrong."""
    told = _told(node)
    policy = told.get("keep_aspect_ratio_policy", b"stretch")
    return policy != b"stretch" and min(told.get("axes") or [0]) < 0


def _contracted(node: onnx.NodeProto, found: Mapping[str, Typed]) -> dict[str, Right]:
    """The result of an Einsum without an ellipsis, where it is inferred otherwise."""
    operands, arrow, result = _told(node)["equation"].decode().replace(" ", "").partition("->")
    if not arrow or "." in operands:
        return {}
    sizes: dict[str, int] = {}
    for letters, name in zip(operands.split(","), node.input, strict=False):
        for letter, size in zip(letters, found[name][1], strict=False):
            sizes[letter] = size if sizes.get(letter, 1) == 1 else sizes[letter]
    right = found[node.input[0]][0], tuple(sizes[letter] for letter in result)
    return {} if found.get(node.output[0]) == right else {node.output[0]: right}


def _dtype(source: int, place: int) -> int:
    return onnx.TensorProto.INT64 if place else source


def _lead(node: onnx.NodeProto, found: Mapping[str, Typed]) -> tuple[int, int]:
    """Batch and channels of the result."""
    image = found[node.input[0]][1]
    if node.op_type != "ConvTranspose":
        return image[0], image[1]
    return image[0], found[node.input[1]][1][1] * int(_told(node).get("group", 1))


def _told(node: onnx.NodeProto) -> dict[str, Any]:
    return {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}


def _pooled(node: onnx.NodeProto, image: Sequence[int]) -> tuple[int, ...]:
    """Rows, columns, ... of pooling."""
    told, rank = _told(node), len(image) - 2
    auto, kernel = told.get("auto_pad", b"NOTSET"), told.get("kernel_shape", ())
    strides = told.get("strides") or [1] * rank
    dilations = told.get("dilations") or [1] * rank
    pads = told.get("pads") or [0] * 2 * rank
    if not rank or any(len(each) != rank for each in (kernel, strides, dilations)):
        return ()
    made = []
    for k, size in enumerate(image[2:]):
        step, before, both = strides[k], pads[k], pads[k] + pads[k + rank]
        if auto == b"VALID":
            before = both = 0
        elif auto in (b"SAME_UPPER", b"SAME_LOWER"):
            both = (-(-size // step) - 1) * step + kernel[k] - size
            before = int((both + 1) / 2) if auto == b"SAME_LOWER" else int(both / 2)  # as in C
        reach = size + both - dilations[k] * (kernel[k] - 1) - 1
        count = int(reach / step) + 1
        if told.get("ceil_mode"):
            count = -(-reach // step) + 1
            count -= (count - 1) * step >= size + before
        made.append(count)
    return tuple(made) if min(made) > 0 else ()


def _transposed(
    node: onnx.NodeProto, image: Sequence[int], weight: Sequence[int]
) -> tuple[int, ...]:
    """Rows, columns, ... of a ConvTranspose whose size is given or named; () of others."""
    told, rank = _told(node), len(image) - 2
    auto, given = told.get("auto_pad", b"NOTSET"), told.get("output_shape") or ()
    if given:
        return tuple(given[-rank:])
    if auto not in (b"SAME_UPPER", b"SAME_LOWER"):
        return ()
    kernel = told.get("kernel_shape") or weight[2:]
    strides = told.get("strides") or [1] * rank
    dilations = told.get("dilations") or [1] * rank
    more = told.get("output_padding") or [0] * rank
    reach = [
        (size - 1) * strides[k] + more[k] + (kernel[k] - 1) * dilations[k] + 1
        for k, size in enumerate(image[2:])
    ]
    wanted = (size * step for size, step in zip(image[2:], strides, strict=True))
    return tuple(min(pair) for pair in zip(wanted, reach, strict=True))


def _with_inputs(model: onnx.ModelProto, right: Mapping[str, Right]) -> onnx.ModelProto:
    """The model with inputs in the place of what is inferred wrongly."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for node in made.graph.node:
        if any(name in right for name in node.output):
            node.output[:] = [name + INFERRED if name in right else name for name in node.output]
    for value in made.graph.output:
        value.name += INFERRED if value.name in right else ""
    for name, (dtype, shape) in right.items():
        made.graph.input.append(onnx.helper.make_tensor_value_info(name, dtype, shape))
    return made
