"""A fresh module for everything that PyTorch's default exporter does to parameters: see *What the
default exporter does to fresh nets* in docs/exporting.md, whose rows these are."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from torch.nn.parameter import Parameter

Forward = Callable[..., torch.Tensor]
REWRITES: dict[str, Rewrite] = {}


@dataclass(frozen=True)
class Rewrite:
    """Something an exporter does.

    Attributes:
        build: makes a module that it is done to.
        shapes: of its inputs.
        lost: parameters that the file does not hold any more, which a warning has to name.
    """

    build: Callable[[], nn.Module]
    shapes: tuple[tuple[int, ...], ...]
    lost: tuple[str, ...] = ()

    def make(self) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
        """The module in eval mode, and inputs."""
        torch.manual_seed(0)
        return self.build().eval(), tuple(torch.randn(shape) for shape in self.shapes)


class Does(nn.Module):
    """A module with the given parts, and what it does."""

    def __init__(self, does: Forward, **parts: object) -> None:
        super().__init__()
        self.does = does
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.does(self, *inputs)


def _enter(
    name: str, build: Callable[[], nn.Module], *shapes: tuple[int, ...], lost: str = ""
) -> None:
    REWRITES[name] = Rewrite(build, shapes, tuple(lost.split()))


def _zero(part: nn.Module, *names: str) -> nn.Module:
    for name in names or ("bias",):
        nn.init.zeros_(getattr(part, name))
    return part


def copied(module: nn.Module, one: str, other: str) -> nn.Module:
    """A module with a copy of one of its parts as another."""
    setattr(module, other, copy.deepcopy(getattr(module, one)))
    return module


def _linear(*sizes: int) -> nn.Module:
    return _zero(nn.Linear(*sizes))


def _zeros(*shape: int) -> Parameter:
    return Parameter(torch.zeros(shape))


def _ones(*shape: int) -> Parameter:
    return Parameter(torch.ones(shape))


def _with_joined_biases(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Two linear layers whose biases are joined and cut apart again, as those of attention are."""
    a, b = torch.cat([m.a.bias, m.b.bias]).split(6)
    return torch.tanh(functional.linear(x, m.a.weight, a)) * functional.linear(x, m.b.weight, b)


def _tied() -> nn.Module:
    """A table with four names, one of a module that is not called, and a scale that is gone."""
    table = nn.Embedding(12, 6)
    parts = [Does(lambda m, x: m.embed(x), embed=table) for _ in range(2)]
    head = nn.Linear(6, 12, bias=False)
    head.weight = table.weight
    return Does(lambda m, x: m.head(m.model(x)), head=head, model=Does(
        lambda m, x: m.l(m.encoder(_ids(x)) * 1.0 + m.decoder(_ids(-x))), shared=table,
        encoder=parts[0], decoder=parts[1], l=nn.Linear(6, 6)))  # fmt: skip


def _ids(x: torch.Tensor) -> torch.Tensor:
    return (4 * x).long().clamp(0, 11)


# ---- removed: 0 added, 1 multiplied, biases of zeros --------------------------------------------

_enter("times-1", lambda: Does(lambda m, x: m.l(x) * m.gain, l=nn.Linear(6, 5), gain=_ones()),
       (3, 6), lost="gain")  # fmt: skip
_enter("plus-0", lambda: Does(lambda m, x: m.l(x) + m.shift, l=nn.Linear(6, 5), shift=_zeros()),
       (3, 6), lost="shift")  # fmt: skip
_enter("plus-small", lambda: Does(
    lambda m, x: m.l(x) / (m.l(x).square().sum(-1, keepdim=True) + 1e-8).sqrt(),
    l=nn.Linear(6, 5)), (3, 6))  # fmt: skip
_enter("times-1-vector", lambda: Does(lambda m, x: m.l(x) * m.g, l=_linear(6, 5), g=_ones(1)),
       (3, 6))  # fmt: skip
_enter("minus-0-over-1",
       lambda: Does(lambda m, x: (m.l(x) - m.a) / m.b, l=_linear(6, 5), a=_zeros(5), b=_ones(5)),
       (3, 6))  # fmt: skip
