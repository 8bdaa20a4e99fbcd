"""A batch computed in parts: slices of the inputs, a copy of the graph for each, joined results.

Fission along the batch (MAGIS, section 4.2, of the whole graph): one part after the other needs the
activations of one part only, and parts on different devices run side by side. Weights and what does
not depend on the batch are shared. Where it is not shown that rows depend on themselves alone
(:mod:`onnxremat.rewrite.own_rows`), it is refused; that parts compute the same the caller checks.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from onnxremat.errors import UnsupportedError, UsageError
from onnxremat.graph.batch import (
    SHAPES,
    batched_inputs,
    decided_by,
    dependents,
    made_batches,
    said_shape,
    scaled_shape,
    without_sizes,
)
from onnxremat.graph.batch_axes import batch_places
from onnxremat.graph.ir import Graph, Op
from onnxremat.graph.onnx_io import to_model
from onnxremat.graph.traits import has_bodies
from onnxremat.graph.weights import place
from onnxremat.limits import NODES, check
from onnxremat.rewrite.own_rows import require_own_rows

STATED = 10  # opset from which Slice reads its bounds as inputs
# Operators that may read a batch that is a constant, with the axis that it has there.
BROADCAST = dict.fromkeys(("Add", "Concat", "Div", "Mul", "Sub", "Where"), 0)
REPEATED = {**BROADCAST, "LSTM": 1, "GRU": 1, "RNN": 1}  # the state that a recurrence begins with
# Operators whose rows are those of their inputs of the same rank, the right one of a product of two
# matrices aside.
ROWWISE = (
    *BROADCAST,
    "And",
    "Equal",
    "Greater",
    "Less",
    "MatMul",
    "Max",
    "Min",
    "Or",
    "Pow",
    "Sum",
)


def rows_of_parts(batch: int, split: Sequence[int]) -> tuple[int, ...]:
    """Rows of each part: as given, or of so many equal parts where one number is given.

    Raises:
        UsageError: the parts are not those of a batch of this size.
    """
    if len(split) > 1:
        if sum(split) != batch or min(split) < 1:
            text = ",".join(map(str, split))
            raise UsageError(
                f"parts of {text} rows are not a batch of {batch}",
                hint="give rows that add up to the batch, or the number of parts",
            )
        return tuple(split)
    (parts,) = split
    if not 1 <= parts <= batch:
        raise UsageError(
            f"a batch of {batch} cannot be split into {parts} parts",
            hint=f"from 1 to {batch}",
        )
    return tuple(batch // parts + (index < batch % parts) for index in range(parts))


def split_batch(
    graph: Graph,
    split: Sequence[int],
    *,
    makes_batches: bool = True,
    folder: Path | None = None,
) -> onnx.ModelProto:
    """The model that computes the batch in parts, one after the other as listed.

    Args:
        graph: with bound shapes.
        split: rows of each part, or the number of equal parts.
        makes_batches: take constants of the batch's length for batches made of nothing.
        folder: where external weights are; without it their values are not known.

    Raises:
        UsageError: no input has a batch dimension, or the parts do not make up the batch.
        UnsupportedError: an output has no batch dimension, or what runs depends on the rows.
    """
    inputs, batch = batched_inputs(graph.model)
    assert isinstance(batch, int)
    rows = rows_of_parts(batch, split)
    made_of_nothing = made_batches(graph, batch) if makes_batches else set()
    made = _Parts(graph, inputs, batch, made_of_nothing, folder)
    inside = made.inside
    for op in graph.ops:
        if has_bodies(op) and inside.intersection(op.writes) and decided_by(op, inside):
            raise UnsupportedError(
                f"what '{op.name}' ({op.op_type}) runs depends on all rows of the batch",
                why="for some of them it may run something else",
                hint="leave the batch whole",
            )
    require_own_rows(graph, inputs, batch, hint="leave the batch whole")
    for name in graph.outputs:
        if name not in inside or (graph.tensors[name].shape or ())[:1] != (batch,):
            raise UnsupportedError(
                f"output '{name}' does not have the batch as its leading dimension",
                why="its parts cannot be joined",
                hint="leave the batch whole",
            )
    shared = [op for op in graph.ops if not inside.intersection(op.writes)]
    check(
        len(rows) * (len(graph.ops) - len(shared)), NODES,
        f"nodes with the batch in {len(rows)} parts", hint="fewer parts", kind=UsageError,
    )  # fmt: skip
    copies = [op for index in range(len(rows)) for op in made.part(index, rows)]
    joins = [made.join(name, len(rows)) for name in graph.outputs]
    model = to_model(graph.with_ops([*shared, *copies, *joins]))
    del model.graph.value_info[:]  # of the whole batch
    model.graph.initializer.extend(made.constants)
    return model


class _Parts:
    """Copies of what depends on the batch."""

    def __init__(
        self, graph: Graph, inputs: Sequence[str], batch: int, made: set[str], folder: Path | None
    ) -> None:
        self.graph, self.inputs, self.batch, self.made = graph, inputs, batch, made
        self.inside = dependents(graph, {*inputs, *self.made})
        self.places = batch_places(graph, inputs, batch)
        self.constants: list[onnx.TensorProto] = []
        self.repeated = _repeated(graph, batch, self.inside, folder)
        self._names: set[str] = set()
        self.mark = "/part"
        while any(f"{self.mark}0" in name for name in (*graph.tensors, *graph.names_inside)):
            self.mark += "_"  # of a batch that was in parts before

    def part(self, index: int, rows: Sequence[int]) -> list[Op]:
        """The ops of one part."""
        end = f"{self.mark}{index}"
        names = {name: name + end for name in self.inside}
        start = sum(rows[:index])
        ops = [self._slice(name, names[name], start, start + rows[index]) for name in self.inputs]
        for op in self.graph.ops:
            if self.inside.intersection(op.writes):
                renames = ChainMap(self._repeats(op, rows[index]), names)
                for name in self._shared_rows(op):
                    if name not in renames:
                        piece = renames[name] = names[name] = f"{name}/rows{end}"
                        ops.append(self._slice(name, piece, start, start + rows[index]))
                copy = op.renamed(op.name + end, renames)
                if has_bodies(op):
                    copy = replace(copy, node=without_sizes(copy.node))
                ops.append(self._scaled(op, copy, rows[index]))
        return ops

    def _shared_rows(self, op: Op) -> list[str]:
        """What an op of a part reads rows of, though it is made of no input: a mask, positions."""
        shape = self.graph.tensors[op.outputs[0]].shape or ()
        if (
            op.op_type not in ROWWISE
            or op.op_type == "Concat"
            or shape[:1] != (self.batch,)
            or self.batch < 2
        ):
            return []
        return [
            name
            for name in op.reads
            if name not in self.inside
            and len(own := self.graph.tensors[name].shape or ()) == len(shape)
            and own[0] == self.batch
            and not (op.op_type == "MatMul" and len(shape) == 2 and name == op.inputs[1])
        ]

    def join(self, name: str, parts: int) -> Op:
        """The op that puts an output together."""
        pieces = [f"{name}{self.mark}{index}" for index in range(parts)]
        node = onnx.helper.make_node("Concat", pieces, [name], name=f"{name}/joined", axis=0)
        return _op(node)

    def _slice(self, name: str, piece: str, start: int, end: int) -> Op:
        if self.graph.opsets[""] < STATED:
            node = onnx.helper.make_node(
                "Slice", [name], [piece], name=piece, axes=[0], starts=[start], ends=[end]
            )
            return _op(node)
        bounds = [self._constant(f"{piece}/{what}", [value])
                  for what, value in (("start", start), ("end", end), ("axis", 0))]  # fmt: skip
        return _op(onnx.helper.make_node("Slice", [name, *bounds], [piece], name=piece))

    def _scaled(self, op: Op, copy: Op, rows: int) -> Op:
        """With the rows of the part instead of the batch in the shape that the op is told."""
        shape = said_shape(self.graph, op)
        if shape is None or not (op.inputs[0] in self.inside or op.outputs[0] in self.made):
            return copy
        scaled = scaled_shape(op, shape, self.batch, rows, self.places.get(op.outputs[0]))
        if scaled == shape:
            return copy
        told = self._constant(f"{copy.name}/shape", scaled)
        return copy.renamed(copy.name, {copy.inputs[SHAPES[op.op_type]]: told})

    def _repeats(self, op: Op, rows: int) -> dict[str, str]:
        """Constants of the whole batch that an op reads, as ones of the rows of a part."""
        if op.op_type not in REPEATED:
            return {}
        axis = REPEATED[op.op_type]
        end = self.mark.replace("part", "rows")
        found = {n: f"{n}{end}{rows}" for n in op.reads if (n, axis) in self.repeated}
        for name, part in found.items():
            if part not in self._names:
                self._names.add(part)
                values = self.repeated[name, axis].take(range(rows), axis)
                self.constants.append(numpy_helper.from_array(values, part))
        return found

    def _constant(self, name: str, values: Sequence[int]) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(values, np.int64), name))
        return name


def _repeated(
    graph: Graph, batch: int, inside: set[str], folder: Path | None
) -> dict[tuple[str, int], np.ndarray]:
    """Constants, and the axis along which they are one row repeated for the batch: onnxruntime
    folds a token that is expanded to the batch into such a one."""
    read = {
        (name, axis)
        for op in graph.ops
        if (axis := REPEATED.get(op.op_type, -1)) >= 0 and inside.intersection(op.writes)
        for name in op.reads
        if len(shape := graph.tensors[name].shape or ()) > 1 and shape[axis] == batch > 1
    }
    stored = {
        tensor.name: tensor
        for tensor in graph.model.graph.initializer
        if folder is not None or place(tensor) is None
    }
    found = {}
    for name, axis in read:
        if name in stored:
            values = numpy_helper.to_array(stored[name], str(folder or ""))
            if (values == values.take([0], axis)).all():
                found[name, axis] = values
    return found


def _op(node: onnx.NodeProto) -> Op:
    return Op(node.name, node.op_type, node.domain, tuple(node.input), tuple(node.output), (), node)
