"""A number by which processes see whether they have the same training graph."""

from __future__ import annotations

from itertools import chain
from zlib import crc32

import onnx

from onnxremat.graph.ir import all_nodes

OWN = "onnxremat."  # begins the keys of metadata that count


def checksum(model: onnx.ModelProto) -> int:
    """Of what a step computes and of the values in its file, one after the other: as a whole they
    would be in memory once more.

    What exporters note about a model's code does not count: it names files, which lie in other
    folders on other machines.
    """
    graph, plain, found = model.graph, onnx.GraphProto(), 0
    plain.node.extend(graph.node)
    for node in all_nodes(plain):
        kept = [entry for entry in node.metadata_props if entry.key.startswith(OWN)]
        del node.metadata_props[:]
        node.metadata_props.extend(kept)
        node.ClearField("doc_string")
    facts = (entry for entry in model.metadata_props if entry.key.startswith(OWN))
    for part in chain(
        model.opset_import, facts, model.functions, graph.input, graph.output, graph.initializer,
        graph.sparse_initializer, plain.node,
    ):  # fmt: skip
        found = crc32(part.SerializeToString(), found)
    return found
