"""Fused operators of onnxruntime's tools, written out in operators that have gradient rules."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxremat.grad.registry import missing_rule
from onnxremat.graph.ir import Graph, Op

MICROSOFT = "com.microsoft"
MASKED = -10000.0  # what the fused kernels add for a masked key by default


class _Writer:
    """Emits the nodes that stand for one fused op.

    Args:
        graph: knows the shapes.
        op: the fused op; names derive from it.
    """

    def __init__(self, graph: Graph, op: Op) -> None:
        self.graph, self.op = graph, op
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self._attributes = {a.name: helper.get_attribute_value(a) for a in op.node.attribute}

    def attribute(self, name: str, default: Any) -> Any:
        """An attribute of the fused op."""
        return self._attributes.get(name, default)

    def input(self, position: int) -> str:
        """An input, "" when absent."""
        inputs = self.op.inputs
        return inputs[position] if position < len(inputs) else ""

    def output(self, position: int) -> str:
        """An output, "" when not asked for."""
        outputs = self.op.outputs
        return outputs[position] if position < len(outputs) else ""

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of an input of the fused op."""
        return self.graph.tensors[name].shape or ()

    def constant(self, value: Any, dtype: type = np.int64) -> str:
        """An initializer."""
        name = f"{self.op.name}/constant{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def __call__(self, op_type: str, *inputs: str, to: str = "", **attributes: Any) -> str:
        label = f"{self.op.name}/{op_type}{len(self.nodes)}"
        made = to or f"{label}_out"
        self.nodes.append(helper.make_node(op_type, inputs, [made], name=label, **attributes))
        return made

    def cast(self, name: str) -> str:
        """To float32 (``to`` of the call names the output)."""
        made = f"{self.op.name}/Cast{len(self.nodes)}_out"
        self.nodes.append(helper.make_node("Cast", [name], [made], to=onnx.TensorProto.FLOAT))
        return made

    def refuse(self, *positions: int) -> None:
        """Raises:
        UnsupportedError: an input at one of the positions is present.
        """
        if any(self.input(position) for position in positions):
            raise missing_rule(self.op, 1, "it uses inputs that are not differentiated here")


def decomposed(graph: Graph) -> onnx.ModelProto | None:
    """The model with fused ops written out, None when there are none.

    Raises:
        UnsupportedError: a fused op uses a feature that is not written out here.
    """
    if not any(_maker(op) for op in graph.ops):
        return None
    model = onnx.ModelProto()
    model.CopyFrom(graph.model)
    for op in graph.ops:
        make = _maker(op)
        if make is None:
            node = model.graph.node.add()
            node.CopyFrom(op.node)
            node.name = op.name
            continue
        writer = _Writer(graph, op)
        make(writer)
        model.graph.node.extend(writer.nodes)
        model.graph.initializer.extend(writer.initializers)
    return model


def _maker(op: Op) -> Callable[[_Writer], None] | None:
    return _MAKERS.get(op.op_type) if op.domain == MICROSOFT else None


def _skip_sum(w: _Writer, bias: int) -> str:
    """Sum of input, skip and bias, under the name of output 3 where that is asked for."""
    named = w.output(3)
    if not w.input(bias):
        return w("Add", w.input(0), w.input(1), to=named)
    return w("Add", w("Add", w.input(0), w.input(1)), w.input(bias), to=named)


def _skip_layer_norm(w: _Writer) -> None:
    epsilon = w.attribute("epsilon", 1e-12)
    names = [_skip_sum(w, 4), w.input(2), *([w.input(3)] if w.input(3) else [])]
    w("LayerNormalization", *names, to=w.output(0), axis=-1, epsilon=epsilon)


def _skip_rms_norm(w: _Writer) -> None:
    epsilon = w.attribute("epsilon", 1e-12)
    total = _skip_sum(w, 3)
    w("SimplifiedLayerNormalization", total, w.input(2), to=w.output(0), axis=-1, epsilon=epsilon)


