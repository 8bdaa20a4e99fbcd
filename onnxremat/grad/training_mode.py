"""Normalization and dropout in training mode."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import onnx
from onnx import helper

from onnxremat.grad.engine import dependents
from onnxremat.grad.overwritten import with_overwritten
from onnxremat.grad.tape import Tape
from onnxremat.graph.ir import Graph, Op, Role, Tensor

FLOAT, BOOL = onnx.TensorProto.FLOAT, onnx.TensorProto.BOOL


@dataclass(frozen=True)
class Statistic:
    """A running statistic of a BatchNormalization: state' = keep * state + rest * batch.

    Attributes:
        name: the statistic, an initializer of the model.
        batch: tensor with the statistic of the batch.
        keep, rest: factors.
        values: of a channel in a batch.
    """

    name: str
    batch: str
    keep: float
    rest: float
    values: int


def trained_norms(
    graph: Graph, chosen: Collection[str], learned: Collection[str], weights: Collection[str],
    still: Collection[str] = (),
) -> tuple[set[str], list[str]]:  # fmt: skip
    """Batch normalizations that are to use the batch, and those that should but cannot: their
    statistics are no initializers. Of those that have no scale and bias to learn (affine=False)
    the former are those behind something that is trained.

    Args:
        chosen: what is trained.
        learned: parameters, trained or not.
        weights: initializers.
        still: running means of those in eval mode.
    """
    tape = Tape(graph.tensors, 0, ())
    trained, affine = (dependents(graph.ops, names, tape) for names in (chosen, learned))
    data = dependents(graph.ops, {*graph.inputs} - {*weights} | {*chosen}, tape)
    able: set[str] = set()
    resting = []
    for op in graph.ops:
        if op.op_type != "BatchNormalization" or not op.standard or op.inputs[3] in still:
            continue
        plain = affine.isdisjoint(op.inputs[1:3])
        if trained.isdisjoint(op.inputs[:1] if plain else op.inputs[1:3]):
            continue
        if all(name in weights for name in op.inputs[3:5]):
            able.add(op.name)
        elif data.isdisjoint(op.inputs[3:5]):  # else they are computed, and differentiated
            resting.append(op.name)
    return able, resting


def train_statistics(graph: Graph, which: Collection[str]) -> tuple[Graph, tuple[Statistic, ...]]:
    """BatchNormalization ops named in ``which`` made to normalise by the batch.

    Momentum 0 makes outputs 1 and 2 the statistics of the batch itself; the running ones are
    updated by the step, where the batch variance is scaled by n / (n - 1) as trainers do.
    """
    running = [op.inputs[k] for op in graph.ops if op.name in which for k in (3, 4)]
    graph, found = with_overwritten(graph, running)
    overwritten = iter(found)
    tensors, ops = dict(graph.tensors), []
    statistics: list[Statistic] = []
    for op in graph.ops:
        if op.name not in which:
            ops.append(_inference_norm(op))
            continue
        shape = tensors[op.inputs[0]].shape or ()
        count = math.prod(shape) // max(shape[1], 1)
        keep = _attribute(op, "momentum", 0.9)
        made = [op.outputs[0], f"{op.name}_batch_mean", f"{op.name}_batch_var"]
        for position, name, scale in ((3, made[1], 1.0), (4, made[2], count / max(count - 1, 1))):
            source = tensors[op.inputs[position]]
            tensors[name] = replace(source, name=name, role=Role.ACTIVATION)
            rest = (1.0 - keep) * scale
            statistics.append(Statistic(op.inputs[position], name, keep, rest, count))
        settings = {"training_mode": 1, "momentum": 0.0}
        settings["epsilon"] = _attribute(op, "epsilon", 1e-5)
        spare = [next(overwritten), next(overwritten)]
        ops += spare
        inputs = (*op.inputs[:3], *(each.outputs[0] for each in spare))
        ops.append(_with_attributes(replace(op, inputs=inputs, outputs=tuple(made)), settings))
    return graph.with_ops(ops, tensors), tuple(statistics)


def _inference_norm(op: Op) -> Op:
    """A BatchNormalization that a trainer exported in training mode, put out of it."""
    if op.op_type != "BatchNormalization" or not _attribute(op, "training_mode", 0):
        return op
    return _with_attributes(replace(op, outputs=op.outputs[:1]), {"training_mode": 0})


def train_dropout(graph: Graph) -> Graph:
    """Dropout switched on, each op with a seed of its own: two runs draw other masks, two
    ops never the same one."""
    model = onnx.ModelProto()
    model.CopyFrom(graph.model)
    tensors, ops = dict(graph.tensors), []
    for seed, op in enumerate(graph.ops, start=1):
        if op.op_type != "Dropout" or not op.standard:
            ops.append(op)
            continue
        names = [op.inputs[0], *(op.inputs[1:2] or ("",)), "onnxremat/training_mode"]
        if not names[1]:
            names[1] = "onnxremat/dropout_ratio"
            _store(model, tensors, names[1], helper.make_tensor(names[1], FLOAT, [], [0.5]))
        _store(model, tensors, names[2], helper.make_tensor(names[2], BOOL, [], [True]))
        drawn = _attribute(op, "seed", seed)
        ops.append(_with_attributes(replace(op, inputs=tuple(names)), {"seed": int(drawn)}))
    return replace(graph.with_ops(ops, tensors), model=model)


def _store(
    model: onnx.ModelProto, tensors: dict[str, Tensor], name: str, value: onnx.TensorProto
) -> None:
    if name not in tensors:
        model.graph.initializer.append(value)
        tensors[name] = Tensor(name, value.data_type, tuple(value.dims), 4, Role.WEIGHT)


def _attribute(op: Op, name: str, default: float) -> float:
    for attribute in op.node.attribute:
        if attribute.name == name:
            return float(helper.get_attribute_value(attribute))
    return default


def _with_attributes(op: Op, values: Mapping[str, float | int]) -> Op:
    node = onnx.NodeProto()
    node.CopyFrom(op.node)
    kept = [attribute for attribute in node.attribute if attribute.name not in values]
    del node.attribute[:]
    node.attribute.extend(kept)
    node.attribute.extend(helper.make_attribute(name, value) for name, value in values.items())
    return replace(op, node=node)
