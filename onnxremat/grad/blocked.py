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

import numpy as np
import onnx
from onnx import helper

from onnxremat.errors import ModelError
from onnxremat.grad.tape import Tape
from onnxremat.graph.ir import Op
from onnxremat.ort.session import Options, open_session, session_options

DOMAIN = "com.microsoft.nchwc"
KEY = "onnxremat.block"  # metadata of a file with blocked convolutions: channels per block
PLACES = 768  # output positions over all images from which dense convolutions gain


def block_size() -> int:
    """Channels per block on this machine: where the second pixel of channel 0 goes."""
    shape = (1, 64, 1, 2)
    graph = helper.make_graph(
        [helper.make_node("ReorderInput", ["x"], ["y"], domain=DOMAIN)],
        "probe",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [onnx.ValueInfoProto(name="y")],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    session = open_session(model, session_options(Options(threads=1)))
    ramp = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    (found,) = session.run(None, {"x": ramp})
    return int(np.flatnonzero(found.reshape(-1) == 1.0)[0])


def require_block(model: onnx.ModelProto) -> None:
    """Raises ModelError for a file made for processors with another block: it would run here, and
    compute something else."""
    made_for = next((int(e.value) for e in model.metadata_props if e.key == KEY), 0)
    if made_for and made_for != block_size():
        raise ModelError(
            "the training graph was made for another kind of processor",
            why=f"its convolutions take channels in blocks of {made_for}, here {block_size()}",
            hint="make it on this machine, or anywhere without --target host",
        )


def with_blocked_convolutions(t: Tape, ops: Sequence[Op], block: int) -> list[Op]:
    """The ops with every Conv that gains replaced by blocked ones."""
    made: list[Op] = []
    for op in ops:
        made += _blocked(t, op, block) if _fits(t, op, block) else [op]
    return made


def _fits(t: Tape, op: Op, block: int) -> bool:
    """Depthwise ones, and dense ones that use each filter often enough to pay for its layout."""
    if op.op_type != "Conv" or len(op.inputs) != 2 or t.rank(op.inputs[0]) != 4:
        return False
    if t.dtype(op.inputs[0]) != onnx.TensorProto.FLOAT:
        return False
    outputs, each, *kernel = t.shape(op.inputs[1])
    group = next((a.i for a in op.node.attribute if a.name == "group"), 1)
    if any(a.name == "auto_pad" and a.s not in (b"", b"NOTSET") for a in op.node.attribute):
        return False
    if outputs % block or (each * group) % block:
        return False
    places = t.size(op.outputs[0]) // outputs
    dense = group == 1 and max(kernel) > 1 and places >= PLACES
    return dense or (each == 1 and group == outputs)


def _blocked(t: Tape, op: Op, block: int) -> list[Op]:
    x, w = op.inputs
    channels, _, *kernel = t.shape(w)  # of the result
    start = len(t.ops)
    with t.scope(f"{op.name}/blocked", "backward" if op.name.startswith("grad/") else "forward"):
        attributes = {
            a.name: helper.get_attribute_value(a)
            for a in op.node.attribute
            if a.name in ("strides", "dilations", "pads", "group")
        }
        data = t.op("ReorderInput", x, shape=t.shape(x), domain=DOMAIN)
        filters = _filters(t, w, block)
        out = t.op(
            "Conv", data, filters, shape=t.shape(op.outputs[0]), domain=DOMAIN,
            kernel_shape=kernel, **attributes,
        )  # fmt: skip
        result = t.op("ReorderOutput", out, shape=t.shape(out), domain=DOMAIN, channels=channels)
    emitted, t.ops[start:] = t.ops[start:], []
    renames = {result: op.outputs[0]}
    return [each.renamed(each.name, renames, each.origin) for each in emitted]


def _filters(t: Tape, w: str, block: int) -> str:
    """[K, C, kh, kw] with blocks of input and then of output channels innermost."""
    outputs, each, *kernel = shape = t.shape(w)
    taps = math.prod(kernel)
    rows = t.reshape(w, (outputs // block, block, each * taps))
    blocks = t.transpose(rows, (0, 2, 1))
    if each > 1:  # two moves of one axis: several times faster than one Transpose that moves both
        apart = t.reshape(blocks, (outputs // block * each // block, block, taps, block))
        blocks = t.transpose(apart, (0, 2, 1, 3))
    return t.reshape(blocks, shape)