_enter("bias-gemm", lambda: nn.Sequential(_linear(6, 8), nn.ReLU(), _linear(8, 5)), (3, 6))
_enter("bias-matmul", lambda: nn.Sequential(_linear(6, 8), nn.ReLU(), _linear(8, 1)), (3, 4, 6))
_enter("bias-conv", lambda: nn.Sequential(
    nn.Conv2d(4, 4, 3, groups=4), nn.ConvTranspose2d(4, 6, 2, 2, groups=2), nn.Conv2d(6, 2, 1)),
    (2, 4, 6, 6))  # fmt: skip
_enter("bias-pad-conv",
       lambda: Does(lambda m, x: m.c(functional.pad(x, (1, 1, 1, 1))), c=_zero(nn.Conv2d(3, 4, 3))),
       (2, 3, 5, 5))  # fmt: skip

# ---- folded: batch normalizations ---------------------------------------------------------------

_enter("norm-conv", lambda: nn.Sequential(
    nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3),
    nn.BatchNorm2d(4)), (2, 3, 7, 7), lost="1.weight 4.weight 4.bias")  # fmt: skip
_enter("norm-conv-transposed", lambda: nn.Sequential(
    nn.ConvTranspose2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU()), (2, 3, 7, 7),
    lost="1.weight")  # fmt: skip
_enter("norm-gemm", lambda: nn.Sequential(_linear(6, 8), nn.BatchNorm1d(8), nn.ReLU()), (5, 6),
       lost="0.bias 1.weight")  # fmt: skip
_enter("norm-alone", lambda: nn.Sequential(
    nn.BatchNorm2d(3), nn.LeakyReLU(), nn.Conv2d(3, 3, 1), nn.ReLU(), nn.BatchNorm2d(3)),
    (2, 3, 5, 5))  # fmt: skip

# ---- merged: equal tensors ----------------------------------------------------------------------

_enter("merged-layer-norms", lambda: nn.Sequential(
    nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 6), nn.LayerNorm(6)), (3, 2, 6))  # fmt: skip
_enter("merged-group-norms", lambda: nn.Sequential(
    nn.Conv2d(3, 4, 1), nn.GroupNorm(2, 4), nn.Conv2d(4, 4, 1), nn.GroupNorm(2, 4)),
    (2, 3, 5, 5))  # fmt: skip
_enter("merged-rms-norms", lambda: nn.Sequential(
    nn.Linear(6, 6), nn.RMSNorm(6), nn.Linear(6, 6), nn.RMSNorm(6)), (3, 2, 6))  # fmt: skip
_enter("merged-with-constants", lambda: nn.Sequential(
    nn.Conv1d(3, 4, 3), nn.GroupNorm(4, 4), nn.Linear(4, 4), nn.LayerNorm(4)),
    (2, 3, 6))  # fmt: skip
_enter("merged-with-numbers", lambda: Does(
    lambda m, x: m.b * m.l(x) + m.l(x) ** 2 + m.l(x).tanh() / (m.l(x).abs() + m.e)
    + 0.1 * m.l(x) + m.l(x).clamp(-0.5, 0.5) * m.c, l=nn.Linear(6, 5),
    b=Parameter(torch.tensor(2.0)), c=Parameter(torch.tensor(0.5)),
    e=Parameter(torch.tensor(0.1))), (3, 6))  # fmt: skip
_enter("merged-slopes", lambda: nn.Sequential(
    nn.Linear(6, 6), nn.PReLU(), nn.Linear(6, 6), nn.PReLU(6), nn.Linear(6, 6), nn.PReLU()),
    (3, 6))  # fmt: skip
_enter("merged-zero-weights", lambda: Does(
    lambda m, x: m.l(x) + m.b(m.a(x)) + m.d(m.c(x)), l=nn.Linear(6, 5), a=nn.Linear(6, 2),
    b=_zero(nn.Linear(2, 5, bias=False), "weight"), c=nn.Linear(6, 2),
    d=_zero(nn.Linear(2, 5, bias=False), "weight")), (3, 4, 6))  # fmt: skip
_enter("merged-identities", lambda: Does(
    lambda m, x: x @ m.a @ m.b, a=Parameter(torch.eye(6)), b=Parameter(torch.eye(6))),
    (3, 6))  # fmt: skip
_enter("merged-in-one-norm", lambda: nn.Sequential(
    nn.Linear(6, 6), nn.Tanh(), _zero(nn.LayerNorm(6), "weight", "bias"), nn.Linear(6, 2)),
    (3, 4, 6))  # fmt: skip
