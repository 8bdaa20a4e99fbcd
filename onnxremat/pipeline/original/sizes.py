"""Sizes that shape inference leaves open: of sequences, and of what depends on data."""

from __future__ import annotations

from pathlib import Path

import onnx

from onnxremat.grad.constants import Constants
from onnxremat.grad.exported.marks import first_of
from onnxremat.graph.chosen import chosen_by
from onnxremat.graph.fixed_counts import FOUND_ALONG, fixed_count
from onnxremat.graph.ir import Graph, Tensor
from onnxremat.graph.sequence_bytes import sequence_bytes
from onnxremat.graph.sequences import without_sequences
from onnxremat.ort.infer import build_graph, inferred, with_shapes
from onnxremat.ort.profile import Feeds, profile
from onnxremat.ort.session import TUNED
from onnxremat.units import format_bytes


def with_measured_shapes(
    graph: Graph, model: onnx.ModelProto, feeds: Feeds, folder: Path | None
) -> Graph:
    """Sizes that only a run shows (data-dependent shapes), where inference left any open."""
    if all(graph.tensors[name].shape is not None for op in graph.ops for name in op.writes):
        return graph
    found = profile(model, feeds, TUNED, folder=folder)
    by_name = {op.name: op for op in graph.ops}
    told = inferred(model).graph
    values = (*told.value_info, *told.output)
    others = {v.name for v in values if v.type.WhichOneof("value") not in ("tensor_type", None)}
    shapes = {}
    for kernel in found.kernels:
        op = by_name.get(kernel.name)
        made = [name for name in op.writes if name not in others] if op is not None else []
        if len(made) == len(kernel.outputs):  # a profile lists tensors only
            shapes.update(dict(zip(made, kernel.outputs, strict=True)))
    tensors = dict(with_shapes(graph, shapes, shapes).tensors)
    for op in graph.ops:
        if op.name in {k.name for k in found.kernels}:
            for name in op.writes:  # sequences and the like
                if tensors[name].shape is None:
                    size = sequence_bytes(op, tensors) or 0
                    tensors[name] = Tensor(name, 0, (), size, tensors[name].role)
    return graph.with_ops(graph.ops, tensors)


def in_tensors(graph: Graph, folder: Path | None) -> Graph:
    """The graph with sequences of known tensors as these tensors: the same values, and every one
    of a size that can be planned."""
    while (model := without_sequences(graph, Constants(graph))) is not None:
        graph = with_shapes(build_graph(model, folder), known_sizes(graph))
    return graph


def known_sizes(graph: Graph) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Element type and shape of every tensor whose shape is known."""
    return {n: (t.dtype, t.shape) for n, t in graph.tensors.items() if t.shape is not None}


def seen_sizes(graph: Graph) -> frozenset[str]:
    """Tensors whose sizes are those of one run."""
    return frozenset(name for name, tensor in graph.tensors.items() if tensor.seen)


def size_notes(graph: Graph, ran: bool, most: int | None = None) -> tuple[str, ...]:
    """What a user should know of values whose bytes are not known, or not always the same.

    Args:
        ran: bytes and times are those of a run.
        most: bytes with everything kept and each value as large as it can be, None where that is
            not known.
    """
    seen = [name for op in graph.ops for name in op.writes if graph.tensors[name].seen]
    unknown = [
        name
        for op in graph.ops
        if sequence_bytes(op, graph.tensors) is None
        for name in op.writes
        if not graph.tensors[name].dtype
    ]
    notes = []
    if seen:
        notes.append(
            f"the sizes of {len(seen)} values are known from a run alone ('{seen[0]}' the first; "
            "they depend on data, or no rule infers them): bytes and times are those of the inputs "
            "that it was measured with; --data gives your own"
            + ("; how large they can be is not known" if most is None else
               f"; with each of them at its largest, everything kept takes {format_bytes(most)}")
        )  # fmt: skip
    if unknown:
        notes.append(
            f"{len(unknown)} values are no tensors ('{unknown[0]}' the first): their bytes are not "
            "predicted, only measured"
        )
    choosing = [(op, names) for op in graph.ops if (names := chosen_by(graph, op))]
    if choosing:
        op, names = choosing[0]
        notes.append(
            f"what {op.name} ({op.op_type}) runs follows from {first_of(names, 3)}"
            + (f", and so with {len(choosing) - 1} more" if choosing[1:] else "")
            + (": bytes and times are those of the inputs that it was measured with; --data gives "
               "your own" if ran else ": what it takes inside is not known without a run")
        )  # fmt: skip
    finding = [op for op in graph.ops if op.op_type in FOUND_ALONG]
    if finding:
        constant_of = Constants(graph)
        fixed = (fixed_count(graph, op, constant_of) for op in finding)
        notes += [each.note for each in fixed if each]
    return tuple(notes)
