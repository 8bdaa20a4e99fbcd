"""Normalizations by moments and by norms."""

from __future__ import annotations

import torch
from torch.nn import functional as F  # noqa: N812

from tests.torch.node import Node, Operator, Tensor


def _batch_norm(n: Node) -> list[Tensor]:
    given, scale, bias, mean, variance = (n[k] for k in range(5))
    x = given if given.dim() > 1 else given.unsqueeze(1)  # numbers of one channel
    epsilon, keep = n.get("epsilon", 1e-5), n.get("momentum", 0.9)
    if not n.get("training_mode", 0):
        shape = (1, -1, *[1] * (x.dim() - 2))  # F.batch_norm has no gradient for the statistics
        mean, variance, scale, bias = (row.view(shape) for row in (mean, variance, scale, bias))
        return [((x - mean) / (variance + epsilon).sqrt() * scale + bias).reshape(given.shape)]
    y = F.batch_norm(x, None, None, scale, bias, True, 0.0, epsilon)
    # ONNX, unlike PyTorch, moves the running variance towards that of the batch with divisor n.
    axes = [axis for axis in range(x.dim()) if axis != 1]
    running = (x.mean(axes), x.var(axes, correction=0))
    return [
        y.reshape(given.shape),
        *(a * keep + b * (1 - keep) for a, b in zip((mean, variance), running, strict=True)),
    ]


def layer_norm(
    x: Tensor, scale: Tensor, bias: Tensor | None, axis: int, epsilon: float
) -> list[Tensor]:
    """y, mean and 1 / spread over the axes from ``axis`` on."""
    shape = x.shape[axis:]
    axes = list(range(axis % x.dim(), x.dim()))
    mean = x.mean(axes, keepdim=True)
    inverse = (x.var(axes, correction=0, keepdim=True) + epsilon).rsqrt()
    if max(scale.dim(), bias.dim() if bias is not None else 0) > len(shape):  # rows have their own
        y = F.layer_norm(x, shape, None, None, epsilon) * scale
        return [y if bias is None else y + bias, mean, inverse]
    bias = None if bias is None else bias.expand(shape)
    return [F.layer_norm(x, shape, scale.expand(shape), bias, epsilon), mean, inverse]


def rms_norm(x: Tensor, scale: Tensor, axis: int, epsilon: float) -> Tensor:
    """x by the root of its mean square over the axes from ``axis`` on."""
    shape = x.shape[axis:]
    return F.rms_norm(x, shape, scale.expand(shape), epsilon)


def _group_norm(n: Node) -> Tensor:
    """Scale and bias are per channel; per group before opset 21."""
    channels = n[0].shape[1]
    scale, bias = (v.repeat_interleave(channels // v.shape[0]) for v in (n[1], n[2]))
    return F.group_norm(n[0], n.get("num_groups"), scale, bias, n.get("epsilon", 1e-5))


def _mean_variance(n: Node) -> Tensor:
    axes = list(n.get("axes", [0, 2, 3]))
    centred = n[0] - n[0].mean(axes, keepdim=True)
    return centred / (centred.square().mean(axes, keepdim=True).sqrt() + 1e-9)


def _skip_layer_norm(n: Node) -> list[Tensor]:
    total = n[0] + n[1] + n[4] if n.has(4) else n[0] + n[1]
    found = layer_norm(total, n[2], n.maybe(3), -1, n.get("epsilon", 1e-12))
    return [*found, total]


def _skip_rms_norm(n: Node) -> list[Tensor]:
    total = n[0] + n[1] + n[3] if n.has(3) else n[0] + n[1]
    empty = torch.empty(0)
    return [rms_norm(total, n[2], -1, n.get("epsilon", 1e-12)), empty, empty, total]


def _lp_norm(n: Node) -> Tensor:
    return F.normalize(n[0], float(n.get("p", 2)), n.axis(-1), eps=0.0)


NORMALIZATION: dict[str, Operator] = {
    "BatchNormalization": _batch_norm,
    "GroupNormalization": _group_norm,
    "InstanceNormalization": lambda n: F.instance_norm(
        n[0], weight=n[1], bias=n[2], eps=n.get("epsilon", 1e-5)
    ),
    "LRN": lambda n: F.local_response_norm(
        n[0], n.get("size"), n.get("alpha", 1e-4), n.get("beta", 0.75), n.get("bias", 1.0)
    ),
    "LayerNormalization": lambda n: layer_norm(
        n[0], n[1], n.maybe(2), n.get("axis", -1), n.get("epsilon", 1e-5)
    ),
    "LpNormalization": _lp_norm,
    "MeanVarianceNormalization": _mean_variance,
    "RMSNormalization": lambda n: rms_norm(n[0], n[1], n.get("axis", -1), n.get("epsilon", 1e-5)),
    "SimplifiedLayerNormalization": lambda n: rms_norm(
        n[0], n[1], n.get("axis", -1), n.get("epsilon", 1e-5)
    ),
    "com.microsoft.SkipLayerNormalization": _skip_layer_norm,
    "com.microsoft.SkipSimplifiedLayerNormalization": _skip_rms_norm,
}
