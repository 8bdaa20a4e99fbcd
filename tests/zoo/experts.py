"""Nets that send each token to a few of their experts: sizes depend on data, or weights do."""

from __future__ import annotations

import torch
import transformers as hf
from torch import nn
from torch.nn.functional import one_hot, silu, softmax

from tests.zoo.registry import architecture, ones, tokens
from tests.zoo.small import decoder

TINY = {"vocab_size": 48, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 32,
        "num_experts_per_tok": 2}  # fmt: skip
WORDS = tokens(12, words=48)


class Experts(nn.Module):
    """As transformers 4 has them in Mixtral, Qwen2-MoE and OLMoE: each expert takes its tokens."""

    def __init__(self, width: int, inner: int, count: int, chosen: int) -> None:
        super().__init__()
        self.chosen, self.gate = chosen, nn.Linear(width, count, bias=False)
        self.up = nn.ModuleList(nn.Linear(width, inner, bias=False) for _ in range(count))
        self.side = nn.ModuleList(nn.Linear(width, inner, bias=False) for _ in range(count))
        self.down = nn.ModuleList(nn.Linear(inner, width, bias=False) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1])
        weights, chosen = torch.topk(softmax(self.gate(rows), 1), self.chosen, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        mask = one_hot(chosen, len(self.up)).permute(2, 1, 0)
        made = torch.zeros_like(rows)
        for k, (up, side, down) in enumerate(zip(self.up, self.side, self.down, strict=True)):
            place, token = torch.where(mask[k])
            taken = rows[None, token].reshape(-1, x.shape[-1])
            result = down(silu(up(taken)) * side(taken)) * weights[token, place, None]
            made.index_add_(0, token, result)
        return made.reshape(x.shape)


class Routed(nn.Module):
    """Two layers of experts between an embedding and a head."""

    def __init__(self, count: int = 4, chosen: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(48, 16)
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(2))
        self.experts = nn.ModuleList(Experts(16, 24, count, chosen) for _ in range(2))
        self.head = nn.Linear(16, 48)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words)
        for norm, experts in zip(self.norms, self.experts, strict=True):
            x = x + experts(norm(x))
        return self.head(x)


@architecture("own", WORDS)
def routed() -> nn.Module:
    return Routed()


def _with(config: hf.PretrainedConfig, experts: str) -> hf.PretrainedConfig:
    """A config whose experts are computed that way; attention as plain products."""
    config._experts_implementation, config._attn_implementation = experts, "eager"
    return config


@architecture("transformers", WORDS, ones(2, 12))
def mixtral() -> nn.Module:
    config = hf.MixtralConfig(**TINY, num_local_experts=4)
    return decoder(hf.MixtralForCausalLM, _with(config, "eager"))


@architecture("transformers", WORDS, ones(2, 12))
def qwen2_moe() -> nn.Module:
    config = hf.Qwen2MoeConfig(
        **TINY, num_experts=4, moe_intermediate_size=8, shared_expert_intermediate_size=8
    )
    return decoder(hf.Qwen2MoeForCausalLM, _with(config, "batched_mm"))


@architecture("transformers", WORDS, ones(2, 12))
def qwen3_moe() -> nn.Module:
    config = hf.Qwen3MoeConfig(**TINY, num_experts=4, moe_intermediate_size=8, head_dim=8)
    return decoder(hf.Qwen3MoeForCausalLM, _with(config, "batched_mm"))


@architecture("transformers", WORDS, ones(2, 12))
def olmoe() -> nn.Module:
    config = hf.OlmoeConfig(**TINY, num_experts=4)
    return decoder(hf.OlmoeForCausalLM, _with(config, "eager"))


@architecture("transformers", WORDS, ones(2, 12))
def phimoe() -> nn.Module:
    config = hf.PhimoeConfig(**TINY, num_local_experts=4)
    return decoder(hf.PhimoeForCausalLM, _with(config, "eager"))
