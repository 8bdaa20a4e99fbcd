"""Layers, losses and transforms of PyTorch whose exported form is differentiated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from tests.torch.functions import GENERATOR, Tensor, add, d, i, p, r, u


class Layer:
    """A module in evaluation mode whose parameters are drawn with the table's own seed."""

    def __init__(self, module: nn.Module, pick: Callable[[Any], Any] = lambda y: y) -> None:
        for parameter in module.parameters():
            parameter.data = torch.randn(parameter.shape, generator=GENERATOR) * 0.3
        self.module, self.pick = module.eval(), pick

    def __call__(self, *inputs: Tensor) -> Any:
        return self.pick(self.module(*inputs))


class _Cell(nn.LSTMCell):
    """With its state apart, giving the new state of the cell."""

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x, (h, c))[1]


# ---- convolution and pooling ---------------------------------------------------------------------
add("conv1d", lambda x, w, b: F.conv1d(x, w, b, 2, 1, 2), r(2, 3, 9), r(4, 3, 3), r(4))
add("conv1d_same", lambda x, w: F.conv1d(x, w, padding="same"), r(2, 3, 9), r(4, 3, 4))
add("conv2d", lambda x, w, b: F.conv2d(x, w, b, (2, 1), (1, 0)), r(2, 3, 6, 5), r(4, 3, 3, 2), r(4))
add("conv2d_groups", lambda x, w: F.conv2d(x, w, None, 1, 1, 1, 2), r(2, 4, 5, 5), r(6, 2, 3, 3))
add("conv2d_depthwise", lambda x, w: F.conv2d(x, w, None, 1, 2, 2, 4), r(2, 4, 6, 6), r(4, 1, 3, 3))
add("conv2d_same", lambda x, w: F.conv2d(x, w, padding="same"), r(1, 3, 5, 5), r(2, 3, 2, 4))
add("conv3d", lambda x, w: F.conv3d(x, w, None, 1, 1), r(1, 2, 4, 4, 4), r(3, 2, 3, 3, 3))
add("conv_unbatched", F.conv2d, r(3, 5, 5), r(2, 3, 3, 3))
add(
    "conv_transpose1d",
    lambda x, w, b: F.conv_transpose1d(x, w, b, 2, 1, 1),
    r(2, 4, 5),
    r(4, 3, 3),
    r(3),
)
add(
    "conv_transpose2d",
    lambda x, w: F.conv_transpose2d(x, w, None, 2, 1, 1),
    r(2, 4, 3, 3),
    r(4, 3, 3, 3),
)
add(
    "conv_transpose2d_groups",
    lambda x, w: F.conv_transpose2d(x, w, None, 2, 1, 0, 2),
    r(2, 4, 3, 3),
    r(4, 3, 3, 3),
)
add(
    "conv_transpose2d_dilation",
    lambda x, w: F.conv_transpose2d(x, w, dilation=2),
    r(1, 2, 3, 3),
    r(2, 3, 3, 3),
)
add(
    "conv_transpose3d",
    lambda x, w: F.conv_transpose3d(x, w, None, 2),
    r(1, 2, 2, 3, 2),
    r(2, 3, 2, 2, 2),
)
for _rank in (1, 2, 3):
    _x = (2, 3, *(7, 6, 5)[:_rank])
    _pool = {
        k: getattr(F, f"{k}{_rank}d")
        for k in ("max_pool", "avg_pool", "lp_pool", "adaptive_avg_pool", "adaptive_max_pool")
    }
    add(f"max_pool{_rank}d", lambda x, f=_pool["max_pool"]: f(x, 3, 2, 1), d(*_x))
    add(f"max_pool{_rank}d_ceil", lambda x, f=_pool["max_pool"]: f(x, 2, 2, ceil_mode=True), d(*_x))
    add(f"max_pool{_rank}d_dilation", lambda x, f=_pool["max_pool"]: f(x, 2, 1, 0, 2), d(*_x))
    add(
        f"max_pool{_rank}d_indices",
        lambda x, f=_pool["max_pool"]: f(x, 2, 2, return_indices=True)[0],
        d(*_x),
    )
    add(f"avg_pool{_rank}d", lambda x, f=_pool["avg_pool"]: f(x, 3, 2, 1), r(*_x))
    add(f"avg_pool{_rank}d_ceil", lambda x, f=_pool["avg_pool"]: f(x, 3, 2, 1, True, False), r(*_x))
    add(f"adaptive_avg_pool{_rank}d_1", lambda x, f=_pool["adaptive_avg_pool"]: f(x, 1), r(*_x))
    add(
        f"adaptive_avg_pool{_rank}d_divides",
        lambda x, f=_pool["adaptive_avg_pool"]: f(x, 2),
        r(2, 3, *[4] * _rank),
    )
    add(f"adaptive_avg_pool{_rank}d_odd", lambda x, f=_pool["adaptive_avg_pool"]: f(x, 3), r(*_x))
    add(f"adaptive_max_pool{_rank}d_1", lambda x, f=_pool["adaptive_max_pool"]: f(x, 1), d(*_x))
    add(f"adaptive_max_pool{_rank}d_odd", lambda x, f=_pool["adaptive_max_pool"]: f(x, 3), d(*_x))
    if _rank < 3:
        add(f"lp_pool{_rank}d", lambda x, f=_pool["lp_pool"]: f(x, 2, 3, 2), p(*_x))
