"""Images sampled at places, Fourier transforms, columns of windows."""

from __future__ import annotations

import torch
from torch.nn import functional as F  # noqa: N812

from tests.torch.node import Node, Operator, Tensor

MODES = {"linear": "bilinear", "cubic": "bicubic"}


def _grid_sample(n: Node) -> Tensor:
    mode = n.get("mode", "linear")
    return F.grid_sample(
        n[0], n[1], MODES.get(mode, mode), n.get("padding_mode", "zeros"),
        bool(n.get("align_corners", 0)),
    )  # fmt: skip


def _deform_conv(n: Node) -> Tensor:
    """Filters times what lies, between pixels, where each of their elements looks."""
    x, filters, moves = n[0], n[1], n[2]
    groups, bundles = n.get("group", 1), n.get("offset_group", 1)
    (batch, channels, *_), (rows, columns) = x.shape, moves.shape[2:]
    strides, dilations, pads = n.get("strides"), n.get("dilations"), n.get("pads")
    taken = []
    for k in range(filters[0, 0].numel()):
        i, j = divmod(k, filters.shape[3])
        parts = []
        for bundle in range(bundles):
            at = 2 * (bundle * filters[0, 0].numel() + k)
            y = torch.arange(rows).reshape(-1, 1) * strides[0] - pads[0] + i * dilations[0]
            z = torch.arange(columns) * strides[1] - pads[1] + j * dilations[1]
            width = channels // bundles
            image = x[:, bundle * width : (bundle + 1) * width]
            part = _between(image, y + moves[:, at], z + moves[:, at + 1])
            parts.append(part * n[4][:, at // 2, None] if n.has(4) else part)
        taken.append(torch.cat(parts, 1))
    inner = torch.stack(taken, 2).reshape(batch, groups, -1, rows * columns)
    made = filters.reshape(groups, filters.shape[0] // groups, -1) @ inner
    made = made.reshape(batch, -1, rows, columns)
    return made + n[3].reshape(-1, 1, 1) if n.has(3) else made


def _between(image: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """[N, C, H, W] at places [N, rows, columns] between pixels, 0 outside."""
    rows, columns = image.shape[2:]
    total = torch.zeros(())
    for down in (0, 1):
        for right in (0, 1):
            top, left = (y.detach().floor() + down).long(), (x.detach().floor() + right).long()
            share = (1 - (y - top).abs()) * (1 - (x - left).abs())
            inside = (top >= 0) & (top < rows) & (left >= 0) & (left < columns)
            flat = top.clamp(0, rows - 1) * columns + left.clamp(0, columns - 1)
            which = flat.flatten(1)[:, None].expand(-1, image.shape[1], -1)
            found = image.flatten(2).gather(2, which).reshape(*image.shape[:2], *y.shape[1:])
            total = total + found * (share * inside)[:, None]
    return total


def _dft(n: Node) -> Tensor:
    x = n[0]
    axis = n.get("axis", 1) if n.version < 20 else int(n[2]) if n.has(2) else -2
    axis, length = axis % x.dim(), int(n[1]) if n.has(1) else None
    one_sided, inverse = n.get("onesided", 0), n.get("inverse", 0)
    signal = x[..., 0] if x.shape[-1] == 1 else torch.view_as_complex(x.contiguous())
    if inverse and one_sided:
        return torch.fft.irfft(signal, length, axis).unsqueeze(-1)
    if one_sided:
        return torch.view_as_real(torch.fft.rfft(signal, length, axis))
    made = (torch.fft.ifft if inverse else torch.fft.fft)(signal, length, axis)
    return torch.view_as_real(made)


def _stft(n: Node) -> Tensor:
    x, step = n[0], int(n[1])
    length = int(n[3]) if n.has(3) else n[2].shape[0]
    signal = torch.view_as_complex(x.contiguous()) if x.shape[-1] == 2 else x.reshape(x.shape[:2])
    frames = signal.unfold(1, length, step)
    if n.has(2):
        frames = frames * n[2]
    transform = torch.fft.rfft if n.get("onesided", 1) else torch.fft.fft
    return torch.view_as_real(transform(frames, dim=-1))


def _col2im(n: Node) -> Tensor:
    pads = n.get("pads", [0] * 4)
    high, wide = n[1].tolist()
    # PyTorch pads both sides alike: put back with as many as both need, then cut.
    around = (high + pads[0] + pads[2], wide + pads[1] + pads[3])
    made = F.fold(
        n[0], around, n[2].tolist(), n.get("dilations", [1, 1]), 0, n.get("strides", [1, 1])
    )
    return made[:, :, pads[0] : pads[0] + high, pads[1] : pads[1] + wide]


def _roi_align(n: Node) -> Tensor:
    """Point by point, as the specification has it."""
    x, boxes, images = n[0], n[1].tolist(), n[2].tolist()
    rows, columns, points = (n.get(k, 1) for k in
                             ("output_height", "output_width", "sampling_ratio"))  # fmt: skip
    scale = n.get("spatial_scale", 1.0)
    half = n.version >= 16 and n.get("coordinate_transformation_mode", "half_pixel") == "half_pixel"

    def pooled(image: Tensor, first: list[float], last: list[float], i: int, j: int) -> Tensor:
        total = torch.zeros_like(image[:, 0, 0])
        for a in range(points):
            for b in range(points):
                at = []
                for low, high, cell, count, point in (
                    (first[1], last[1], i, rows, a), (first[0], last[0], j, columns, b)
                ):  # fmt: skip
                    size = high - low if half else max(high - low, 1.0)
                    at.append(low - 0.5 * half + (cell + (point + 0.5) / points) * size / count)
                total = total + _bilinear(image, *at)
        return total / points**2

    made = [
        torch.stack([
            torch.stack([
                pooled(x[k], [v * scale for v in box[:2]], [v * scale for v in box[2:]], i, j)
                for j in range(columns)
            ], -1)
            for i in range(rows)
        ], -2)
        for box, k in zip(boxes, images, strict=True)
    ]  # fmt: skip
    return torch.stack(made)


def _bilinear(image: Tensor, y: float, x: float) -> Tensor:
    """Between four elements of an image [C, H, W]; 0 from one element beyond its edge."""
    high, wide = image.shape[1:]
    if not (-1 <= y <= high and -1 <= x <= wide):
        return torch.zeros_like(image[:, 0, 0])
    y, x = min(max(y, 0.0), high - 1.0), min(max(x, 0.0), wide - 1.0)
    top, left = min(int(y), max(high - 2, 0)), min(int(x), max(wide - 2, 0))
    down, right = y - top, x - left
    corners = image[:, top : top + 2, left : left + 2]
    shares = torch.tensor([[(1 - down) * (1 - right), (1 - down) * right],
                           [down * (1 - right), down * right]], dtype=image.dtype)  # fmt: skip
    return (corners * shares).sum((1, 2))


def _global_lp_pool(n: Node) -> Tensor:
    return n[0].flatten(2).norm(n.get("p", 2), 2).reshape(*n[0].shape[:2], *[1] * (n[0].dim() - 2))


SAMPLING: dict[str, Operator] = {
    "AffineGrid": lambda n: F.affine_grid(n[0], n[1].tolist(), bool(n.get("align_corners", 0))),
    "Col2Im": _col2im,
    "DFT": _dft,
    "GlobalLpPool": _global_lp_pool,
    "GridSample": _grid_sample,
    "Mod": lambda n: torch.fmod(n[0], n[1]) if n.get("fmod", 0) else torch.remainder(n[0], n[1]),
    "DeformConv": _deform_conv,
    "RoiAlign": _roi_align,
    "STFT": _stft,
}