_enter("merged-zero-scales", lambda: nn.Sequential(
    nn.Linear(6, 6), nn.Tanh(), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(),
    _zero(nn.BatchNorm1d(6), "weight"), nn.Linear(6, 2)), (8, 6))  # fmt: skip
_enter("merged-norm-called-twice", lambda: Does(
    lambda m, x: m.o(m.bn(m.n(x)) * m.bn(m.n(x.flip(1)).tanh())),
    bn=nn.BatchNorm1d(6, affine=False),
    n=nn.Sequential(nn.Linear(6, 6, bias=False), nn.BatchNorm1d(6)), o=nn.BatchNorm1d(6)),
    (8, 6))  # fmt: skip
_enter("merged-states", lambda: Does(
    lambda m, x: m.out(m.cells(x, (m.h, m.c))[0]), cells=nn.LSTM(6, 5, batch_first=True),
    h=_zeros(1, 3, 5), c=_zeros(1, 3, 5), out=nn.Linear(5, 2)), (3, 4, 6))  # fmt: skip
_enter("merged-views", lambda: nn.Sequential(*(Does(
    lambda m, x: x + m.l(x) * m.gamma.reshape(1, -1, 1), l=nn.Conv1d(6, 6, 3, padding=1),
    gamma=Parameter(torch.full((6,), 0.5))) for _ in range(3))), (2, 6, 9))  # fmt: skip
_enter("copied-layers", lambda: nn.TransformerEncoder(
    nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), 2,
    enable_nested_tensor=False), (3, 4, 8))  # fmt: skip
_enter("copied-large-layers", lambda: nn.TransformerEncoder(
    nn.TransformerEncoderLayer(24, 2, 48, dropout=0.0, batch_first=True), 2,
    enable_nested_tensor=False), (3, 4, 24))  # fmt: skip
_enter("merged-clones", lambda: Does(
    lambda m, x: (m.l(x) * m.w.clone() + m.b.expand(6)) * m.v.view(6) + m.c.clone() + x * m.w,
    l=nn.Linear(6, 6), w=_ones(6), v=_ones(6), b=_zeros(6), c=_zeros(6)), (3, 6),
    lost="w v b c")  # fmt: skip
_enter("merged-clone", lambda: Does(
    lambda m, x: m.l(x) * m.w.clone() + m.b.expand(6) + x * m.w,
    l=nn.Linear(6, 6), w=_ones(6), b=_zeros(6)), (3, 6))  # fmt: skip
_enter(
    "one-of-two-branches",
    lambda: copied(
        Does(
            lambda m, x: m.o(torch.cat([m.a(x), m.b(x)], -1)),
            a=nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.Linear(6, 6)),
            o=nn.Linear(12, 3),
        ),
        "a",
        "b",
    ),
    (3, 6),
    lost="a.0.weight a.0.bias a.2.weight a.2.bias b.0.weight b.0.bias b.2.weight b.2.bias",
)
_enter("copied-modules", lambda: copied(
    Does(lambda m, x: m.teacher(m.student(x)).tanh() + m.zero(x) + m.nil(x),
         student=Does(lambda m, x: m.l(m.r(x)[0]), r=nn.GRU(6, 6, batch_first=True),
                      l=nn.Linear(6, 6)),
         zero=_zero(nn.Linear(6, 6), "weight", "bias"),
         nil=_zero(nn.Linear(6, 6), "weight", "bias")), "student", "teacher"),
    (3, 4, 6))  # fmt: skip
_enter("tied-four-names", _tied, (3, 4))
_enter("one-of-two-norms", lambda: Does(
    lambda m, x: m.p(m.a(x)) + m.q(m.b(x)), a=nn.LayerNorm(6), b=nn.LayerNorm(6),
    p=nn.Linear(6, 5), q=nn.Linear(6, 5)), (3, 2, 6))  # fmt: skip
_enter("one-of-two-heads", lambda: Does(
    lambda m, x: m.head(x) + m.head_dist(x), **{name: Does(
        lambda m, x: m.l(functional.dropout(m.bn(x), 0.1, m.training)), bn=nn.BatchNorm1d(6),
        l=nn.Linear(6, 5)) for name in ("head", "head_dist")}), (8, 6))  # fmt: skip
_enter("one-of-two-cuts", lambda: nn.Sequential(*(Does(
    _with_joined_biases, a=_linear(6, 6), b=_linear(6, 6)) for _ in range(2))),
    (3, 4, 6))  # fmt: skip
