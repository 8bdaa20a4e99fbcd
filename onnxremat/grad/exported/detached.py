"""Where a module stops gradients (``x.detach()``), as files of PyTorch's exporter (dynamo) say.

Without optimization such a file has an Identity that says so. Its optimizer leaves that out; but
the node that read it still says ``%detach``. Here it gets its Identity again, at which gradients
end (:func:`is_stop`). Parts under ``torch.no_grad()`` leave no trace in a file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import onnx
from onnx import helper

from onnxremat.grad.exported.absent import stood_in
from onnxremat.grad.exported.marks import (
    CODE,
    PLACEHOLDER,
    Marks,
    Reading,
    is_detached,
    is_nameless,
    reading_of,
)
from onnxremat.grad.exported.merged import Place
from onnxremat.grad.exported.signature import PARAMETER
from onnxremat.graph.ir import all_nodes, subgraphs

_KEY = "onnxremat.stop_gradient"
_TARGET = re.compile(r"target=torch\.ops\.aten\.detach_?\.default\]")


def is_stop(node: onnx.NodeProto) -> bool:
    """Gradients end at a node."""
    if node.op_type != "Identity":
        return False
    if any(entry.key == _KEY for entry in node.metadata_props):
        return True
    about = reading_of(node)
    return about is not None and _TARGET.search(about.call) is not None


def with_stops(model: onnx.ModelProto, marks: Marks) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """A model with an Identity wherever PyTorch's graph had one that stops gradients, in bodies
    too; and nodes that read such a result, but the file does not tell by which input."""
    if not marks.stopped and not any(map(_takes_stopped, all_nodes(model.graph))):
        return model, ()
    made = onnx.ModelProto()
    made.CopyFrom(model)
    return made, tuple(_with_stops(made.graph, marks, {}, frozenset()))


def _with_stops(
    graph: onnx.GraphProto, marks: Marks, outside: Mapping[str, str], still: frozenset[str]
) -> list[str]:
    """Put them into a graph and the bodies in it; returns the nodes that do not tell.

    Args:
        outside: what PyTorch's graph calls the tensors around a body.
        still: stored tensors around it that the code made.
    """
    calls: dict[str, tuple[Reading, list[onnx.NodeProto]]] = {}
    for node in graph.node:
        about = reading_of(node)
        if about is not None:
            calls.setdefault(about.call, (about, []))[1].append(node)
    own = _names(graph, marks, calls)
    known = {**outside, **own}
    read = {name for node in graph.node for name in node.input}
    there = {*own.values(), *(token for name, token in outside.items() if name in read)}
    stored = {tensor.name for tensor in graph.initializer}
    still |= {n for n in stored if not marks.token_of(n) and not marks.tokens_of(n)}
    found, unclear = _folded(graph, marks, still)
    for about, nodes in calls.values():
        tokens = [t for t in about.taken if is_detached(t) and t not in there]
        if not tokens:
            continue
        places = _places(nodes, about.taken, tokens, known)
        if places is None and not still.isdisjoint(name for n in nodes for name in n.input):
            others = {known.get(name, "") for n in nodes for name in n.input} - {""}
            places = [] if others - {about.made} <= {*about.taken} else None
        if places is None:
            unclear.append(nodes[0].name or nodes[0].output[0])
        # What the code made has no gradient.
        found += [(n, position) for n, position in places or () if n.input[position] not in still]
    stops: dict[str, str] = {}
    for node, position in found:
        name = node.input[position]
        node.input[position] = stops.setdefault(name, f"{name}/detached")
    if stops:
        _insert(graph, stops)
    bodies = [body for node in graph.node for body in subgraphs(node)]
    return unclear + [name for each in bodies for name in _with_stops(each, marks, known, still)]


def _takes_stopped(node: onnx.NodeProto) -> bool:
    about = reading_of(node)
    return about is not None and any(map(is_detached, about.taken))


def _folded(
    graph: onnx.GraphProto, marks: Marks, still: frozenset[str]
) -> tuple[list[Place], list[str]]:
    """Where nodes read a parameter that the exporter folded with the stop before it
    (``w.detach().T``); and nodes that read one, but perhaps as another of equal numbers.

    Args:
        still: stored tensors that the code made.
    """
    places, unclear = [], []
    for node in graph.node:
        about = reading_of(node)
        for position, name in enumerate(node.input):
            if name not in marks.stopped or name in still:
                continue
            if about and any(map(is_detached, about.taken)):
                continue  # of the latter the node tells
            if about and about.takes(name) and len(marks.tokens_of(name)) == 1:
                places.append((node, position))
            else:
                unclear.append(node.name or node.output[0])
    return places, unclear


def straight_through(model: onnx.ModelProto) -> tuple[str, ...]:
    """Nodes that add what was subtracted just before, which only ``x + (y - x).detach()`` makes
    sense of: the file does not say that gradients stop there."""
    every = [*all_nodes(model.graph)]
    makers = {name: node for node in every for name in node.output}
    found = []
    for node in every:
        sources = [makers.get(name) for name in node.input]
        if node.op_type == "Add" and any(
            made is not None and made.op_type == "Sub" and made.input[1] == other
            for made, other in zip(sources, reversed(node.input), strict=True)
        ):
            found.append(node.name or node.output[0])
    return tuple(found)


def stopped_in_one(model: onnx.ModelProto, marks: Marks) -> tuple[str, ...]:
    """Parameters behind tensors that are read for two of PyTorch's graph, which were equal, in a
    module that stops gradients: perhaps in one of the two. Of ``mse(q, z.detach()) +
    mse(q.detach(), z)`` the file has one, which is read twice (of :func:`onnxremat.export`, both).
    """
    if marks.trained is not None or not any(map(_tells_of_stops, all_nodes(model.graph))):
        return ()
    makers = {name: node for node in model.graph.node for name in node.output}
    waiting = [name for name, _ in stood_in(model)]
    behind: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name and name not in behind:
            behind.add(name)
            made = makers.get(name)
            waiting += made.input if made is not None and not is_stop(made) else ()
    found = (t for tensor in model.graph.initializer if tensor.name in behind
             for t in {marks.token_of(tensor.name), *marks.tokens_of(tensor.name)})  # fmt: skip
    listed = (marks.signature[token] for token in found if token in marks.signature)
    return tuple(dict.fromkeys(each.name for each in listed if each.kind == PARAMETER))


def _tells_of_stops(node: onnx.NodeProto) -> bool:
    about = reading_of(node)
    code = next((e.value for e in node.metadata_props if e.key == CODE), "")
    return ".detach(" in code or (
        about is not None and any(map(is_detached, (about.made, *about.taken)))
    )


def _names(
    graph: onnx.GraphProto, marks: Marks, calls: Mapping[str, tuple[Reading, list[onnx.NodeProto]]]
) -> dict[str, str]:
    """What PyTorch's graph calls a tensor; a part of a result as the result."""
    known = {}
    for tensor in graph.initializer:
        token = marks.token_of(tensor.name)
        if token or not is_nameless(tensor.name):
            known[tensor.name] = token or tensor.name
    for value in graph.input:
        known[value.name] = next(
            (e.value for e in value.metadata_props if e.key == PLACEHOLDER), value.name
        )
    for about, nodes in calls.values():
        known.update((name, about.made) for node in nodes for name in node.output)
    return known


