"""Functions of PyTorch as its exporters write them: what :mod:`tests.torch.test_functions` runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

Tensor = torch.Tensor
_G = torch.Generator().manual_seed(0)


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
    return torch.randn(*shape, generator=_G)


def p(*shape: int) -> Tensor:
    """Numbers in (0.2, 1.7)."""
    return torch.rand(*shape, generator=_G) * 1.5 + 0.2


def u(*shape: int) -> Tensor:
    """Numbers in (-0.9, 0.9)."""
    return torch.rand(*shape, generator=_G) * 1.8 - 0.9


def d(*shape: int) -> Tensor:
    """Numbers no two of which are close, and none close to 0."""
    count = math.prod(shape)
    values = (torch.arange(count) - count / 2 + 0.25) * (6.0 / count)
    return values[torch.randperm(count, generator=_G)].reshape(shape)


def i(high: int, *shape: int) -> Tensor:
    """Integers in [0, high)."""
    return torch.randint(high, shape, generator=_G)


class Layer:
    """A module in evaluation mode whose parameters are drawn with the table's own seed."""

    def __init__(self, module: nn.Module, pick: Callable[[Any], Any] = lambda y: y) -> None:
        for parameter in module.parameters():
            parameter.data = torch.randn(parameter.shape, generator=_G) * 0.3
        self.module, self.pick = module.eval(), pick

    def __call__(self, *inputs: Tensor) -> Any:
        return self.pick(self.module(*inputs))


# ---- elementwise ---------------------------------------------------------------------------------
for _name in ("exp sin cos tan sinh cosh tanh atan asinh erf erfc sigmoid square neg expm1 exp2 "
              "positive sinc sgn trunc frac deg2rad rad2deg").split():  # fmt: skip
    add(_name, getattr(torch, _name), r(3, 4))
for _name in "sqrt rsqrt log log2 log10 log1p reciprocal lgamma digamma i0".split():
    add(_name, getattr(torch, _name), p(3, 4))
for _name in "asin acos atanh erfinv logit".split():
    add(_name, getattr(torch, _name), u(3, 4).abs() * 0.9 + 0.05)
add("acosh", torch.acosh, p(3, 4) + 1)
for _name in "abs sign floor ceil round".split():
    add(_name, lambda x, f=getattr(torch, _name): f(x) * x, d(3, 4))
for _name in ("relu leaky_relu elu selu celu softplus softsign hardswish hardsigmoid hardtanh relu6 "
              "mish silu gelu logsigmoid tanhshrink softshrink hardshrink rrelu").split():  # fmt: skip
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
add("clamp", lambda x: x.clamp(-1, 0.7), d(3, 5))
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
for _name in "sum mean prod logsumexp var std amax amin".split():
    add(_name, lambda x, f=getattr(torch, _name): f(x, 1), d(3, 4, 2) + 0.01)
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
    add(f"scatter_reduce_{_mode}", lambda x, k, y, m=_mode: x.scatter_reduce(1, k, y, m),
        d(3, 5) + 2, i(5, 3, 4), d(3, 4) + 2.01)  # fmt: skip
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
for _k, (_e, *_s) in enumerate([
    ("bij,bjk->bik", (2, 3, 4), (2, 4, 2)), ("bhqd,bhkd->bhqk", (2, 2, 3, 4), (2, 2, 5, 4)),
    ("ij->ji", (2, 3)), ("bi,bj->bij", (2, 3), (2, 4)), ("bchw,cd->bdhw", (1, 3, 2, 2), (3, 4)),
    ("...i,ij->...j", (2, 2, 3), (3, 2)), ("bnd,bmd,bm->bn", (2, 3, 2), (2, 4, 2), (2, 4)),
]):  # fmt: skip
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
    _pool = {k: getattr(F, f"{k}{_rank}d") for k in ("max_pool", "avg_pool", "lp_pool",
             "adaptive_avg_pool", "adaptive_max_pool")}  # fmt: skip
    add(f"max_pool{_rank}d", lambda x, f=_pool["max_pool"]: f(x, 3, 2, 1), d(*_x))
    add(f"max_pool{_rank}d_ceil", lambda x, f=_pool["max_pool"]: f(x, 2, 2, ceil_mode=True), d(*_x))
    add(f"max_pool{_rank}d_dilation", lambda x, f=_pool["max_pool"]: f(x, 2, 1, 0, 2), d(*_x))
    add(f"max_pool{_rank}d_indices",
        lambda x, f=_pool["max_pool"]: f(x, 2, 2, return_indices=True)[0], d(*_x))  # fmt: skip
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
for _mode, _s in (("nearest", (5, 4)), ("bilinear", (5, 4)), ("bicubic", (5, 4)), ("linear", (5,)),
                  ("trilinear", (3, 4, 3)), ("area", (6, 4)), ("nearest-exact", (5, 4))):  # fmt: skip
    add(f"interpolate_{_mode}_factor", lambda x, m=_mode: F.interpolate(x, scale_factor=2.0, mode=m),
        r(1, 2, *_s))  # fmt: skip
    add(f"interpolate_{_mode}_size",
        lambda x, m=_mode, s=_s: F.interpolate(x, size=[7, 3, 5][: len(s)], mode=m), r(1, 2, *_s))  # fmt: skip
    if _mode in ("bilinear", "bicubic", "linear", "trilinear"):
        add(f"interpolate_{_mode}_corners", lambda x, m=_mode, s=_s: F.interpolate(
            x, size=[7, 3, 5][: len(s)], mode=m, align_corners=True), r(1, 2, *_s))  # fmt: skip
add(
    "interpolate_antialias",
    lambda x: F.interpolate(x, size=(3, 2), mode="bilinear", antialias=True),
    r(1, 2, 6, 5),
)
add("upsample", lambda x: nn.Upsample(scale_factor=1.5, mode="bilinear")(x), r(1, 2, 4, 6))
for _mode in ("bilinear", "nearest", "bicubic"):
    for _border in ("zeros", "border", "reflection"):
        for _corners in (False, True):
            add(f"grid_sample_{_mode}_{_border}_{int(_corners)}",
                lambda x, g, m=_mode, b=_border, c=_corners: F.grid_sample(x, g, m, b, c),
                r(2, 3, 5, 4), u(2, 3, 6, 2) * 1.6, opset=20)  # fmt: skip
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
add("spatial_transformer", lambda x, m: F.grid_sample(x, F.affine_grid(m, list(x.shape), align_corners=False), align_corners=False),
    r(2, 3, 5, 4), r(2, 2, 3) * 0.3, opset=20)  # fmt: skip

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
add("sdpa_bool_mask", lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m > 0), r(*_q), r(*_q), r(*_q),
    torch.ones(4, 4, dtype=torch.int64).tril())  # fmt: skip
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
    *[r(2, 4, 8)] * 3,
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
    lambda x, h, c, m=Layer(nn.LSTMCell(3, 4), lambda y: y[1]): m(x, (h, c)),
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
