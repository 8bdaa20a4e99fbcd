"""Stretches through ops that move elements: reshaping, transposing, joining, looking up."""

from __future__ import annotations

import math

from onnxremat.graph.spans import Call, CannotSplitError, Piece, Span


def reshaped(call: Call, span: Span) -> Piece:
    """An axis that leads a group of axes with as many elements before and after: rows of one are
    whole numbers of rows of the other."""
    found = _aligned(call.shape(0), call.out, span)
    constants = {}
    if call.op.op_type == "Squeeze" and not (call.has(1) or "axes" in call.attributes):
        raise CannotSplitError("it leaves out every axis of one entry, of a part as well")
    if call.op.op_type == "Reshape":
        shape = list(call.out)
        shape[span.axis] = span.size
        constants[1] = tuple(shape)
    changes = {"allowzero": None} if "allowzero" in call.attributes else {}
    return Piece((found, *call.none()[1:]), span, changes, constants)


def _aligned(before: tuple[int, ...], after: tuple[int, ...], span: Span) -> Span:
    """The stretch of the input with the elements of a stretch of the output.

    Raises:
        CannotSplitError: there is none.
    """
    outer, length = math.prod(after[: span.axis]), after[span.axis]
    if length < 2:
        raise CannotSplitError("an axis of one entry")
    inner = math.prod(after[span.axis + 1 :])
    total = 1
    for axis, size in enumerate(before):
        if total == outer and size > 1:
            row = math.prod(before[axis + 1 :])
            first, end = span.first * inner, span.end * inner
            if first % row or end % row or end > size * row:
                raise CannotSplitError("its rows are no whole rows of its input")
            return Span(axis, first // row, end // row)
        total *= size
    raise CannotSplitError("the axis begins within one of its input")


def transposed_axes(call: Call, span: Span) -> Piece:
    """Every axis, from where it comes."""
    rank = len(call.out)
    order = call.attributes.get("perm") or list(range(rank))[::-1]
    return Piece((span.along(order[span.axis]),), span)


def joined(call: Call, span: Span) -> Piece:
    """All axes but the one along which it joins."""
    if span.axis == call.attributes["axis"] % len(call.out):
        raise CannotSplitError("it joins along this axis")
    return Piece(tuple(span for _ in call.op.inputs), span)


def parted(call: Call, span: Span) -> Piece:
    """All axes but the one along which it splits; all its outputs alike."""
    if span.axis == call.attributes.get("axis", 0) % len(call.out):
        raise CannotSplitError("it splits along this axis")
    return Piece((span, *call.none()[1:]), span)


def sliced(call: Call, span: Span) -> Piece:
    """All axes that it keeps as they are."""
    if call.shape(0)[span.axis] != call.out[span.axis]:
        raise CannotSplitError("it slices along this axis")
    starts = call.integers(1, "starts") or ()
    axes = call.integers(3, "axes") or tuple(range(len(starts)))
    if span.axis in {axis % len(call.out) for axis in axes}:
        raise CannotSplitError("it slices along this axis")
    return Piece((span, *call.none()[1:]), span)


def padded(call: Call, span: Span) -> Piece:
    """All axes that get no padding."""
    rank = len(call.out)
    pads = call.integers(1, "pads") or ()
    named = call.integers(3)
    axes = [axis % rank for axis in named] if named else list(range(rank))
    got = {axis for i, axis in enumerate(axes) if pads[i] or pads[i + len(axes)]}
    if span.axis in got:
        raise CannotSplitError("it pads along this axis")
    if call.shape(0)[span.axis] != call.out[span.axis]:
        raise CannotSplitError("it pads along this axis")
    return Piece((span, *call.none()[1:]), span)


def gathered(call: Call, span: Span) -> Piece:
    """The axes of the indices, and those of the data that are not looked up in."""
    data, indices = call.shape(0), call.shape(1)
    axis = call.attributes.get("axis", 0) % len(data)
    if span.axis < axis:
        return Piece((span, None), span)
    if span.axis < axis + len(indices):
        return Piece((None, span.along(span.axis - axis)), span)
    return Piece((span.along(span.axis - len(indices) + 1), None), span)


def gathered_elements(call: Call, span: Span) -> Piece:
    """The axes that are not looked up in; rows of the data behind those of the indices are not
    read."""
    if span.axis == call.attributes.get("axis", 0) % len(call.out):
        raise CannotSplitError("it looks up along this axis")
    return Piece((span, span), span)


def scattered_elements(call: Call, span: Span) -> Piece:
    """The axes that are not looked up in, where indices are there for all of them."""
    if span.axis == call.attributes.get("axis", 0) % len(call.out):
        raise CannotSplitError("it writes along this axis")
    if call.shape(1)[span.axis] != call.out[span.axis]:
        raise CannotSplitError("it writes to some of this axis")
    return Piece((span, span, span), span)


def expanded(call: Call, span: Span) -> Piece:
    """Every axis; one that grows reads all of its input and is told its new size."""
    shape = list(call.out)
    shape[span.axis] = span.size
    return Piece((call.broadcast(0, span), None), span, {}, {1: tuple(shape)})


def repeated(call: Call, span: Span) -> Piece:
    """All axes that are there once."""
    if call.shape(0)[span.axis] != call.out[span.axis]:
        raise CannotSplitError("it repeats along this axis")
    return Piece((span, None), span)


def into_blocks(call: Call, span: Span) -> Piece:
    """Batch and spatial axes of an image laid out for blocked convolutions."""
    last = call.attributes.get("channels_last")
    if span.axis == 1:
        raise CannotSplitError("channels are laid out in blocks")
    axis = span.axis - 1 if last and span.axis > 1 else span.axis
    return Piece((span.along(axis),), span)


def out_of_blocks(call: Call, span: Span) -> Piece:
    """Batch and spatial axes of an image laid out as it was."""
    rank = len(call.out)
    last = call.attributes.get("channels_last")
    channels = rank - 1 if last else 1
    if span.axis == channels:
        raise CannotSplitError("channels are laid out in blocks")
    axis = span.axis + 1 if last and span.axis > 0 else span.axis
    return Piece((span.along(axis),), span)
