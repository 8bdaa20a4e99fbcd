"""What the graph says about initializers whose names say nothing, in files of PyTorch's older
exporter."""

from __future__ import annotations

import re
from collections.abc import Callable

import onnx
from onnx import numpy_helper

from onnxremat.grad.exported.marks import Marks, is_nameless, module_of

_AFFINE = frozenset({"Mul", "Add"})
_BIASED = frozenset({"Conv", "ConvTranspose", "Gemm"})


def placed(model: onnx.ModelProto, marks: Marks) -> set[str]:
    """Tensors that are parameters by where they are read, whatever they are called."""
    found = affine_of_norms(model)
    if not marks.kinds:  # which say it of the others
        found |= biases_of_products(model) | slopes(model) | adapters(model)
    return found


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


def biases_of_products(model: onnx.ModelProto) -> set[str]:
    """Biases of convolutions, and vectors that are added to a product with a stored matrix, one
    number per column: zeros when fresh. Identity is looked through, and Split, by which the joined
    biases of attention are cut apart."""
    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    alias: dict[str, str] = {}
    joined: dict[str, tuple[str, str]] = {}  # by part: what is split, and the initializer
    columns: dict[str, int] = {}  # of the matrix, by product
    found: set[str] = set()
    for node in model.graph.node:
        names = [alias.get(name, name) for name in node.input]
        if node.op_type == "Identity" and names[0] in shapes:
            alias[node.output[0]] = names[0]
        elif node.op_type == "Split" and len(shapes.get(names[0], ())) == 1:
            joined.update(dict.fromkeys(node.output, (node.input[0], names[0])))
        elif node.op_type in _BIASED:
            found.update((*node.input[2:3], *names[2:3]))
        elif node.op_type == "MatMul" and len(shapes.get(names[1], ())) == 2:
            columns[node.output[0]] = shapes[names[1]][1]
        elif node.op_type == "Add" and not columns.keys().isdisjoint(names):
            count = next(columns[name] for name in names if name in columns)
            found.update(
                each
                for name, source in zip(node.input, names, strict=True)
                if shapes.get(source) == (count,)
                for each in (name, source)
            )
            found.update(each for name in names for each in joined.get(name, ()))
    return found


def slopes(model: onnx.ModelProto) -> set[str]:
    """Of leaky rectifiers that learn them, one number where all channels share it. Identity is
    looked through."""
    return {each for pair in _second_inputs(model, "PRelu") for each in pair}


def adapters(model: onnx.ModelProto) -> set[str]:
    """Matrices of zeros that something is multiplied by, which is of no use but to be learned:
    an adapter as it was made (LoRA). Identity is looked through."""
    pairs = _second_inputs(model, "MatMul")
    asked = {stored for _, stored in pairs}
    blank = {
        tensor.name
        for tensor in model.graph.initializer
        if tensor.name in asked and len(tensor.dims) == 2 and not tensor.external_data
        if not numpy_helper.to_array(tensor).any()
    }
    return {each for pair in pairs if pair[1] in blank for each in pair}


def _second_inputs(model: onnx.ModelProto, op_type: str) -> list[tuple[str, str]]:
    """What operators of a kind read second, and what an Identity made that of."""
    alias = {n.output[0]: n.input[0] for n in model.graph.node if n.op_type == "Identity"}
    read = [node.input[1] for node in model.graph.node if node.op_type == op_type]
    return [(name, alias.get(name, name)) for name in read]


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


def first_call(model: onnx.ModelProto) -> Callable[[str], str]:
    """Parts of a node's name in PyTorch's older exporter as the first call of their module has
    them: nodes of the second call of a module ``norm`` are in ``/norm_1/``."""
    named = {tensor.name for tensor in model.graph.initializer}
    named |= {out for node in model.graph.node if node.op_type == "Identity" for out in node.output}
    parts = {part for name in named if not is_nameless(name) for part in name.split(".")}
    scopes = {part for node in model.graph.node for part in node.name.split("/")[:-1]}

    def plain(part: str) -> str:
        stem, last = re.sub(r"_\d+$", "", part), part.rsplit(".", 1)[-1]
        return stem if last not in parts and stem in scopes else part

    return plain


def calls(model: onnx.ModelProto) -> dict[str, tuple[onnx.NodeProto, int, str]]:
    """The only reader of a tensor without a name, which of its inputs that is, and where in its
    module the reader is, whichever call of the module it belongs to."""
    plain = first_call(model)
    readers: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
    for node in model.graph.node:
        for position, name in enumerate(node.input if node.op_type != "Identity" else ()):
            readers.setdefault(name, []).append((node, position))
    found = {}
    for name, places in readers.items():
        node, position = places[0]
        if len(places) == 1 and is_nameless(name) and node.name.startswith("/"):
            *scope, own = node.name.split("/")
            found[name] = (node, position, "/".join([*map(plain, scope), own]))
    return found


def in_copied_layers(one: str, other: str) -> bool:
    """Two names differ in one number only, as those of copies of a layer do
    (``layers.0.norm.weight``, ``layers.1.norm.weight``)."""
    pairs = list(zip(one.split("."), other.split("."), strict=False))
    apart = [(a, b) for a, b in pairs if a != b]
    same_length = one.count(".") == other.count(".")
    return same_length and len(apart) == 1 and all(part.isdigit() for part in apart[0])
