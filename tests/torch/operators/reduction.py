"""Reductions over axes, softmax, and the losses ONNX has as operators."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional as F  # noqa: N812

from tests.torch.node import Node, Operator, Tensor


def _reduce(call: Callable[[Tensor, list[int], bool], Tensor]) -> Operator:
    def run(n: Node) -> Tensor:
        axes = n.integers("axes", 1)
        if not axes and n.get("noop_with_empty_axes", 0):
            return n[0]
        every = list(range(n[0].dim()))
        return call(n[0], [a % n[0].dim() for a in axes or every], bool(n.get("keepdims", 1)))

    return run


def _product(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    for axis in sorted(axes, reverse=True):
        x = x.prod(axis, keepdim=keep)
    return x


def _norm(order: int) -> Callable[[Tensor, list[int], bool], Tensor]:
    return lambda x, axes, keep: torch.linalg.vector_norm(x, order, axes, keep)


def _top_k(n: Node) -> list[Tensor]:
    return list(n[0].topk(int(n[1]), n.axis(-1), bool(n.get("largest", 1))))


def _softmax(call: Callable[[Tensor, int], Tensor]) -> Operator:
    def run(n: Node) -> Tensor:
        if n.version >= 13:
            return call(n[0], n.get("axis", -1))
        x, axis = n[0], n.axis(1)  # once over all axes from this one on
        return call(x.flatten(axis), axis).reshape(x.shape)

    return run


def _cross_entropy(n: Node, call: Callable[..., Tensor]) -> Tensor:
    ignored = n.get("ignore_index", -100)
    return call(n[0], n[1], n.maybe(2), ignore_index=ignored, reduction=n.get("reduction", "mean"))


def _cumsum(n: Node) -> Tensor:
    axis = int(n[1]) % n[0].dim()
    x = n[0].flip(axis) if n.get("reverse", 0) else n[0]
    y = x.cumsum(axis) - x if n.get("exclusive", 0) else x.cumsum(axis)
    return y.flip(axis) if n.get("reverse", 0) else y


REDUCTION: dict[str, Operator] = {
    "CumSum": _cumsum,
    "LogSoftmax": _softmax(F.log_softmax),
    "NegativeLogLikelihoodLoss": lambda n: _cross_entropy(n, F.nll_loss),
    "ReduceL1": _reduce(_norm(1)),
    "ReduceL2": _reduce(_norm(2)),
    "ReduceLogSum": _reduce(lambda x, axes, keep: x.sum(axes, keep).log()),
    "ReduceLogSumExp": _reduce(torch.logsumexp),
    "ReduceMax": _reduce(torch.amax),
    "ReduceMean": _reduce(lambda x, axes, keep: x.mean(axes, keep)),
    "ReduceMin": _reduce(torch.amin),
    "ReduceProd": _reduce(_product),
    "ReduceSum": _reduce(lambda x, axes, keep: x.sum(axes, keep)),
    "ReduceSumSquare": _reduce(lambda x, axes, keep: x.square().sum(axes, keep)),
    "Softmax": _softmax(F.softmax),
    "SoftmaxCrossEntropyLoss": lambda n: [
        _cross_entropy(n, F.cross_entropy),
        F.log_softmax(n[0], 1),
    ],
    "TopK": _top_k,
}
