"""Running statistics of batch normalizations: one tensor per module, however often a step calls it,
that nothing else reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import onnx

from onnxremat.grad.exported.layers import first_call
from onnxremat.grad.exported.marks import reading_of
from onnxremat.grad.exported.merged import Place
from onnxremat.grad.exported.restored import Restored

KINDS = {3: "running_mean", 4: "running_var"}


def own_statistics(
    model: onnx.ModelProto,
    readers: Mapping[str, Sequence[Place]],
    used: Mapping[tuple[str, int], str],
    fresh: Callable[[str], str],
) -> list[Restored]:
    """Which batch normalization reads which tensor. Exporters keep equal statistics once; what two
    normalizations read is one tensor only where the file says that they are calls of one module.

    Args:
        readers: of each initializer, but for those that are told apart already.
        used: what is told apart, by reader (its first output) and position.
        fresh: a name that nothing has, from a stem.
    """
    module = modules(model)
    homes: dict[tuple[str, int], str] = {}
    for node, position in _reads(model):
        if (node.output[0], position) in used:
            homes[module[node.output[0]], position] = used[node.output[0], position]
    found: list[Restored] = []
    for name, places in readers.items():
        held = [r for r in places if r[0].op_type == "BatchNormalization" and r[1] in KINDS]
        free = len(held) == len(places)  # for the first module that reads it
        for node, position in held:
            home = module[node.output[0]], position
            if home not in homes:
                stem = f"{node.name or node.output[0]}.{KINDS[position]}"
                homes[home] = name if free else fresh(stem)
                free = False
            if homes[home] != name:
                found.append(Restored("use", homes[home], name, node.output[0], position))
    return found


def modules(model: onnx.ModelProto) -> dict[str, str]:
    """Of each batch normalization, by its output, the module that calls it, as PyTorch's exporters
    say; where they do not, one of its own."""
    plain, found = first_call(model), {}
    for node in _norms(model):
        about, scope = reading_of(node), node.name.split("/")[1:-1]
        if about is not None:
            found[node.output[0]] = about.scope
        else:
            found[node.output[0]] = "/".join(map(plain, scope)) or f"{node.output[0]} alone"
    return found


def in_place(model: onnx.ModelProto) -> onnx.ModelProto:
    """A model in which further calls of a module read its statistics, not an Identity of them as
    PyTorch's exporter writes when nothing is optimised; the model itself where there is none."""
    stored = {tensor.name for tensor in model.graph.initializer}
    same: dict[str, str] = {}
    for node in model.graph.node:
        about = reading_of(node) if node.op_type == "Identity" else None
        if about is not None and "batch_norm" in about.made:
            source = same.get(node.input[0], node.input[0])
            if source in stored:
                same[node.output[0]] = source
    if not same:
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for node, position in _reads(made):
        node.input[position] = same.get(node.input[position], node.input[position])
    return made


def _norms(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for node in model.graph.node if node.op_type == "BatchNormalization"]


def _reads(model: onnx.ModelProto) -> Iterator[Place]:
    return ((node, position) for node in _norms(model) for position in KINDS)
