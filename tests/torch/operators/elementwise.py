"""Arithmetic, comparisons and activations."""

from __future__ import annotations

from functools import reduce

import torch
from torch.nn import functional as F  # noqa: N812

from tests.torch.node import Node, Operator, Tensor


def _selu(n: Node) -> Tensor:
    alpha, gamma = n.get("alpha", 1.6732632423543772), n.get("gamma", 1.0507009873554805)
    return gamma * F.elu(n[0], alpha)


def _shrink(n: Node) -> Tensor:
    x, bound, bias = n[0], n.get("lambd", 0.5), n.get("bias", 0.0)
    return torch.where(x < -bound, x + bias, torch.where(x > bound, x - bias, 0.0))


def _swish(n: Node, alpha: float) -> Tensor:
    return n[0] * torch.sigmoid(n.get("alpha", alpha) * n[0])


def _biased(n: Node) -> Tensor:
    return n[0] + n[1] if n.has(1) else n[0]


def _all(n: Node) -> list[Tensor]:
    return [n[k] for k in range(len(n.inputs))]


def _mean(n: Node) -> Tensor:
    return sum(_all(n)[1:], n[0]) / len(n.inputs)


def _clip(n: Node) -> Tensor:
    x = n[0]
    x = torch.maximum(x, n[1]) if n.has(1) else x
    return torch.minimum(x, n[2]) if n.has(2) else x


ELEMENTWISE: dict[str, Operator] = {
    "Abs": lambda n: n[0].abs(),
    "Acos": lambda n: n[0].acos(),
    "Acosh": lambda n: n[0].acosh(),
    "Add": lambda n: n[0] + n[1],
    "And": lambda n: n[0] & n[1],
    "Asin": lambda n: n[0].asin(),
    "Asinh": lambda n: n[0].asinh(),
    "Atan": lambda n: n[0].atan(),
    "Atanh": lambda n: n[0].atanh(),
    "Celu": lambda n: F.celu(n[0], n.get("alpha", 1.0)),
    "Clip": _clip,
    "Cos": lambda n: n[0].cos(),
    "Cosh": lambda n: n[0].cosh(),
    "Div": lambda n: n[0] / n[1],
    "Dropout": lambda n: n[0],
    "Elu": lambda n: F.elu(n[0], n.get("alpha", 1.0)),
    "Equal": lambda n: n[0] == n[1],
    "Erf": lambda n: n[0].erf(),
    "Exp": lambda n: n[0].exp(),
    "Gelu": lambda n: F.gelu(n[0], approximate=n.get("approximate", "none")),
    "Greater": lambda n: n[0] > n[1],
    "HardSigmoid": lambda n: (n.get("alpha", 0.2) * n[0] + n.get("beta", 0.5)).clamp(0.0, 1.0),
    "HardSwish": lambda n: F.hardswish(n[0]),
    "Identity": lambda n: n[0],
    "LeakyRelu": lambda n: F.leaky_relu(n[0], n.get("alpha", 0.01)),
    "Less": lambda n: n[0] < n[1],
    "Log": lambda n: n[0].log(),
    "Max": lambda n: reduce(torch.maximum, _all(n)),
    "Mean": _mean,
    "Min": lambda n: reduce(torch.minimum, _all(n)),
    "Mish": lambda n: F.mish(n[0]),
    "Mul": lambda n: n[0] * n[1],
    "Neg": lambda n: -n[0],
    "Not": lambda n: ~n[0],
    "Or": lambda n: n[0] | n[1],
    "PRelu": lambda n: torch.where(n[0] < 0.0, n[0] * n[1], n[0]),
    "Pow": lambda n: n[0] ** n[1],
    "Reciprocal": lambda n: n[0].reciprocal(),
    "Relu": lambda n: n[0].relu(),
    "Selu": _selu,
    "Shrink": _shrink,
    "Sigmoid": lambda n: n[0].sigmoid(),
    "Sign": lambda n: n[0].sign(),
    "Sin": lambda n: n[0].sin(),
    "Sinh": lambda n: n[0].sinh(),
    "Softplus": lambda n: F.softplus(n[0]),
    "Softsign": lambda n: F.softsign(n[0]),
    "Sqrt": lambda n: n[0].sqrt(),
    "Sub": lambda n: n[0] - n[1],
    "Sum": lambda n: sum(_all(n)[1:], n[0]),
    "Swish": lambda n: _swish(n, 1.0),
    "Tan": lambda n: n[0].tan(),
    "Tanh": lambda n: n[0].tanh(),
    "ThresholdedRelu": lambda n: F.threshold(n[0], n.get("alpha", 1.0), 0.0),
    "Where": lambda n: torch.where(n[0], n[1], n[2]),
    "com.microsoft.BiasGelu": lambda n: F.gelu(_biased(n)),
    "com.microsoft.FastGelu": lambda n: F.gelu(_biased(n), approximate="tanh"),
    "com.microsoft.Gelu": lambda n: F.gelu(n[0]),
    "com.microsoft.QuickGelu": lambda n: _swish(n, 1.702),
}
