"""Functions of PyTorch, exported by its own exporters, against its autograd.

A function agrees when no element of a gradient is further from PyTorch's than ``TOLERANCE`` of the
largest element of that gradient. Its inputs are inputs of the model, so that nothing is folded.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout

import numpy as np
import onnx
import pytest
import torch

from onnxremat.grad import differentiate
from tests.grad.checking import _session
from tests.torch.functions import FUNCTIONS, Function

TOLERANCE = 1e-4


class Total(torch.nn.Module):
    """A function of one number: its results, each element weighted with a fixed number."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.call = function.call
        self.layer = getattr(function.call, "module", None)  # its parameters are exported by name
        with torch.no_grad():
            results = self._results(function.inputs)
        draw = torch.Generator().manual_seed(1)
        for k, result in enumerate(results):
            weights = torch.rand(result.shape, generator=draw) + 0.5
            signs = torch.randint(2, result.shape, generator=draw) * 2.0 - 1.0
            self.register_buffer(f"weights{k}", weights * signs)

    def _results(self, inputs: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        made = self.call(*inputs)
        results = [made] if torch.is_tensor(made) else list(made)
        return [result for result in results if result.is_floating_point()]

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        results = self._results(inputs)
        return sum((y * getattr(self, f"weights{k}")).sum() for k, y in enumerate(results))


def exported(function: Function, exporter: str) -> onnx.ModelProto:
    """The model that an exporter writes: ``legacy``, ``dynamo``, or ``plain`` (dynamo without
    optimisation). Its inputs are x0, x1, ..., its output is total."""
    file = io.BytesIO()
    names = {
        "input_names": [f"x{k}" for k in range(len(function.inputs))],
        "output_names": ["total"],
        "opset_version": function.opset,
    }
    module = Total(function).eval()
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            if exporter == "legacy":
                torch.onnx.export(module, function.inputs, file, dynamo=False, **names)
                return onnx.load_from_string(file.getvalue())
            program = torch.onnx.export(
                module, function.inputs, dynamo=True, optimize=exporter == "dynamo", **names
            )
            return program.model_proto
        finally:
            logging.disable(logging.NOTSET)


def autograd(function: Function) -> dict[str, np.ndarray]:
    """PyTorch's gradients by input."""
    inputs = [x.clone().requires_grad_(x.is_floating_point()) for x in function.inputs]
    Total(function).eval()(*inputs).backward()
    return {
        f"x{k}": (torch.zeros_like(x) if x.grad is None else x.grad).numpy()
        for k, x in enumerate(inputs)
        if x.is_floating_point()
    }


def errors(model: onnx.ModelProto, function: Function) -> Mapping[str, float]:
    """The largest error of each gradient, in parts of its largest element."""
    wanted = autograd(function)
    graph = differentiate(
        model, loss_output="total", optimizer=None, trainable=list(wanted), dropout=False,
        batch_norm="frozen",
    )  # fmt: skip
    feeds = {f"x{k}": x.numpy() for k, x in enumerate(function.inputs)}
    read = {value.name for value in graph.graph.input}
    results = _session(graph)({n: v for n, v in feeds.items() if n in read})
    found = dict(zip([o.name for o in graph.graph.output], results, strict=True))
    worst = {}
    for name, want in wanted.items():
        have = found.get(f"{name}.grad", np.zeros(want.shape, np.float32))
        assert have.shape == want.shape, (name, have.shape, want.shape)
        difference = np.abs(have.astype(np.float64) - want).max(initial=0.0)
        worst[name] = float(difference / max(np.abs(want).max(initial=0.0), 1e-3))
    return worst


@pytest.mark.parametrize("name", FUNCTIONS)
def test_exported_function_equals_autograd(name: str) -> None:
    found = errors(exported(FUNCTIONS[name], "legacy"), FUNCTIONS[name])
    assert max(found.values()) <= TOLERANCE, found
