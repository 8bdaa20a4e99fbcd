"""Stretches through operators on whole numbers that stand for others, by a scale and a zero point.

Scales and zero points are read whole, but along an axis that has one for each entry.
"""

from __future__ import annotations

from onnx import TensorProto

from onnxremat.graph.axis_products import factors, general_factors, leading
from onnxremat.graph.axis_windows import pooling, through
from onnxremat.graph.spans import Call, CannotSplitError, Piece, Span

_WHOLE_BYTES = {
    TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.UINT8, TensorProto.INT8, TensorProto.INT32,
    TensorProto.UINT16, TensorProto.INT16,
}  # fmt: skip


def scaled(call: Call, span: Span) -> Piece:
    """Every axis; scales and zero points whole, but along the axis that has one for each entry."""
    tensors = call.facts.graph.tensors
    kinds = {tensors[name].dtype for name in (call.op.inputs[0], call.op.writes[0])}
    if call.attributes.get("block_size") or not kinds <= _WHOLE_BYTES:
        raise CannotSplitError("a scale is of a block, or numbers share a byte")
    axis = call.attributes.get("axis", 1) % max(1, len(call.out))
    own = span.axis == axis and call.shape(1) not in ((), (1,))
    along = span.along(0) if own else None
    given = [along if call.has(i) else None for i in range(1, len(call.op.inputs))]
    return Piece((span, *given), span)


def product(call: Call, span: Span) -> Piece:
    """Rows of the left factor, columns of the right one with their scales and zero points, and the
    axes before them, broadcast. Inputs: A, scale, zero point, B, scales, zero points, ..."""
    return _scaled_product(call, span, right=3, of_columns=(4, 5))


def integer_product(call: Call, span: Span) -> Piece:
    """The same of a product that is not scaled: A, B, zero point of A, zero points of B."""
    return _scaled_product(call, span, right=1, of_columns=(3,))


def product_to_float(call: Call, span: Span) -> Piece:
    """The same of one that is scaled to a float: A, B, scale of A, scales of B, zero point of A,
    zero points of B, bias."""
    return _scaled_product(call, span, right=1, of_columns=(3, 5, 6))


def rescaled_product(call: Call, span: Span) -> Piece:
    """Columns of B alone: the scale of A is that of its largest number. A, B, scales, zero points,
    bias."""
    if span.axis != len(call.out) - 1:
        raise CannotSplitError("all rows have the scale of the largest number among them")
    return _scaled_product(call, span, right=1, of_columns=(2, 3, 4))


def _scaled_product(call: Call, span: Span, *, right: int, of_columns: tuple[int, ...]) -> Piece:
    reads = call.none()
    reads[0], reads[right] = factors(call, span, 0, right)
    for position in of_columns:
        if call.has(position):
            reads[position] = call.broadcast(position, span)
    return Piece(tuple(reads), span)


def general_product(call: Call, span: Span) -> Piece:
    """Rows of A and columns of B with their scales and zero points, and those of C where it is not
    broadcast. A, scale, zero point, B, scales, zero points, C, scale, zero point."""
    reads = call.none()
    reads[0], reads[3] = general_factors(call, span)
    for position in (4, 5, 6):
        if call.has(position):
            reads[position] = call.broadcast(position, span)
    return Piece(tuple(reads), span)


def few_bits_product(call: Call, span: Span) -> Piece:
    """Rows of A. Columns are not cut: the kernel packs B as the session opens, which it cannot
    where B is a slice."""
    if span.axis == len(call.out) - 1:
        raise CannotSplitError("its weights are packed")
    return leading(call, span)


def softmax(call: Call, span: Span) -> Piece:
    """All axes but the one it sums over; by the rules of opset 12 and before, those before it."""
    axis = call.attributes.get("axis", -1) % len(call.out)
    old = call.attributes.get("opset", 13) < 13
    if span.axis == axis or (old and span.axis > axis):
        raise CannotSplitError("it sums along this axis")
    return leading(call, span)


def joined(call: Call, span: Span) -> Piece:
    """Every axis; along the one that it joins along, what lies in the stretch of each input. Scale,
    zero point, then tensor, scale, zero point of each. What it does not reach is not read."""
    axis, reads = call.attributes["axis"] % len(call.out), call.none()
    unread, begin = list[int](), 0
    for position in range(2, len(reads), 3):
        reads[position] = span
        if span.axis == axis:
            size = call.shape(position)[axis]
            own = Span(axis, 0, size).overlap(Span(axis, span.first - begin, span.end - begin))
            if own.size <= 0:
                unread += range(position, position + 3)
                own = Span(axis, 0, min(size, span.size))
            reads[position] = own
            begin += size
    return Piece(tuple(reads), span, unread=tuple(unread))


def looked_up(call: Call, span: Span) -> Piece:
    """The axes of the indices into a table whose rows are scaled block by block."""
    axis = call.attributes.get("gather_axis", 0) % len(call.shape(0))
    reads = call.none()
    if not axis <= span.axis < axis + len(call.shape(1)):
        raise CannotSplitError("a scale is of a block, and numbers share a byte")
    reads[1] = span.along(span.axis - axis)
    return Piece(tuple(reads), span)


def convolution(call: Call, span: Span) -> Piece:
    """Batch and spatial axes, channels being the second axis or the last; its padding is the zero
    point."""
    if not call.attributes.get("channels_last"):
        return through(call, span, call.none())
    if span.axis == len(call.out) - 1:
        raise CannotSplitError("channels are made of all weights")
    _padding_is_given(call)
    return through(call, span, call.none(), 1)


def pooled(call: Call, span: Span) -> Piece:
    """Batch, channels and spatial axes, channels being the second axis or the last."""
    if call.attributes.get("channels_last"):
        return pooled_pixels(call, span)
    return pooling(call, span)


def pooled_pixels(call: Call, span: Span) -> Piece:
    """The same where channels are the last axis."""
    _padding_is_given(call)
    if call.attributes.get("ceil_mode"):
        raise CannotSplitError("its last window may lie over the border")
    if span.axis == len(call.out) - 1:
        return leading(call, span)
    return through(call, span, call.none(), 1)


def _padding_is_given(call: Call) -> None:
    if call.text("auto_pad", "NOTSET") not in ("NOTSET", "VALID", ""):
        raise CannotSplitError("its padding is not written out")


def images(call: Call, span: Span) -> Piece:
    """Batch and channels, each image of a channel from all of itself."""
    channels = len(call.out) - 1 if call.attributes.get("channels_last") else 1
    if span.axis not in (0, channels):
        raise CannotSplitError("it takes the mean of all of an image")
    return leading(call, span)
