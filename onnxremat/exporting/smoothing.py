"""Label smoothing of a cross-entropy inside a module, written out while it is exported.

PyTorch's default exporter leaves ``label_smoothing`` out of the file without a word, its older one
refuses it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def smoothing_written_out() -> Iterator[None]:
    """``cross_entropy`` with smoothed labels is computed by operators that exporters know, as its
    documentation defines it."""
    import torch

    class Written(torch.overrides.TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            named = kwargs or {}
            share = named.get("label_smoothing", 0.0)
            if function is torch.nn.functional.cross_entropy and share:
                others = {k: v for k, v in named.items() if k not in ("label_smoothing", *_OLD)}
                return _smoothed(share, *args, **others)
            return function(*args, **named)

    with Written():
        yield


_OLD = ("size_average", "reduce")  # which PyTorch has made a reduction of by then


def _smoothed(
    share: float, x: Any, target: Any, weight: Any = None, *,
    ignore_index: int = -100, reduction: str = "mean",
) -> Any:  # fmt: skip
    """(1 - share) of the loss of the labels, and share of the mean loss of all classes."""
    import torch

    axis = min(x.dim() - 1, 1)
    classes = x.shape[axis]
    each = -torch.log_softmax(x, axis)
    if weight is not None:
        each = each * weight.reshape(-1, *[1] * (x.dim() - axis - 1))
    if target.is_floating_point():  # of probabilities, which the older exporter takes for labels
        odds = target * (1 - share) + share / classes
        return _reduced((each * odds).sum(axis), reduction, x.numel() // classes)
    hard = torch.nn.functional.cross_entropy(
        x, target, weight, ignore_index=ignore_index, reduction=reduction
    )
    counts = (target != ignore_index).to(x)
    shares = counts
    if weight is not None:
        shares = weight[torch.where(target != ignore_index, target, 0)] * counts
    soft = _reduced(each.sum(axis) * counts, reduction, shares.sum())
    return hard * (1 - share) + soft * (share / classes)


def _reduced(each: Any, reduction: str, count: Any) -> Any:
    if reduction == "none":
        return each
    return each.sum() / count if reduction == "mean" else each.sum()
