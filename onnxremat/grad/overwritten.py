"""Tensors for onnxruntime's BatchNormalization to overwrite.

In training mode its kernel writes the statistics of the batch into the memory of the running ones,
which are state, read again after it. So each op is given tensors of its own in their place, whose
values do not matter. No two of them may become one, and none a constant: onnxruntime merges equal
nodes and equal constants (the statistics of a fresh net are equal, a module called twice reads the
same ones), and one op would overwrite what the gradient of another still reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx

from onnxremat.grad.tape import Tape
from onnxremat.graph.ir import Graph, Op, Role


def with_overwritten(graph: Graph, statistics: Sequence[str]) -> tuple[Graph, list[Op]]:
    """The graph, and for each of the statistics an op, not in it yet, that makes a tensor of its
    size which may be overwritten: the statistic plus a number of its own, which is not known before
    the run. It belongs right before its reader: in a pipeline, in the stage with the statistic. Of
    a module that is called twice, in two stages perhaps, it is the number alone: one stage only may
    read what a step moves."""
    if not statistics:
        return graph, []
    tape = Tape(graph.tensors, graph.opsets[""], [op.name for op in graph.ops])
    with tape.scope("overwritten", "forward"):
        kinds = dict.fromkeys(graph.tensors[name].dtype for name in statistics)
        numbers = {kind: _numbers(tape, graph.inputs[0], len(statistics), kind) for kind in kinds}
        made = []
        for k, name in enumerate(statistics):
            own = numbers[tape.dtype(name)][k]
            shared = statistics.count(name) > 1
            made.append(tape.expand(own, tape.shape(name)) if shared else tape.add(name, own))
    model, tensors = onnx.ModelProto(), dict(tape.tensors)
    model.CopyFrom(graph.model)
    for constant in tape.initializers:
        model.graph.initializer.append(constant)
        tensors[constant.name] = replace(tensors[constant.name], role=Role.WEIGHT)
    maker = {name: op for op in tape.ops for name in op.outputs}
    numbers_of = [op for op in tape.ops if op.outputs[0] not in made]
    graph = replace(graph.with_ops([*numbers_of, *graph.ops], tensors), model=model)
    return graph, [maker[name] for name in made]


def _numbers(tape: Tape, data: str, count: int, kind: int) -> tuple[str, ...]:
    """0, 1, 2, ... of shape [1]; all one more where the data begin with another number than 0."""
    rank = tape.rank(data)
    if rank:
        start, end = tape.integers(*[0] * rank), tape.integers(*[1] * rank)
        data = tape.op("Slice", data, start, end, shape=[1] * rank, dtype=tape.dtype(data))
    begins = tape.cast(tape.cast(data, onnx.TensorProto.BOOL), kind)
    every = tape.add(tape.reshape(begins, [1]), tape.constant(np.arange(count), kind))
    sizes = tape.integers(*[1] * count)
    return tape.multi("Split", [every, sizes], [(kind, [1])] * count, axis=0)
