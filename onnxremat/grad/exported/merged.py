"""Where nodes read one tensor for several, which PyTorch's exporter merged as they were equal."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import onnx

from onnxremat.grad.exported.marks import (
    Marks,
    Reading,
    is_nameless,
    module_of,
    reading_of,
    rules_of,
    stem,
)
from onnxremat.grad.exported.patterns import is_constant
from onnxremat.grad.exported.provenance import Kind, Origin
from onnxremat.grad.exported.stored import Stored

# What makes a tensor of no other.
_CREATING = frozenset({
    "ones", "zeros", "full", "ones_like", "zeros_like", "full_like", "new_ones", "new_zeros",
    "new_full", "empty", "arange", "eye", "scalar_tensor", "linspace", "scalar_tensor_default",
})  # fmt: skip
Place: TypeAlias = tuple[onnx.NodeProto, int]  # a node, and which of its inputs


def merged(marks: Marks, places: Sequence[Place], tokens: Sequence[str]) -> list[tuple[Place, str]]:
    """Where the nodes of one call of PyTorch's graph read another tensor than the call did, and
    what it read there: of a normalization by order, else what has the same last name, else by
    order, where as many are left of both; "" where the call read no tensor of the module: a
    constant of the exporter's. Names with a space between, where it joined several.

    Args:
        places: where they read floating-point initializers.
        tokens: what the call read, by PyTorch's names.
    """
    named = [(place, _own(marks, place)) for place in places]
    kinds = {node.op_type for node, _ in places if node.op_type.endswith("Normalization")}
    if kinds == {"BatchNormalization"} and len({node.output[0] for node, _ in places}) == 1:
        about = reading_of(places[0][0])
        arguments = about.arguments if about is not None else ()
        if len(arguments) > 4:  # of the same order; what is computed there is told elsewhere
            read = [(place, own, arguments[place[1]]) for place, own in named]
            return [
                (place, "" if token == "None" else token)
                for place, own, token in read
                if (token == "None" and own) or (token in tokens and own != token)
            ]
    if kinds and len({node.output[0] for node, _ in places}) == 1 and len(places) == len(tokens):
        # A scale of zeros may be merged with a shift, so that names mislead.
        pairs = zip(named, tokens, strict=True)
        return [(place, token) for (place, own), token in pairs if own != token]
    there = {own for _, own in named}
    waiting = [token for token in tokens if token not in there]
    claimed = {t for (node, k), _ in named for t in marks.tokens_of(node.input[k])}
    found = _twice(named, tokens, [token for token in waiting if token not in claimed])
    waiting = [token for token in waiting if token not in {token for _, token in found}]
    left = []
    for place, own in named:
        joined = [] if own else _joined(marks, place, tokens, waiting)
        if own in tokens or not (own or joined):
            continue
        same = [token for token in waiting if marks.alike(token, own)]
        if len(same) == 1 or joined:
            found.append((place, " ".join(joined or same)))
            waiting = [token for token in waiting if token not in (joined or same)]
        else:
            left.append(place)
    if left and not waiting:
        return found + [(p, "") for p in left if p[0].input[p[1]] in marks.placeholders]
    return found + (list(zip(left, waiting, strict=True)) if len(left) == len(waiting) else [])


def _twice(
    named: Sequence[tuple[Place, str]], tokens: Sequence[str], waiting: Sequence[str]
) -> list[tuple[Place, str]]:
    """Where one node reads one tensor at two inputs (scale and shift that are zeros, two first
    states): the call read one tensor for each, in the same order."""
    found: list[tuple[Place, str]] = []
    for node in {place[0].output[0]: place[0] for place, _ in named}.values():
        here = [(place, own) for place, own in named if place[0] is node]
        for own in {own for _, own in here if own in tokens}:
            places = [place for place, each in here if each == own]
            meant = [token for token in tokens if token == own or token in waiting]
            if len(places) == len(meant) > 1:
                pairs = zip(places, meant, strict=True)
                found += [(place, token) for place, token in pairs if token != own]
    return found


def _joined(marks: Marks, place: Place, tokens: Sequence[str], waiting: Sequence[str]) -> list[str]:
    """What the call read in the place of several parameters that were joined in one tensor (biases
    of a GRU): for each what is called alike in its module; none where that is not so for all, or
    the call read these."""
    parts = marks.tokens_of(place[0].input[place[1]])
    if not set(parts).isdisjoint(tokens):
        return []
    found = [[token for token in waiting if marks.alike(token, part)] for part in parts]
    return [each[0] for each in found] if len(parts) > 1 and {*map(len, found)} == {1} else []


def made_by_calls(model: onnx.ModelProto, marks: Marks) -> set[str]:
    """PyTorch's names of all that the file still has."""
    said = [about for node in model.graph.node if (about := reading_of(node)) is not None]
    made = {name for node in model.graph.node for name in node.output}
    return made.union((about.made for about in said), marks.signature, marks.inputs)


