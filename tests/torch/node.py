"""One ONNX node as PyTorch sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Tensor = torch.Tensor


@dataclass(frozen=True)
class Node:
    """A node whose inputs are PyTorch tensors.

    Attributes:
        op: ``Conv``, or ``com.microsoft.BiasGelu`` with the domain in front.
        inputs: None where absent.
        attributes: as onnx reads them, strings decoded.
        outputs: how many are asked for.
        version: opset version of the domain.
        real: what float32 and float64 of the model are computed in.
    """

    op: str
    inputs: tuple[Tensor | None, ...]
    attributes: dict[str, Any]
    outputs: int
    version: int
    real: torch.dtype

    def __getitem__(self, position: int) -> Tensor:
        """An input that is there."""
        value = self.inputs[position]
        assert value is not None, f"{self.op} has no input {position}"
        return value

    def has(self, position: int) -> bool:
        """Whether an input is there."""
        return position < len(self.inputs) and self.inputs[position] is not None

    def maybe(self, position: int) -> Tensor | None:
        """An input, None when absent."""
        return self.inputs[position] if position < len(self.inputs) else None

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute."""
        return self.attributes.get(name, default)

    def axis(self, default: int) -> int:
        """The attribute ``axis``, counted from 0."""
        return int(self.get("axis", default)) % self[0].dim()

    def integers(self, name: str, position: int) -> list[int] | None:
        """Numbers that older opsets give as an attribute and newer ones as an input."""
        if name in self.attributes:
            return list(self.attributes[name])
        return self[position].reshape(-1).tolist() if self.has(position) else None


Result = Tensor | Sequence[Tensor]
Operator = Callable[[Node], Result]
