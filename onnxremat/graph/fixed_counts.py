"""Counts that a file has as numbers, though only a run knows them: a loop over what is found, as
tracing writes it out for as many as there were when the model was exported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from onnx import helper

from onnxremat.graph.ir import Graph, Op

# Ops whose first result is as long as their data say: the axis along which it is, of so many.
FOUND_ALONG = {"NonZero": (1, 2), "Unique": (0, 1), "NonMaxSuppression": (0, 2)}


@dataclass(frozen=True)
class FixedCount:
    """What an op finds is taken apart by a Split that names the lengths of all its parts: a run
    that finds more or less ends with onnxruntime's error.

    Attributes:
        op, split: both ops.
        count: how many have to be found.
    """

    op: Op
    split: Op
    count: int

    @property
    def note(self) -> str:
        """What a user should know."""
        return (
            f"a run has to find {self.count} in {self.op.name} ({self.op.op_type}), as many as the "
            f"model was exported with: {self.split.name} ({self.split.op_type}) takes so many "
            "apart, and with data that has more or fewer onnxruntime ends with an error (tracing "
            "writes out a loop over what is found; export one over all there may be)"
        )


def fixed_count(
    graph: Graph, op: Op, constant_of: Callable[[str], np.ndarray | None]
) -> FixedCount | None:
    """Of what an op finds; None where it does not find, or nothing says how much it has to be."""
    along = FOUND_ALONG.get(op.op_type) if op.standard else None
    if along is None or any(a.name == "axis" for a in op.node.attribute):
        return None
    found = _taken_apart(graph, op.outputs[0], *along, constant_of)
    return FixedCount(op, *found) if found else None


def _taken_apart(
    graph: Graph, name: str, axis: int, rank: int, constant_of: Callable[[str], np.ndarray | None]
) -> tuple[Op, int] | None:
    for index in graph.readers.get(name, ()):
        op = graph.ops[index]
        settings = {a.name: helper.get_attribute_value(a) for a in op.node.attribute}
        if op.op_type == "Transpose" and op.standard:
            read = list(settings.get("perm", range(rank)[::-1])).index(axis)
            if found := _taken_apart(graph, op.outputs[0], read, rank, constant_of):
                return found
        elif op.op_type == "Split" and op.standard and settings.get("axis", 0) % rank == axis:
            lengths = constant_of(op.inputs[1]) if len(op.inputs) > 1 else settings.get("split")
            if lengths is not None and (count := int(np.sum(lengths))):
                return op, count
    return None
