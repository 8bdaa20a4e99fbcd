"""Parameters that PyTorch's exporter lists and that its optimizer took away: numbers that change
nothing as they are (0 added, 1 multiplied), one of two equal nodes, what it computed with."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

import onnx

from onnxremat.grad.exported.marks import Marks, Reading, is_folded_norm, reading_of, stem
from onnxremat.grad.exported.signature import PARAMETER


def absent(
    model: onnx.ModelProto, marks: Marks, learned: Mapping[str, Sequence[str]]
) -> tuple[str, ...]:
    """Parameters of the module without a tensor to train.

    Args:
        learned: tensors that are parameters, and the names that each is known by.
    """
    if any(node.op_type == "Constant" for node in model.graph.node):
        return ()  # the optimizer leaves none: it was not run, all of them are there
    found = {name for names in learned.values() for name in names}
    read: dict[str, list[str]] = {}  # per node of PyTorch's graph, what its nodes here read
    tokens: dict[str, tuple[str, ...]] = {}
    for node in model.graph.node:
        about = reading_of(node)
        if about is not None:
            tokens[about.call] = about.tensors
            read.setdefault(about.call, []).extend(n for n in node.input if n in learned)
            found.update(_tied(marks, about))
    for call, names in read.items():
        if len(names) == len(tokens[call]):  # a tied one may have another's name
            found |= {marks.signature[t].name for t in tokens[call] if t in marks.signature}
    asked = {token for tensors in tokens.values() for token in tensors}
    found.update(name for names in further_names(model, marks).values() for name in names)
    # Where nothing is lost they are tied to others, or the module does not use them.
    lost = _taken_away(model, marks)
    return tuple(
        each.name
        for token, each in marks.signature.items()
        if each.kind == PARAMETER and each.name not in found and (lost or token in asked)
    )


def of_folded_norms(model: onnx.ModelProto, marks: Marks) -> set[str]:
    """Parameters of batch normalizations that were folded into convolutions."""
    folded = (reading_of(node) for node in model.graph.node if is_folded_norm(node))
    tokens = {token for about in folded if about is not None for token in about.tensors}
    return {marks.signature[token].name for token in tokens if token in marks.signature}


def _taken_away(model: onnx.ModelProto, marks: Marks) -> bool:
    """The file misses a result that may have been made of a parameter: a node reads it, or it is
    the output, and no node made it."""
    calls = {about.call: about for node in model.graph.node if (about := reading_of(node))}
    read = {name for about in calls.values() for name in about.taken} | set(marks.results)
    there = {about.made for about in calls.values()}
    there |= {tensor.name for tensor in model.graph.initializer}
    missing = read - there - marks.signature.keys() - set(marks.inputs)
    return not marks.results or bool(missing)


def _tied(marks: Marks, about: Reading) -> Iterator[str]:
    """What a module calls a tensor that it reads under another's name."""
    for token in about.tensors:
        known = marks.signature[token].name if token in marks.signature else ""
        here = f"{about.scope}.{known.rsplit('.', 1)[-1]}"
        if known and about.scope and here != known:
            yield here


def further_names(model: onnx.ModelProto, marks: Marks) -> dict[str, tuple[str, ...]]:
    """Names that a module has for a tensor beside the one that PyTorch's nodes read it by: of a
    module that nothing calls, beside those that read it (the ``shared`` of BART and T5, whose
    ``encoder.embed_tokens``, ``decoder.embed_tokens`` and ``lm_head`` all read one table). Only
    where it is the only one that may be meant."""
    said = [about for node in model.graph.node if (about := reading_of(node))]
    scopes = {about.scope for about in said}
    read = {name for about in said for name in about.taken}
    readers: dict[str, set[str]] = {}
    for about in said:
        for token in about.tensors:
            readers.setdefault(token, set()).add(re.sub(r"_\d+$", "", about.scope))  # called twice
    found: dict[str, tuple[str, ...]] = {}
    for token, each in marks.signature.items():
        module = each.name.rpartition(".")[0]
        called = any(f"{scope}.".startswith(f"{module}.") for scope in scopes)
        if each.kind != PARAMETER or token in read or called or "." not in module:
            continue
        parent = module.rpartition(".")[0]
        meant = [
            marks.signature[other].name
            for other, homes in readers.items()
            if marks.alike(token, other)
            and sum(home.startswith(f"{parent}.") for home in homes) > 1
        ]
        if len(meant) == 1:
            found[meant[0]] = (*found.get(meant[0], ()), each.name)
    return {name: names for name, names in found.items() if len(names) == 1}


def stand_ins(model: onnx.ModelProto, marks: Marks, missing: Collection[str]) -> tuple[str, ...]:
    """Parameters of operations that were kept for others too, and of those in front of them in
    their module, where the other module misses the same (two equal branches of a net).

    Args:
        missing: parameters without a tensor.
    """
    found: dict[str, None] = {}
    for _, about in stood_in(model):
        tokens = (token for token in about.tensors if token in marks.signature)
        found.update((marks.signature[token].name, None) for token in tokens)
    modules = {ends for name in found for other in missing if (ends := _in_place(name, other))}
    for each in marks.signature.values():
        for own, other in modules:
            if each.name.startswith(f"{own}.") and other + each.name[len(own) :] in missing:
                found[each.name] = None
    return tuple(found)


def _in_place(one: str, other: str) -> tuple[str, str] | None:
    """The modules of two parameters up to where their names differ, None where they do so in more
    than one part."""
    parts, others = one.split("."), other.split(".")
    apart = [k for k, (a, b) in enumerate(zip(parts, others, strict=False)) if a != b]
    if len(parts) != len(others) or len(apart) != 1:
        return None
    return ".".join(parts[: apart[0] + 1]), ".".join(others[: apart[0] + 1])


def stood_in(model: onnx.ModelProto) -> Iterator[tuple[str, Reading]]:
    """Tensors that are read for others too, which equal nodes made that are gone, and the nodes of
    PyTorch's graph that made them: one says that it reads ``layer_norm_1``, and reads
    ``layer_norm``."""
    makers: dict[str, Reading] = {}
    for node in model.graph.node:
        about = reading_of(node)
        if about is not None:
            makers.update((name, about) for name in node.output)
    made = {about.made for about in makers.values()} | {t.name for t in model.graph.initializer}
    made |= {name for node in model.graph.node for name in node.output}
    for node in model.graph.node:
        about = reading_of(node)
        if about is None:
            continue
        gone = {stem(each) for each in {*about.taken} - made}
        for name in filter(makers.__contains__, node.input):
            maker = makers[name]
            said = sum(each in (maker.made, name) for each in about.taken)
            alike = not gone.isdisjoint((stem(maker.made), stem(name)))  # results: getitem
            if alike and said < list(node.input).count(name) and maker.made != about.made:
                yield name, maker
