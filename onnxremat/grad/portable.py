"""A pass for providers without a training-mode BatchNormalization (CUDA, OpenVINO), or without
MaxUnpool (CUDA)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx
from onnx import helper

from onnxremat.grad.tape import Tape
from onnxremat.graph.ir import Op


def without_training_kernels(t: Tape, ops: Sequence[Op]) -> list[Op]:
    """Training-mode BatchNormalization as moments by ReduceMean and an inference one; MaxUnpool as
    a ScatterElements into zeros."""
    made: list[Op] = []
    for op in ops:
        if op.op_type == "MaxUnpool":
            made += _by_scatter(t, op)
            continue
        training = any(a.name == "training_mode" and a.i for a in op.node.attribute)
        if op.op_type != "BatchNormalization" or not training:
            made.append(op)
            continue
        made += _by_moments(t, op)
    return made


def _by_scatter(t: Tape, op: Op) -> list[Op]:
    """Every element of dy to its place; none is there twice where windows do not overlap, which is
    where MaxUnpool is used."""
    dy, indices, result = op.inputs[0], op.inputs[1], op.outputs[0]
    shape, places, start = t.shape(result), math.prod(t.shape(dy)), len(t.ops)
    count = math.prod(shape)
    with t.scope(op.name, "backward"):
        flat = t.op(
            "ScatterElements", t.filled(0.0, (count,), t.dtype(dy)), t.reshape(indices, (places,)),
            t.reshape(dy, (places,)), shape=(count,), axis=0,
        )  # fmt: skip
        last = t.reshape(flat, shape)
    emitted, t.ops[start:] = t.ops[start:], []
    return [each.renamed(each.name, {last: result}, each.origin) for each in emitted]


def _by_moments(t: Tape, op: Op) -> list[Op]:
    x, channels = op.inputs[0], t.shape(op.inputs[0])[1]
    axes = [axis for axis in range(t.rank(x)) if axis != 1]
    start = len(t.ops)
    with t.scope(op.name, "forward"):
        mean = t.mean(x, axes)
        centred = t.sub(x, mean)
        variance = t.mean(t.mul(centred, centred), axes)
        flat = [t.reshape(mean, (channels,)), t.reshape(variance, (channels,))]
    emitted, t.ops[start:] = t.ops[start:], []
    renames = dict(zip(flat, op.outputs[1:3], strict=True))
    emitted = [each.renamed(each.name, renames, each.origin) for each in emitted]
    epsilon = next((a.f for a in op.node.attribute if a.name == "epsilon"), 1e-5)
    inputs = (*op.inputs[:3], op.outputs[1], op.outputs[2])
    node: onnx.NodeProto = helper.make_node(
        "BatchNormalization", inputs, op.outputs[:1], epsilon=epsilon
    )
    return [*emitted, Op(op.name, op.op_type, "", inputs, op.outputs[:1], (), node)]
