"""Names in a model are text, and attributes what they say: protobuf reads others as well."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from onnxremat.errors import ModelError
from onnxremat.graph.ir import all_nodes

_KIND = onnx.AttributeProto
_FIELDS = {
    _KIND.FLOAT: "f", _KIND.INT: "i", _KIND.STRING: "s", _KIND.TENSOR: "t", _KIND.GRAPH: "g",
    _KIND.SPARSE_TENSOR: "sparse_tensor", _KIND.TYPE_PROTO: "tp", _KIND.FLOATS: "floats",
    _KIND.INTS: "ints", _KIND.STRINGS: "strings", _KIND.TENSORS: "tensors",
    _KIND.GRAPHS: "graphs", _KIND.SPARSE_TENSORS: "sparse_tensors",
    _KIND.TYPE_PROTOS: "type_protos",
}  # fmt: skip
_VALUES = set(_FIELDS.values())


def check_text(model: onnx.ModelProto, where: str) -> None:
    """Refuse names that cannot be printed, sorted or written again as they are.

    Args:
        where: the model is from, for the message.

    Raises:
        ModelError: names one.
    """
    for texts in _texts(model):
        for text in texts:
            if isinstance(text, bytes):
                raise ModelError(
                    f"a name in {where} is no UTF-8 text: {text!r}",
                    why="ONNX asks for UTF-8; the file is damaged, or was written without a check",
                    hint="rename it, or export the model again",
                )


def check_attributes(model: onnx.ModelProto, where: str) -> None:
    """Refuse attributes whose value is of another type than they say, as onnxruntime does.

    Args:
        where: the model is from, for the message.

    Raises:
        ModelError: names one.
    """
    for node in _nodes(model):
        for attribute in node.attribute:
            told = _FIELDS.get(attribute.type)
            held = {field.name for field, _ in attribute.ListFields()} & _VALUES
            if told and held - {told}:
                raise ModelError(
                    f"attribute '{attribute.name}' of {node.op_type} node '{node.name}' in {where} "
                    "is not what it says",
                    why=f"its type is {onnx.AttributeProto.AttributeType.Name(attribute.type)}, "
                    f"its value is in '{min(held - {told})}'; onnxruntime opens no such file",
                    hint="the file is damaged: export it again",
                )


def _nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [*all_nodes(model.graph), *(node for f in model.functions for node in f.node)]


def _texts(model: onnx.ModelProto) -> Iterator[tuple[str, ...]]:
    graph = model.graph
    for node in _nodes(model):
        yield node.op_type, node.domain, node.name, *node.input, *node.output
        yield tuple(attribute.name for attribute in node.attribute)
    for function in model.functions:
        yield function.name, function.domain, *function.input, *function.output
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield value.name, *(dim.dim_param for dim in value.type.tensor_type.shape.dim)
    yield graph.name, *(tensor.name for tensor in graph.initializer)
    for said in model.metadata_props:
        yield said.key, said.value
