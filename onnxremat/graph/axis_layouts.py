"""Stretches through ops that move elements: reshaping, transposing, joining, looking up."""

from __future__ import annotations

import math

from onnxremat.graph.spans import Call, CannotSplitError, Piece, Span, UnevenError


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
    if not inner or not outer:
        raise CannotSplitError("it has no elements")
    total = 1
    for axis, size in enumerate(before):
        if total == outer and size > 1:
            row = math.prod(before[axis + 1 :])
            first, end = span.first * inner, span.end * inner
            if first % row or end % row or end > size * row:
                raise UnevenError(row // math.gcd(row, inner))
            return Span(axis, first // row, end // row)
        total *= size
    raise CannotSplitError("the axis begins within one of its input")


def transposed_axes(call: Call, span: Span) -> Piece:
    """Every axis, from where it comes."""
    rank = len(call.out)
    order = call.attributes.get("perm") or list(range(rank))[::-1]
    return Piece((span.along(order[span.axis]),), span)


def joined(call: Call, span: Span) -> Piece:
    """All axes; along the one that it joins along, what lies in the stretch of each input. Of an
    input that does not reach it nothing is read: what a stretch that does would read is said."""
    axis = call.attributes["axis"] % len(call.out)
    if span.axis != axis:
        return Piece(tuple(span for _ in call.op.inputs), span)
    reads, unread, begin = list[Span](), list[int](), 0
    for position in range(len(call.op.inputs)):
        size = call.shape(position)[axis]
        own = Span(axis, 0, size).overlap(Span(axis, span.first - begin, span.end - begin))
        if own.size <= 0:
            unread.append(position)
            own = Span(axis, 0, min(size, span.size))
        reads.append(own)
        begin += size
    return Piece(tuple(reads), span, unread=tuple(unread))


def parted(call: Call, span: Span) -> Piece:
    """All axes but the one along which it splits; all its outputs alike."""
    if span.axis == call.attributes.get("axis", 0) % len(call.out):
        raise CannotSplitError("it splits along this axis")
    return Piece((span, *call.none()[1:]), span)


def sliced(call: Call, span: Span) -> Piece:
    """All axes; along one that it slices forwards, what it takes from there."""
    rank = len(call.out)
    starts = call.integers(1, "starts") or ()
    axes = [axis % rank for axis in call.integers(3, "axes") or range(len(starts))]
    if span.axis not in axes:
        return Piece((span, *call.none()[1:]), span)
    at, size = axes.index(span.axis), call.shape(0)[span.axis]
    ends = list(call.integers(2, "ends") or ())
    steps = call.integers(4) or (1,) * len(axes)
    if steps[at] < 0:
        raise CannotSplitError("it reads this axis backwards")
    begin = max(0, min(starts[at] + size * (starts[at] < 0), size))  # x[-9:] may be shorter
    first = begin + span.first * steps[at]
    read = Span(span.axis, first, first + (span.size - 1) * steps[at] + 1)
    new = list(starts)
    new[at], ends[at] = 0, read.size
    if not call.has(1):
        return Piece((read,), span, {"starts": new, "ends": ends, "axes": axes})
    given = {1: tuple(new), 2: tuple(ends), 3: tuple(axes), 4: tuple(steps)}
    constants = {position: given[position] for position in given if call.has(position)}
    return Piece((read, *call.none()[1:]), span, {}, constants)


def padded(call: Call, span: Span) -> Piece:
    """All axes; along one that gets padding, what lies there of the input, and of the padding. Some
    of the input is always read: a row where all is padding, what a reflection shows."""
    rank, size = len(call.out), call.shape(0)[span.axis]
    pads = list(call.integers(1, "pads") or ())
    axes = [axis % rank for axis in call.integers(3) or range(rank)]
    if span.axis not in axes or len(pads) != 2 * len(axes):
        return Piece((span, *call.none()[1:]), span)
    at, mode = axes.index(span.axis), call.text("mode", "constant")
    above, below = pads[at], pads[at + len(axes)]
    if not above and not below:
        return Piece((span, *call.none()[1:]), span)
    if min(above, below) < 0 or mode not in ("constant", "edge", "reflect"):
        raise CannotSplitError(f"it takes rows away, or repeats them ({mode})")
    before, after = max(0, above - span.first), max(0, span.end - above - size)
    first, end = max(0, span.first - above), min(size, span.end - above)
    if before:
        end = max(end, before + 1 if mode == "reflect" else 1)
    if after:
        first = min(first, size - 1 - after if mode == "reflect" else size - 1)
    read = Span(span.axis, first, end)
    pads[at], pads[at + len(axes)] = before, after
    made = Span(span.axis, first + above - before, end + above + after)
    if not call.has(1):
        return Piece((read, *call.none()[1:]), made, {"pads": pads})
    return Piece((read, *call.none()[1:]), made, {}, {1: tuple(pads)})


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
