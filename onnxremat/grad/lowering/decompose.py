"""Ops replaced by others that have gradient rules: fused operators of onnxruntime's tools, If whose
condition is known, Loop whose number of runs is, and BatchNormalization of a vector."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import helper

from onnxremat.grad.constants import Constants
from onnxremat.grad.control.branches import taken_branch
from onnxremat.grad.control.loops import runs_of_loop, write_out
from onnxremat.grad.lowering.attention import (
    attention,
    group_query_attention,
    multi_head_attention,
    rotary_embedding,
)
from onnxremat.grad.lowering.bags import bags_of_loop, undecided, write_bags
from onnxremat.grad.lowering.deformed import deform_conv
from onnxremat.grad.lowering.former import FORMER
from onnxremat.grad.lowering.writer import Writer, replaced
from onnxremat.graph.ir import Graph, Op

MICROSOFT = "com.microsoft"


def decomposed(graph: Graph, variable: Collection[str] = ()) -> onnx.ModelProto | None:
    """The model with such ops replaced, None when there are none.

    Args:
        variable: initializers that may be trained, so not constant.

    Raises:
        UnsupportedError: a fused op uses a feature that is not written out here.
    """
    constant_of = Constants(graph, variable)
    varying = _varying(graph, variable)
    makers = [_maker(graph, op, constant_of, varying) for op in graph.ops]
    return replaced(graph, makers, constant_of)


def _varying(graph: Graph, variable: Collection[str]) -> set[str]:
    """Tensors that follow from what may be trained."""
    found = set(variable)
    for op in graph.ops:
        if not found.isdisjoint(op.reads):
            found.update(op.writes)
    return found


def _maker(
    graph: Graph, op: Op, constant_of: Constants, varying: Collection[str]
) -> Callable[[Writer], None] | None:
    if op.op_type == "Loop" and op.standard:
        if not any(name in varying for name in op.reads):
            return None
        known = {n: value for n in op.reads if (value := constant_of(n)) is not None}
        runs = runs_of_loop(graph, op, known)
        if runs is None or undecided(graph, op):
            return None
        bags = bags_of_loop(graph, op, known, runs)
        return partial(write_out, runs=runs) if bags is None else partial(write_bags, bags=bags)
    if op.op_type == "If" and op.standard:
        return taken_branch if constant_of(op.inputs[0]) is not None else None
    if op.op_type == "BatchNormalization" and op.standard:
        shape = graph.tensors[op.inputs[0]].shape
        return _norm_of_vector if shape is not None and len(shape) == 1 else None
    if any(graph.tensors[name].shape is None for name in op.reads):
        return None
    makers = _MAKERS if op.domain == MICROSOFT else _STANDARD if op.standard else {}
    return makers.get(op.op_type)


# ---- normalization ---------------------------------------------------------------------------


def _skip_sum(w: Writer, bias: int) -> str:
    """Sum of input, skip and bias, under the name of output 3 where that is asked for."""
    named = w.output(3)
    if not w.input(bias):
        return w("Add", w.input(0), w.input(1), to=named)
    return w("Add", w("Add", w.input(0), w.input(1)), w.input(bias), to=named)


def _norm_of_vector(w: Writer) -> None:
    """A BatchNormalization of numbers that are one channel, as one of rows."""
    rows = w("Reshape", w.input(0), w.constant([-1, 1]))
    names, rest = [rows, *w.op.inputs[1:]], w.op.outputs[1:]
    made = w.several("BatchNormalization", names, ["", *rest], **w.attributes)
    w("Reshape", made[0], w.constant([-1]), to=w.output(0))


def _skip_layer_norm(w: Writer) -> None:
    epsilon = w.attribute("epsilon", 1e-12)
    names = [_skip_sum(w, 4), w.input(2), *([w.input(3)] if w.input(3) else [])]
    moments = [w.output(1), w.output(2)] if w.output(1) or w.output(2) else []
    w.several("LayerNormalization", names, [w.output(0), *moments], axis=-1, epsilon=epsilon)


def _skip_rms_norm(w: Writer) -> None:
    epsilon = w.attribute("epsilon", 1e-12)
    if w.output(1) or w.output(2):
        raise w.unsupported("its outputs 'mean' and 'inv_std_var' are not differentiated")
    total = _skip_sum(w, 3)
    w("SimplifiedLayerNormalization", total, w.input(2), to=w.output(0), axis=-1, epsilon=epsilon)


def _embed_layer_norm(w: Writer) -> None:
    """Rows of up to three tables added up and normalised."""
    places = w.input(8) or w.constant(np.arange(w.shape(w.input(0))[1]).reshape(1, -1))
    total = w("Gather", w.input(2), w.input(0), axis=0)
    rows = [w("Gather", w.input(3), places, axis=0)]
    if w.input(1):
        rows.append(w("Gather", w.input(4), w.input(1), axis=0))
    for k, row in enumerate(rows, start=1):
        total = w("Add", total, row, to=w.output(2) if k == len(rows) else "")
    epsilon = w.attribute("epsilon", 1e-12)
    names = [total, w.input(5), w.input(6)]
    w("LayerNormalization", *names, to=w.output(0), axis=-1, epsilon=epsilon)
    if w.output(1):
        _mask_index(w)


def _mask_index(w: Writer) -> None:
    """Words of every sequence; 0 each without a mask."""
    if w.input(7):
        w("ReduceSum", w.input(7), w.constant([1]), to=w.output(1), keepdims=0)
        return
    zeros = w.constant(np.zeros(w.shape(w.input(0))[0]), onnx.TensorProto.INT32)
    w("Identity", zeros, to=w.output(1))


# ---- products with an activation -------------------------------------------------------------

# Activation to the attributes that its parameters become.
_ACTIVATIONS: dict[str, tuple[str, ...]] = {
    "Relu": (), "Sigmoid": (), "Tanh": (), "Softplus": (), "Softsign": (), "LeakyRelu": ("alpha",),
    "ThresholdedRelu": ("alpha",), "Elu": ("alpha",), "HardSigmoid": ("alpha", "beta"),
    "Clip": (),
}  # fmt: skip


def _activated(w: Writer, name: str, settings: list[float]) -> None:
    """The activation of a fused product, as the op's output."""
    kind = w.attribute("activation", "") or "Identity"
    if kind == "Identity":
        w("Identity", name, to=w.output(0))
    elif kind == "Clip":
        w("Clip", name, *(w.like(bound) for bound in settings), to=w.output(0))
    elif kind in _ACTIVATIONS:
        known = dict(zip(_ACTIVATIONS[kind], settings, strict=False))
        w(kind, name, to=w.output(0), **known)
    else:
        raise w.unsupported(f"its attribute 'activation' = {kind} is not differentiated")