_enter("one-of-two-splits", lambda: Does(
    lambda m, x, y: m.b(m.a(x, y, y)[0], y, y)[0],
    **{name: nn.MultiheadAttention(6, 2, batch_first=True) for name in "ab"}),
    (2, 3, 6), (2, 4, 6))  # fmt: skip
_enter("one-of-two-tables", lambda: Does(
    lambda m, x: m.encoder(m.embeddings(x)), **{name: Does(
        lambda m, x: torch.tanh(m.l(x) + functional.interpolate(m.table, 4).mT), l=nn.Linear(6, 6),
        table=_zeros(1, 6, 3)) for name in ("embeddings", "encoder")}), (3, 4, 6),
    lost="embeddings.table encoder.table")  # fmt: skip
_enter("one-of-two-sums", lambda: Does(
    lambda m, x: m.p(m.a(x)) + m.q(m.b(x)),
    a=Does(lambda m, x: m.norm(x).clone(), norm=nn.LayerNorm(6)),
    b=Does(lambda m, x: 0 + m.norm(x), norm=nn.LayerNorm(6)),
    p=nn.Linear(6, 5), q=nn.Linear(6, 5)), (3, 2, 6))  # fmt: skip
# A file as that of one-of-two-norms: no more than likely that both are used.
_enter("one-of-two-calls", lambda: Does(
    lambda m, x: m.p(functional.dropout(m.norm(x), 0.1, m.training)) + m.q(m.norm(x)),
    norm=nn.LayerNorm(6), unused=nn.LayerNorm(6), p=nn.Linear(6, 5), q=nn.Linear(6, 5)),
    (3, 2, 6), lost="norm.weight norm.bias")  # fmt: skip

# ---- folded: what is computed from parameters alone ---------------------------------------------

_enter("folded-transposes", lambda: Does(
    lambda m, x: functional.linear(x, m.w) + m.g[:, None].squeeze(1), w=_zeros(5, 6),
    g=_ones(5)), (3, 4, 6))  # fmt: skip
_enter("folded-views", lambda: Does(
    lambda m, x: functional.conv1d(x, m.w.squeeze(1)[:, None], m.bias, groups=4),
    w=Parameter(torch.randn(4, 1, 3)), bias=_zeros(4)), (2, 4, 9))  # fmt: skip
_enter("folded-cast", lambda: Does(
    lambda m, x: functional.linear(x.double(), m.w.double()).float(),
    w=Parameter(torch.randn(5, 6))), (3, 4, 6))  # fmt: skip
_enter("folded-exp", lambda: Does(
    lambda m, x: m.l(x) * m.gain.exp(), l=nn.Linear(6, 5), gain=Parameter(torch.tensor(2.3))),
    (3, 6), lost="gain")  # fmt: skip
_enter("folded-with-number", lambda: Does(
    lambda m, x: m.l(x) ** 2 / (2 * m.gain.exp()) + m.l(x), l=nn.Linear(6, 5),
    gain=Parameter(torch.tensor(0.0))), (3, 6), lost="gain")  # fmt: skip
_enter("folded-softplus", lambda: Does(
    lambda m, x: m.l(x) * functional.softplus(m.rate), l=nn.Linear(6, 5),
    rate=Parameter(torch.randn(5))), (3, 6), lost="rate")  # fmt: skip
_enter("folded-exponent", lambda: Does(
    lambda m, x: m.l((x.abs() + 0.1).pow(m.p).mean(1).pow(1 / m.p)), l=nn.Linear(6, 5),
    p=Parameter(torch.full((1,), 3.0))), (3, 4, 6), lost="p")  # fmt: skip
# Warned of; but its gradient has the right numbers, each where it was largest.
_enter("folded-largest", lambda: Does(
    lambda m, x: m.l(x.mean(1) * m.w.amax(0)), l=nn.Linear(24, 5),
    w=Parameter(torch.randn(3, 24))), (3, 4, 24))  # fmt: skip
_enter("folded-one-plus", lambda: Does(
    lambda m, x: m.l(x) * (1 + m.g), l=nn.Linear(6, 32), g=_zeros(32)), (3, 6))  # fmt: skip
