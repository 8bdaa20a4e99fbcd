"""Checks one operator's rule: finite differences in float64, and onnxruntime in float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from onnxremat.grad import differentiate, registry

HALF = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
STEP = 1e-6  # of finite differences in float64
COARSE = (1e-2, 1e-3)  # in float32, where rounding asks for long ones
DIRECTIONS = 3


@dataclass(frozen=True)
class Case:
    """One node to differentiate.

    Attributes:
        op: operator type.
        inputs: one entry per input: an array (differentiated if it is floating-point), a
            :class:`Fixed` array, or None for an absent input.
        attributes: of the node.
        opsets: versions to test at.
        outputs: count of outputs of the node.
        used: outputs that enter the loss.
        domain: of the operator.
        tolerance: relative, for finite differences.
        exact: whether the reference evaluator can run it in float64; otherwise differences are
            taken in float32 by onnxruntime, with a large step.
        valid: whether the operator is one that onnx itself knows and still allows.
        reads: names of the node's inputs, where these are not ``x0``, ``x1`` and so on.
        before: nodes that make some of these.
    """

    op: str
    inputs: tuple[Any, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    opsets: tuple[int, ...] = (18,)
    outputs: int = 1
    used: tuple[int, ...] = (0,)
    domain: str = ""
    tolerance: float = 1e-5
    exact: bool = True
    valid: bool = True
    reads: tuple[str, ...] | None = None
    before: tuple[onnx.NodeProto, ...] = ()

    def label(self) -> str:
        shapes = "x".join(
            "none" if a is None else "-".join(map(str, _array(a).shape)) or "scalar"
            for a in self.inputs
        )
        named = ((k, getattr(v, "name", v)) for k, v in self.attributes.items())  # bodies
        settings = ",".join(f"{k}={v}" for k, v in named)
        return f"{self.op}[{shapes}]{settings}"


@dataclass(frozen=True)
class Fixed:
    """An input whose value is part of the model."""

    value: np.ndarray


def _array(entry: Any) -> np.ndarray:
    return entry.value if isinstance(entry, Fixed) else np.asarray(entry)


def _floating(dtype: np.dtype) -> bool:
    return dtype.kind == "f" or dtype == helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)


def build(case: Case, opset: int, dtype: np.dtype) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model with the node and a random linear functional of its outputs as loss; the second
    result are the inputs to differentiate."""
    names, initializers, inputs, values = [], [], [], {}
    for k, entry in enumerate(case.inputs):
        if entry is None:
            names.append("")
            continue
        array, name = _array(entry), f"x{k}"
        if array.dtype == np.float64:
            array = array.astype(dtype)
        names.append(name)
        if isinstance(entry, Fixed) or not _floating(array.dtype):
            initializers.append(numpy_helper.from_array(array, name))
        else:
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            inputs.append(helper.make_tensor_value_info(name, kind, array.shape))
            values[name] = array
    outs = [f"y{k}" for k in range(case.outputs)]
    read = names if case.reads is None else case.reads
    settings = {k: _in_type(v, dtype) for k, v in case.attributes.items()}
    node = helper.make_node(case.op, read, outs, name="node", domain=case.domain, **settings)
    shapes = _output_shapes(node, inputs, initializers, outs, values, opset, case)
    nodes, terms = [*case.before, node], []
    rng = np.random.default_rng(7)
    kind = helper.np_dtype_to_tensor_dtype(dtype)
    for k in case.used:
        weights = rng.uniform(0.5, 1.5, shapes[k]) * rng.choice([-1.0, 1.0], shapes[k])
        initializers.append(numpy_helper.from_array(weights.astype(dtype), f"r{k}"))
        nodes.append(helper.make_node("Cast", [outs[k]], [f"f{k}"], to=kind))
        nodes.append(helper.make_node("Mul", [f"f{k}", f"r{k}"], [f"p{k}"]))
        nodes.append(helper.make_node("ReduceSum", [f"p{k}"], [f"s{k}"], keepdims=0))
        terms.append(f"s{k}")
    nodes.append(helper.make_node("Sum", terms, ["total"]))
    total = helper.make_tensor_value_info("total", kind, [])
    graph = helper.make_graph(nodes, "case", inputs, [total], initializers)
    return _model(graph, opset, case.domain), values


def _in_type(setting: Any, dtype: np.dtype) -> Any:
    """A body with its floating-point numbers in another type."""
    if not isinstance(setting, onnx.GraphProto):
        return setting
    made = onnx.GraphProto()
    made.CopyFrom(setting)
    for graph in (made, *(a.g for node in made.node for a in node.attribute if a.HasField("g"))):
        for value in (*graph.input, *graph.output):
            kind = value.type.tensor_type
            if kind.elem_type == TensorProto.FLOAT:
                kind.elem_type = helper.np_dtype_to_tensor_dtype(dtype)
    return made


def _model(graph: onnx.GraphProto, opset: int, domain: str) -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", opset)]
    if domain:
        opsets.append(helper.make_opsetid(domain, 1))
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def _output_shapes(node, inputs, initializers, outs, values, opset, case) -> list[tuple[int, ...]]:
    infos = [onnx.ValueInfoProto(name=name) for name in outs]
    graph = helper.make_graph([*case.before, node], "forward", inputs, infos, initializers)
    return [np.asarray(r).shape for r in _runner(_model(graph, opset, case.domain), case)(values)]


def _runner(model: onnx.ModelProto, case: Case) -> Callable[[dict], list[np.ndarray]]:
    if case.exact:
        evaluator = ReferenceEvaluator(model)
        return lambda feeds: evaluator.run(None, feeds)
    return _session(model)


def _session(model: onnx.ModelProto) -> Callable[[dict], list[np.ndarray]]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return lambda feeds: session.run(None, feeds)


