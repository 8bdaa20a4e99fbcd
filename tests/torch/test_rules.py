"""Every rule of the registry against PyTorch's autograd in float32.

A gradient agrees when no element is further from PyTorch's than ``TOLERANCE`` of the largest
element of that gradient. The cases are those of ``tests/grad/cases.py``, every one in every
opset and every variant of its rule.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

from onnxremat.grad import differentiate, registry
from onnxremat.grad.dropout import COUNTER
from tests.grad.checking import Case, _session, build, gradients
from tests.grad.rule_cases import PARAMETERS, without_a_case
from tests.torch.graph import TorchGraph
from tests.torch.operators import OPERATORS

TOLERANCE = 1e-5
# Operator ("domain.Operator") to the reason why PyTorch can say nothing of its rule.
WITHOUT_COUNTERPART: dict[str, str] = {}


def _label(domain: str, op_type: str) -> str:
    return f"{domain}.{op_type}" if domain else op_type


def test_every_rule_is_compared() -> None:
    """A rule that PyTorch never sees fails here."""
    assert not without_a_case(registry.rules())
    every = {_label(rule.domain, rule.op_type) for rule in registry.rules()}
    assert not {op for op in every if op not in OPERATORS and op not in WITHOUT_COUNTERPART}
    assert not set(WITHOUT_COUNTERPART) & set(OPERATORS), "has a counterpart: no exception needed"


def _with_outputs(model: onnx.ModelProto, case: Case) -> onnx.ModelProto:
    """The forward model, returning what the node makes as well."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    made.graph.output.extend(onnx.ValueInfoProto(name=f"y{k}") for k in case.used)
    return made


def _close(found: np.ndarray, wanted: np.ndarray, what: str) -> None:
    assert found.shape == wanted.shape, (what, found.shape, wanted.shape)
    largest = np.abs(wanted).max(initial=0.0)
    error = np.abs(found.astype(np.float64) - wanted).max(initial=0.0)
    assert error <= TOLERANCE * largest, (what, error / largest if largest else error)


@pytest.mark.parametrize(("case", "opset", "variant"), PARAMETERS)
def test_rule_equals_autograd(case: Case, opset: int, variant: str | None) -> None:
    if _label(case.domain, case.op) in WITHOUT_COUNTERPART:
        pytest.skip(WITHOUT_COUNTERPART[_label(case.domain, case.op)])
    model, values = build(case, opset, np.dtype(np.float32))
    inputs = {name: torch.tensor(value, requires_grad=True) for name, value in values.items()}
    theirs = TorchGraph(model).run(inputs)
    theirs["total"].backward()
    for k, found in zip(case.used, _session(_with_outputs(model, case))(values)[1:], strict=True):
        _close(found, theirs[f"y{k}"].detach().numpy(), f"y{k}")
    backward = gradients(model, list(values), variant, case.op)
    names = [output.name for output in backward.graph.output]
    ours = dict(zip(names, _session(backward)(values), strict=True))
    for name, value in inputs.items():
        wanted = torch.zeros_like(value) if value.grad is None else value.grad
        found = ours.get(f"{name}.grad", np.zeros(value.shape, np.float32))
        _close(found, wanted.numpy(), name)


def test_dropout_equals_autograd_with_its_mask() -> None:
    """The cases above have it switched off, for PyTorch draws other masks."""
    s, ratio = np.random.default_rng(0).standard_normal((8, 30)).astype(np.float32), 0.3
    nodes = [
        helper.make_node("Mul", ["x", "s"], ["h"]),
        helper.make_node("Dropout", ["h", "ratio", "train"], ["y", "mask"]),
        helper.make_node("ReduceSumSquare", ["y"], ["total"], keepdims=0),
    ]
    stored = {"s": s, "ratio": np.array(ratio, np.float32), "train": np.array(True)}
    made = helper.make_graph(
        nodes, "net", [helper.make_tensor_value_info("x", 1, s.shape)],
        [helper.make_tensor_value_info("total", 1, []),
         helper.make_tensor_value_info("mask", 9, s.shape)],
        [numpy_helper.from_array(value, name) for name, value in stored.items()],
    )  # fmt: skip
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    graph = differentiate(model, loss_output="total", optimizer=None, outputs=["mask"])
    feeds = {"x": s + 1, "s": s, COUNTER: np.array(5, np.int64)}
    names = [output.name for output in graph.graph.output]
    found = dict(zip(names, _session(graph)(feeds), strict=True))
    assert 0 < found["mask"].sum() < found["mask"].size
    scale = torch.tensor(s, requires_grad=True)
    kept = torch.tensor(found["mask"]) / (1 - ratio)
    (torch.tensor(s + 1) * scale * kept).square().sum().backward()
    assert scale.grad is not None
    _close(found["s.grad"], scale.grad.numpy(), "s")
