"""Stretches through windows: convolutions, pooling, resizing, and pixels moved to channels.

Output rows [a, b) of a window of ``k`` rows, stride ``s``, dilation ``d`` and ``p`` rows of padding
above read the input rows [a s - p, (b - 1) s - p + (k - 1) d + 1), clipped to the input; what is
clipped becomes the padding of the piece. So a piece has padding only where it touches the border.
"""

from __future__ import annotations

from dataclasses import dataclass

from onnxremat.graph.axis_products import leading
from onnxremat.graph.spans import Call, CannotSplitError, Piece, Span

SPATIAL = 2  # first axis of an image's rows


@dataclass(frozen=True)
class Window:
    """Kernel, stride, dilation and padding per spatial axis; ``pads`` as ONNX lists them."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]


def window_of(call: Call) -> Window:
    """The window of a convolution or pooling, ``auto_pad`` worked out.

    Raises:
        CannotSplitError: its weights' shape is not known.
    """
    given = call.attributes
    rank = len(call.shape(0)) - SPATIAL
    kernel = _kernel(call)
    strides = tuple(given.get("strides") or [1] * rank)
    dilations = tuple(given.get("dilations") or [1] * rank)
    auto = call.text("auto_pad", "NOTSET")
    if auto in ("NOTSET", ""):
        pads = tuple(given.get("pads") or [0] * (2 * rank))
    elif auto == "VALID":
        pads = (0,) * (2 * rank)
    else:
        totals = [
            (out - 1) * s + (k - 1) * d + 1 - size
            for out, size, k, s, d in zip(
                call.out[SPATIAL:], call.shape(0)[SPATIAL:], kernel, strides, dilations, strict=True
            )
        ]
        if min(totals) < 0:
            raise CannotSplitError(f"{auto} does not say where the first window begins")
        small = [total // 2 for total in totals]
        large = [total - less for total, less in zip(totals, small, strict=True)]
        pads = (*small, *large) if auto == "SAME_UPPER" else (*large, *small)
    return Window(kernel, strides, dilations, pads)


def _kernel(call: Call) -> tuple[int, ...]:
    """Sizes of a window, as they are said, or else those of the weights."""
    if "kernel_shape" in call.attributes:
        return tuple(call.attributes["kernel_shape"])
    return tuple(call.shape(3 if call.op.op_type == "QLinearConv" else 1)[SPATIAL:])


def convolution(call: Call, span: Span) -> Piece:
    """Batch and spatial axes; the residual of a fused sum is read as it is written."""
    reads = call.none()
    if call.has(3):
        reads[3] = span
    return through(call, span, reads)


def pooling(call: Call, span: Span) -> Piece:
    """Batch, channels and spatial axes."""
    if len(call.op.writes) > 1:
        raise CannotSplitError("its indices count the whole input")
    auto = call.text("auto_pad", "NOTSET")
    if auto.startswith("SAME") and max(call.attributes.get("dilations") or [1]) > 1:
        raise CannotSplitError(f"its windows are dilated, which {auto} goes without")
    _as_inferred(call)
    if span.axis < SPATIAL:
        return leading(call, span)
    averages = call.op.op_type != "MaxPool"
    if averages and call.attributes.get("ceil_mode") and call.attributes.get("count_include_pad"):
        raise CannotSplitError("it counts padding, and its last window lies over the border")
    return through(call, span, call.none())


def _as_inferred(call: Call) -> None:
    """Raises:
    CannotSplitError: onnxruntime infers more rows than it computes, and gives buffers of that size
        to others.
    """
    if not call.attributes.get("ceil_mode"):
        return
    window, rank = window_of(call), len(call.out) - SPATIAL
    for i, (size, out) in enumerate(zip(call.shape(0)[SPATIAL:], call.out[SPATIAL:], strict=True)):
        reach = size + window.pads[i] + window.pads[i + rank]
        reach -= (window.kernel[i] - 1) * window.dilations[i] + 1
        if -(-reach // window.strides[i]) + 1 != out:
            raise CannotSplitError("its last window lies beyond its input, and is left out")


def pooled_blocks(call: Call, span: Span) -> Piece:
    """Batch and spatial axes of an image in blocks of channels."""
    _not_channels(span)
    return pooling(call, span)


def _not_channels(span: Span) -> None:
    if span.axis == 1:
        raise CannotSplitError("channels are laid out in blocks")


def through(call: Call, span: Span, reads: list[Span | None], spatial: int = SPATIAL) -> Piece:
    """Batch and spatial axes of an image.

    Args:
        reads: what is read of the inputs, but for the image, which is the first.
        spatial: its first axis of rows.

    Raises:
        CannotSplitError: not along this axis, or not this stretch.
    """
    if span.axis == 0:
        reads[0] = span
        return Piece(tuple(reads), span)
    if span.axis < spatial:
        raise CannotSplitError("channels are made of all weights")
    window, i = window_of(call), span.axis - spatial
    s, p, size = window.strides[i], window.pads[i], call.shape(0)[span.axis]
    first = span.first * s - p
    end = (span.end - 1) * s - p + (window.kernel[i] - 1) * window.dilations[i] + 1
    read = Span(span.axis, max(0, first), min(size, end))
    if read.size <= 0:
        raise CannotSplitError("its windows lie in the padding alone")
    reads[0] = read
    pads = list(window.pads)
    pads[i], pads[i + len(window.kernel)] = read.first - first, end - read.end
    _all_inside(call, window, pads, i)
    if "Pool" in call.op.op_type and any(
        pad >= window.kernel[k % len(window.kernel)] for k, pad in enumerate(pads)
    ):
        raise CannotSplitError("onnxruntime takes no padding as wide as the window of a pooling")
    changes = {"pads": pads, "auto_pad": None, "ceil_mode": None}
    return Piece(tuple(reads), span, changes)


def _all_inside(call: Call, window: Window, pads: list[int], split: int) -> None:
    """With ``ceil_mode`` the last window of the other axes may lie over the border: as padding."""
    if not call.attributes.get("ceil_mode"):
        return
    rank = len(window.kernel)
    for i in range(rank):
        if i != split:
            end = (call.out[SPATIAL + i] - 1) * window.strides[i] - window.pads[i]
            end += (window.kernel[i] - 1) * window.dilations[i] + 1
            pads[rank + i] = max(pads[rank + i], end - call.shape(0)[SPATIAL + i])


def transposed(call: Call, span: Span) -> Piece:
    """Batch and spatial axes of a ConvTranspose: the rows of the input that reach the span, and the
    rows that they make beside it as padding, which is cut off."""
    reads = call.none()
    if span.axis == 0:
        reads[0] = span
        return Piece(tuple(reads), span)
    if span.axis < SPATIAL:
        raise CannotSplitError("channels are made of all weights")
    if call.text("auto_pad", "NOTSET") not in ("NOTSET", "") or "output_shape" in call.attributes:
        raise CannotSplitError("its padding follows from the size of its output")
    rank, i = len(call.out) - SPATIAL, span.axis - SPATIAL
    given = call.attributes
    kernel = _kernel(call)
    s = (given.get("strides") or [1] * rank)[i]
    d = (given.get("dilations") or [1] * rank)[i]
    pads = list(given.get("pads") or [0] * (2 * rank))
    more = list(given.get("output_padding") or [0] * rank)
    reach = (kernel[i] - 1) * d
    first = max(0, -(-(span.first + pads[i] - reach) // s))
    end = min(call.shape(0)[span.axis], (span.end - 1 + pads[i]) // s + 1)
    if end <= first:
        raise CannotSplitError("no row of its input reaches these")
    made = first * s - pads[i], (end - 1) * s - pads[i] + reach + 1
    if made[0] > span.first:
        raise CannotSplitError("no row of its input reaches the first of these")
    reads[0] = Span(span.axis, first, end)
    pads[i], pads[rank + i] = span.first - made[0], max(0, made[1] - span.end)
    more[i] = max(0, span.end - made[1])
    return Piece(tuple(reads), span, {"pads": pads, "output_padding": more})


def resized(call: Call, span: Span) -> Piece:
    """Axes that keep their size, and those that grow by a whole factor: a row more on either side
    (two for cubic) is read where rows are mixed, and what it makes is cropped."""
    size, out = call.shape(0)[span.axis], call.out[span.axis]
    if (
        call.attributes.get("antialias")
        or call.text("keep_aspect_ratio_policy", "stretch") != "stretch"
    ):
        raise CannotSplitError("its rows depend on the whole size")
    if size and out % size:
        raise CannotSplitError("it does not grow by a whole factor")
    factor = out // size
    if _scale(call, span.axis, factor) != factor:
        raise CannotSplitError("it grows by another factor than its size does")
    how = call.text("coordinate_transformation_mode", _coordinates(call))
    mode = call.text("mode", "nearest")
    if how not in ("asymmetric", "half_pixel", "pytorch_half_pixel") and factor > 1:
        raise CannotSplitError(f"its rows depend on the whole size ({how})")
    reach = {"nearest": 1, "linear": 1, "cubic": 2}.get(mode, 2) if factor > 1 else 0
    if mode == "nearest" and how == "asymmetric" and _rounds_down(call):
        reach = 0
    first = max(0, span.first // factor - reach)
    end = min(size, (span.end - 1) // factor + 1 + reach)
    reads = call.none()
    reads[0] = Span(span.axis, first, end)
    made = Span(span.axis, first * factor, end * factor)
    constants = {}
    if call.op.op_type == "Resize" and call.has(3):
        if "axes" in call.attributes:
            raise CannotSplitError("it names the axes of its sizes")
        shape = list(call.out)
        shape[span.axis] = made.size
        constants[3] = tuple(shape)
    return Piece(tuple(reads), made, {}, constants)


def _scale(call: Call, axis: int, factor: int) -> float:
    """By what an axis grows, which decides where its rows are: ``factor`` where sizes are given."""
    position = 2 if call.op.op_type == "Resize" and call.opset > 10 else 1
    if not call.has(position):
        return float(call.attributes.get("scales", [factor] * (axis + 1))[axis])
    scales = call.facts.constant(call.op.inputs[position])
    if scales is None:
        raise CannotSplitError("its scales are computed")
    axes = [each % len(call.out) for each in call.attributes.get("axes", range(len(call.out)))]
    if not scales.size:
        return factor
    return float(scales[axes.index(axis)]) if axis in axes else 1.0


def resized_blocks(call: Call, span: Span) -> Piece:
    """Batch and spatial axes of an image in blocks of channels."""
    _not_channels(span)
    return resized(call, span)


def _coordinates(call: Call) -> str:
    """How rows map where nothing is said."""
    if call.op.op_type == "Upsample" or call.opset < 11:
        return "asymmetric"
    return "half_pixel"


def _rounds_down(call: Call) -> bool:
    if call.op.op_type == "Upsample":
        return True
    return call.text("nearest_mode", "round_prefer_floor") == "floor"


def depth_to_space(call: Call, span: Span) -> Piece:
    """Batch, and the rows that a row of blocks makes."""
    if span.axis == 1:
        raise CannotSplitError("channels become pixels")
    block = call.attributes["blocksize"] if span.axis >= SPATIAL else 1
    read = Span(span.axis, span.first // block, (span.end - 1) // block + 1)
    return Piece((read,), Span(span.axis, read.first * block, read.end * block))


def space_to_depth(call: Call, span: Span) -> Piece:
    """Batch, and the rows that become one."""
    if span.axis == 1:
        raise CannotSplitError("pixels become channels")
    block = call.attributes["blocksize"] if span.axis >= SPATIAL else 1
    return Piece((Span(span.axis, span.first * block, span.end * block),), span)
