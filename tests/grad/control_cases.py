"""Cases of If, Scan and Loop. What they decide by follows from the inputs, so that nothing of it is
known before the run."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import helper, parser

from tests.grad.draws import normal, positive

KINDS = {"i": onnx.TensorProto.INT64, "k": onnx.TensorProto.BOOL, "l": onnx.TensorProto.BOOL}


def body(name: str, inputs: str, outputs: str, text: str) -> onnx.GraphProto:
    """A body of these names; ``text`` are its nodes. A Loop's number of the run is ``i``, whether
    it goes on ``k`` and ``l``; all else is float."""
    given, returned = ([_value(n) for n in names.split()] for names in (inputs, outputs))
    return helper.make_graph(_nodes(text), name, given, returned)


def _value(name: str) -> onnx.ValueInfoProto:
    if name in KINDS:
        return helper.make_tensor_value_info(name, KINDS[name], ())
    return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)


def _nodes(text: str) -> tuple[onnx.NodeProto, ...]:
    return tuple(parser.parse_graph(f"g () => () {{ {text} }}").node)


_ON = "on = Constant <value = bool {1}> ()"


def _count(name: str) -> tuple[onnx.NodeProto, ...]:
    """A number of runs: the whole part of a sum."""
    return _nodes(f"{_ON} sum_x = ReduceSum <keepdims = 0> ({name}) trips = Cast <to = 7> (sum_x)")


_TWO = (
    body("both", "", "p q", "p = MatMul(x0, x1) s = Tanh(p) q = Mul(s, x0)"),
    body("one", "", "p q", "p = Identity(x0) q = Sin(x0)"),
)
_INNER = helper.make_node(
    "If", ["small"], ["p"], "inner",
    then_branch=body("in", "", "u", "u = Mul(x0, x1)"),
    else_branch=body("out", "", "v", "w = Add(x0, h) v = Sin(w)"),
)  # fmt: skip


def _nested() -> onnx.GraphProto:
    made = body("nested", "", "p", "h = Exp(x1) m = ReduceMax <keepdims = 0> (h)")
    made.node.extend(_nodes("s = ReduceSum <keepdims = 0> (x0) small = Less(m, s)"))
    made.node.append(_INNER)
    return made


def _if(sign: str, then: onnx.GraphProto, other: onnx.GraphProto, **more: Any) -> dict[str, Any]:
    text = f"all_x = ReduceSum <keepdims = 0> (x0) no = Sub(all_x, all_x) yes = {sign}(all_x, no)"
    before = _nodes(text)
    return {"reads": ("yes",), "before": before, "then_branch": then, "else_branch": other, **more}


_STEP = "m = MatMul(a, x2) e = Add(m, s) c = Tanh(e) d = Mul(c, a)"
_SUMS = "m = Mul(s, t) c = Add(a, m) d = Identity(a) f = ReduceSum <keepdims = 0> (m)"
_RUN = "l = Identity(k) m = MatMul(a, x1) c = Tanh(m)"
_UNTIL = "m = MatMul(a, x1) c = Add(m, x0) l = Less(p, x2) q = Add(p, x2)"
# Operator, inputs, and the rest of a case.
CONTROL: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("If", (positive(2, 2), normal(2, 2)),
     _if(sign, then, other, outputs=outputs, used=(*range(outputs),)))
    for sign in ("Greater", "Less")
    for then, other, outputs in ((*_TWO, 2), (_nested(), body("plain", "", "p", "p = Neg(x1)"), 1))
] + [
    ("Scan", (normal(2), normal(4, 2), normal(2, 2)), {
        "reads": ("x0", "x1"), "num_scan_inputs": 1, "outputs": 2, "used": (0, 1),
        "exact": False, "body": body("step", "a s", "c d", _STEP)}),
    ("Scan", (normal(2), normal(4, 2), normal(2, 2)), {
        "reads": ("x0", "x1"), "num_scan_inputs": 1, "outputs": 2, "used": (1,),
        "scan_input_directions": [1], "scan_output_axes": [1], "scan_output_directions": [1],
        "exact": False, "body": body("step", "a s", "c d", _STEP)}),
    ("Scan", (normal(2), normal(2, 3), normal(3, 2)), {
        "reads": ("x0", "x1", "x2"), "num_scan_inputs": 2, "outputs": 3, "used": (0, 2),
        "scan_input_axes": [-1, 0], "scan_input_directions": [1, 0],
        "exact": False, "body": body("two", "a s t", "c d f", _SUMS)}),
    ("Loop", (positive(2), normal(2, 2)), {
        "reads": ("trips", "on", "x0"), "before": _count("x0"),
        "body": body("run", "i k a", "l c", _RUN)}),
    ("Loop", (positive(2), normal(2), normal(3, 2)), {
        "reads": ("trips", "on", "x0", "x1"), "before": _count("x0"), "outputs": 2, "used": (0, 1),
        "body": body("swap", "i k a b", "l c d",
                     "l = Identity(k) r = Gather(x2, i) c = Add(b, r) d = Identity(a)")}),
    ("Loop", (normal(2), normal(2, 2), positive()), {
        "reads": ("", "on", "x0", "zero"), "outputs": 2,
        "before": _nodes(f"{_ON} zero = Sub(x2, x2)"),
        "body": body("until", "i k a p", "l c q", _UNTIL)}),
]  # fmt: skip