# Two modules whose gates are equal as they are made, and computed into one tensor.
_enter("folded-gates-of-two", lambda: Does(
    lambda m, x: m.b(m.a(x)), **{name: Does(
        lambda m, x: m.l(x) * (1 - torch.sigmoid(m.gate.view(1, -1)))
        + functional.linear(x, m.gate * m.w), l=nn.Linear(6, 6), gate=_ones(6),
        w=Parameter(torch.arange(36.0).cos().view(6, 6))) for name in ("a", "b")}), (3, 6),
    lost="a.gate b.gate a.w b.w")  # fmt: skip
# The product of a layer with a buffer is inside the operator, which leaves no name.
_enter("folded-coordinates", lambda: Does(
    lambda m, x: x.mT @ m.second(m.first(m.places).relu())[0],
    first=nn.Linear(2, 96), second=nn.Linear(96, 5, bias=False),
    places=nn.Buffer(torch.cartesian_prod(*[torch.linspace(-1, 1, 10)] * 2)[None])),
    (3, 100, 4), lost="first.weight")  # fmt: skip
_enter("folded-scale", lambda: Does(
    lambda m, x: functional.linear(x, 0.5 * m.matrix), matrix=Parameter(torch.randn(5, 6))), (3, 6),
    lost="matrix")  # fmt: skip
_enter("folded-weight-norm", lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 6)),
       (3, 4, 6),
       lost="parametrizations.weight.original0 parametrizations.weight.original1")  # fmt: skip
_enter("folded-standardization", lambda: Does(
    lambda m, x: functional.conv1d(x, functional.batch_norm(
        m.w.reshape(1, 4, -1), None, None, training=True).reshape_as(m.w)),
    w=Parameter(torch.randn(4, 3, 3))), (2, 3, 9), lost="w")  # fmt: skip
_enter("folded-parts", lambda: Does(
    lambda m, x: x * m.w.chunk(2)[0] + m.w.chunk(2)[1], w=Parameter(torch.randn(12))),
    (3, 6))  # fmt: skip
_enter("folded-branch", lambda: Does(
    lambda m, x: m.l(x) + m.n(m.query), l=nn.Linear(6, 5), n=nn.Linear(4, 5, bias=False),
    query=Parameter(torch.randn(1, 4))), (3, 6), lost="query n.weight")  # fmt: skip
_enter("folded-expand", lambda: Does(
    lambda m, x: m.l(torch.cat([m.t.expand(x.shape[0], -1, -1), x], 1)), l=nn.Linear(6, 6),
    t=Parameter(torch.randn(1, 1, 6))), (3, 4, 6))  # fmt: skip
_enter("folded-expand-zeros", lambda: Does(
    lambda m, x: m.l(torch.cat([m.token.expand(x.shape[0], -1, -1), x], 1)), l=nn.Linear(6, 6),
    token=_zeros(1, 1, 6)), (3, 4, 6), lost="token")  # fmt: skip
_enter("folded-table-zeros", lambda: Does(
    lambda m, x: torch.softmax(x @ x.mT + m.table[m.index.view(-1)].view(4, 4), -1) @ m.l(x),
    l=nn.Linear(6, 6), table=_zeros(7), index=torch.arange(4)[:, None] - torch.arange(4) + 3),
    (3, 4, 6), lost="table")  # fmt: skip
_enter("folded-slices", lambda: Does(
    lambda m, x: m.l((x + m.places[:, :4]).mean(1) + (x[:, 1:3] * m.places[:, 1:3]).sum(1)),
    l=nn.Linear(24, 5), places=Parameter(torch.randn(1, 9, 24))), (3, 4, 24))  # fmt: skip
_enter("folded-state", lambda: Does(
    lambda m, x: m.out(m.cells(x)[0]), cells=nn.RNN(6, 5, batch_first=True), out=nn.Linear(5, 2)),
    (3, 4, 6))  # fmt: skip
_enter("folded-mask", lambda: Does(
    lambda m, x: torch.conv2d(x, m.weight * m.mask, m.bias),
    weight=Parameter(torch.randn(4, 3, 3, 3)), mask=torch.ones(3, 3).tril(-1), bias=_zeros(4)),
    (2, 3, 6, 6))  # fmt: skip
_enter("folded-triangles", lambda: Does(
    lambda m, x: (x @ m.low.tril() @ m.high.triu(1)) * m.few.tril()[2].repeat(2),
    low=Parameter(torch.randn(6, 6)), high=Parameter(torch.ones(6, 6)),
    few=Parameter(torch.randn(3, 3))), (4, 6))  # fmt: skip
