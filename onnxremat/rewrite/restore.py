"""Undo a rewrite: the graph as it was before recomputations, gates, pins and shapes that only a run
tells were added."""

from __future__ import annotations

import onnx

from onnxremat.graph.ir import rename_captures
from onnxremat.graph.onnx_io import ORIGIN
from onnxremat.graph.unforeseen import ZERO
from onnxremat.rewrite.annotate import NODE_KEYS
from onnxremat.rewrite.emit import KEY, metadata
from onnxremat.rewrite.pins import is_added

SHOWING = ("Reshape", "Add")  # of what is added: input 0 as it is
OWN = ("plan", "options", "facts", "scratch", "devices")


def restored(model: onnx.ModelProto, *, planned: bool = False) -> onnx.ModelProto:
    """The model without what onnxremat added, so that it can be planned anew; any other model
    comes back as it is.

    Args:
        planned: as its plan has it: shapes that only a run tells were there when it was planned.
    """
    if "plan" not in metadata(model):
        return model
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = result.graph

    def went(name: str) -> bool:
        return is_added(name) or (name.startswith(ZERO) and not planned)

    by_name = {node.name: node for node in graph.node}
    same: dict[str, str] = {}  # tensor that goes away to the one that stays
    kept = []
    for node in graph.node:
        origin = next((e.value for e in node.metadata_props if e.key == ORIGIN), "")
        if went(node.name):
            if node.op_type in SHOWING:
                same[node.output[0]] = node.input[0]
        elif origin and origin in by_name:
            same.update(zip(node.output, by_name[origin].output, strict=False))
        else:
            kept.append(node)
    same = {name: _last(same, name) for name in same}
    nodes = [rename_captures(node, same) for node in kept]
    for node in nodes:
        node.input[:] = [same.get(name, name) for name in node.input]
        kept_facts = [(e.key, e.value) for e in node.metadata_props if e.key not in NODE_KEYS]
        if len(kept_facts) < len(node.metadata_props):
            del node.metadata_props[:]
            for key, value in kept_facts:
                node.metadata_props.add(key=key, value=value)
    del graph.node[:]
    graph.node.extend(nodes)
    weights = [t for t in graph.initializer if not went(t.name)]
    del graph.initializer[:]
    graph.initializer.extend(weights)
    written = {name for node in nodes for name in node.output}
    infos = [v for v in graph.value_info if v.name in written]
    del graph.value_info[:]
    graph.value_info.extend(infos)
    facts = [e for e in model.metadata_props if e.key not in {f"{KEY}.{n}" for n in OWN}]
    del result.metadata_props[:]
    result.metadata_props.extend(facts)
    return result


def _last(same: dict[str, str], name: str) -> str:
    passed = set[str]()  # files of others may have nodes that repeat each other
    while name in same and name not in passed:
        passed.add(name)
        name = same[name]
    return name
