"""Names in a model are text: protobuf hands those that are no UTF-8 over as bytes."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from onnxremat.errors import ModelError
from onnxremat.graph.ir import all_nodes


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


def _texts(model: onnx.ModelProto) -> Iterator[tuple[str, ...]]:
    graph = model.graph
    nodes = [*all_nodes(graph), *(node for f in model.functions for node in f.node)]
    for node in nodes:
        yield node.op_type, node.domain, node.name, *node.input, *node.output
        yield tuple(attribute.name for attribute in node.attribute)
    for function in model.functions:
        yield function.name, function.domain, *function.input, *function.output
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield value.name, *(dim.dim_param for dim in value.type.tensor_type.shape.dim)
    yield graph.name, *(tensor.name for tensor in graph.initializer)
    for said in model.metadata_props:
        yield said.key, said.value