_enter("folded-blocks", lambda: Does(
    lambda m, x: functional.linear(x @ torch.block_diag(m.a, m.b), m.w, torch.cat(
        [m.q, torch.zeros(2)])), a=Parameter(torch.randn(3, 3)), b=Parameter(torch.randn(3, 2)),
    w=Parameter(torch.randn(4, 5)), q=Parameter(torch.randn(2))), (4, 6))  # fmt: skip
_enter("folded-choice", lambda: Does(
    lambda m, x: torch.where(m.w > 0, m.l(x), 2 * x) + m.w + x[:, m.order.argsort()] * m.order
    + functional.linear(x, m.s.sign()) * (m.w > 0.1).float(),
    l=nn.Linear(6, 6), w=Parameter(torch.randn(6)), order=Parameter(torch.randn(6)),
    s=Parameter(torch.randn(6, 6))), (4, 6))  # fmt: skip
_enter("folded-small-table", lambda: Does(
    lambda m, x: torch.softmax(x @ x.transpose(1, 2) + m.table[m.index], -1) @ m.l(x),
    l=nn.Linear(6, 3), table=Parameter(torch.randn(7)),
    index=torch.arange(4)[:, None] - torch.arange(4) + 3),
    (2, 4, 6))  # fmt: skip
_enter("folded-complex", lambda: Does(
    lambda m, x: x @ torch.cat([torch.cat([m.r, -m.i]), torch.cat([m.i, m.r])], 1),
    r=Parameter(torch.randn(3, 4)), i=Parameter(torch.randn(3, 4))), (5, 6))  # fmt: skip
_enter("folded-overlaps", lambda: Does(
    lambda m, x: (x @ m.table[[0, 2, 4]].T) @ m.table[1:4] * m.table[3].view(2, 3).T.reshape(-1),
    table=Parameter(torch.randn(5, 6))), (4, 6))  # fmt: skip
_enter("folded-gates", lambda: Does(
    lambda m, x: m.out(m.cells(x)[0]), cells=nn.LSTM(6, 5, 2, batch_first=True),
    out=nn.Linear(5, 2)), (3, 4, 6))  # fmt: skip

# ---- bounds, which Max and Min become when joined ----------------------------------------------

_enter("clip", lambda: Does(
    lambda m, x: torch.clamp(m.l(x), max=m.top), l=nn.Linear(6, 5),
    top=Parameter(torch.tensor(0.3))), (8, 6))  # fmt: skip
_enter("max-min", lambda: Does(
    lambda m, x: torch.minimum(torch.maximum(m.l(x), m.low), m.high), l=nn.Linear(6, 5),
    low=Parameter(torch.tensor(-0.2)), high=Parameter(torch.tensor(0.3))), (8, 6), 
    lost="low high")  # fmt: skip

# ---- where gradients stop -----------------------------------------------------------------------

_enter("stopped-gate", lambda: Does(
    lambda m, x: m.a(x).tanh() * m.b(x).sigmoid().detach() + m.b(x), a=nn.Linear(6, 5),
    b=nn.Linear(6, 5)), (3, 6))  # fmt: skip
_enter("stopped-rounding", lambda: Does(
    lambda m, x: m.b(m.a(x) + ((4 * m.a(x)).round() / 4 - m.a(x)).detach()), a=nn.Linear(6, 5),
    b=nn.Linear(5, 3)), (3, 4, 6))  # fmt: skip
_enter("stopped-same", lambda: Does(
    lambda m, x: m.a(x) * (m.a(x) - m.a(x).detach() + 1), a=nn.Linear(6, 5)),
    (3, 6))  # fmt: skip
_enter("stopped-weight", lambda: Does(
    lambda m, x: functional.linear(x, m.w.detach()) + functional.linear(x.tanh(), m.w),
    w=Parameter(torch.randn(5, 6))), (3, 4, 6))  # fmt: skip
_enter("stopped-transposed", lambda: Does(
    lambda m, x: (x @ m.w.detach().T).tanh() + x @ m.v + (x @ m.u.detach().T) * (-x @ m.u.T),
    w=Parameter(torch.randn(5, 6)), v=Parameter(torch.randn(6, 5)),
    u=Parameter(torch.randn(5, 6))), (3, 6))  # fmt: skip
