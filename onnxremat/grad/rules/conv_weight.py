"""The cotangent of convolution filters, in the formulation that is fastest for the geometry.

With x [N, C, ...], dy [N, K, ...], P output positions and T kernel elements:

* ``matrix``: a 1x1 kernel is one MatMul per image, summed over images;
* ``kernel``: Conv with dy as the kernel over blocks of channels (:mod:`.conv_kernel`), which all
  others but those for groups are for where it does not fit;
* ``conv``: Conv with the batch as channels and dy as the kernel; for few channels and a large
  kernel only;
* ``columns``: the T shifted views of x side by side, one Gemm (or one product per image); T times
  the memory of x;
* ``shifts``: one product per kernel element, of dy moved along the first axis and x moved along the
  others: a 3x3 kernel needs four moved copies, where the views of x alone would be nine; for groups
  as well, which get their views where they are strided;
* ``depthwise``: Conv with one group per image and channel, or ``band``: Gemms over blocks of
  columns, of which the wanted diagonals are cut out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

from onnx import TensorProto as T

from onnxremat.grad.rules.conv_kernel import by_kernel, fits_kernel
from onnxremat.grad.rules.geometry import Window
from onnxremat.grad.tape import Shape, Tape

FEW_CHANNELS, FEW_TAPS = 8, 16
TINY_MAP = 64  # output positions up to which the columns are cheap to build
SMALL_MAP = 200  # and up to which one product over all images pays for moving channels to the front
BAND = 16  # widest block of output columns


@dataclass(frozen=True)
class Filters:
    """Shape [K, C/g, ...] and group count g of convolution filters."""

    shape: Shape
    group: int

    @property
    def outputs(self) -> int:
        """K."""
        return self.shape[0]

    @property
    def channels(self) -> int:
        """C, over all groups."""
        return self.shape[1] * self.group

    @property
    def depthwise(self) -> bool:
        """One channel in and out per group."""
        return self.shape[1] == 1 and self.group == self.outputs > 1


def weight_cotangent(
    t: Tape, x: str, dy: str, filters: Filters, window: Window, *, banded: bool = True,
    kernel: bool = True,
) -> str:  # fmt: skip
    """Cotangent of filters with data ``x`` and output cotangent ``dy``; ``banded`` allows the
    banded Gemms for depthwise ones, ``kernel`` a convolution with dy as kernel, for the CPU."""
    if filters.depthwise:
        return _depthwise(t, x, dy, filters, window, banded)
    if filters.group > 1:
        strided = set(window.strides) != {1}
        return (_grouped if strided else _shifts)(t, x, dy, filters, window)
    if window.taps == 1:
        return _matrix(t, x, dy, filters, window)
    if kernel and fits_kernel(t, x, filters.shape, window):
        return by_kernel(t, x, dy, filters.shape, window)
    few = filters.channels <= FEW_CHANNELS
    if few and window.taps > FEW_TAPS:
        return _by_conv(t, x, dy, filters, window)
    if few or window.kernel == window.strides:
        return _image_columns(t, x, dy, filters, window)
    if window.positions <= TINY_MAP or set(window.strides) != {1}:
        return _columns(t, x, dy, filters, window)
    return _shifts(t, x, dy, filters, window)


def _padded(t: Tape, x: str, window: Window) -> str:
    return t.pad(x, (0, 0, *window.before), (0, 0, *window.after))


def _views(t: Tape, padded: str, window: Window) -> list[str]:
    """What each kernel element sees: [., ., *output]. A Slice with steps moves element by element,
    so where windows are strided each phase of the data is cut out once, and the views from it."""
    phases: dict[tuple[int, ...], str] = {}
    views = []
    for offset in window.offsets():
        starts = [o * d for o, d in zip(offset, window.dilations, strict=True)]
        phase = tuple(start % s for start, s in zip(starts, window.strides, strict=True))
        if phase not in phases:
            sizes = t.shape(padded)[2:]
            phases[phase] = t.slice(padded, list(window.axes), phase, sizes, window.strides)
        first = [start // s for start, s in zip(starts, window.strides, strict=True)]
        last = [start + size for start, size in zip(first, window.output, strict=True)]
        views.append(t.slice(phases[phase], list(window.axes), first, last))
    return views


def _channels_first(t: Tape, a: str) -> str:
    """[N, C, ...] as [C, N, ...]."""
    return t.transpose(a, (1, 0, *range(2, t.rank(a))))


def _flat(t: Tape, a: str) -> str:
    """[N, C, ...] as [N, C, P]."""
    n, c = t.shape(a)[:2]
    return t.reshape(a, (n, c, t.size(a) // max(n * c, 1)))


def _matrix(t: Tape, x: str, dy: str, filters: Filters, window: Window) -> str:
    (view,) = _views(t, _padded(t, x, window), window)
    product = t.matmul(_flat(t, dy), t.swap_last(_flat(t, view)))
    return t.reshape(t.sum(product, [0]), filters.shape)


def _by_conv(t: Tape, x: str, dy: str, filters: Filters, window: Window) -> str:
    made = _correlate(t, _channels_first(t, x), _channels_first(t, dy), window, group=1)
    return _channels_first(t, made)


def _correlate(t: Tape, x: str, kernel: str, window: Window, group: int) -> str:
    """Conv whose kernel is the output cotangent: strides and dilations swap roles."""
    sizes = [
        (n + p + q - s * (o - 1) - 1) // d + 1
        for n, p, q, s, o, d in zip(
            window.input, window.before, window.after, window.strides, window.output,
            window.dilations, strict=True,
        )
    ]  # fmt: skip
    made = t.op(
        "Conv", x, kernel, shape=(t.shape(x)[0], t.shape(kernel)[0], *sizes),
        strides=window.dilations, dilations=window.strides, pads=window.pads, group=group,
    )  # fmt: skip
    return t.slice(made, list(window.axes), [0] * window.rank, list(window.kernel))


def _columns(t: Tape, x: str, dy: str, filters: Filters, window: Window) -> str:
    """Channels first, so that one Gemm sums over images and positions at once."""
    channels, outputs = filters.channels, filters.outputs
    view = _channels_first(t, _padded(t, x, window))
    rows = t.size(dy) // outputs
    parts = [t.reshape(part, (channels, 1, rows)) for part in _views(t, view, window)]
    columns = t.reshape(t.concat(parts, 1), (channels * window.taps, rows))
    left = t.reshape(_channels_first(t, dy), (outputs, rows))
    return t.reshape(t.gemm(left, columns, tb=True), filters.shape)


def _image_columns(t: Tape, x: str, dy: str, filters: Filters, window: Window) -> str:
    """As columns, one product per image: nothing has to be moved to the front."""
    images, view = t.shape(x)[0], _padded(t, x, window)
    parts = [
        t.reshape(part, (images, filters.channels, 1, window.positions))
        for part in _views(t, view, window)
    ]
    shape = (images, filters.channels * window.taps, window.positions)
    columns = t.reshape(t.concat(parts, 2), shape)
    product = t.matmul(_flat(t, dy), t.swap_last(columns))
    return t.reshape(t.sum(product, [0]), filters.shape)


def _shifts(t: Tape, x: str, dy: str, filters: Filters, window: Window) -> str:
    """The product at (i, j): dy at output row r belongs to input row r + i - p, so dy moves to
    where its input rows are, and x moves along the columns to where its output columns are. Rows
    and columns that have no partner are 0 on one side."""
    together = window.positions <= SMALL_MAP
    if together:
        x, dy = _channels_first(t, x), _channels_first(t, dy)
    first, *rest = range(window.rank)
    steps = [
        [tap * d for tap in range(k)] for k, d in zip(window.kernel, window.dilations, strict=True)
    ]
    rows = [
        _moved(t, dy, [2], [step - window.before[first]], [window.input[first]])
        for step in steps[first]
    ]
    columns = [
        _moved(
            t, x, [2 + axis for axis in rest],
            [window.before[axis] - step for axis, step in zip(rest, offset, strict=True)],
            [window.output[axis] for axis in rest],
        )
        for offset in product(*(steps[axis] for axis in rest))
    ]  # fmt: skip
    shape, group = (filters.outputs, filters.shape[1], 1), filters.group
    parts = [
        t.reshape(_product(t, row, column, group, together), shape)
        for row in rows
        for column in columns
    ]
    return t.reshape(t.concat(parts, 2), filters.shape)


def _product(t: Tape, left: str, right: str, group: int, together: bool) -> str:
    """[K, C/g] from [N, K, ...] and [N, C, ...], or from both with channels first."""
    if group > 1:
        left, right = _in_groups(t, left, group, together), _in_groups(t, right, group, together)
        product = t.matmul(left, t.swap_last(right))
        return product if together else t.sum(product, [0])
    if together:
        k, c = t.shape(left)[0], t.shape(right)[0]
        return t.gemm(
            t.reshape(left, (k, t.size(left) // k)),
            t.reshape(right, (c, t.size(right) // c)),
            tb=True,
        )
    return t.sum(t.matmul(_flat(t, left), t.swap_last(_flat(t, right))), [0])


def _in_groups(t: Tape, a: str, group: int, together: bool) -> str:
    """[N, C, ...] as [N, g, C/g, P], or with channels first as [g, C/g, N P]."""
    n, c = t.shape(a)[:2]
    if together:
        return t.reshape(a, (group, n // group, t.size(a) // n))
    return t.reshape(a, (n, group, c // group, t.size(a) // (n * c)))


def _moved(t: Tape, a: str, axes: list[int], by: list[int], sizes: list[int]) -> str:
    """Elements moved towards the end of axes (or the start, where ``by`` is negative) of new sizes;
    zeros where nothing moves in, what moves out is gone. In float32 by one pass, a Pad that also
    crops; not every runtime crops in other types."""
    shape, rank = list(t.shape(a)), t.rank(a)
    before, after = [0] * rank, [0] * rank
    for axis, offset, size in zip(axes, by, sizes, strict=True):
        before[axis], after[axis] = offset, size - shape[axis] - offset
        shape[axis] = size
    if not any(before) and not any(after):
        return a
    if t.dtype(a) != T.FLOAT:
        return t.pad(a, before, after)
    if len(axes) == 1:  # the axes behind it move as one: longer runs of memory
        axis, inner = axes[0], math.prod(shape[axes[0] + 1 :])
        a = t.reshape(a, (*t.shape(a)[:axis], t.shape(a)[axis] * inner))
        ends = [*before[:axis], before[axis] * inner, *after[:axis], after[axis] * inner]
        made = t.op("Pad", a, t.integers(*ends), shape=(*shape[:axis], shape[axis] * inner))
        return t.reshape(made, shape)
    return t.op("Pad", a, t.integers(*before, *after), shape=shape)


def _grouped(t: Tape, x: str, dy: str, filters: Filters, window: Window) -> str:
    group, (outputs, each) = filters.group, filters.shape[:2]
    rows = t.size(dy) // outputs
    left = t.reshape(_channels_first(t, dy), (group, outputs // group, rows))
    view = _channels_first(t, _padded(t, x, window))
    parts = []
    for part in _views(t, view, window):
        right = t.reshape(part, (group, each, rows))
        product = t.matmul(left, t.swap_last(right))
        parts.append(t.reshape(product, (outputs, each, 1)))
    return t.reshape(t.concat(parts, 2), filters.shape)


def _depthwise(t: Tape, x: str, dy: str, filters: Filters, window: Window, banded: bool) -> str:
    strided = set(window.strides) != {1} and max(window.kernel) < 5
    if banded and window.rank == 2 and not strided:
        return _band(t, x, dy, filters, window)
    images, channels = t.shape(x)[:2]
    data = t.reshape(x, (1, images * channels, *window.input))
    kernel = t.reshape(dy, (images * channels, 1, *window.output))
    made = _correlate(t, data, kernel, window, group=images * channels)
    made = t.sum(t.reshape(made, (images, channels * window.taps)), [0])
    return t.reshape(made, filters.shape)


def _band(t: Tape, x: str, dy: str, filters: Filters, window: Window) -> str:
    """Per kernel row one batched Gemm over blocks of ``width`` output columns; the entry for
    kernel column j and output column o lies at (o, stride * o + dilation * j)."""
    images, channels = t.shape(x)[:2]
    rows, columns = window.output
    stride, dilation = window.strides[1], window.dilations[1]
    width = max(w for w in range(1, BAND + 1) if columns % w == 0)
    blocks, span = columns // width, stride * (width - 1) + window.extent[1]
    depth = images * rows * blocks
    left = t.reshape(_channels_first(t, dy), (channels, depth, width))
    view = _column_blocks(
        t, _channels_first(t, _padded(t, x, window)), blocks, width * stride, span
    )
    parts = []
    for offset in range(window.kernel[0]):
        start = offset * window.dilations[0]
        end = start + window.strides[0] * (rows - 1) + 1
        right = t.slice(view, [2], [start], [end], [window.strides[0]])
        right = t.reshape(right, (channels, depth, span))
        product = t.matmul(t.swap_last(left), right)
        parts.append(t.reshape(product, (channels, 1, width * span)))
    # Rows of span + stride elements put the wanted diagonal of every block into one column.
    flat = t.pad(t.concat(parts, 1), (0, 0, 0), (0, 0, width * stride))
    flat = t.reshape(flat, (channels, window.kernel[0], width, span + stride))
    flat = t.slice(flat, [3], [0], [window.extent[1]], [dilation])
    return t.reshape(t.sum(flat, [2]), filters.shape)


def _column_blocks(t: Tape, view: str, blocks: int, step: int, span: int) -> str:
    """[C, N, H, W] as overlapping column blocks [C, N, H, blocks, span]."""
    channels, images, height, _ = t.shape(view)
    parts = [
        t.reshape(
            t.slice(view, [3], [block * step], [block * step + span]),
            (channels, images, height, 1, span),
        )
        for block in range(blocks)
    ]
    return t.concat(parts, 3)
