"""Weights that kernels are to read as they are, where packing them would not fit.

A kernel of onnxruntime packs its weight as the session is opened. Of a weight that several nodes
read (a batch in parts, an op that is run again) each packs one, and all but the first copy are
thrown away: the largest of them is there twice for a moment, whatever a run takes afterwards. A
weight that may be given as an input is no constant to onnxruntime, and is not packed. So it is
listed among the inputs, where callers need not give it and `get_inputs()` does not show it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

import onnx

from onnxremat.graph.ir import Graph, subgraphs

PACKED = {
    "MatMul": (1,), "Gemm": (1,), "FusedMatMul": (1,), "FusedGemm": (1,), "MatMulInteger": (1,),
    "ConvTranspose": (1,), "LSTM": (1, 2), "GRU": (1, 2),
}  # fmt: skip  # inputs that kernels pack where they are constants

OPTIONAL = 4  # IR version from which weights that are inputs are no constants


def packed_again(graph: Graph) -> Mapping[str, int]:
    """Bytes of each weight that more than one node packs, in bodies of If, Loop and Scan, too."""
    readers: Counter[str] = Counter()
    for op in graph.ops:
        readers.update(_packed(op.op_type, op.inputs))
        if op.captures:
            inside = Counter(
                name for node in _within(op.node) for name in _packed(node.op_type, node.input)
            )
            readers.update(name for name in inside.elements() if name in op.captures)
    return {
        name: graph.tensors[name].bytes
        for name, count in readers.items()
        if count > 1 and graph.is_constant(graph.tensors[name])
    }


def _packed(kind: str, inputs: Sequence[str]) -> set[str]:
    """What a node packs where that is constant."""
    return {inputs[at] for at in PACKED.get(kind, ()) if at < len(inputs) and inputs[at]}


def _within(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """The nodes of its bodies, at every depth."""
    for body in subgraphs(node):
        for inner in body.node:
            yield inner
            yield from _within(inner)


def beyond(graph: Graph, room: int) -> frozenset[str]:
    """Weights of which a second packed copy takes more than ``room`` bytes."""
    return frozenset(name for name, size in packed_again(graph).items() if size > room)


def list_as_inputs(model: onnx.ModelProto, names: Collection[str]) -> None:
    """Let these weights be inputs that need not be given."""
    if names:
        model.ir_version = max(model.ir_version, OPTIONAL)
    new = {*names}.difference(value.name for value in model.graph.input)
    for tensor in model.graph.initializer:
        if tensor.name in new:
            shape, kind = list(tensor.dims), tensor.data_type
            model.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, kind, shape))
