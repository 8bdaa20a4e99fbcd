"""Parameters that PyTorch's exporter lists and that its optimizer took away: numbers that change
nothing as they are (0 added, 1 multiplied), one of two equal nodes, what it computed with."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import onnx

from onnxremat.grad.marks import Marks, Reading, reading_of
from onnxremat.grad.signature import PARAMETER


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
    # Where nothing is lost they are tied to others, or the module does not use them.
    lost = _taken_away(model, marks)
    return tuple(
        each.name
        for token, each in marks.signature.items()
        if each.kind == PARAMETER and each.name not in found and (lost or token in asked)
    )


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


def stand_ins(model: onnx.ModelProto, marks: Marks) -> tuple[str, ...]:
    """Parameters of operations that were kept for others too: a node says that PyTorch's read
    ``layer_norm_1``, and reads what was made by ``layer_norm``."""
    makers: dict[str, tuple[str, tuple[str, ...]]] = {}  # call and what it read, by tensor
    for node in model.graph.node:
        about = reading_of(node)
        if about is not None:
            makers.update((name, (about.made, about.tensors)) for name in node.output)
    made = {call for call, _ in makers.values()} | {t.name for t in model.graph.initializer}
    made |= {name for node in model.graph.node for name in node.output}
    found: dict[str, None] = {}
    for node in model.graph.node:
        about = reading_of(node)
        if about is None:
            continue
        asked = set(about.taken)
        for name in filter(makers.__contains__, node.input):
            call, tokens = makers[name]
            kinds = {_stem(call), _stem(name)}  # of an operator with several results: getitem
            other = {each for each in asked - made if _stem(each) in kinds}
            if other and asked.isdisjoint((call, name)) and call != about.made:
                found.update(
                    (marks.signature[t].name, None) for t in tokens if t in marks.signature
                )
    return tuple(found)


def _stem(name: str) -> str:
    return re.sub(r"(_\d+)+$", "", name)