add(
    "max_unpool2d",
    lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, 2, return_indices=True), 2, 2),
    d(1, 2, 4, 4),
)
add("avg_pool2d_divisor", lambda x: F.avg_pool2d(x, 2, 2, divisor_override=3), r(1, 2, 4, 4))

# ---- resize and sampling -------------------------------------------------------------------------
for _mode, _s in (
    ("nearest", (5, 4)),
    ("bilinear", (5, 4)),
    ("bicubic", (5, 4)),
    ("linear", (5,)),
    ("trilinear", (3, 4, 3)),
    ("area", (6, 4)),
    ("nearest-exact", (5, 4)),
):
    add(
        f"interpolate_{_mode}_factor",
        lambda x, m=_mode: F.interpolate(x, scale_factor=2.0, mode=m),
        r(1, 2, *_s),
    )
    add(
        f"interpolate_{_mode}_size",
        lambda x, m=_mode, s=_s: F.interpolate(x, size=[7, 3, 5][: len(s)], mode=m),
        r(1, 2, *_s),
    )
    if _mode in ("bilinear", "bicubic", "linear", "trilinear"):
        add(
            f"interpolate_{_mode}_corners",
            lambda x, m=_mode, s=_s: F.interpolate(
                x, size=[7, 3, 5][: len(s)], mode=m, align_corners=True
            ),
            r(1, 2, *_s),
        )
add(
    "interpolate_antialias",
    lambda x: F.interpolate(x, size=(3, 2), mode="bilinear", antialias=True),
    r(1, 2, 6, 5),
)
add("upsample", lambda x: nn.Upsample(scale_factor=1.5, mode="bilinear")(x), r(1, 2, 4, 6))
for _mode in ("bilinear", "nearest", "bicubic"):
    for _border in ("zeros", "border", "reflection"):
        for _corners in (False, True):
            add(
                f"grid_sample_{_mode}_{_border}_{int(_corners)}",
                lambda x, g, m=_mode, b=_border, c=_corners: F.grid_sample(x, g, m, b, c),
                r(2, 3, 5, 4),
                u(2, 3, 6, 2) * 1.6,
                opset=20,
            )