def made_by_call(about: Reading, there: Collection[str]) -> bool:
    """A tensor that a call read, and that is none of the module's, is the exporter's or of the
    code: all that it says it reads is there, or was made of nothing (``ones``).

    Args:
        there: as :func:`made_by_calls` has it.
    """
    return all(name in there or stem(name) in _CREATING for name in about.taken)


def reads_no_other(nodes: Sequence[onnx.NodeProto], stored: Collection[str]) -> bool:
    """Values that are computed account for all that a call read, but for the module's tensors that
    it names: whatever else its nodes read is a number of the code (``x ** 2``), or of the exporter.

    Args:
        nodes: all of one call.
        stored: the initializers.
    """
    about = reading_of(nodes[0])
    assert about is not None
    made = {name for node in nodes for name in node.output}
    read = {name for node in nodes for name in node.input if name and name not in stored}
    said = {name for name in about.taken if stem(name) not in _CREATING}
    return len(read - made) >= len(said.difference(about.tensors))


def constants_of_code(
    marks: Marks, about: Reading, places: Sequence[Place]
) -> list[tuple[Place, str]]:
    """Where a call that reads nothing of the module's, and no other than what is computed, reads a
    tensor folded from a parameter: a number of the code, which happened to be equal."""
    if about.tensors:
        return []
    return [
        (place, "")
        for place in places
        for name in [place[0].input[place[1]]]
        if marks.tokens_of(name) and not about.takes(name) and not rules_of(place[0])
    ]


def folded_apart(marks: Marks, name: str, places: Sequence[Place]) -> list[tuple[Place, str]]:
    """Readers of a tensor folded from one parameter whose calls read another, of a module of their
    own: the parameter of that module which is called alike, where the module has it. So scales of
    layers, reshaped by each, are told apart: PyTorch's graph had a reshaped tensor for each.

    Args:
        places: all readers of ``name``.
    """
    listed = marks.signature.get(marks.token_of(name))
    if listed is None or name in marks.placeholders:
        return []
    known = {each.name for each in marks.signature.values()}
    said = [(place, about) for place in places if (about := reading_of(place[0])) is not None]
    own = [about.scope for _, about in said if about.takes(name)]
    if not own or not listed.name.startswith(f"{own[0]}."):
        return []
    last = listed.name.removeprefix(f"{own[0]}.")
    others = [(p, f"{a.scope}.{last}") for p, a in said if not a.takes(name) and a.scope not in own]
    return [(place, other) for place, other in others if other in known]


def _own(marks: Marks, place: Place) -> str:
    """PyTorch's name of what a node reads, "" where its call read something else made of it, or
    the node is the exporter's own, as a convolution with a normalization in it is."""
    node, position = place
    name = node.input[position]
    direct = name in marks.placeholders or is_nameless(name)
    return marks.token_of(name) if direct and "BatchNorm" not in rules_of(node) else ""


def perhaps_merged(
    model: onnx.ModelProto, folder: Path | None, marks: Marks, origins: Mapping[str, Origin]
) -> tuple[str, ...]:
    """Parameters of equal elements with several readers that the file does not tell apart."""
    stored = Stored(model, folder)
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        for name in set(node.input):
            readers.setdefault(name, []).append(node)
    found = []
    for name, origin in origins.items():
        nodes = readers.get(name, [])
        if origin.kind is not Kind.PARAMETER or len(nodes) < 2 or stored.size(name) < 2:
            continue
        ends, tokens = stored.ends(name), marks.tokens_of(name)
        own = marks.placeholders.get(name) or (tokens[0] if len(tokens) == 1 else None)
        if ends is None or ends[0] != ends[1] or marks.trained is not None:
            continue
        if marks.named and _own_readers(name, nodes):
            continue
        known = [about for node in nodes if (about := reading_of(node)) is not None]
        alike = len(known) == len(nodes) and all(own in about.tensors for about in known)
        if not alike and is_constant(stored.value(name)):
            found.append(name)
    return tuple(found)


def _own_readers(name: str, nodes: Sequence[onnx.NodeProto]) -> bool:
    """Only the module that a parameter is named after reads it, if it is called several times
    (``layer``, ``layer_1``)."""
    home = name.rpartition(".")[0]
    scopes = {re.sub(r"_\d+$", "", module_of(node)) for node in nodes}
    return scopes == {home}
