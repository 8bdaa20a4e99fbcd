"""Filters seen from the other side: as the transpose of a convolution has them."""

from __future__ import annotations

import math

import numpy as np

from onnxremat.grad.tape import Tape

EXCHANGED = 25  # most elements of a kernel to be reversed by a matrix


def flipped(t: Tape, w: str, group: int) -> str:
    """Filters [K, C/g, ...] as [C, K/g, ...] with every spatial axis reversed."""
    outputs, each, *kernel = t.shape(w)
    space = range(len(kernel))
    if group == 1:
        swapped = t.transpose(w, (1, 0, *(2 + axis for axis in space)))
    else:
        parts = t.reshape(w, (group, outputs // group, each, *kernel))
        parts = t.transpose(parts, (0, 2, 1, *(3 + axis for axis in space)))
        swapped = t.reshape(parts, (group * each, outputs // group, *kernel))
    return _reversed(t, swapped, math.prod(kernel))


def _reversed(t: Tape, filters: str, taps: int) -> str:
    """Filters with the elements of every kernel in reverse order: by a product with the matrix that
    does it, as a Slice with negative steps moves element by element."""
    if not 1 < taps <= EXCHANGED:
        return t.reversed(filters, range(2, t.rank(filters)))
    rows = t.reshape(filters, (t.size(filters) // taps, taps))
    exchange = t.constant(np.eye(taps)[::-1], t.dtype(filters))
    return t.reshape(t.matmul(rows, exchange), t.shape(filters))
