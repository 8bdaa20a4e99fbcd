"""Convolutions through onnxruntime's blocked kernels, for this machine only.

onnxruntime lays constant weights out in blocks of channels and runs convolutions on them faster
(depthwise ones several times); weights that are inputs never get there. Its blocked operators can
be written into a graph with the layout done at run time. The block is 8 or 16 channels depending
on the processor, the domain is internal and on the CPU only: a file made so is for the machine it
was made on, and wrong on one with another block.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from onnxremat.grad.host.blocked_rows import with_rows_in_blocks
from onnxremat.grad.roles import inherit, is_backward
from onnxremat.grad.tape import Shape, Tape
from onnxremat.graph.ir import Op
from onnxremat.ort.blocks import DOMAIN

PLACES = 192  # output positions over all images from which dense convolutions gain


def in_blocks(t: Tape, ops: Sequence[Op], outputs: Collection[str]) -> list[Op]:
    """The ops of a step with all that gains by them on the blocked kernels: rows between products
    (:mod:`onnxremat.grad.host.blocked_rows`), and every Conv.

    Args:
        outputs: tensors that the step returns.
    """
    made: list[Op] = []
    for op in with_rows_in_blocks(t, ops, outputs):
        made += _blocked(t, op, t.block) if _fits(t, op, t.block) else [op]
    return made


def _fits(t: Tape, op: Op, block: int) -> bool:
    """Depthwise ones, and dense ones that use each filter often enough to pay for its layout."""
    if op.op_type != "Conv" or op.domain or not all(op.inputs) or t.rank(op.inputs[0]) != 4:
        return False
    if t.dtype(op.inputs[0]) != onnx.TensorProto.FLOAT:
        return False
    outputs, each, *kernel = shape = t.shape(op.inputs[1])
    group = next((a.i for a in op.node.attribute if a.name == "group"), 1)
    if any(a.name == "auto_pad" and a.s not in (b"", b"NOTSET") for a in op.node.attribute):
        return False
    if group == 1 and max(kernel) > 1:
        return _dense_gain(shape, t.size(op.outputs[0]) // outputs, block)
    return each == 1 and group == outputs and outputs % block == 0


def _dense_gain(filters: Shape, places: int, block: int) -> bool:
    """Filters [K, C, kh, kw] without groups; of fewer channels than a block has, data are read as
    they are."""
    outputs, channels = filters[:2]
    return outputs % block == 0 and (channels < block or channels % block == 0) and places >= PLACES


def _blocked(t: Tape, op: Op, block: int) -> list[Op]:
    x, w, *bias = op.inputs
    start = len(t.ops)
    with t.scope(f"{op.name}/blocked", "backward" if is_backward(op) else "forward"):
        attributes = {
            a.name: helper.get_attribute_value(a)
            for a in op.node.attribute
            if a.name in ("strides", "dilations", "pads", "group")
        }
        filters = _filters(t, w, block)
        result = _convolved(t, [x, filters, *bias], t.shape(op.outputs[0]), block, attributes)
    emitted, t.ops[start:] = t.ops[start:], []
    inherit(emitted, op)
    renames = {result: op.outputs[0]}
    return [each.renamed(each.name, renames, each.origin) for each in emitted]


def _convolved(
    t: Tape, inputs: Sequence[str], shape: Shape, block: int, attributes: dict[str, Any]
) -> str:
    """Data, filters as the kernel wants them and perhaps a bias, to a result of this shape."""
    x, filters, *bias = inputs
    few = t.shape(x)[1] < block
    data = x if few else t.op("ReorderInput", x, shape=t.shape(x), domain=DOMAIN)
    out = t.op(
        "Conv", data, filters, *bias, shape=shape, domain=DOMAIN,
        kernel_shape=t.shape(filters)[2:], **attributes,
    )  # fmt: skip
    return t.op("ReorderOutput", out, shape=shape, domain=DOMAIN, channels=shape[1])


def flipped_gains(t: Tape, dy: str, w: str) -> bool:
    """Whether dy goes through the blocked kernels with the filters ``w`` [K, C, kh, kw] from the
    other side, of a convolution without groups or strides."""
    outputs, channels, *kernel = t.shape(w)
    if not t.block or len(kernel) != 2 or max(kernel) == 1 or outputs % t.block:
        return False
    places = t.size(dy) // outputs
    return t.dtype(dy) == onnx.TensorProto.FLOAT and _dense_gain(
        (channels, outputs, *kernel), places, t.block
    )


def by_flipped(t: Tape, dy: str, w: str, shape: Shape, **attributes: Any) -> str:
    """dy convolved with [C, K, kh, kw], every kernel of it reversed, to a result of this shape.
    Whole blocks are moved, and no element by itself."""
    outputs, channels, *kernel = t.shape(w)
    block, taps = t.block, math.prod(kernel)
    rows = t.reshape(w, (outputs, channels, 1, taps))
    rows = t.op("ReorderInput", rows, shape=t.shape(rows), domain=DOMAIN)
    places = np.arange(channels * taps).reshape(block, channels // block, taps)
    order = places[:, :, ::-1].transpose(1, 2, 0)
    blocks = _reordered(t, rows, (outputs // block, channels * taps, block), order)
    apart = (outputs // block, channels // block, taps * block * block)
    blocks = t.transpose(t.reshape(blocks, apart), (1, 0, 2))
    filters = t.reshape(blocks, (channels, outputs, *kernel))
    return _convolved(t, [dy, filters], shape, block, attributes)


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
        order = np.arange(block * taps).reshape(block, taps).T
        places = (outputs * each // block**2, block * taps, block)
        blocks = _reordered(t, blocks, places, order)
    return t.reshape(blocks, shape)


def _reordered(t: Tape, a: str, shape: Shape, order: np.ndarray) -> str:
    """What lies in runs along the second of three axes in another order: by a Gather, which all
    threads share, where one moves the axes of a Transpose."""
    return t.op("Gather", t.reshape(a, shape), t.integers(*order.ravel()), shape=shape, axis=1)