add(
    "grid_sample_3d",
    lambda x, g: F.grid_sample(x, g, align_corners=False),
    r(1, 2, 3, 4, 3),
    u(1, 2, 3, 2, 3),
    opset=20,
)
add(
    "affine_grid",
    lambda m: F.affine_grid(m, [2, 3, 4, 5], align_corners=False),
    r(2, 2, 3),
    opset=20,
)
add(
    "affine_grid_3d",
    lambda m: F.affine_grid(m, [1, 2, 3, 2, 4], align_corners=True),
    r(1, 3, 4),
    opset=20,
)
add(
    "spatial_transformer",
    lambda x, m: F.grid_sample(
        x, F.affine_grid(m, list(x.shape), align_corners=False), align_corners=False
    ),
    r(2, 3, 5, 4),
    r(2, 2, 3) * 0.3,
    opset=20,
)

# ---- Fourier transforms --------------------------------------------------------------------------
add("rfft", lambda x: torch.view_as_real(torch.fft.rfft(x)), r(2, 8), opset=20)
add("fft_abs", lambda x: torch.fft.fft(x, dim=1).abs(), r(2, 6, 3), opset=20)
add("irfft", lambda x: torch.fft.irfft(torch.view_as_complex(x)), r(2, 5, 2), opset=20)
add(
    "rfft_irfft",
    lambda x, w: torch.fft.irfft(torch.fft.rfft(x) * torch.view_as_complex(w)),
    r(2, 8),
    r(2, 5, 2),
    opset=20,
)
add("fft2_real", lambda x: torch.fft.fft2(x).real, r(2, 4, 6), opset=20)
add("fft_ortho", lambda x: torch.view_as_real(torch.fft.fft(x, norm="ortho")), r(2, 6), opset=20)
add(
    "fftn_mixer",
    lambda x: torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real,
    r(2, 4, 6),
    opset=20,
)
add(
    "stft",
    lambda x: torch.stft(x, 8, 4, window=torch.hann_window(8), return_complex=False, center=False),
    r(2, 32),
    opset=20,
)
add(
    "spectrogram",
    lambda x: (
        torch.view_as_real(torch.stft(x, 8, 4, window=torch.hann_window(8), return_complex=True))
        .square()
        .sum(-1)
    ),
    r(2, 32),
    opset=20,
)
add("istft_like", lambda x: torch.fft.irfft(torch.view_as_complex(x), n=7), r(2, 4, 2), opset=20)

# ---- normalization -------------------------------------------------------------------------------
add(
    "batch_norm",
    lambda x, w, b: F.batch_norm(x, torch.zeros(3), torch.ones(3) * 2, w, b),
    r(2, 3, 4),
    p(3),
    r(3),
)
add("instance_norm", lambda x: F.instance_norm(x), r(2, 3, 5))
add(
    "instance_norm_affine",
    lambda x, w, b: F.instance_norm(x, None, None, w, b),
    r(2, 3, 4, 4),
    p(3),
    r(3),
)
add("group_norm", lambda x, w, b: F.group_norm(x, 2, w, b), r(2, 4, 3, 3), p(4), r(4))
add("group_norm_plain", lambda x: F.group_norm(x, 2), r(2, 4, 3, 3))
add("layer_norm", lambda x, w, b: F.layer_norm(x, (3, 4), w, b), r(2, 3, 4), p(3, 4), r(3, 4))
add("layer_norm_plain", lambda x: F.layer_norm(x, (4,)), r(2, 3, 4))
add("rms_norm", lambda x, w: F.rms_norm(x, (4,), w), r(2, 3, 4), p(4))
add("local_response_norm", lambda x: F.local_response_norm(x, 3), r(2, 5, 3, 3))
add(
    "weight_norm",
    lambda x, v, g: F.linear(x, v * (g / v.norm(dim=1, keepdim=True))),
    r(2, 4),
    r(3, 4),
    p(3, 1),
)
add(
    "weight_standardised",
    lambda x, w: F.conv2d(x, (w - w.mean((1, 2, 3), True)) / w.std((1, 2, 3), keepdim=True)),
    r(1, 3, 5, 5),
    r(2, 3, 3, 3),
)
add("spectral_like", lambda x, w: F.linear(x, w / torch.linalg.vector_norm(w)), r(2, 4), r(3, 4))

