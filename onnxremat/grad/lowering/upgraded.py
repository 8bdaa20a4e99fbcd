"""Models of an older opset brought to one that has what the backward ops need."""

from __future__ import annotations

from collections.abc import Iterable

import onnx
from onnx import helper, numpy_helper

from onnxremat.errors import UnsupportedError
from onnxremat.graph.bodies import graphs, levels
from onnxremat.graph.ir import all_nodes
from onnxremat.graph.traits import ONNX

ELSEWHERE = "onnxremat.kept"  # where ops are meanwhile that onnx does not know
PLACES = 11  # opset from which a Resize says how it finds its places
NO_BATCH = 9  # opset from which a Scan goes through one sequence
ONE_AXIS = 13  # opset from which a Hardmax works along one axis
ONE_TYPE = 17  # opset from which a LayerNormalization is ONNX's, and all it reads of one type


def upgraded(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """The model at an opset, or as it is at a later one.

    Raises:
        UnsupportedError: onnx cannot bring it there, or with another result.
    """
    version = next((o.version for o in model.opset_import if o.domain in ONNX), 0)
    if version >= opset:
        return model
    if not version:  # it has none of ONNX's own operators; what is added has
        model.opset_import.append(helper.make_opsetid("", opset))
        return model
    from onnx import version_converter

    model.ir_version = max(model.ir_version, 8)
    nodes = [*all_nodes(model.graph)]
    _refuse_batches(nodes, version)
    for node in nodes:
        if _only_onnxruntimes(node, version):
            node.domain = ELSEWHERE
    _name_domains(model)
    try:
        made = version_converter.convert_version(model, opset)
    except Exception as error:  # the converter raises bare RuntimeErrors of many kinds
        raise UnsupportedError(
            f"the model is at opset {version} and cannot be brought to {opset}",
            why=str(error).strip().splitlines()[0][:300],
            hint=f"export it again at opset {opset} or later",
        ) from error
    made = with_metadata(made, model)
    for node in all_nodes(made.graph):
        if node.domain == ELSEWHERE:
            node.domain = ""
        if version < PLACES and node.op_type == "Resize":
            _resize_as_before(node, made)
    for graph in graphs(made.graph) if version < ONE_AXIS else ():
        if any(node.op_type == "Hardmax" for node in graph.node):
            nodes = [each for node in graph.node for each in _hardmax_as_before(node)]
            del graph.node[:]
            graph.node.extend(nodes)
    if version < ONE_TYPE <= opset and _has_halves(made):
        _normalise_in_one_type(made)
    return made


def _refuse_batches(nodes: Iterable[onnx.NodeProto], version: int) -> None:
    """Raises:
    UnsupportedError: a Scan of opset 8, which goes through a batch of sequences: onnx's converter
        takes that axis from the model's inputs as well.
    """
    for node in nodes:
        if node.op_type == "Scan" and node.domain in ONNX and version < NO_BATCH:
            raise UnsupportedError(
                f"node '{node.name}' (Scan) is not differentiated",
                why="in opset 8 it goes through a batch of sequences, which no later one has",
                hint="export the model again at opset 9 or later",
            )


def _name_domains(model: onnx.ModelProto) -> None:
    """onnxruntime runs files that do not name the domains of its own operators; onnx does not read
    them."""
    named = {entry.domain for entry in model.opset_import}.union(ONNX)
    used = dict.fromkeys(node.domain for nodes in levels(model.graph) for node in nodes)
    model.opset_import.extend(helper.make_opsetid(name, 1) for name in used if name not in named)


def _only_onnxruntimes(node: onnx.NodeProto, version: int) -> bool:
    """Ops of onnxruntime in the domain of ONNX (SimplifiedLayerNormalization)."""
    return node.domain in ONNX and not onnx.defs.has(node.op_type, version)


def _resize_as_before(node: onnx.NodeProto, model: onnx.ModelProto) -> None:
    """Until opset 10 places were found as ``asymmetric`` does and, for the nearest, rounded down
    where an axis grows and up where it shrinks; onnx's converter leaves the later defaults."""
    node.attribute.append(helper.make_attribute("coordinate_transformation_mode", "asymmetric"))
    if any(each.name == "mode" and each.s != b"nearest" for each in node.attribute):
        return
    stored = {t.name: t for graph in graphs(model.graph) for t in graph.initializer}
    for other in all_nodes(model.graph):
        for each in other.attribute if other.op_type == "Constant" else ():
            stored[other.output[0]] = each.t
    scales = stored.get(node.input[2])
    values = numpy_helper.to_array(scales) if scales is not None else None
    if values is None or (min(values) < 1 < max(values)):
        raise UnsupportedError(
            f"node '{node.name}' ({node.op_type}) is not differentiated",
            why="until opset 10 it rounds down where an axis grows and up where it shrinks, and "
            + ("its scales are computed" if values is None else "some axes grow, others shrink"),
            hint="export the model again at opset 11 or later",
        )
    way = "ceil" if min(values) < 1 else "floor"
    node.attribute.append(helper.make_attribute("nearest_mode", way))


def _hardmax_as_before(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Until opset 12 a Hardmax takes all axes from its own on for one; onnx's converter writes that
    out for Softmax alone."""
    if node.op_type != "Hardmax" or node.domain not in ONNX:
        return [node]
    axis = next((each.i for each in node.attribute if each.name == "axis"), 1)
    x, y = node.input[0], node.output[0]
    shape, rows, best = (f"{y}/{part}" for part in ("shape", "rows", "best"))
    return [
        helper.make_node("Shape", [x], [shape], name=shape),
        helper.make_node("Flatten", [x], [rows], name=rows, axis=axis),
        helper.make_node("Hardmax", [rows], [best], name=best, axis=1),
        helper.make_node("Reshape", [best, shape], [y], name=node.name),
    ]


def _has_halves(model: onnx.ModelProto) -> bool:
    half = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
    given = (value.type.tensor_type.elem_type in half for value in model.graph.input)
    stored = (t.data_type in half for graph in graphs(model.graph) for t in graph.initializer)
    attributes = (each for node in all_nodes(model.graph) for each in node.attribute)
    cast = (each.name == "to" and each.i in half for each in attributes)
    return any(given) or any(stored) or any(cast)


def _normalise_in_one_type(model: onnx.ModelProto) -> None:
    """onnxruntime's own LayerNormalization of before may scale halves by float32, which it then
    returns."""
    for graph in graphs(model.graph):
        wide = {t.name for t in graph.initializer if t.data_type == onnx.TensorProto.FLOAT}
        nodes = list[onnx.NodeProto]()
        for node in graph.node:
            if node.op_type == "LayerNormalization" and node.domain in ONNX:
                x, scale = node.input[:2]
                if scale in wide:
                    node.input[0] = f"{node.output[0]}/in_float32"
                    cast = helper.make_node("CastLike", [x, scale], [node.input[0]])
                    nodes.append(cast)
            nodes.append(node)
        del graph.node[:]
        graph.node.extend(nodes)


def with_metadata(converted: onnx.ModelProto, model: onnx.ModelProto) -> onnx.ModelProto:
    """What the nodes of a model say of themselves, which onnx's version converter drops."""
    said = {n.output[0]: n.metadata_props for n in model.graph.node if n.output}
    for node in converted.graph.node:
        if node.output and node.output[0] in said and not node.metadata_props:
            node.metadata_props.extend(said[node.output[0]])
    return converted
