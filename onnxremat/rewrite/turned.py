"""Products that read the transpose of their second side (``transB``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import onnx
from onnx import helper

from onnxremat.graph.ir import Graph, Op
from onnxremat.graph.traits import packed_input

MICROSOFT = "com.microsoft"
ADDS_NOTHING = 11  # opset from which a Gemm needs no third input
_TURNED = {  # a product to the one whose second side may be transposed
    ("", "Gemm"): ("", "Gemm"),
    (MICROSOFT, "FusedGemm"): (MICROSOFT, "FusedGemm"),
    ("", "MatMul"): (MICROSOFT, "FusedMatMul"),
    (MICROSOFT, "FusedMatMul"): (MICROSOFT, "FusedMatMul"),
}


def can_turn(op: Op, name: str, graph: Graph, standard: bool) -> bool:
    """Whether a product can read the transpose of its second side."""
    domain = "" if op.standard else op.domain
    if packed_input(op) != 1 or op.inputs[1] != name or op.operands.count(name) != 1:
        return False
    if (domain, op.op_type) not in _TURNED or (standard and _kind(op, graph)[0] == MICROSOFT):
        return False
    return not any(a.name == "transBatchB" and a.i for a in op.node.attribute)


def _kind(op: Op, graph: Graph) -> tuple[str, str]:
    """Domain and operator of the product that reads the transpose."""
    domain = "" if op.standard else op.domain
    shape = graph.tensors[op.inputs[0]].shape
    plain = (domain, op.op_type) == ("", "MatMul") and graph.opsets.get("", 1) >= ADDS_NOTHING
    if plain and shape is not None and len(shape) == 2:
        return "", "Gemm"
    return _TURNED[domain, op.op_type]


def read_turned(op: Op, copies: Mapping[str, str], graph: Graph) -> Op:
    """The product that reads the transpose of its second side."""
    domain, kind = _kind(op, graph)
    node = onnx.NodeProto()
    node.CopyFrom(op.node)
    turned = reads_turned(op)
    for index in reversed([i for i, a in enumerate(node.attribute) if a.name == "transB"]):
        del node.attribute[index]
    node.attribute.append(helper.make_attribute("transB", int(not turned)))
    node.domain, node.op_type = domain, kind
    inputs = (op.inputs[0], copies.get(op.inputs[1], op.inputs[1]), *op.inputs[2:])
    return replace(op, op_type=kind, domain=domain, inputs=inputs, node=node)


def reads_turned(op: Op) -> bool:
    """It does already."""
    return any(a.name == "transB" and a.i for a in op.node.attribute)


def import_products(model: onnx.ModelProto, ops: Iterable[Op]) -> None:
    """Let a model with these ops use onnxruntime's products, where one of them is."""
    known = {entry.domain for entry in model.opset_import}
    if MICROSOFT not in known and any(op.domain == MICROSOFT for op in ops):
        model.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
