"""Nets of the zoo that are in no library: recurrent, bags of embeddings, diffusion, graphs."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn.functional import silu

from tests.zoo.registry import Draw, architecture, images, reals, tokens


class _Tagger(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], **settings: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(64, 12)
        self.layers = kind(12, 16, num_layers=2, batch_first=True, **settings)
        self.out = nn.Linear(32 if settings.get("bidirectional") else 16, 5)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.out(self.layers(self.words(words))[0])


@architecture("own", tokens(9), rate=0.05, sample=True)
def lstm() -> nn.Module:
    return _Tagger(nn.LSTM)


@architecture("own", tokens(9), rate=0.05)
def bidirectional_lstm() -> nn.Module:
    return _Tagger(nn.LSTM, bidirectional=True)


@architecture("own", tokens(9), rate=0.05)
def gru() -> nn.Module:
    return _Tagger(nn.GRU)


class _Bags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users = nn.EmbeddingBag(64, 8, mode="sum")
        self.items = nn.EmbeddingBag(64, 8, mode="mean")
        self.out = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        return self.out(torch.cat([self.users(users), self.items(items)], 1))


@architecture("own", tokens(3, batch=16), tokens(4, batch=16), rate=0.05)
def embedding_bags() -> nn.Module:
    return _Bags()


class _OffsetBags(nn.Module):
    """Bags of any size: where each begins is an input."""

    def __init__(self, padding: int | None) -> None:
        super().__init__()
        self.users = nn.EmbeddingBag(16, 6, mode="sum")
        self.items = nn.EmbeddingBag(16, 6, mode="mean", padding_idx=padding)
        self.places = nn.EmbeddingBag(16, 6, mode="max")
        self.out = nn.Linear(18, 3)

    def forward(
        self, words: torch.Tensor, offsets: torch.Tensor, share: torch.Tensor
    ) -> torch.Tensor:
        users = self.users(words, offsets, per_sample_weights=share)
        bags = [users, self.items(words, offsets), self.places(words, offsets)]
        return self.out(torch.cat(bags, 1).tanh())


_BAGS: tuple[Draw, ...] = (
    lambda random: random.integers(0, 16, (24,)),
    # None is empty: files of the older exporter have something else than 0 for such a bag.
    lambda random: np.concatenate([[0], np.sort(random.choice(np.arange(1, 24), 5, False))]),
    reals(24),
)


@architecture("own", *_BAGS, rate=0.05)
def offset_bags() -> nn.Module:
    return _OffsetBags(None)


@architecture("own", *_BAGS, rate=0.05)
def padded_bags() -> nn.Module:
    return _OffsetBags(10)


class _Residual(nn.Module):
    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(4, into), nn.Conv2d(into, out, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(4, out), nn.Conv2d(out, out, 3, padding=1)
        self.time = nn.Linear(16, out)
        self.skip = nn.Conv2d(into, out, 1) if into != out else nn.Identity()

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        h = self.conv1(silu(self.norm1(x))) + self.time(silu(t))[:, :, None, None]
        return self.skip(x) + self.conv2(silu(self.norm2(h)))


class _Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, width)
        self.qkv, self.out = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(b, 3, c, h * w).unbind(1)
        weight = torch.softmax(q.transpose(1, 2) @ k / c**0.5, -1)
        return x + self.out((v @ weight.transpose(1, 2)).reshape(b, c, h, w))


class _Diffusion(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 16))
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.down, self.shrink = _Residual(16, 16), nn.Conv2d(16, 32, 3, 2, 1)
        self.middle, self.attention = _Residual(32, 32), _Attention(32)
        self.up = _Residual(48, 16)
        self.last = nn.Sequential(nn.GroupNorm(4, 16), nn.SiLU(), nn.Conv2d(16, 3, 3, padding=1))

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        steps = torch.exp(-torch.arange(8, dtype=torch.float32, device=x.device))
        angles = t[:, None] * steps.to(t.dtype)
        t = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        kept = self.down(self.first(x), t)
        h = self.attention(self.middle(self.shrink(kept), t))
        h = torch.nn.functional.interpolate(h, scale_factor=2.0, mode="nearest")
        return self.last(self.up(torch.cat([h, kept], 1), t))


@architecture("own", images(16, batch=2), reals(2), loss="mse", sample=True)
def diffusion_unet() -> nn.Module:
    return _Diffusion()


class _GraphAttention(nn.Module):
    """Attention over the edges of a graph: a softmax per target node."""

    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(into, out, bias=False)
        self.source, self.target = nn.Parameter(torch.randn(out)), nn.Parameter(torch.randn(out))

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        h, (start, end) = self.linear(x), (edges[0], edges[1])
        score = (h @ self.source)[start] + (h @ self.target)[end]
        weight = torch.exp(torch.nn.functional.leaky_relu(score, 0.2))
        total = torch.zeros_like(h[:, 0]).scatter_add(0, end, weight)
        sent = weight[:, None] * h[start]
        sums = torch.zeros_like(h).scatter_add(0, end[:, None].expand_as(sent), sent)
        return sums / (total[:, None] + 1e-6)


class _GraphNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = _GraphAttention(8, 16), _GraphAttention(16, 5)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        return self.two(torch.nn.functional.elu(self.one(x, edges)), edges)


def _edges(nodes: int, count: int) -> Draw:
    return lambda random: random.integers(0, nodes, (2, count), dtype=np.int64)


@architecture("own", reals(40, 8), _edges(40, 160), rate=0.05, sample=True)
def graph_attention() -> nn.Module:
    return _GraphNet()


class _Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.place = nn.Parameter(torch.randn(1, 10, 32))
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(32, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.layers(x + self.place))


@architecture("own", reals(3, 10, 32), rate=0.05)
def transformer_encoder() -> nn.Module:
    return _Transformer()
