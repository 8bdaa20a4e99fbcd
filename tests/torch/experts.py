"""Mixtures of experts as model libraries write them, in plain PyTorch and tiny."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn.functional import embedding, layer_norm, one_hot, silu

WORDS, WIDTH, INNER = 30, 8, 12
LENGTH, BATCH = 7, 2


def _weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(
        torch.randn(shape) / shape[-2] ** 0.5 if len(shape) > 1 else torch.randn(shape)
    )


class Expert(nn.Module):
    """A gated layer."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.side, self.down = (
            _weight(WIDTH, INNER),
            _weight(WIDTH, INNER),
            _weight(INNER, WIDTH),
        )

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return (silu(rows @ self.up) * (rows @ self.side)) @ self.down


class Experts(nn.Module):
    """A router and what it chooses from."""

    def __init__(self, count: int = 3) -> None:
        super().__init__()
        self.gate = _weight(WIDTH, count)
        self.each = nn.ModuleList(Expert() for _ in range(count))


class Mixtral(Experts):
    """The two best experts of each token; each expert adds to what it has taken."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        weights, chosen = torch.topk(torch.softmax(rows @ self.gate, 1), 2, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        mask = one_hot(chosen, len(self.each)).permute(2, 1, 0)
        made = torch.zeros_like(rows)
        for k, expert in enumerate(self.each):
            place, token = torch.where(mask[k])
            taken = rows[None, token].reshape(-1, rows.shape[-1])
            made.index_add_(0, token, expert(taken) * weights[token, place, None])
        return made


class Qwen(Mixtral):
    """An expert beside them that sees every token."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.share = Expert(), _weight(WIDTH, 1)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return super().forward(rows) + torch.sigmoid(rows @ self.share) * self.shared(rows)


class Switch(Experts):
    """One expert, which takes so many tokens and no more; the others pass by."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        shares = torch.softmax(rows @ self.gate, -1)
        first = one_hot(shares.argmax(-1), len(self.each))
        first = first * (torch.cumsum(first, 0) <= 4)
        made = rows.clone()
        for k, expert in enumerate(self.each):
            taken = first[:, k].bool()
            made[taken] = expert(rows[taken])
        return made * shares.max(-1, keepdim=True).values


class DeepSeek(Experts):
    """Each token as often as it has experts; every expert fills in its rows."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        weights, chosen = torch.topk(torch.sigmoid(rows @ self.gate), 2, -1)
        flat, repeated = chosen.reshape(-1), rows.repeat_interleave(2, 0)
        made = torch.zeros_like(repeated)
        for k, expert in enumerate(self.each):
            made[flat == k] = expert(repeated[flat == k])
        return (made.reshape(*weights.shape, -1) * weights.unsqueeze(-1)).sum(1)


class Nllb(Experts):
    """Two experts by weights with zeros; rows that have a weight are taken."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        shares = torch.softmax(rows @ self.gate, -1)
        best = one_hot(shares.argmax(-1), len(self.each))
        second = one_hot((shares - best).argmax(-1), len(self.each))
        weights = shares * (best + second)
        made = torch.zeros_like(rows)
        for k, expert in enumerate(self.each):
            token = torch.nonzero((best + second)[:, k]).squeeze(1)
            weighted = weights[:, k].index_select(0, token).unsqueeze(1)
            made = made.index_add(0, token, weighted * expert(rows.index_select(0, token)))
        return made


class Clamped(nn.Module):
    """A gated layer with biases, its parts beside each other."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.up_bias = _weight(WIDTH, 2 * INNER), _weight(2 * INNER)
        self.down, self.down_bias = _weight(INNER, WIDTH), _weight(WIDTH)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        both = rows @ self.up + self.up_bias
        gate, up = both[:, ::2].clamp(max=2.0), both[:, 1::2].clamp(-2.0, 2.0)
        return ((up + 1) * gate * torch.sigmoid(1.7 * gate)) @ self.down + self.down_bias


class GptOss(nn.Module):
    """Weights of the chosen only are a softmax."""

    def __init__(self, count: int = 3) -> None:
        super().__init__()
        self.gate, self.bias = _weight(WIDTH, count), _weight(count)
        self.each = nn.ModuleList(Clamped() for _ in range(count))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        best, chosen = torch.topk(rows @ self.gate + self.bias, 2, -1)
        weights = torch.softmax(best, -1)
        made = torch.zeros_like(rows)
        for k, expert in enumerate(self.each):
            token, place = torch.where(chosen == k)
            made.index_add_(0, token, expert(rows[token]) * weights[token, place, None])
        return made


class Net(nn.Module):
    """Such a layer between an embedding and a head."""

    def __init__(self, kind: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.table = _weight(WORDS, WIDTH)
        self.layers = nn.ModuleList([kind()])
        self.head = _weight(WIDTH, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = embedding(words, self.table)
        for layer in self.layers:
            rows = layer_norm(x, (WIDTH,)).reshape(-1, WIDTH)
            x = x + layer(rows).reshape(x.shape)
        return x @ self.head


KINDS = {kind.__name__: kind for kind in (Mixtral, Qwen, Switch, DeepSeek, Nllb, GptOss)}


def net(name: str) -> Net:
    """One of them, the same weights each time."""
    torch.manual_seed(0)
    return Net(KINDS[name]).eval()


def batches() -> list[torch.Tensor]:
    """Words: at random, and all the same, so that only the experts of one word get tokens.

    With the first, which nets are exported with, no expert of theirs gets just one token: PyTorch's
    legacy exporter would write that into the file for every run.
    """
    random = torch.Generator().manual_seed(3)
    drawn = [torch.randint(0, WORDS, (BATCH, LENGTH), generator=random) for _ in range(3)]
    return [*drawn, torch.full((BATCH, LENGTH), 3), torch.full((BATCH, LENGTH), 11)]