def _heads(w: _Writer, x: str, count: int) -> str:
    """[N, S, H] as [N, heads, S, H / heads]."""
    split = w("Reshape", x, w.constant([0, 0, count, -1]))
    return w("Transpose", split, perm=[0, 2, 1, 3])


def _mix(w: _Writer, query: str, key: str, value: str, width: int, added: Sequence[str]) -> None:
    """softmax(q k.T scale + added) v, heads merged into the op's output."""
    scale = w.attribute("scale", 0.0) or 1.0 / math.sqrt(width)
    scores = w("MatMul", query, w("Transpose", key, perm=[0, 1, 3, 2]))
    scores = w("Mul", scores, w.constant(scale, np.float32))
    for name in added:
        scores = w("Add", scores, name)
    mixed = w("MatMul", w("Softmax", scores, axis=-1), value)
    merged = w("Transpose", mixed, perm=[0, 2, 1, 3])
    w("Reshape", merged, w.constant([0, 0, -1]), to=w.output(0))


def _key_mask(w: _Writer, name: str) -> str:
    """A mask [N, S] of 1 (look) and 0 as what is added to scores."""
    if len(w.shape(name)) != 2:
        raise missing_rule(w.op, 1, "only masks of the form [batch, keys] are written out")
    wide = w.cast(w("Unsqueeze", name, w.constant([1, 2])))
    hidden = w("Sub", w.constant(1.0, np.float32), wide)
    filler = w.attribute("mask_filter_value", MASKED)
    return w("Mul", hidden, w.constant(filler, np.float32))


def _causal(w: _Writer, length: int) -> str:
    above = np.triu(np.full((length, length), MASKED, np.float32), 1)
    return w.constant(above, np.float32)


def _multi_head_attention(w: _Writer) -> None:
    w.refuse(6, 7, 8, 9)
    if len(w.shape(w.input(0))) != 3 or not w.input(1) or len(w.shape(w.input(1))) != 3:
        raise missing_rule(w.op, 1, "only separate queries, keys and values are written out")
    heads, names = w.attribute("num_heads", 1), [w.input(k) for k in range(3)]
    width = w.shape(names[0])[-1]
    if w.input(3):
        sizes = [w.shape(name)[-1] for name in names]
        starts = np.cumsum([0, *sizes])
        for k in range(3):
            bounds = [w.constant([starts[k]]), w.constant([starts[k + 1]])]
            names[k] = w("Add", names[k], w("Slice", w.input(3), *bounds))
    added = [_key_mask(w, w.input(4))] if w.input(4) else []
    added += [w.input(5)] if w.input(5) else []
    if w.attribute("unidirectional", 0):
        added.append(_causal(w, w.shape(w.input(0))[1]))
    query, key, value = (_heads(w, name, heads) for name in names)
    _mix(w, query, key, value, width // heads, added)


def _attention(w: _Writer) -> None:
    w.refuse(4, 6)
    if w.attribute("qkv_hidden_sizes", None) or w.attribute("do_rotary", 0):
        raise missing_rule(w.op, 1, "own sizes of queries or rotation are not written out")
    heads, width = w.attribute("num_heads", 1), w.shape(w.input(1))[1] // 3
    joint = w("MatMul", w.input(0), w.input(1))
    if w.input(2):
        joint = w("Add", joint, w.input(2))
    parts = []
    for k in range(3):
        bounds = [w.constant([k * width]), w.constant([(k + 1) * width]), w.constant([2])]
        parts.append(_heads(w, w("Slice", joint, *bounds), heads))
    added = [_key_mask(w, w.input(3))] if w.input(3) else []
    added += [w.input(5)] if w.input(5) else []
    if w.attribute("unidirectional", 0):
        added.append(_causal(w, w.shape(w.input(0))[1]))
    query, key, value = parts
    _mix(w, query, key, value, width // heads, added)


_MAKERS: dict[str, Callable[[_Writer], None]] = {
    "Attention": _attention,
    "MultiHeadAttention": _multi_head_attention,
    "SkipLayerNormalization": _skip_layer_norm,
    "SkipSimplifiedLayerNormalization": _skip_rms_norm,
}