def gradients(model: onnx.ModelProto, names: list[str], variant: str | None, op: str):
    """The gradient model of a case."""
    return differentiate(
        model, loss_output="total", optimizer=None, trainable=names,
        variants={op: variant} if variant else None, dropout=False,
        batch_norm="train" if _in_training_mode(model) else "frozen",
    )  # fmt: skip


def _in_training_mode(model: onnx.ModelProto) -> bool:
    return any(a.name == "training_mode" and a.i for n in model.graph.node for a in n.attribute)


@contextmanager
def _rules_that_run() -> Iterator[set[tuple[str, str, str]]]:
    """Domain, operator and variant of each rule that is looked up to be applied."""
    ran: set[tuple[str, str, str]] = set()
    find = registry.find

    def noted(*arguments: Any) -> registry.Rule:
        rule = find(*arguments)
        ran.add((rule.domain, rule.op_type, rule.variant))
        return rule

    with patch.object(registry, "find", noted):
        yield ran


def check(case: Case, opset: int, variant: str | None = None) -> None:
    """Raises AssertionError where the rule is wrong."""
    dtype = np.dtype(np.float64 if case.exact else np.float32)
    model, values = build(case, opset, dtype)
    names = list(values)
    with _rules_that_run() as ran:
        backward = gradients(model, names, variant, case.op)
    if variant is not None:
        assert (case.domain, case.op, variant) in ran, f"the rule '{variant}' never ran"
    if case.valid:
        onnx.checker.check_model(backward)
    _reads_what_it_declares(case, backward, variant)
    got = _named(backward, _runner(backward, case)(values))
    _finite_differences(case, model, values, got)
    if case.exact and all(value.dtype == np.float64 for value in values.values()):
        _single_precision(case, opset, variant, got)


def _reads_what_it_declares(case: Case, backward: onnx.ModelProto, variant: str | None) -> None:
    """The planner frees forward tensors that the rule does not say it keeps."""
    forward = next((n for n in backward.graph.node if n.name == "node"), None)
    if forward is None or forward.op_type != case.op:
        return  # brought to another opset, or expanded
    rules = [
        rule
        for rule in registry.rules()
        if (rule.op_type, rule.domain) == (case.op, case.domain) and variant in (None, rule.variant)
    ]
    emitted = [n for n in backward.graph.node if n.name.startswith("grad/node/")]
    read = {name for n in emitted for name in n.input}
    for kind, names in (("x", forward.input), ("y", forward.output)):
        for position, name in enumerate(names):
            allowed = any(rule.may_read(kind, position) for rule in rules)
            assert name not in read or allowed, f"{kind}{position} is read, not declared"


def _named(model: onnx.ModelProto, results: list[np.ndarray]) -> dict[str, np.ndarray]:
    return {o.name: np.asarray(r) for o, r in zip(model.graph.output, results, strict=True)}


def _finite_differences(case, model, values, got) -> None:
    forward, rng = _runner(model, case), np.random.default_rng(1)
    tolerance = case.tolerance if case.exact else 2e-2
    for name, value in values.items():
        gradient = got.get(f"{name}.grad")
        gradient = np.zeros_like(value) if gradient is None else gradient
        assert gradient.shape == value.shape, f"{name}: {gradient.shape} for {value.shape}"
        for _ in range(DIRECTIONS):
            direction = rng.standard_normal(value.shape).astype(value.dtype)
            actual = float(np.sum(gradient.astype(np.float64) * direction))
            scale = float(np.sum(np.abs(gradient * direction))) + 1e-3
            found = [
                _slope(forward, values, name, step * direction) / step
                for step in ((STEP,) if case.exact else COARSE)
            ]
            # A kink within the longer step is none within the shorter one.
            assert any(abs(actual - x) <= tolerance * (scale + abs(x)) for x in found), (
                name, actual, found, scale
            )  # fmt: skip


def _slope(forward, values, name: str, change: np.ndarray) -> float:
    """Half the difference that a change of one input, up and down, makes to the loss."""
    value = values[name]
    up, down = (
        float(forward({**values, name: value + np.asarray(s * change, value.dtype)})[0])
        for s in (1.0, -1.0)
    )
    return (up - down) / 2


def _single_precision(case: Case, opset: int, variant: str | None, want: dict) -> None:
    """The same model in float32 in onnxruntime, against the float64 result."""
    model, values = build(case, opset, np.dtype(np.float32))
    backward = gradients(model, list(values), variant, case.op)
    got = _named(backward, _session(backward)(values))
    assert got.keys() == want.keys()
    # How much the loss changes with rounding of the inputs: its terms may cancel.
    condition = sum(float(np.abs(values[n] * want[f"{n}.grad"]).sum()) for n in values
                    if f"{n}.grad" in want)  # fmt: skip
    for name in got:
        expected = want[name].astype(np.float64)
        scale = np.abs(expected).max(initial=0.0) + (condition if name == "loss" else 0) + 1e-3
        error = np.abs(got[name] - expected).max(initial=0.0)
        assert error <= 3e-5 * scale, (name, error, scale)


def half_precision(case: Case, opset: int, kind: int) -> None:
    """The gradient model of a node in 16 bits (an element type of :data:`HALF`) is valid, and so
    are its gradients' types. It is not run: the CPU has few such kernels."""
    model, values = build(case, opset, helper.tensor_dtype_to_np_dtype(kind))
    assert values
    backward = gradients(model, list(values), None, case.op)
    onnx.checker.check_model(backward, full_check=True)
    assert {value.name for value in backward.graph.output} == {
        "loss", *(f"{name}.grad" for name in values)
    }  # fmt: skip
    for output in backward.graph.output:
        assert output.type.tensor_type.elem_type == kind
