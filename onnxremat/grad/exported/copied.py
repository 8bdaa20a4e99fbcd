"""Parameters that PyTorch's older exporter stored once, as they were equal when it wrote the file.

It gives a parameter that two modules share one name, and so it does a module that has two. Two
names are two parameters then: copies of a layer, a teacher, a target network. What it folds of
parameters has no name; a copy is told from shared weights by a name, or a second tensor, of the
same module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx

from onnxremat.grad.exported.layers import calls, in_copied_layers
from onnxremat.grad.exported.marks import first_of, is_nameless, joined, reading_of
from onnxremat.grad.exported.patterns import is_constant
from onnxremat.grad.exported.provenance import Kind, Origin
from onnxremat.grad.exported.restored import Restored
from onnxremat.grad.exported.stored import Stored
from onnxremat.grad.tape import FLOATS


def copied_tensors(model: onnx.ModelProto, tie: bool) -> set[str]:
    """Outputs of Identity nodes that are parameters of their own.

    Args:
        tie: whether what may be either is shared.
    """
    found = {made for made, name in _identities(model).items()
             if not is_nameless(made) and not is_nameless(name)}  # fmt: skip
    for names in _pairs(model).values():
        if len(names) > 1 or not tie:
            found.update(names)
    return found


def about_copies(
    model: onnx.ModelProto,
    folder: Path | None,
    undone: Sequence[Restored],
    origins: Mapping[str, Origin],
) -> list[str]:
    """What there is to say of equal parameters, but for those of copied layers and zeros and ones.

    Args:
        model: as the file has it.
        undone: what was done about it.
    """
    stored, sources = Stored(model, folder), _identities(model)
    apart = {entry.parameter for entry in undone if entry.how == "copy"}
    found = []
    for (copy, module), names in _pairs(model).items():
        held = [
            name
            for name in names
            if not is_constant(stored.value(sources[name]))
            and name in (origins if name in apart else (name,))
            and origins[name if name in apart else sources[name]].kind is Kind.PARAMETER
        ]
        if not held or in_copied_layers(copy, module):
            continue
        if apart.issuperset(held):
            found.append(
                f"{len(held)} tensors of '{copy}' begin as those of '{module}' and are trained by "
                f"themselves: the file has two names for them, as for a copy ({first_of(held, 3)}; "
                "freeze what the module leaves as it is, a teacher, say)"
            )
        else:
            found.append(
                f"'{copy}' reads a tensor of '{module}' ({first_of(held, 3)}), which is trained as "
                "one: shared, or a copy (--no-tie trains copies apart)"
            )
    return found


def _identities(model: onnx.ModelProto) -> dict[str, str]:
    """What Identity nodes make of initializers, in files of PyTorch's older exporter. The newer
    one writes them for operations of the module, and says so."""
    if model.producer_name != "pytorch":
        return {}
    stored = {tensor.name for tensor in model.graph.initializer if tensor.data_type in FLOATS}
    nodes = [node for node in model.graph.node if node.op_type == "Identity"]
    return {
        node.output[0]: node.input[0]
        for node in nodes
        if node.input[0] in stored and reading_of(node) is None
    }


def _pairs(model: onnx.ModelProto) -> dict[tuple[str, str], list[str]]:
    """Modules with tensors that are those of another module, in the same places. Per pair of
    modules, the tensors of the first."""
    read, found = calls(model), dict[tuple[str, str], list[str]]()
    for made, name in _identities(model).items():
        one, other = _path(made, read), _path(name, read)
        while one and other and one[-1] == other[-1]:
            one.pop()
            other.pop()
        if one and other:
            found.setdefault((".".join(one), ".".join(other)), []).append(made)
    return found


def _path(name: str, read: Mapping[str, tuple[onnx.NodeProto, int, str]]) -> list[str]:
    """The parts of a tensor's name in its module; of one without a name, where it is read."""
    if not is_nameless(name):
        return name.split(".")
    if name not in read:
        return []
    _, position, where = read[name]
    *scope, own = where.split("/")
    return [*joined(scope[1:]).split("."), own, str(position)]
