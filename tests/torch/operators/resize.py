"""Resize: PyTorch's interpolation where it has the mode, else the specification's formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional as F  # noqa: N812

from tests.torch.node import Node, Operator, Tensor

CROP = "tf_crop_and_resize"
SPACE = {1: "linear", 2: "bilinear", 3: "trilinear"}


def _resize(n: Node) -> Tensor:
    x = n[0]
    sizes = n[3].tolist() if n.has(3) else None
    scales = n[2].double().tolist() if sizes is None else None
    return _interpolated(n, x, sizes, scales)


def _interpolated(
    n: Node, x: Tensor, sizes: list[int] | None, scales: list[float] | None
) -> Tensor:
    kind = _counterpart(n, x.dim() - 2)
    if kind is not None:
        target = {"size": sizes[2:]} if sizes else {"scale_factor": tuple((scales or [])[2:])}
        return F.interpolate(x, **target, **kind)
    beyond = torch.zeros(1, dtype=torch.bool)
    for axis in range(2 if x.dim() > 2 else 0, x.dim()):
        length = x.shape[axis]
        scale = scales[axis] if scales else (sizes or [])[axis] / length
        result = int(np.floor(length * scale)) if scales else (sizes or [])[axis]
        if n.get("coordinate_transformation_mode") == CROP:
            matrix, inside = _cropped(n, axis, length, result)
            beyond = beyond | ~torch.from_numpy(inside).reshape([-1, *[1] * (x.dim() - 1 - axis)])
        else:
            matrix = _matrix(n, length, result, scale)
        x = (x.movedim(axis, -1) @ torch.from_numpy(matrix).to(x.dtype).T).movedim(-1, axis)
    return x.masked_fill(beyond, n.get("extrapolation_value", 0.0))


def _cropped(n: Node, axis: int, length: int, result: int) -> tuple[np.ndarray, np.ndarray]:
    """As :func:`_matrix` for a part of the axis, and which results lie within the axis."""
    start, end = float(n[1][axis]), float(n[1][n[0].dim() + axis])
    ends = [side * (length - 1) for side in (start, end)]
    places = np.linspace(*ends, result) if result > 1 else np.array([sum(ends) / 2])
    matrix = np.zeros((result, length))
    for row, at in enumerate(places):
        for column, share in _shares(n, at):
            matrix[row, min(max(column, 0), length - 1)] += share
    return matrix, (places >= 0) & (places <= length - 1)


def _counterpart(n: Node, rank: int) -> dict[str, Any] | None:
    """Arguments of ``interpolate`` that mean the same, None when there are none."""
    mode = n.get("mode", "nearest")
    place = n.get("coordinate_transformation_mode", "half_pixel")
    if mode == "nearest":
        floored = n.get("nearest_mode", "round_prefer_floor") == "floor"
        return {"mode": "nearest"} if floored and place == "asymmetric" else None
    if place not in ("half_pixel", "pytorch_half_pixel", "align_corners"):
        return None
    if mode == "cubic" and (rank != 2 or n.get("cubic_coeff_a", -0.75) != -0.75):
        return None
    if n.get("antialias", 0) != n.get("exclude_outside", 0):
        return None  # PyTorch leaves out what lies beyond the border when it smooths, only then
    return {
        "mode": "bicubic" if mode == "cubic" else SPACE[rank],
        "align_corners": place == "align_corners",
        "antialias": bool(n.get("antialias", 0)),
    }


def _matrix(n: Node, length: int, result: int, scale: float) -> np.ndarray:
    """What each of ``result`` elements takes of ``length`` elements along one axis.

    Raises:
        NotImplementedError: smoothed cubic interpolation, or weights shared out at the border.
    """
    if n.get("exclude_outside", 0) or (n.get("antialias", 0) and n.get("mode") != "linear"):
        raise NotImplementedError(n.attributes)
    place = n.get("coordinate_transformation_mode", "half_pixel")
    matrix = np.zeros((result, length))
    for row in range(result):
        at = {
            "half_pixel": (row + 0.5) / scale - 0.5,
            "pytorch_half_pixel": (row + 0.5) / scale - 0.5 if result > 1 else 0.0,
            "asymmetric": row / scale,
            "align_corners": row * (length - 1) / max(result - 1, 1),
        }[place]
        for column, share in _smoothed(at, scale) if n.get("antialias", 0) else _shares(n, at):
            matrix[row, min(max(column, 0), length - 1)] += share
    return matrix


def _shares(n: Node, at: float) -> list[tuple[int, float]]:
    """Elements around a position with their weights."""
    base, mode = int(np.floor(at)), n.get("mode", "nearest")
    if mode == "linear":
        return [(base, 1 - (at - base)), (base + 1, at - base)]
    if mode == "cubic":
        return [(base + k, _cubic(abs(at - base - k), n.get("cubic_coeff_a", -0.75)))
                for k in (-1, 0, 1, 2)]  # fmt: skip
    rounded = {
        "round_prefer_floor": np.ceil(at - 0.5),
        "round_prefer_ceil": np.floor(at + 0.5),
        "floor": np.floor(at),
        "ceil": np.ceil(at),
    }[n.get("nearest_mode", "round_prefer_floor")]
    return [(int(rounded), 1.0)]


def _smoothed(at: float, scale: float) -> list[tuple[int, float]]:
    """The triangle of linear interpolation, as wide as the spacing of the results."""
    slope = min(scale, 1.0)
    reach = int(np.ceil(1.0 / slope)) + 1
    columns = [int(np.floor(at)) + k for k in range(-reach, reach + 1)]
    shares = np.clip(1.0 - slope * np.abs(np.array(columns) - at), 0.0, 1.0)
    return list(zip(columns, (shares / shares.sum()).tolist(), strict=True))


def _cubic(s: float, a: float) -> float:
    """Keys' kernel."""
    if s <= 1:
        return (a + 2) * s**3 - (a + 3) * s**2 + 1
    return a * s**3 - 5 * a * s**2 + 8 * a * s - 4 * a


def _upsample(n: Node) -> Tensor:
    """The operator before Resize; its positions are ``asymmetric``, rounded down."""
    if n.get("mode", "nearest") != "nearest":
        raise NotImplementedError("Upsample with interpolation")
    return F.interpolate(n[0], scale_factor=tuple(n[1].tolist()[2:]), mode="nearest")


RESIZE: dict[str, Operator] = {"Resize": _resize, "Upsample": _upsample}