def _places(
    nodes: Sequence[onnx.NodeProto],
    taken: Sequence[str],
    detached: Sequence[str],
    known: Mapping[str, str],
) -> list[Place] | None:
    """Where the nodes of a call read what it took detached; None where that is not certain."""
    inner = {name for node in nodes for name in node.output}
    places = [
        (node, position)
        for node in nodes
        for position, name in enumerate(node.input)
        if name in known and name not in inner
    ]
    named = [known[node.input[position]] for node, position in places]
    if len(nodes) == 1 and len(taken) == len(places):
        pairs = list(zip(taken, named, strict=True))
        if all(token == name or token not in named for token, name in pairs):
            return [p for p, token in zip(places, taken, strict=True) if token in detached]
    left = [place for place, name in zip(places, named, strict=True) if name not in taken]
    unknown = {token for token in taken if token not in named}
    count = len({node.input[position] for node, position in left})
    return left if unknown == {*detached} and count == len(unknown) else None


def _insert(graph: onnx.GraphProto, stops: Mapping[str, str]) -> None:
    """An Identity behind the node that makes each tensor, or at the beginning."""
    made = {name for node in graph.node for name in node.output}
    nodes = [_stop(name, stops[name]) for name in stops if name not in made]
    for node in graph.node:
        nodes.append(node)
        nodes += [_stop(name, stops[name]) for name in node.output if name in stops]
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def _stop(name: str, made: str) -> onnx.NodeProto:
    node = helper.make_node("Identity", [name], [made], name=made)
    node.metadata_props.add(key=_KEY, value="x.detach()")
    return node
