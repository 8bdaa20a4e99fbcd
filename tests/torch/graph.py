"""Runs an ONNX graph in PyTorch, so that its autograd is a second opinion on gradients."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper

from tests.torch.node import Node, Tensor
from tests.torch.operators import OPERATORS
from tests.torch.operators.layout import to_tensor


class TorchGraph:
    """The nodes of a model as PyTorch calls.

    Args:
        model: weights as initializers.
        real: what floating-point values are computed in, whatever the model says.
        train: BatchNormalization normalises by the batch.
    """

    def __init__(
        self, model: onnx.ModelProto, real: torch.dtype = torch.float32, train: bool = False
    ) -> None:
        self.model, self.real, self.train = model, real, train
        self.versions = {o.domain: o.version for o in model.opset_import}
        self.weights = {
            t.name: to_tensor(numpy_helper.to_array(t), real) for t in model.graph.initializer
        }

    def require(self, names: Collection[str]) -> dict[str, Tensor]:
        """These weights, from now on with gradients."""
        return {name: self.weights[name].requires_grad_(True) for name in names}

    def run(
        self, feeds: Mapping[str, np.ndarray | Tensor], until: str | None = None
    ) -> dict[str, Tensor]:
        """Every value of the graph, up to the node that makes ``until``."""
        values: dict[str, Tensor] = dict(self.weights)
        for name, value in feeds.items():
            values[name] = value if torch.is_tensor(value) else to_tensor(value, self.real)
        for node in self.model.graph.node:
            made = self._outputs(node, values)
            values.update((k, v) for k, v in zip(node.output, made, strict=False) if k)
            if until in node.output:
                break
        return values

    def _outputs(self, node: onnx.NodeProto, values: Mapping[str, Tensor]) -> list[Tensor]:
        op = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        if op not in OPERATORS:
            raise KeyError(f"{op} has no PyTorch counterpart: add one to tests/torch/operators")
        inputs = tuple(values[name] if name else None for name in node.input)
        version = self.versions.get(node.domain, 1)
        settings = {a.name: _value(a) for a in node.attribute}
        bodies = {k: v for k, v in settings.items() if isinstance(v, onnx.GraphProto)}
        settings |= {k: partial(self._body, body, values) for k, body in bodies.items()}
        if self.train and node.op_type == "BatchNormalization":
            settings["training_mode"] = 1
        call = Node(op, inputs, settings, len(node.output), version, self.real)
        return self.compute(call, node)

    def _body(
        self, body: onnx.GraphProto, outside: Mapping[str, Tensor], *given: Tensor
    ) -> list[Tensor]:
        """What a body returns."""
        values = {**outside, **dict(zip((v.name for v in body.input), given, strict=True))}
        values |= {t.name: to_tensor(numpy_helper.to_array(t), self.real) for t in body.initializer}
        for node in body.node:
            values.update(zip(node.output, self._outputs(node, values), strict=False))
        return [values[value.name] for value in body.output]

    def compute(self, call: Node, node: onnx.NodeProto) -> list[Tensor]:
        """The outputs of one node; the names of its tensors are in ``node``."""
        made = OPERATORS[call.op](call)
        return [made] if torch.is_tensor(made) else list(made)


def _value(attribute: onnx.AttributeProto) -> Any:
    value = helper.get_attribute_value(attribute)
    return value.decode() if isinstance(value, bytes) else value