# ---- attention and recurrence --------------------------------------------------------------------
_q = (2, 2, 4, 8)
add("sdpa", F.scaled_dot_product_attention, r(*_q), r(2, 2, 5, 8), r(2, 2, 5, 8))
add(
    "sdpa_causal",
    lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    r(*_q),
    r(*_q),
    r(*_q),
)
add("sdpa_mask", F.scaled_dot_product_attention, r(*_q), r(*_q), r(*_q), r(4, 4))
add(
    "sdpa_bool_mask",
    lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m > 0),
    r(*_q),
    r(*_q),
    r(*_q),
    torch.ones(4, 4, dtype=torch.int64).tril(),
)
add(
    "sdpa_scale",
    lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.3),
    r(*_q),
    r(*_q),
    r(*_q),
)
add(
    "sdpa_gqa",
    lambda q, k, v: F.scaled_dot_product_attention(
        q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    ),
    r(*_q),
    r(2, 1, 5, 8),
    r(2, 1, 5, 8),
)
add(
    "multi_head_attention",
    Layer(nn.MultiheadAttention(8, 2, batch_first=True), lambda y: y[0]),
    *[r(2, 4, 8) for _ in range(3)],
)
add(
    "multi_head_attention_seq",
    Layer(nn.MultiheadAttention(8, 2), lambda y: y),
    r(4, 2, 8),
    r(5, 2, 8),
    r(5, 2, 8),
)
add(
    "transformer_encoder",
    Layer(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)),
    r(2, 4, 8),
)
add(
    "transformer_decoder",
    Layer(nn.TransformerDecoderLayer(8, 2, 16, 0.0, batch_first=True)),
    r(2, 4, 8),
    r(2, 5, 8),
)
for _kind in ("RNN", "GRU", "LSTM"):
    _make = getattr(nn, _kind)
    add(_kind.lower(), Layer(_make(3, 4), lambda y: y[0]), r(5, 2, 3))
    add(
        f"{_kind.lower()}_batch_first_two_layers",
        Layer(_make(3, 4, 2, batch_first=True), lambda y: y[0]),
        r(2, 5, 3),
    )
    add(
        f"{_kind.lower()}_bidirectional",
        Layer(_make(3, 4, bidirectional=True), lambda y: y[0]),
        r(5, 2, 3),
    )
add("lstm_state", Layer(nn.LSTM(3, 4), lambda y: y[1][1]), r(5, 2, 3))
add("lstm_projected", Layer(nn.LSTM(3, 4, proj_size=2), lambda y: y[0]), r(5, 2, 3))
add("rnn_relu", Layer(nn.RNN(3, 4, nonlinearity="relu"), lambda y: y[0]), r(5, 2, 3))
add("gru_cell", Layer(nn.GRUCell(3, 4)), r(2, 3), r(2, 4))
add(
    "lstm_cell",
    Layer(_Cell(3, 4)),
    r(2, 3),
    r(2, 4),
    r(2, 4),
)
add("rnn_cell", Layer(nn.RNNCell(3, 4)), r(2, 3), r(2, 4))

