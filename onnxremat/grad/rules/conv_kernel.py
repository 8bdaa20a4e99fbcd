"""The cotangent of convolution filters by one convolution with the output cotangent as kernel.

Where the channels of x are innermost, ``b`` at a time, they count as part of the last axis: x is
[N, C/b, H, W b]. With the N images as channels, C/b as a further spatial axis and dy as the kernel
[K, N, 1, P, Q], the strides (times b along the last axis) as dilations, the output is
[K, C/b, kh, kw b]: the filters' cotangent, b channels innermost. onnxruntime gathers what such a
kernel sees in runs of kw b elements, on all threads and in pieces that stay in the cache, and its
products sum over images and positions: nothing is padded, cut out, moved or joined before, each of
which one thread does alone. The blocks of ``b`` are those of the processor's convolutions, of which
the layout is taken; few channels are all one block.
"""

from __future__ import annotations

import math

from onnx import TensorProto as T

from onnxremat.grad.rules.flipping import flipped
from onnxremat.grad.rules.geometry import Window
from onnxremat.grad.tape import Shape, Tape
from onnxremat.ort.blocks import DOMAIN

FEW = 8  # channels up to which they are moved to the end one by one
APART = 4  # images have kernels of their own where all results together are this much less than dy


def fits_kernel(t: Tape, x: str, filters: Shape, window: Window) -> bool:
    """Whether the filters [K, C, kh, kw] of a convolution without groups are made so; ``window`` is
    not 1x1."""
    if window.rank != 2 or window.dilations[1] != 1 or t.dtype(x) != T.FLOAT:
        return False
    if min(*window.before, *window.after) < 0:
        return False
    return _block(t, filters[1]) > 0 or _can_swap(t, filters, window)


def _block(t: Tape, channels: int) -> int:
    """How many channels are innermost; 0 where they cannot be."""
    if channels <= FEW:
        return channels
    return t.block if t.block and channels % t.block == 0 else 0


def _can_swap(t: Tape, filters: Shape, window: Window) -> bool:
    """Whether x may be the kernel, and dy what it is moved over."""
    return set(window.strides) == {1} and min(window.flipped.before) >= 0 < _block(t, filters[0])


def by_kernel(t: Tape, x: str, dy: str, filters: Shape, window: Window) -> str:
    """Cotangent of the filters with data ``x`` and output cotangent ``dy``. Of the two, what has
    fewer channels is what columns are gathered of, once for all channels of the other."""
    outputs, channels, *kernel = filters
    x = t.later(x, dy)
    few = outputs * 2 <= channels or not _block(t, channels)
    if few and _can_swap(t, filters, window):
        made = _correlated(t, dy, x, (channels, outputs, *kernel), window.flipped)
        return flipped(t, made, 1)
    return _correlated(t, x, dy, filters, window)


def _correlated(t: Tape, data: str, by: str, filters: Shape, window: Window) -> str:
    """[K, C, kh, kw] of data [N, C, H, W] and kernels ``by`` [N, K, P, Q]."""
    outputs, channels, *kernel = filters
    block, images = _block(t, channels), t.shape(data)[0]
    data = _innermost(t, data, block)
    apart = images * APART * math.prod(filters) <= t.size(by)
    if apart:
        seen = t.reshape(by, (images * outputs, 1, 1, *window.output))
    else:
        seen = t.reshape(t.transpose(by, (1, 0, 2, 3)), (outputs, images, 1, *window.output))
    made = _convolved(t, data, seen, window, block, images if apart else 1)
    laid = (outputs, channels // block, kernel[0], kernel[1] * block)
    made = t.slice(made, [3, 4], [0, 0], laid[2:])  # of input that no window reaches
    if apart:
        made = t.sum(t.reshape(made, (images, *laid)), [0])
    if block < channels:
        return t.op(
            "ReorderOutput", t.reshape(made, filters), shape=filters, domain=DOMAIN,
            channels=channels,
        )  # fmt: skip
    return t.transpose(t.reshape(made, (outputs, *kernel, channels)), (0, 3, 1, 2))


def _innermost(t: Tape, x: str, block: int) -> str:
    """[N, C, H, W] as [1, N, C/b, H, W b]."""
    images, channels, height, width = shape = t.shape(x)
    if block < channels:
        made = t.op("ReorderInput", x, shape=shape, domain=DOMAIN)
    else:
        made = t.transpose(x, (0, 2, 3, 1))
    return t.reshape(made, (1, images, channels // block, height, width * block))


def _convolved(t: Tape, data: str, seen: str, window: Window, block: int, groups: int) -> str:
    """Each kernel over the data of its images: strides and dilations swap roles. Zeros behind the
    data are those that make no output too many."""
    after = [
        max(0, s * (o - 1) + e - n - p)
        for s, o, e, n, p in zip(
            window.strides, window.output, window.extent, window.input, window.before, strict=True
        )
    ]
    down = window.dilations[0]
    (height, width), (above, left) = window.input, window.before
    rows = height + above + after[0] - window.strides[0] * (window.output[0] - 1)
    columns = width + left + after[1] - window.strides[1] * (window.output[1] - 1)
    return t.op(
        "Conv", data, seen,
        shape=(1, t.shape(seen)[0], t.shape(data)[2], (rows - 1) // down + 1, columns * block),
        strides=[1, down, 1], dilations=[1, window.strides[0], window.strides[1] * block],
        pads=[0, above, left * block, 0, after[0], after[1] * block], group=groups,
    )  # fmt: skip
