"""Rectifiers and maxima, and on which side of their kinks two programs are.

A rectifier whose input is within rounding of 0 may pass it in one program and stop it in another,
and both are right. The gradients then differ by all that this element carries: a hundredth of a
gradient and more in a small net, from a difference of 1e-7. So that gradients can be compared
anyway, :class:`GuidedGraph` takes the side that onnxruntime took, counts where PyTorch would have
taken the other, and how far from the kink that was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
import torch

from tests.torch.graph import TorchGraph
from tests.torch.node import Node, Tensor
from tests.torch.operators import OPERATORS


def deciding(model: onnx.ModelProto) -> list[str]:
    """Tensors that show the sides taken: results of rectifiers, arguments of maxima."""
    names = []
    for node in model.graph.node:
        if node.op_type in ("Relu", "Clip"):
            names.append(node.output[0])
        elif node.op_type == "MaxPool":
            names.append(node.input[0])
    return list(dict.fromkeys(names))


@dataclass
class Overruled:
    """Where PyTorch was told to take the other side.

    Attributes:
        count: elements, of ``seen``.
        distance: the largest from the kink, in standard deviations of the tensor.
    """

    count: int = 0
    seen: int = 0
    distance: float = 0.0

    def add(self, where: Tensor, distance: Tensor, spread: Tensor) -> None:
        self.count += int(where.sum())
        self.seen += where.numel()
        if bool(where.any()):
            self.distance = max(self.distance, float((distance[where].max() / spread).detach()))


class GuidedGraph(TorchGraph):
    """A graph in PyTorch that takes onnxruntime's sides.

    Attributes:
        sides: values that onnxruntime found for the tensors of :func:`deciding`; empty for
            PyTorch as it is.
        overruled: what that changed, over all runs.
    """

    def __init__(self, model: onnx.ModelProto, real: torch.dtype) -> None:
        super().__init__(model, real, train=True)
        self.sides: Mapping[str, np.ndarray] = {}
        self.overruled = Overruled()

    def compute(self, call: Node, node: onnx.NodeProto) -> list[Tensor]:
        if self.sides and call.op == "MaxPool":
            return [self._maximum(call, torch.from_numpy(self.sides[node.input[0]]))]
        if self.sides and call.op in ("Relu", "Clip"):
            return [self._rectified(call, torch.from_numpy(self.sides[node.output[0]]))]
        return super().compute(call, node)

    def _rectified(self, node: Node, found: Tensor) -> Tensor:
        """Relu, or Clip: inside the bounds, at the lower or at the upper one, as ``found`` is."""
        x = node[0]
        low = float(node[1]) if node.has(1) else 0.0
        high = float(node[2]) if node.has(2) else float("inf")
        below, above = found <= low, found >= high
        differs = (below != (x <= low)) | (above != (x >= high))
        distance = torch.minimum((x - low).abs(), (x - high).abs())
        self.overruled.add(differs, distance, x.std())
        return torch.where(below, low, torch.where(above, high, x))

    def _maximum(self, node: Node, found: Tensor) -> Tensor:
        """The elements of each window that are largest in ``found``."""
        largest, _ = OPERATORS["MaxPool"](node)
        _, places = OPERATORS["MaxPool"](
            Node(node.op, (found,), node.attributes, 2, node.version, node.real)
        )
        chosen = node[0].reshape(-1)[places]
        self.overruled.add(chosen != largest, (largest - chosen).abs(), node[0].std())
        return chosen
