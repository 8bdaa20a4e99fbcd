"""Shapes, types, and elements moved without arithmetic."""

from __future__ import annotations

import math

import numpy as np
import torch
from onnx import helper, numpy_helper
from torch.nn import functional as F  # noqa: N812

from tests.torch.node import Node, Operator, Tensor


def to_tensor(array: np.ndarray, real: torch.dtype) -> Tensor:
    """An array as a tensor, floating-point ones in the type that is computed in."""
    value = torch.from_numpy(np.array(array))
    return value.to(real) if value.is_floating_point() else value


def _type_of(kind: int, real: torch.dtype) -> torch.dtype:
    return to_tensor(np.zeros(0, helper.tensor_dtype_to_np_dtype(kind)), real).dtype


def _reshape(n: Node) -> Tensor:
    copies = not n.get("allowzero", 0)
    shape = [n[0].shape[k] if d == 0 and copies else d for k, d in enumerate(n[1].tolist())]
    return n[0].reshape(shape)


def _flatten(n: Node) -> Tensor:
    axis = n.get("axis", 1)
    axis = axis + n[0].dim() if axis < 0 else axis
    return n[0].reshape(math.prod(n[0].shape[:axis]), -1)


def _squeeze(n: Node) -> Tensor:
    axes = n.integers("axes", 1)
    return n[0].squeeze() if axes is None else n[0].squeeze(tuple(axes))


def _unsqueeze(n: Node) -> Tensor:
    axes, x = n.integers("axes", 1) or [], n[0]
    rank = x.dim() + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        x = x.unsqueeze(axis)
    return x


def _expand(n: Node) -> Tensor:
    return n[0].expand(torch.broadcast_shapes(n[0].shape, tuple(n[1].tolist())))


def _split(n: Node) -> list[Tensor]:
    axis = n.axis(0)
    sizes = n.integers("split", 1) or -(-n[0].shape[axis] // n.outputs)
    return list(n[0].split(sizes, axis))


def _slice(n: Node) -> Tensor:
    x, starts, ends = n[0], n[1].tolist(), n[2].tolist()
    axes = n[3].tolist() if n.has(3) else range(len(starts))
    steps = n[4].tolist() if n.has(4) else [1] * len(starts)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        size = x.shape[axis]
        if step < 0 and start < -size:  # Python starts before the first element, ONNX at it
            start = 0
        taken = range(*slice(start, end, step).indices(size))
        if step == 1:
            x = x.narrow(axis, taken.start, len(taken))
        else:
            x = x.index_select(axis, torch.tensor(taken, dtype=torch.int64))
    return x


def _pad(n: Node) -> Tensor:
    x, mode = n[0], n.get("mode", "constant")
    axes = [axis % x.dim() for axis in (n[3].tolist() if n.has(3) else range(x.dim()))]
    pads = n[1].tolist()
    before, after = pads[: len(axes)], pads[len(axes) :]
    if mode == "constant":
        sides = [0] * 2 * x.dim()
        for axis, low, high in zip(axes, before, after, strict=True):
            first = 2 * (x.dim() - 1 - axis)
            sides[first : first + 2] = [low, high]
        padded = F.pad(x, sides)
        return padded + n[2] * (1 - F.pad(torch.ones_like(x), sides)) if n.has(2) else padded
    for axis, low, high in zip(axes, before, after, strict=True):
        index = np.pad(np.arange(x.shape[axis]), (low, high), mode=mode)
        x = x.index_select(axis, torch.from_numpy(index))
    return x


def _depth_to_space(n: Node) -> Tensor:
    size, x = n.get("blocksize"), n[0]
    if n.get("mode", "DCR") == "CRD":
        return F.pixel_shuffle(x, size)
    images, channels, *image = x.shape
    x = x.reshape(images, size * size, channels // size**2, *image).transpose(1, 2)
    return F.pixel_shuffle(x.reshape(images, channels, *image), size)


def _space_to_depth(n: Node) -> Tensor:
    """The block's place is the outer part of the channel, with PyTorch it is the inner."""
    size, x = n.get("blocksize"), n[0]
    y = F.pixel_unshuffle(x, size)
    images, channels, *image = y.shape
    y = y.reshape(images, x.shape[1], size * size, *image).transpose(1, 2)
    return y.reshape(images, channels, *image)


def _trilu(n: Node) -> Tensor:
    k = int(n[1]) if n.has(1) else 0
    return n[0].triu(k) if n.get("upper", 1) else n[0].tril(k)


def _reverse_sequence(n: Node) -> Tensor:
    batch, time = n.get("batch_axis", 1), n.get("time_axis", 0)
    x = n[0].movedim((batch, time), (0, 1))
    rows = [
        torch.cat([row[:count].flip(0), row[count:]])
        for row, count in zip(x, n[1].tolist(), strict=True)
    ]
    return torch.stack(rows).movedim((0, 1), (batch, time))


def _shape(n: Node) -> Tensor:
    return torch.tensor(n[0].shape[n.get("start", 0) : n.get("end")], dtype=torch.int64)


def _filled(n: Node) -> Tensor:
    given = n.get("value")
    value = np.zeros(1, np.float32) if given is None else numpy_helper.to_array(given)
    return to_tensor(value, n.real).expand(n[0].tolist())


LAYOUT: dict[str, Operator] = {
    "Cast": lambda n: n[0].to(_type_of(n.get("to"), n.real)),
    "CastLike": lambda n: n[0].to(n[1].dtype),
    "Concat": lambda n: torch.cat([t for t in n.inputs if t is not None], n.get("axis")),
    "Constant": lambda n: to_tensor(numpy_helper.to_array(n.get("value")), n.real),
    "ConstantOfShape": _filled,
    "DepthToSpace": _depth_to_space,
    "Expand": _expand,
    "Flatten": _flatten,
    "Pad": _pad,
    "Reshape": _reshape,
    "ReverseSequence": _reverse_sequence,
    "Shape": _shape,
    "Size": lambda n: torch.tensor(n[0].numel()),
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": lambda n: n[0].tile(tuple(n[1].tolist())),
    "Transpose": lambda n: n[0].permute(n.get("perm") or list(reversed(range(n[0].dim())))),
    "Trilu": _trilu,
    "com.microsoft.Trilu": _trilu,
    "Unsqueeze": _unsqueeze,
}