def _kept(w: Writer, *without: str) -> dict[str, Any]:
    """Attributes that the plain operator has too."""
    return {name: value for name, value in w.attributes.items() if name not in without}


def _fused_conv(w: Writer) -> None:
    names = [w.input(k) for k in range(3) if w.input(k)]
    made = w("Conv", *names, **_kept(w, "activation", "activation_params"))
    if w.input(3):
        made = w("Add", made, w.input(3))
    _activated(w, made, list(w.attribute("activation_params", [])))


def _fused_gemm(w: Writer) -> None:
    settings = ("activation_alpha", "activation_beta", "activation_gamma")
    names = [w.input(k) for k in range(3) if w.input(k)]
    made = w("Gemm", *names, **_kept(w, "activation", *settings))
    _activated(w, made, [w.attributes[name] for name in settings if name in w.attributes])


def _standard(w: Writer) -> None:
    """An operator that ONNX took over unchanged."""
    names = list(w.op.inputs)
    w.nodes.append(helper.make_node(w.op.op_type, names, w.op.outputs, **_kept(w)))


_MAKERS: dict[str, Callable[[Writer], None]] = {
    "Attention": attention,
    "EmbedLayerNormalization": _embed_layer_norm,
    "FusedConv": _fused_conv,
    "FusedGemm": _fused_gemm,
    "GatherND": _standard,
    "GroupQueryAttention": group_query_attention,
    "MultiHeadAttention": multi_head_attention,
    "RotaryEmbedding": rotary_embedding,
    "SkipLayerNormalization": _skip_layer_norm,
    "SkipSimplifiedLayerNormalization": _skip_rms_norm,
    "Trilu": _standard,
}
# Operators of ONNX, and those that onnxruntime still has there.
_STANDARD: dict[str, Callable[[Writer], None]] = {"DeformConv": deform_conv, **FORMER}
