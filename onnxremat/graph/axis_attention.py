"""Stretches through attention in one operator: a query reads all keys and values."""

from __future__ import annotations

from onnxremat.graph.spans import Call, CannotSplitError, Piece, Span, UnevenError

BATCH, HEADS, QUERIES = 0, 1, 2  # axes of scores; keys are the last


def attention(call: Call, span: Span) -> Piece:
    """Batch, heads and queries of ONNX's operator; heads only where they have an axis, and groups
    that share keys and values whole. Q, K, V, mask, past keys, past values, lengths."""
    _result_alone(call, past=(4, 5))
    axis = span.axis if len(call.out) == 4 else {0: BATCH, 1: QUERIES}.get(span.axis)
    if axis not in (BATCH, HEADS, QUERIES):
        raise CannotSplitError("an entry of its result is made of all of a query")
    if axis == QUERIES and call.attributes.get("is_causal"):
        raise CannotSplitError("it counts queries from the first to hide keys")
    reads = call.none()
    reads[0] = span
    if axis == BATCH:
        reads[1] = reads[2] = span
        if call.has(6):
            reads[6] = span
    if axis == HEADS:
        group = call.out[HEADS] // call.shape(1)[HEADS]
        if span.first % group or span.end % group:
            raise UnevenError(group)
        reads[1] = reads[2] = Span(HEADS, span.first // group, span.end // group)
    if call.has(3):
        reads[3] = _of_scores(call, 3, span, axis)
    return Piece(tuple(reads), span)


def many_heads(call: Call, span: Span) -> Piece:
    """Batch and queries of onnxruntime's operator, heads being part of the last axis. Query, key,
    value, bias, mask of keys, what is added to scores, past keys and values."""
    _result_alone(call, past=(6, 7, 8, 9))
    if not call.has(1) or not call.has(2) or len(call.shape(0)) != 3:
        raise CannotSplitError("queries, keys and values lie in one tensor")
    if span.axis > 1:
        raise CannotSplitError("heads lie along this axis")
    if span.axis == 1 and call.attributes.get("unidirectional"):
        raise CannotSplitError("it counts queries from the first to hide keys")
    reads = call.none()
    reads[0] = span
    if span.axis == 0:
        reads[1] = reads[2] = span
    if call.has(4):
        if len(call.shape(4)) == 1 and span.axis == 0:
            raise CannotSplitError("its mask holds lengths")
        reads[4] = span if span.axis < len(call.shape(4)) - 1 else None
    if call.has(5):
        reads[5] = _of_scores(call, 5, span, QUERIES if span.axis else BATCH)
    return Piece(tuple(reads), span)


def _result_alone(call: Call, past: tuple[int, ...]) -> None:
    if len(call.op.writes) > 1 or any(call.has(position) for position in past):
        raise CannotSplitError("it keeps keys and values for the next run")


def _of_scores(call: Call, position: int, span: Span, axis: int) -> Span | None:
    """The stretch of a tensor that is broadcast to scores along one of their axes."""
    shape = call.shape(position)
    own = axis - (4 - len(shape))
    return span.along(own) if own >= 0 and shape[own] == call.out[span.axis] else None


def packed(call: Call, span: Span) -> Piece:
    """Batch of onnxruntime's attention whose weights make queries, keys and values of one tensor.
    Input, weights, bias, mask, past keys and values, what is added to scores, length of the past.
    """
    _result_alone(call, past=(4,))
    if span.axis:
        raise CannotSplitError("queries, keys and values are made of one tensor")
    reads = call.none()
    reads[0] = span
    if call.has(3):
        if len(call.shape(3)) == 1:
            raise CannotSplitError("its mask holds lengths")
        reads[3] = call.broadcast_first(3, span)
    if call.has(5):
        reads[5] = _of_scores(call, 5, span, BATCH)
    return Piece(tuple(reads), span)


def grouped(call: Call, span: Span) -> Piece:
    """Batch of onnxruntime's attention in groups. Query, key, value, past keys and values, lengths,
    the largest of them, two tables, positions, what is added to scores."""
    if span.axis:
        raise CannotSplitError("it counts queries from the first to hide keys")
    reads = call.none()
    reads[0] = span
    for position in (1, 2, 3, 4, 5):
        if call.has(position):
            reads[position] = span
    for position in (9, 10):
        if call.has(position):
            reads[position] = call.broadcast_first(position, span)
    if any(call.has(position) for position in range(11, len(reads))):
        raise CannotSplitError("it has inputs that no rule knows")
    return Piece(tuple(reads), span)


def turned(call: Call, span: Span) -> Piece:
    """Batch of a rotary embedding of ONNX: input, two tables that are looked up at positions, or
    that hold what belongs to each row, and these positions."""
    if span.axis:
        raise CannotSplitError("an entry is made of others of its head")
    own = None if call.has(3) else span
    reads = (span, own, own, span if call.has(3) else None)
    return Piece(reads[: len(call.op.inputs)], span)


def turned_at(call: Call, span: Span) -> Piece:
    """The same of onnxruntime's: input, positions (of each row, or the first of all), tables."""
    if span.axis:
        raise CannotSplitError("an entry is made of others of its head")
    places = None if len(call.shape(1)) < 2 else span
    return Piece((span, places, *call.none()[2:]), span)


def embedded(call: Call, span: Span) -> Piece:
    """Batch of onnxruntime's embeddings of words: words, kinds, three tables, scale, bias, mask,
    positions."""
    if span.axis:
        raise CannotSplitError("a word has the position that it is at")
    reads = call.none()
    for position in (0, 1, 7):
        if call.has(position):
            reads[position] = span
    if call.has(8):
        reads[8] = call.broadcast_first(8, span)
    return Piece(tuple(reads), span)
