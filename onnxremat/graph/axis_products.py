"""Stretches through products of matrices and through what works on rows of a tensor."""

from __future__ import annotations

from onnxremat.graph.spans import Call, CannotSplitError, Piece, Span


def pointwise(call: Call, span: Span) -> Piece:
    """Every axis; an input that is broadcast along it is read whole."""
    return Piece(tuple(call.broadcast(i, span) for i in range(len(call.op.inputs))), span)


def leading(call: Call, span: Span) -> Piece:
    """The first input along every axis, others whole: a function of one element."""
    return Piece((span, *call.none()[1:]), span)


def batch_alone(call: Call, span: Span) -> Piece:
    """The leading axis: each of its entries is computed from all of itself."""
    if span.axis != 0:
        raise CannotSplitError("it works on all of an image")
    return leading(call, span)


def images(call: Call, span: Span) -> Piece:
    """Batch and channels, each image of a channel from all of itself."""
    if span.axis > 1:
        raise CannotSplitError("it takes the mean of all of an image")
    return leading(call, span)


def but_channels(call: Call, span: Span) -> Piece:
    """All axes but the channels, whose numbers it is given."""
    if span.axis == 1:
        raise CannotSplitError("its inputs hold one number per channel")
    if len(call.op.writes) > 1 or call.attributes.get("training_mode"):
        raise CannotSplitError("its statistics are those of the whole batch")
    if not call.attributes.get("spatial", 1) and span.axis != 0:
        raise CannotSplitError("its inputs hold one number per element of an image")
    return leading(call, span)


def softmax(call: Call, span: Span) -> Piece:
    """All axes but the one it sums over; before opset 13 those before it."""
    rank = len(call.out)
    new = call.opset >= 13
    axis = call.attributes.get("axis", -1 if new else 1) % rank
    if span.axis == axis or (not new and span.axis > axis):
        raise CannotSplitError("it sums along this axis")
    return leading(call, span)


def one_axis(call: Call, span: Span) -> Piece:
    """All axes but the one that its attribute names."""
    axis = call.attributes.get("axis", -1) % len(call.out)
    if span.axis == axis:
        raise CannotSplitError("it works along this axis")
    return leading(call, span)


def normalised(call: Call, span: Span) -> Piece:
    """The axes before those it normalises; a scale or bias may have numbers for each row."""
    axis = call.attributes.get("axis", -1) % len(call.shape(0))
    if span.axis >= axis:
        raise CannotSplitError("it normalises along this axis")
    return pointwise(call, span)


def skip_normalised(call: Call, span: Span) -> Piece:
    """All axes but the last; the sum's two terms are read alike, or the second is broadcast."""
    if span.axis >= len(call.out) - 1:
        raise CannotSplitError("it normalises along this axis")
    reads = call.none()
    reads[0], reads[1] = span, call.broadcast(1, span)
    return Piece(tuple(reads), span)


def cumulated(call: Call, span: Span) -> Piece:
    """All axes but the one that it adds up along."""
    (axis,) = call.integers(1) or (0,)
    if span.axis == axis % len(call.out):
        raise CannotSplitError("it adds up along this axis")
    return leading(call, span)


def product(call: Call, span: Span) -> Piece:
    """Rows of the left factor, columns of the right one, and the axes before them, broadcast."""
    return Piece((*factors(call, span, 0, 1), *call.none()[2:]), span)


def factors(call: Call, span: Span, a: int, b: int) -> tuple[Span | None, Span | None]:
    """What is read of the factors of a product of matrices.

    Args:
        a: position of the left factor.
        b: of the right one.

    Raises:
        CannotSplitError: both are vectors.
    """
    left, right = call.shape(a), call.shape(b)
    if len(right) == 1:
        return (span if span.axis < len(left) - 1 else None), None
    if len(left) == 1:
        return None, span if span.axis < len(right) - 2 else span.along(len(right) - 1)
    rank, reads = len(call.out), list[Span | None]([None, None])
    if span.axis == rank - 2:
        rows = len(left) - (1 if call.attributes.get("transA") else 2)
        reads[0] = span.along(_lies(call, "transBatchA", left, rows))
    elif span.axis == rank - 1:
        columns = len(right) - (2 if call.attributes.get("transB") else 1)
        reads[1] = span.along(_lies(call, "transBatchB", right, columns))
    else:
        for position, (shape, inside) in enumerate(((left, "transBatchA"), (right, "transBatchB"))):
            axis = span.axis - (rank - len(shape))
            axis = _lies(call, inside, shape, axis) if axis >= 0 else axis
            if axis >= 0 and shape[axis] == call.out[span.axis]:
                reads[position] = span.along(axis)
    return reads[0], reads[1]


def _lies(call: Call, inside: str, shape: tuple[int, ...], axis: int) -> int:
    """Where an axis of a factor lies: with the batch inside, rows come first, then the batch."""
    if not call.attributes.get(inside) or axis == len(shape) - 1:
        return axis
    return 0 if axis == len(shape) - 2 else axis + 1


def general_product(call: Call, span: Span) -> Piece:
    """Rows of A and columns of B, and those of C where it is not broadcast."""
    reads = call.none()
    reads[0], reads[1] = general_factors(call, span)
    if call.has(2):
        reads[2] = call.broadcast(2, span)
    return Piece(tuple(reads), span)


def general_factors(call: Call, span: Span) -> tuple[Span | None, Span | None]:
    """What is read of two matrices of which each may be transposed."""
    if span.axis == 0:
        return span.along(1 if call.attributes.get("transA") else 0), None
    return None, span.along(0 if call.attributes.get("transB") else 1)


def contracted(call: Call, span: Span) -> Piece:
    """Every axis of the result of an Einsum that says them all: each operand along the axes with
    its letter, or whole where it is broadcast."""
    operands, arrow, result = call.text("equation", "").replace(" ", "").partition("->")
    if not arrow or "." in operands:
        raise CannotSplitError("its axes are not written out")
    letter, reads = result[span.axis], call.none()
    for position, letters in enumerate(operands.split(",")):
        if letters.count(letter) > 1:
            raise CannotSplitError("it takes a diagonal along this axis")
        axis = letters.find(letter)
        if axis >= 0 and call.shape(position)[axis] == call.out[span.axis]:
            reads[position] = span.along(axis)
    return Piece(tuple(reads), span)


def reduction(call: Call, span: Span) -> Piece:
    """The axes that are left."""
    rank = len(call.shape(0))
    given = call.integers(1, "axes")
    if not given:
        raise CannotSplitError("it reduces all axes")
    gone = {axis % rank for axis in given}
    return _through_reduction(call, span, gone)


def best_index(call: Call, span: Span) -> Piece:
    """The axes that are left of an ArgMax or ArgMin."""
    axis = call.attributes.get("axis", 0) % len(call.shape(0))
    return _through_reduction(call, span, {axis})


def _through_reduction(call: Call, span: Span, gone: set[int]) -> Piece:
    rank = len(call.shape(0))
    kept = [axis for axis in range(rank) if axis not in gone]
    axis = span.axis if call.attributes.get("keepdims", 1) else kept[span.axis]
    if axis in gone:
        raise CannotSplitError("it reduces this axis")
    return Piece((span.along(axis), *call.none()[1:]), span)
