"""What the graph says about initializers whose names say nothing, in files of PyTorch's older
exporter."""

from __future__ import annotations

import onnx

from onnxremat.grad.marks import is_nameless, module_of

_AFFINE = frozenset({"Mul", "Add"})


def affine_of_norms(model: onnx.ModelProto) -> set[str]:
    """Tensors that scale or shift what an InstanceNormalization made: parameters of a group
    normalization, ones and zeros when it is fresh. Identity is looked through."""
    alias: dict[str, str] = {}
    stored = {tensor.name for tensor in model.graph.initializer}
    normed: set[str] = set()
    found: set[str] = set()
    for node in model.graph.node:
        if node.op_type == "Identity" and (node.input[0] in stored or node.input[0] in alias):
            alias[node.output[0]] = alias.get(node.input[0], node.input[0])
        elif node.op_type == "InstanceNormalization" or (
            node.op_type == "Reshape" and node.input[0] in normed
        ):
            normed.add(node.output[0])
        elif node.op_type in _AFFINE and not normed.isdisjoint(node.input):
            others = [name for name in node.input if name not in normed]
            if len(others) == 1 and (others[0] in stored or others[0] in alias):
                normed.add(node.output[0])
                found |= {others[0], alias.get(others[0], others[0])}
    return found


def homes(model: onnx.ModelProto) -> dict[str, str]:
    """What a tensor would be called in its module, by its own name, or the only node's that reads
    it."""
    found: dict[str, str] = {}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    for name, nodes in readers.items():
        known = [node for node in nodes if node.op_type != "Identity"]
        if not is_nameless(name):
            found[name] = name
        elif len(known) == 1 and module_of(known[0]):
            found[name] = f"{module_of(known[0])}.{known[0].op_type}"
    return found


def in_copied_layers(one: str, other: str) -> bool:
    """Two names differ in one number only, as those of copies of a layer do
    (``layers.0.norm.weight``, ``layers.1.norm.weight``)."""
    pairs = list(zip(one.split("."), other.split("."), strict=False))
    apart = [(a, b) for a, b in pairs if a != b]
    same_length = one.count(".") == other.count(".")
    return same_length and len(apart) == 1 and all(part.isdigit() for part in apart[0])
