"""Functions of PyTorch whose exported form is differentiated, and how they are listed.

Layers are in :mod:`tests.torch.layers`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812

Tensor = torch.Tensor
GENERATOR = torch.Generator().manual_seed(0)

# Functions by the numbers they take.
ANYWHERE = (
    "exp sin cos tan sinh cosh tanh atan asinh erf erfc sigmoid square neg expm1 exp2 "
    "positive sinc deg2rad rad2deg"
)
POSITIVE = "sqrt rsqrt log log2 log10 log1p reciprocal lgamma digamma i0"
WITHIN = "asin acos atanh erfinv logit"
STEPS = "abs sign floor ceil round sgn trunc frac"
ACTIVATIONS = (
    "relu leaky_relu elu selu celu softplus softsign hardswish hardsigmoid hardtanh relu6 "
    "mish silu gelu logsigmoid tanhshrink softshrink hardshrink rrelu"
)
REDUCTIONS = "sum mean prod logsumexp var std amax amin"


@dataclass(frozen=True)
class Function:
    """A function to export and differentiate.

    Attributes:
        call: of the inputs; a tensor, or a tuple of them.
        inputs: floating-point ones are differentiated.
        opset: to export at.
    """

    call: Callable[..., Any]
    inputs: tuple[Tensor, ...]
    opset: int = 18


FUNCTIONS: dict[str, Function] = {}


def add(name: str, call: Callable[..., Any], *inputs: Tensor, opset: int = 18) -> None:
    """Register a function."""
    assert name not in FUNCTIONS, name
    FUNCTIONS[name] = Function(call, inputs, opset)


def r(*shape: int) -> Tensor:
    """Normal numbers."""
    return torch.randn(*shape, generator=GENERATOR)


def p(*shape: int) -> Tensor:
    """Numbers in (0.2, 1.7)."""
    return torch.rand(*shape, generator=GENERATOR) * 1.5 + 0.2


def u(*shape: int) -> Tensor:
    """Numbers in (-0.9, 0.9)."""
    return torch.rand(*shape, generator=GENERATOR) * 1.8 - 0.9


def d(*shape: int) -> Tensor:
    """Numbers no two of which are close, and none close to 0."""
    count = math.prod(shape)
    values = (torch.arange(count) - count / 2 + 0.25) * (6.0 / count)
    return values[torch.randperm(count, generator=GENERATOR)].reshape(shape)


def i(high: int, *shape: int) -> Tensor:
    """Integers in [0, high)."""
    return torch.randint(high, shape, generator=GENERATOR)


# ---- elementwise ---------------------------------------------------------------------------------
for _name in ANYWHERE.split():
    add(_name, getattr(torch, _name), r(3, 4))
for _name in POSITIVE.split():
    add(_name, getattr(torch, _name), p(3, 4))
for _name in WITHIN.split():
    add(_name, getattr(torch, _name), u(3, 4).abs() * 0.9 + 0.05)
add("acosh", torch.acosh, p(3, 4) + 1)
for _name in STEPS.split():
    add(_name, lambda x, f=_name: getattr(torch, f)(x) * x, d(3, 4))
for _name in ACTIVATIONS.split():
    add(_name, getattr(F, _name), d(3, 5))
add("gelu_tanh", lambda x: F.gelu(x, approximate="tanh"), r(3, 5))
add("threshold", lambda x: F.threshold(x, 0.3, 2.0), d(3, 5))
add("softplus_beta", lambda x: F.softplus(x, beta=2.0, threshold=3.0), d(3, 5))
add("elu_alpha", lambda x: F.elu(x, 0.6), d(3, 5))
add("prelu", F.prelu, d(2, 3, 4), r(3))
add("glu", lambda x: F.glu(x, 1), r(2, 6, 3))
add("add_alpha", lambda x, y: torch.add(x, y, alpha=0.5), r(2, 3), r(3))
add("sub_scalar", lambda x: 1.5 - x, r(2, 3))
add("div", torch.div, r(2, 3), p(2, 1))
add("div_floor", lambda x, y: torch.div(x, y, rounding_mode="floor") * x, d(3, 3), p(3, 3))
add("div_trunc", lambda x, y: torch.div(x, y, rounding_mode="trunc") * x, d(3, 3), p(3, 3))
add("fmod", torch.fmod, d(3, 3), p(3, 3))
add("remainder", torch.remainder, d(3, 3), p(3, 3))
add("pow_tensor", torch.pow, p(2, 3), r(2, 3))
add("pow_scalar", lambda x: x**3, r(2, 3))
add("pow_base", lambda x: 2.5**x, r(2, 3))
add("pow_negative_base", lambda x: x**2.0 + x**-1.0, d(2, 3))
add("atan2", torch.atan2, d(3, 4), d(3, 4) + 0.1)
add("hypot", torch.hypot, d(3, 4), d(3, 4))
add("addcmul", lambda x, y, z: torch.addcmul(x, y, z, value=0.7), r(2, 3), r(2, 3), r(2, 3))
add("addcdiv", lambda x, y, z: torch.addcdiv(x, y, z, value=0.7), r(2, 3), r(2, 3), p(2, 3))
add("lerp", torch.lerp, r(2, 3), r(2, 3), u(2, 3))
add("lerp_scalar", lambda x, y: torch.lerp(x, y, 0.3), r(2, 3), r(2, 3))
add("clamp", lambda x: x.clamp(-1, 0.75), d(3, 5))
add("clamp_min", lambda x: x.clamp(min=0.1), d(3, 5))
add("clamp_tensor", lambda x, y: torch.clamp(x, min=y), d(3, 5), d(3, 5) + 0.05)
add("maximum", torch.maximum, d(3, 4), d(3, 4) + 0.03)
add("minimum", torch.minimum, d(3, 4), d(3, 4) + 0.03)
add("where", lambda x, y: torch.where(x > 0.1, x * y, y.exp()), d(3, 4), r(3, 4))
add("where_scalar", lambda x: torch.where(x > 0.1, x * x, 0.0), d(3, 4))
add("masked_fill", lambda x, k: x.masked_fill(k > 0, -2.0) ** 2, r(3, 4), i(2, 3, 4))
add("masked_select_like", lambda x, k: x[k] * 2, r(6, 4), i(6, 8))
add("nan_to_num", lambda x: torch.nan_to_num(x) * x, r(3, 4))
add("xlogy", torch.xlogy, p(3, 4), p(3, 4))
add("logaddexp", torch.logaddexp, r(3, 4), r(3, 4))
add("heaviside_like", lambda x: (x > 0).float() * x, d(3, 4))
add("copysign", torch.copysign, d(3, 4), d(3, 4))
add("float_power", lambda x: (x**0.5).float(), p(3, 4))
add("softmax", lambda x: x.softmax(1), r(2, 3, 4))
add("log_softmax", lambda x: x.log_softmax(-1), r(2, 3, 4))
add("softmin", lambda x: F.softmin(x, -1), r(2, 3, 4))
add("type_cast", lambda x: x.double().sin().float(), r(3, 4))
add("polar_like", lambda x, y: torch.stack([x * y.cos(), x * y.sin()], -1), p(3), r(3))

# ---- reductions ----------------------------------------------------------------------------------
for _name in REDUCTIONS.split():
    add(_name, lambda x, f=_name: getattr(torch, f)(x, 1), d(3, 4, 2) + 0.01)
add("sum_all", lambda x: x.sum() * x, r(2, 3))
add("mean_dims", lambda x: x.mean((0, 2), keepdim=True) * x, r(2, 3, 4))
add("max_dim", lambda x: x.max(1).values, d(3, 5))
add("min_dim", lambda x: x.min(1, keepdim=True).values * x, d(3, 5))
add("max_all", lambda x: x.max() * x, d(3, 5))
add("median_like", lambda x: x.sort(1).values[:, 2], d(3, 5))
add("var_unbiased_false", lambda x: x.var((1, 2), unbiased=False), r(3, 4, 2))
add("var_all", lambda x: x.var() * x, r(3, 4))
add("std_keepdim", lambda x: x.std(-1, keepdim=True) * x, r(3, 4))
add("var_mean", lambda x: torch.var_mean(x, 1), r(3, 4))
add("std_mean", lambda x: torch.std_mean(x, 1, unbiased=False), r(3, 4))
for _p in (1, 2, 3, math.inf):
    add(f"norm_{_p}", lambda x, p=_p: x.norm(p, dim=1), d(3, 4))
add("norm_fro", lambda x: x.norm() * x, r(3, 4))
add("linalg_vector_norm", lambda x: torch.linalg.vector_norm(x, 2.5, dim=1), d(3, 4))
add("normalize", lambda x: F.normalize(x, dim=1), r(3, 4))
add("cumsum", lambda x: x.cumsum(1), r(3, 4))
add("cumprod", lambda x: x.cumprod(1), p(3, 4))
add("logcumsumexp", lambda x: x.logcumsumexp(1), r(3, 4))
add("cummax", lambda x: x.cummax(1).values, d(3, 4))
add("topk", lambda x: x.topk(2, 1).values, d(3, 6))
add("topk_small", lambda x: x.topk(2, 0, largest=False).values, d(6, 3))
add("sort", lambda x: x.sort(1, descending=True).values, d(3, 6))
add("argsort", lambda x: x.gather(1, x.argsort(1)) * 2, d(3, 6))
add("kthvalue_like", lambda x: x.sort(0).values[1], d(5, 3))
add("count_nonzero_like", lambda x: (x != 0).sum() * x, r(3, 4))
add("trace", torch.trace, r(4, 4))
add("diff", lambda x: x.diff(dim=1), r(3, 5))
add("dist", torch.dist, r(3, 4), r(3, 4))
add("cov_like", lambda x: (x - x.mean(0)).T @ (x - x.mean(0)) / 5, r(6, 3))

# ---- shapes --------------------------------------------------------------------------------------
add("chunk", lambda x: torch.cat([a * (k + 1) for k, a in enumerate(x.chunk(3, 1))], 1), r(2, 7))
add("chunk_ones", lambda x: sum(a * (k + 1.0) for k, a in enumerate(x.chunk(3, 0))), r(3, 4))
add("split", lambda x: [a.exp() for a in x.split(3, 1)][1], r(2, 8))
add(
    "split_sizes",
    lambda x: (lambda a, b, c: a * c + b.sum(1, True))(*x.split([2, 3, 2], 1)),
    r(2, 7),
)
add("unbind", lambda x: (lambda a, b, c: a * b - c)(*x.unbind(1)), r(2, 3, 4))
add("tensor_split", lambda x: x.tensor_split(3, 1)[0] * 2, r(2, 7))
add("stack", lambda x, y: torch.stack([x, y.sin(), x * y], 1), r(2, 3), r(2, 3))
add("cat", lambda x, y: torch.cat([x, y], -1), r(2, 3), r(2, 2))
add("hstack_vstack", lambda x, y: torch.vstack([torch.hstack([x, y])] * 2), r(2, 3), r(2, 2))
add("reshape", lambda x: x.reshape(-1, 4).t(), r(2, 3, 4))
add("view_flatten", lambda x: x.flatten(1) * 2, r(2, 3, 4))
add("unflatten", lambda x: x.unflatten(1, (2, -1)).sum(2), r(2, 6))
add("permute", lambda x: x.permute(2, 0, 1), r(2, 3, 4))
add("movedim", lambda x: x.movedim(0, -1), r(2, 3, 4))
add("expand", lambda x: x.expand(4, 2, 3), r(2, 1))
add("repeat", lambda x: x.repeat(2, 1, 3), r(2, 3))
add("repeat_interleave", lambda x: x.repeat_interleave(3, 1), r(2, 3))
add("tile", lambda x: x.tile(2, 2), r(2, 3))
add("squeeze_unsqueeze", lambda x: x.squeeze(1).unsqueeze(-1), r(2, 1, 3))
add("roll", lambda x: x.roll((1, -2), (0, 1)), r(3, 5))
add("roll_flat", lambda x: x.roll(2), r(3, 5))
add("flip", lambda x: x.flip(0, 2), r(2, 3, 4))
add("rot90", lambda x: torch.rot90(x, 1, (0, 1)), r(2, 3))
add("tril", lambda x: x.tril(1), r(4, 5))
add("triu", lambda x: x.triu(-1), r(2, 4, 4))
add("diagonal", lambda x: x.diagonal(0, 1, 2), r(2, 3, 4))
add("diag", torch.diag, r(4))
add("diag_embed", torch.diag_embed, r(2, 3))
add("narrow_select", lambda x: x.narrow(1, 1, 3).select(0, 1), r(2, 5))
add("slice_step", lambda x: x[:, 1::2, ::3], r(2, 5, 7))
add("pad_constant", lambda x: F.pad(x, (1, 2, 0, 1), value=0.5), r(2, 3))
for _mode in ("reflect", "replicate", "circular"):
    add(f"pad_{_mode}", lambda x, m=_mode: F.pad(x, (2, 1, 1, 2), mode=m), r(1, 2, 4, 4), opset=19)
add("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2), r(1, 8, 2, 3))
add("pixel_unshuffle", lambda x: F.pixel_unshuffle(x, 2), r(1, 2, 4, 6))
add("channel_shuffle", lambda x: F.channel_shuffle(x, 3), r(2, 6, 2, 2))
add("unfold", lambda x: F.unfold(x, (2, 3), padding=1, stride=2), r(2, 3, 5, 6))
add("fold", lambda x: F.fold(x, (4, 5), (2, 3), padding=1, stride=1), r(2, 12, 25))
add("tensor_unfold", lambda x: x.unfold(1, 3, 2), r(2, 7))
add("meshgrid", lambda x, y: (lambda a, b: a * b)(*torch.meshgrid(x, y, indexing="ij")), r(3), r(4))
add(
    "broadcast_tensors",
    lambda x, y: (lambda a, b: a * b)(*torch.broadcast_tensors(x, y)),
    r(3),
    r(4, 1),
)
add("as_strided_like", lambda x: x.reshape(-1)[2:8].reshape(2, 3), r(3, 4))
add("swapaxes", lambda x: x.swapaxes(0, 1), r(2, 3))
add("block_diag_like", lambda x, y: torch.block_diag(x, y), r(2, 2), r(2, 3))
add("zeros_like", lambda x: torch.zeros_like(x) + x + torch.ones_like(x) * x.size(0), r(2, 3))

# ---- indexing ------------------------------------------------------------------------------------
add("gather", lambda x, k: x.gather(1, k), r(3, 5), i(5, 3, 4))
add("take_along_dim", lambda x, k: x.take_along_dim(k, 1), r(3, 5), i(5, 3, 4))
add(
    "scatter",
    lambda x, k, y: x.scatter(1, k, y),
    r(3, 5),
    torch.tensor([[0, 2], [4, 1], [3, 0]]),
    r(3, 2),
)
add("scatter_add", lambda x, k, y: x.scatter_add(1, k, y), r(3, 5), i(5, 3, 4), r(3, 4))
for _mode in ("sum", "amax", "prod"):
    add(
        f"scatter_reduce_{_mode}",
        lambda x, k, y, m=_mode: x.scatter_reduce(1, k, y, m),
        d(3, 5) + 2,
        i(5, 3, 4),
        d(3, 4) + 2.01,
    )
add("index_select", lambda x, k: x.index_select(1, k), r(3, 5), i(5, 4))
add("index_add", lambda x, k, y: x.index_add(0, k, y), r(5, 3), i(5, 4), r(4, 3))
add("index_copy", lambda x, k, y: x.index_copy(0, k, y), r(5, 3), torch.tensor([3, 0]), r(2, 3))
add("index_fill", lambda x, k: x.index_fill(1, k, 0.5), r(3, 5), torch.tensor([3, 0]))
add("index_put", lambda x, k, y: x.index_put((k,), y), r(5, 3), torch.tensor([3, 0]), r(2, 3))
add("index_put_accumulate", lambda x, k, y: x.index_put((k,), y, True), r(5, 3), i(5, 4), r(4, 3))
add("index_two", lambda x, k, m: x[k, :, m], r(5, 3, 4), i(5, 6), i(4, 6))
add("index_middle", lambda x, k: x[:, k], r(3, 5, 2), i(5, 2, 3))
add("index_fixed", lambda x: x[:, [0, 3, 3, 1]], r(3, 5))
add("index_mask_fixed", lambda x: x[:, torch.tensor([True, False, True])], r(4, 3))
add("slice_assign", lambda x, y: _assigned(x, y), r(3, 5), r(3, 2))
add("masked_assign", lambda x: _masked(x), d(3, 5))
add("masked_scatter_like", lambda x, y: torch.where(y > 0, y, x), d(3, 5), d(3, 5))
add("embedding", lambda w, k: F.embedding(k, w), r(7, 4), i(7, 2, 3))
add("embedding_padding", lambda w, k: F.embedding(k, w, padding_idx=2), r(7, 4), i(7, 2, 3))
for _mode in ("sum", "mean", "max"):
    add(
        f"embedding_bag_{_mode}",
        lambda w, k, m=_mode: F.embedding_bag(k, w, mode=m),
        d(7, 4),
        i(7, 2, 3),
    )
add("one_hot", lambda x, k: F.one_hot(k, 5).float() @ x, r(5, 3), i(5, 4))
add("searchsorted_like", lambda x, k: x[k.clamp(max=3)], r(4, 2), i(8, 3))
add("bincount_like", lambda x, k: torch.zeros(5).index_add(0, k, x), r(6), i(5, 6))


def _assigned(x: Tensor, y: Tensor) -> Tensor:
    x = x * 1.0
    x[:, 1:3] = y
    x[0] = 2.0
    return x


def _masked(x: Tensor) -> Tensor:
    x = x * 2.0
    x[x > 1.0] = 0.0
    return x * x


# ---- products and distances ----------------------------------------------------------------------
add("linear", F.linear, r(2, 4, 3), r(5, 3), r(5))
add("matmul_4d", torch.matmul, r(2, 2, 3, 4), r(2, 1, 4, 2))
add("bmm", torch.bmm, r(2, 3, 4), r(2, 4, 2))
add(
    "baddbmm", lambda a, b, c: torch.baddbmm(a, b, c, alpha=0.5), r(2, 3, 2), r(2, 3, 4), r(2, 4, 2)
)
add("addmm", lambda a, b, c: torch.addmm(a, b, c, beta=0.3), r(2), r(3, 4), r(4, 2))
add("mv", torch.mv, r(3, 4), r(4))
add("dot", torch.dot, r(4), r(4))
add("outer", torch.outer, r(3), r(4))
add("cross", lambda a, b: torch.linalg.cross(a, b), r(2, 3), r(2, 3))
add("kron", torch.kron, r(2, 3), r(2, 2))
add("tensordot", lambda a, b: torch.tensordot(a, b, dims=([1, 2], [0, 1])), r(2, 3, 4), r(3, 4, 5))
for _k, (_e, *_s) in enumerate(
    [
        ("bij,bjk->bik", (2, 3, 4), (2, 4, 2)),
        ("bhqd,bhkd->bhqk", (2, 2, 3, 4), (2, 2, 5, 4)),
        ("ij->ji", (2, 3)),
        ("bi,bj->bij", (2, 3), (2, 4)),
        ("bchw,cd->bdhw", (1, 3, 2, 2), (3, 4)),
        ("...i,ij->...j", (2, 2, 3), (3, 2)),
        ("bnd,bmd,bm->bn", (2, 3, 2), (2, 4, 2), (2, 4)),
    ]
):
    add(f"einsum_{_k}", lambda *a, e=_e: torch.einsum(e, *a), *[r(*s) for s in _s])
add("bilinear", F.bilinear, r(3, 4), r(3, 2), r(5, 4, 2), r(5))
add("cosine_similarity", lambda a, b: F.cosine_similarity(a, b, 1), r(3, 4), r(3, 4))
add("pairwise_distance", F.pairwise_distance, r(3, 4), r(3, 4))
add("cdist", torch.cdist, r(2, 3, 4), r(2, 5, 4))
add("cdist_1", lambda a, b: torch.cdist(a, b, p=1.0), d(3, 4), d(5, 4))
add("pdist", F.pdist, r(4, 3))
add("det", torch.det, r(2, 3, 3))
add("inverse", torch.inverse, r(3, 3) + 3 * torch.eye(3))
add("triplet_like", lambda a, b, c: F.triplet_margin_loss(a, b, c), r(3, 4), r(3, 4), r(3, 4))
