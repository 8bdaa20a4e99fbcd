"""Pieces that the transformer families share."""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from models.builder import GraphBuilder, Value

MASKED = float(np.finfo(np.float32).min)  # what exporters write for minus infinity


def head_size(hidden: int, heads: int) -> int:
    """Features of one head."""
    if hidden % heads:
        raise ValueError(f"hidden size {hidden} is not a multiple of the {heads} heads")
    return hidden // heads


def split_heads(g: GraphBuilder, x: Value, heads: int) -> Value:
    """[N, T, H*D] to [N, H, T, D]."""
    batch, length, hidden = x.shape
    parted = g.reshape(x, (batch, length, heads, head_size(hidden, heads)))
    return g.transpose(parted, (0, 2, 1, 3))


def merge_heads(g: GraphBuilder, x: Value) -> Value:
    """[N, H, T, D] to [N, T, H*D]."""
    batch, heads, length, size = x.shape
    return g.reshape(g.transpose(x, (0, 2, 1, 3)), (batch, length, heads * size))


def attend(
    g: GraphBuilder,
    query: Value,
    key: Value,
    value: Value,
    mask: Callable[[Value], Value] | None = None,
) -> Value:
    """Scaled dot-product attention of [N, H, T, D] tensors; ``mask`` edits [N, H, T, T] scores."""
    scores = g.matmul(query, g.transpose(key, (0, 1, 3, 2)))
    scores = g.op("Div", scores, g.scalar(math.sqrt(query.shape[-1])))
    if mask is not None:
        scores = mask(scores)
    return g.matmul(g.op("Softmax", scores, axis=-1), value)


def lower_triangle(length: int) -> NDArray[np.bool_]:
    """Causal mask [1, 1, T, T]: true where a position may look."""
    return np.tril(np.ones((1, 1, length, length), dtype=np.bool_))