# ---- losses --------------------------------------------------------------------------------------
add("cross_entropy", F.cross_entropy, r(4, 3), i(3, 4))
add(
    "cross_entropy_weight",
    lambda x, k: F.cross_entropy(x, k, torch.tensor([0.5, 1.0, 2.0])),
    r(4, 3),
    i(3, 4),
)
add(
    "cross_entropy_ignore",
    lambda x, k: F.cross_entropy(x, k, ignore_index=1),
    r(4, 3),
    torch.tensor([0, 1, 2, 1]),
)
add(
    "cross_entropy_smooth",
    lambda x, k: F.cross_entropy(x, k, label_smoothing=0.1),
    r(4, 3),
    i(3, 4),
)
add(
    "cross_entropy_smooth_weight",
    lambda x, k: F.cross_entropy(x, k, torch.tensor([0.5, 1.0, 2.0]), label_smoothing=0.1),
    r(4, 3),
    i(3, 4),
)
add("cross_entropy_2d", F.cross_entropy, r(2, 3, 4, 4), i(3, 2, 4, 4))
add("cross_entropy_soft", lambda x, t: F.cross_entropy(x, t.softmax(1)), r(4, 3), r(4, 3))
add("cross_entropy_none", lambda x, k: F.cross_entropy(x, k, reduction="none"), r(4, 3), i(3, 4))
add("nll_loss", lambda x, k: F.nll_loss(x.log_softmax(1), k), r(4, 3), i(3, 4))
add(
    "nll_loss_weight_sum",
    lambda x, k: F.nll_loss(x.log_softmax(1), k, torch.tensor([0.5, 1.0, 2.0]), reduction="sum"),
    r(4, 3),
    i(3, 4),
)
add(
    "kl_div",
    lambda x, t: F.kl_div(x.log_softmax(1), t.softmax(1), reduction="batchmean"),
    r(4, 3),
    r(4, 3),
)
add(
    "kl_div_log",
    lambda x, t: F.kl_div(x.log_softmax(1), t.log_softmax(1), log_target=True, reduction="sum"),
    r(4, 3),
    r(4, 3),
)
add("bce", lambda x, t: F.binary_cross_entropy(x.sigmoid(), t), r(4, 3), p(4, 3) / 2)
add("bce_with_logits", F.binary_cross_entropy_with_logits, r(4, 3), p(4, 3) / 2)
add(
    "bce_with_logits_pos_weight",
    lambda x, t: F.binary_cross_entropy_with_logits(
        x, t, torch.tensor([1.0, 2, 3]), pos_weight=torch.tensor([2.0, 1, 3])
    ),
    r(4, 3),
    p(4, 3) / 2,
)
add("mse_loss", F.mse_loss, r(4, 3), r(4, 3))
add("l1_loss", F.l1_loss, d(4, 3), d(4, 3) + 0.1)
add("smooth_l1_loss", F.smooth_l1_loss, d(4, 3), d(4, 3) + 0.1)
add("smooth_l1_loss_beta", lambda x, y: F.smooth_l1_loss(x, y, beta=0.5), d(4, 3), d(4, 3) + 0.1)
add("huber_loss", lambda x, y: F.huber_loss(x, y, delta=0.7), d(4, 3), d(4, 3) + 0.1)
add("soft_margin_loss", F.soft_margin_loss, r(4, 3), r(4, 3).sign())
add("margin_ranking_loss", F.margin_ranking_loss, d(5), d(5), r(5).sign())
add("hinge_embedding_loss", F.hinge_embedding_loss, d(5) * 2, r(5).sign())
add(
    "cosine_embedding_loss", F.cosine_embedding_loss, r(4, 3), r(4, 3), torch.tensor([1, -1, 1, -1])
)
add("multi_margin_loss", F.multi_margin_loss, d(4, 3), i(3, 4))
add("poisson_nll_loss", F.poisson_nll_loss, r(4, 3), p(4, 3))
add("gaussian_nll_loss", F.gaussian_nll_loss, r(4, 3), r(4, 3), p(4, 3))
add(
    "ctc_loss",
    lambda x: F.ctc_loss(x.log_softmax(2), torch.tensor([[1, 2], [2, 1]]), (5, 5), (2, 2)),
    r(5, 2, 4),
)
add("multilabel_soft_margin", F.multilabel_soft_margin_loss, r(4, 3), i(2, 4, 3).float())
add(
    "focal_like",
    lambda x, t: (
        (1 - x.sigmoid()) ** 2 * F.binary_cross_entropy_with_logits(x, t, reduction="none")
    ).mean(),
    r(4, 3),
    i(2, 4, 3).float(),
)
