"""Convolutions and pooling over windows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional as F  # noqa: N812

from tests.torch.node import Node, Operator, Tensor

CONVS = (F.conv1d, F.conv2d, F.conv3d)
TRANSPOSED = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
MAX_POOLS = (F.max_pool1d, F.max_pool2d, F.max_pool3d)
AVERAGE_POOLS = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)


@dataclass(frozen=True)
class Window:
    """Geometry of a sliding window, one number per spatial axis; ``before`` and ``after`` are
    the padding."""

    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    before: list[int]
    after: list[int]


def _window(n: Node, kernel: list[int]) -> Window:
    rank = len(kernel)
    strides = n.get("strides", [1] * rank)
    dilations = n.get("dilations", [1] * rank)
    pads, auto = n.get("pads", [0] * 2 * rank), n.get("auto_pad", "NOTSET")
    before, after = pads[:rank], pads[rank:]
    if auto.startswith("SAME"):
        sizes = n[0].shape[2:]
        reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
        totals = [
            max((-(-size // s) - 1) * s + r - size, 0)
            for size, s, r in zip(sizes, strides, reach, strict=True)
        ]
        small, big = [t // 2 for t in totals], [t - t // 2 for t in totals]
        before, after = (small, big) if auto == "SAME_UPPER" else (big, small)
    return Window(list(kernel), list(strides), list(dilations), list(before), list(after))


def _padded(x: Tensor, before: list[int], after: list[int], value: float = 0.0) -> Tensor:
    """Spatial axes padded; negative counts crop."""
    sides = [p for pair in zip(reversed(before), reversed(after), strict=True) for p in pair]
    return F.pad(x, sides, value=value) if any(sides) else x


def _conv(n: Node) -> Tensor:
    w = _window(n, list(n[1].shape[2:]))
    call, group = CONVS[len(w.kernel) - 1], n.get("group", 1)
    if w.before == w.after:
        return call(n[0], n[1], n.maybe(2), w.strides, w.before, w.dilations, group)
    return call(
        _padded(n[0], w.before, w.after), n[1], n.maybe(2), w.strides, 0, w.dilations, group
    )


def _conv_transpose(n: Node) -> Tensor:
    rank = n[0].dim() - 2
    w = _window(n, list(n[1].shape[2:]))
    extra = n.get("output_padding", [0] * rank)
    y = TRANSPOSED[rank - 1](n[0], n[1], None, w.strides, 0, 0, n.get("group", 1), w.dilations)
    before, after = list(w.before), list(w.after)
    wanted, auto = n.get("output_shape"), n.get("auto_pad", "NOTSET")
    if wanted is not None or auto.startswith("SAME"):
        sizes = wanted or [k * s for k, s in zip(n[0].shape[2:], w.strides, strict=True)]
        totals = [have + e - want for have, e, want in zip(y.shape[2:], extra, sizes, strict=True)]
        small, big = [t // 2 for t in totals], [t - t // 2 for t in totals]
        before, after = (small, big) if auto == "SAME_UPPER" else (big, small)
    y = _padded(y, [-b for b in before], [e - a for e, a in zip(extra, after, strict=True)])
    return y + n[2].reshape(-1, *[1] * rank) if n.has(2) else y


def _max_pool(n: Node) -> list[Tensor]:
    """Values, and their places in the whole of the input counted row by row."""
    x, w = n[0], _window(n, n.get("kernel_shape"))
    y, places = MAX_POOLS[len(w.kernel) - 1](
        _padded(x, w.before, w.after, -float("inf")), w.kernel, w.strides, 0, w.dilations,
        bool(n.get("ceil_mode", 0)), return_indices=True,
    )  # fmt: skip
    sizes = x.shape[2:]
    wide = [s + b + a for s, b, a in zip(sizes, w.before, w.after, strict=True)]
    corner = torch.unravel_index(places, wide)
    flat = torch.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], *[1] * len(sizes))
    for axis, size in enumerate(sizes):
        flat = flat * size + corner[axis] - w.before[axis]
    return [y, flat]


def _sums(x: Tensor, w: Window) -> Tensor:
    """Sum over every window of an already padded tensor."""
    ones = x.new_ones(x.shape[1], 1, *w.kernel)
    call = CONVS[len(w.kernel) - 1]
    return call(x, ones, None, w.strides, 0, w.dilations, x.shape[1])


def _average_pool(n: Node) -> Tensor:
    x, w = n[0], _window(n, n.get("kernel_shape"))
    whole, ceil = bool(n.get("count_include_pad", 0)), bool(n.get("ceil_mode", 0))
    if w.before == w.after and set(w.dilations) == {1}:
        call = AVERAGE_POOLS[len(w.kernel) - 1]
        return call(x, w.kernel, w.strides, w.before, ceil, whole)
    counted = _padded(torch.ones_like(x), w.before, w.after, float(whole))
    x = _padded(x, w.before, w.after)
    if ceil:  # the last window may end behind the image, where nothing is counted
        spans = [(k - 1) * d + 1 for k, d in zip(w.kernel, w.dilations, strict=True)]
        sizes = zip(x.shape[2:], spans, w.strides, strict=True)
        more = [-(size - span) % stride for size, span, stride in sizes]
        x, counted = (_padded(each, [0] * len(more), more) for each in (x, counted))
    return _sums(x, w) / _sums(counted, w)


def _lp_pool(n: Node) -> Tensor:
    w, order = _window(n, n.get("kernel_shape")), n.get("p", 2)
    return _sums(_padded(n[0].abs() ** order, w.before, w.after), w) ** (1.0 / order)


def _max_unpool(n: Node) -> Tensor:
    x, kernel = n[0], n.get("kernel_shape")
    strides = n.get("strides", [1] * len(kernel))
    sizes = [(size - 1) * s + k for size, s, k in zip(x.shape[2:], strides, kernel, strict=True)]
    shape = n[2].tolist() if n.has(2) else [*x.shape[:2], *sizes]
    flat = x.new_zeros(int(np.prod(shape)))
    return flat.scatter(0, n[1].reshape(-1), x.reshape(-1)).reshape(shape)


def _col2im(n: Node) -> Tensor:
    """Columns [N, C taps, L] added up where their windows lie; two spatial axes."""
    image, kernel = n[1].tolist(), n[2].tolist()
    pads = n.get("pads", [0] * 4)
    wide = [size + pads[k] + pads[k + 2] for k, size in enumerate(image)]
    y = F.fold(
        n[0], wide, kernel, n.get("dilations", [1, 1]), 0, n.get("strides", [1, 1])
    )  # fmt: skip
    return _padded(y, [-p for p in pads[:2]], [-p for p in pads[2:]])


def _space(n: Node) -> list[int]:
    return list(range(2, n[0].dim()))


CONVOLUTION: dict[str, Operator] = {
    "AveragePool": _average_pool,
    "Col2Im": _col2im,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "GlobalAveragePool": lambda n: n[0].mean(_space(n), keepdim=True),
    "GlobalMaxPool": lambda n: n[0].amax(_space(n), keepdim=True),
    "LpPool": _lp_pool,
    "MaxPool": _max_pool,
    "MaxUnpool": _max_unpool,
}
