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


def _global_lp_pool(n: Node) -> Tensor:
    return n[0].flatten(2).norm(n.get("p", 2), 2).reshape(*n[0].shape[:2], *[1] * (n[0].dim() - 2))


SAMPLING: dict[str, Operator] = {
    "AffineGrid": lambda n: F.affine_grid(n[0], n[1].tolist(), bool(n.get("align_corners", 0))),
    "Col2Im": _col2im,
    "DFT": _dft,
    "GlobalLpPool": _global_lp_pool,
    "GridSample": _grid_sample,
    "Mod": lambda n: torch.fmod(n[0], n[1]) if n.get("fmod", 0) else torch.remainder(n[0], n[1]),
    "STFT": _stft,
}
