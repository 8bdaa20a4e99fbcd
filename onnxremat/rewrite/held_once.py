"""Weights that are there once, for a budget that two copies would not keep.

A language model whose embedding is its last layer, too, reads that matrix twice: row by row, and in
a product with its transpose. onnxruntime makes the transpose as it loads the model, or the kernel
packs it, and keeps both: 147 of GPT-2's 621 MiB of weights. A product can read the matrix as it
lies, its second side transposed (``transB``), where the matrix is no constant to the kernel
(:mod:`onnxremat.rewrite.unpacked`). The product takes 1.04 times as long for 512 rows, 1.2 times
for 64 and up to 1.8 times for few.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

import onnx

from onnxremat.graph.equal_weights import equal_weights, transposed_weights
from onnxremat.graph.ir import Graph, Op
from onnxremat.ort.weights import RETURNED, Forms, forms_of
from onnxremat.rewrite.turned import can_turn, import_products, read_turned
from onnxremat.rewrite.unpacked import list_as_inputs

LEAST = 1 << 20  # bytes of a copy that is worth a slower product


def held_once(graph: Graph, folder: Path | None, *, standard: bool) -> Graph | None:
    """The graph without second copies of big weights; None where there are none.

    Args:
        folder: where its external weights are.
        standard: with standard operators alone.
    """
    made = _without(graph, equal_weights(graph, folder, LEAST))
    made = _turned(made, transposed_weights(made, folder, LEAST), standard)
    twice = [name for name, forms in forms_of(made).items() if _more(forms) >= LEAST]
    if made is graph and not twice:
        return None
    model = onnx.ModelProto()
    model.CopyFrom(made.model)
    list_as_inputs(model, twice)
    return replace(made, model=model)


def _more(forms: Forms) -> int:
    """Bytes of a weight beside its smallest form; a copy that is returned is nobody's to spare."""
    sizes = sorted(size for form, size in forms.items() if form != RETURNED)
    return sum(sizes[1:])


def _without(graph: Graph, copies: Mapping[str, str]) -> Graph:
    """The graph that reads the first of weights that are equal."""
    held = {name for op in graph.ops for name in op.captures}.union(graph.outputs)
    names = {name: first for name, first in copies.items() if name not in held}
    if not names:
        return graph
    return _dropped(graph, tuple(op.renamed(op.name, names) for op in graph.ops), names)


def _dropped(graph: Graph, ops: tuple[Op, ...], names: Collection[str]) -> Graph:
    """The graph with other ops, without weights that these do not read."""
    model = onnx.ModelProto()
    model.CopyFrom(graph.model)
    stored = model.graph.initializer
    for index in reversed([i for i, tensor in enumerate(stored) if tensor.name in names]):
        del stored[index]
    tensors = {name: tensor for name, tensor in graph.tensors.items() if name not in names}
    return replace(graph, ops=ops, tensors=tensors, model=model)


def _turned(graph: Graph, copies: Mapping[str, str], standard: bool) -> Graph:
    """The graph that reads weights where products alone read their copies."""
    kept: dict[str, str] = {}
    stay = {*graph.outputs}
    for name, weight in copies.items():  # each may be the transpose of the other
        ops = (graph.ops[index] for index in graph.readers.get(name, ()))
        products = all(can_turn(op, name, graph, standard) for op in ops)
        if products and weight not in kept and name not in stay:
            kept[name] = weight
            stay.add(weight)
    if not kept:
        return graph
    turned = tuple(
        read_turned(op, kept, graph) if kept.keys() & set(op.reads) else op for op in graph.ops
    )
    made = _dropped(graph, turned, kept)
    import_products(made.model, turned)
    return made
