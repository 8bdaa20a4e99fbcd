"""Convolutions through onnxruntime's blocked kernels, for this machine only.

onnxruntime lays constant weights out in blocks of channels and runs convolutions on them faster
(depthwise ones several times); weights that are inputs never get there. Its blocked operators can
be written into a graph with the layout done at run time. The block is 8 or 16 channels depending
on the processor, the domain is internal and on the CPU only: a file made so is for the machine it
was made on, and wrong on one with another block.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx
from onnx import helper

from onnxremat.grad.roles import inherit
from onnxremat.grad.tape import Tape
from onnxremat.graph.ir import Op
from onnxremat.ort.blocks import DOMAIN

PLACES = 384  # output positions over all images from which dense convolutions gain


def with_blocked_convolutions(t: Tape, ops: Sequence[Op], block: int) -> list[Op]:
    """The ops with every Conv that gains replaced by blocked ones."""
    made: list[Op] = []
    for op in ops:
        made += _blocked(t, op, block) if _fits(t, op, block) else [op]
    return made


def _fits(t: Tape, op: Op, block: int) -> bool:
    """Depthwise ones, and dense ones that use each filter often enough to pay for its layout."""
    if op.op_type != "Conv" or not all(op.inputs) or t.rank(op.inputs[0]) != 4:
        return False
    if t.dtype(op.inputs[0]) != onnx.TensorProto.FLOAT:
        return False
    outputs, each, *kernel = t.shape(op.inputs[1])
    group = next((a.i for a in op.node.attribute if a.name == "group"), 1)
    if any(a.name == "auto_pad" and a.s not in (b"", b"NOTSET") for a in op.node.attribute):
        return False
    few = group == 1 and each < block  # kernels of their own, of data as they are
    if outputs % block or not (few or (each * group) % block == 0):
        return False
    places = t.size(op.outputs[0]) // outputs
    dense = group == 1 and max(kernel) > 1 and places >= PLACES
    return dense or (each == 1 and group == outputs)


def _blocked(t: Tape, op: Op, block: int) -> list[Op]:
    x, w, *bias = op.inputs
    channels, _, *kernel = t.shape(w)  # of the result
    start = len(t.ops)
    with t.scope(f"{op.name}/blocked", "backward" if op.name.startswith("grad/") else "forward"):
        attributes = {
            a.name: helper.get_attribute_value(a)
            for a in op.node.attribute
            if a.name in ("strides", "dilations", "pads", "group")
        }
        few = t.shape(x)[1] < block
        data = x if few else t.op("ReorderInput", x, shape=t.shape(x), domain=DOMAIN)
        filters = _filters(t, w, block)
        out = t.op(
            "Conv", data, filters, *bias, shape=t.shape(op.outputs[0]), domain=DOMAIN,
            kernel_shape=kernel, **attributes,
        )  # fmt: skip
        result = t.op("ReorderOutput", out, shape=t.shape(out), domain=DOMAIN, channels=channels)
    emitted, t.ops[start:] = t.ops[start:], []
    inherit(emitted, op)
    renames = {result: op.outputs[0]}
    return [each.renamed(each.name, renames, each.origin) for each in emitted]


def _filters(t: Tape, w: str, block: int) -> str:
    """[K, C, kh, kw] with blocks of input and then of output channels innermost; of fewer input
    channels than a block has with those of output channels alone."""
    outputs, each, *kernel = shape = t.shape(w)
    taps = math.prod(kernel)
    # What lays out data in blocks does so for filters: their outputs as channels of one image.
    # It walks tiles on all threads; Transpose moves an axis element by element, two threads slower
    # than one.
    rows = t.reshape(w, (1, outputs, each, taps))
    blocks = t.op("ReorderInput", rows, shape=t.shape(rows), domain=DOMAIN)
    if each >= block:
        apart = t.reshape(blocks, (outputs // block * each // block, block, taps, block))
        blocks = t.transpose(apart, (0, 2, 1, 3))
    return t.reshape(blocks, shape)
