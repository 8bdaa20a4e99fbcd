"""Stretches through look-ups at several indices at once, and through what is told a place for each
row: lengths, regions, samples of an image."""

from __future__ import annotations

from onnxremat.graph.axis_products import leading
from onnxremat.graph.spans import Call, CannotSplitError, Piece, Span


def gathered_at(call: Call, span: Span) -> Piece:
    """GatherND: the axes that data and indices share, those of the indices, and those of the data
    that are not looked up in."""
    places = call.shape(1)
    shared, lead = call.attributes.get("batch_dims", 0), len(places) - 1
    if span.axis < shared:
        return Piece((span, span), span)
    if span.axis < lead:
        return Piece((None, span), span)
    return Piece((span.along(span.axis - lead + shared + places[-1]), None), span)


def scattered_at(call: Call, span: Span) -> Piece:
    """ScatterND: the axes that are not looked up in."""
    places = call.shape(1)
    if span.axis < places[-1]:
        raise CannotSplitError("it writes along this axis")
    return Piece((span, None, span.along(span.axis - places[-1] + len(places) - 1)), span)


def one_hot(call: Call, span: Span) -> Piece:
    """The axes of the indices."""
    axis = call.attributes.get("axis", -1) % len(call.out)
    if span.axis == axis:
        raise CannotSplitError("it counts along this axis")
    return Piece((span.along(span.axis - (span.axis > axis)), None, None), span)


def reversed_rows(call: Call, span: Span) -> Piece:
    """All axes but the one that it reverses; lengths along that of the batch."""
    time, batch = call.attributes.get("time_axis", 0), call.attributes.get("batch_axis", 1)
    if span.axis == time:
        raise CannotSplitError("it reads this axis backwards")
    return Piece((span, span.along(0) if span.axis == batch else None), span)


def triangle(call: Call, span: Span) -> Piece:
    """The axes before those of each matrix."""
    if span.axis >= len(call.out) - 2:
        raise CannotSplitError("rows and columns count from the first")
    return leading(call, span)


def determinants(call: Call, span: Span) -> Piece:
    """Every axis: one number of each matrix."""
    return Piece((span,), span)


def transformed(call: Call, span: Span) -> Piece:
    """A Fourier transform: all axes but its own and the last, of real and imaginary parts."""
    rank = len(call.out)
    if call.opset < 20:
        axis = call.attributes.get("axis", 1)
    else:
        (axis,) = call.integers(2) or (-2,)
    if span.axis in (axis % rank, rank - 1):
        raise CannotSplitError("it transforms along this axis")
    return leading(call, span)


def sampled(call: Call, span: Span) -> Piece:
    """GridSample: every axis; of image and grid what lies along it."""
    if span.axis == 0:
        return Piece((span, span), span)
    if span.axis == 1:
        return Piece((span, None), span)
    return Piece((None, span.along(span.axis - 1)), span)


def regions(call: Call, span: Span) -> Piece:
    """RoiAlign: regions with the image that each is of, and channels."""
    if span.axis == 0:
        return Piece((None, span, span), span)
    if span.axis == 1:
        return Piece((span, None, None), span)
    raise CannotSplitError("it takes the mean of all of a region")


def samples(call: Call, span: Span) -> Piece:
    """Rows of a table with a sample each."""
    if len(call.shape(0)) != 2 or span.axis:
        raise CannotSplitError("it works on all of a sample")
    return leading(call, span)
