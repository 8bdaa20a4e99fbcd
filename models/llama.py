"""Llama-like decoder: Touvron et al., "LLaMA: Open and Efficient Foundation Models", 2023.

Pre-norm with RMSNorm (Zhang and Sennrich, 2019), rotary positions (Su et al., 2021), SwiGLU
(Shazeer, 2020) and grouped-query attention (Ainslie et al., 2023).
"""

import math

import numpy as np

from models.attention import MASKED, attend, head_size, lower_triangle, merge_heads, split_heads
from models.builder import GraphBuilder, Value, normal
from models.spec import architecture

EPSILON = 1e-5
ROTARY_BASE = 10000.0


def _rms_norm(g: GraphBuilder, x: Value, name: str) -> Value:
    """RMSNorm over the last axis, decomposed as exporters write it."""
    with g.scope(name):
        square = g.op("Pow", x, g.scalar(2.0))
        mean = g.op("ReduceMean", square, g.integers([-1]), shape=(*x.shape[:-1], 1), keepdims=1)
        root = g.op("Sqrt", g.op("Add", mean, g.scalar(EPSILON)))
        scaled = g.op("Mul", x, g.op("Div", g.scalar(1.0), root))
        return g.op("Mul", g.weight("weight", (x.shape[-1],), normal(0.05, 1.0)), scaled)


def _rotary_tables(g: GraphBuilder, length: int, each: int) -> tuple[Value, Value]:
    """Cosines and sines [1, 1, T, D] of the rotation of each position and feature pair."""
    rates = ROTARY_BASE ** (-np.arange(0, each, 2, dtype=np.float64) / each)
    angles = np.outer(np.arange(length), np.concatenate([rates, rates]))[None, None]
    with g.scope("rotary_emb"):
        cos = g.constant(np.cos(angles).astype(np.float32), "cos")
        return cos, g.constant(np.sin(angles).astype(np.float32), "sin")


def _rotate(g: GraphBuilder, x: Value, cos: Value, sin: Value) -> Value:
    """Rotary embedding of [N, H, T, D]: x * cos + (-x2, x1) * sin with x = (x1, x2)."""
    half = x.shape[-1] // 2
    shape = (*x.shape[:-1], half)
    axes = g.integers([3], "Slice_axes")
    bounds = [g.integers([at], "Slice_bound") for at in (0, half, 2 * half)]
    low = g.op("Slice", x, bounds[0], bounds[1], axes, shape=shape)
    high = g.op("Slice", x, bounds[1], bounds[2], axes, shape=shape)
    turned = g.concat([g.op("Neg", high), low], axis=3)
    return g.op("Add", g.op("Mul", x, cos), g.op("Mul", turned, sin))


def _repeat_heads(g: GraphBuilder, x: Value, times: int) -> Value:
    """[N, K, T, D] to [N, K * times, T, D], each head repeated."""
    if times == 1:
        return x
    batch, heads, length, each = x.shape
    y = g.op("Unsqueeze", x, g.integers([2]), shape=(batch, heads, 1, length, each))
    target = g.integers([1, heads, times, length, each], "Expand_shape")
    y = g.op("Expand", y, target, shape=(batch, heads, times, length, each))
    return g.reshape(y, (batch, heads * times, length, each))


def _attention(
    g: GraphBuilder,
    x: Value,
    tables: tuple[Value, Value],
    mask: Value,
    heads: int,
    kv_heads: int,
    gain: float,
) -> Value:
    """Causal grouped-query attention, [N, T, hidden] to the same."""
    hidden = x.shape[-1]
    shared = head_size(hidden, heads) * kv_heads
    query = split_heads(g, g.linear(x, hidden, bias=False, name="q_proj"), heads)
    key = split_heads(g, g.linear(x, shared, bias=False, name="k_proj"), kv_heads)
    value = split_heads(g, g.linear(x, shared, bias=False, name="v_proj"), kv_heads)
    query, key = _rotate(g, query, *tables), _rotate(g, key, *tables)
    key, value = (_repeat_heads(g, part, heads // kv_heads) for part in (key, value))
    mixed = attend(g, query, key, value, lambda scores: g.op("Add", scores, mask))
    return g.linear(merge_heads(g, mixed), hidden, bias=False, gain=gain, name="o_proj")


def _swiglu(g: GraphBuilder, x: Value, ffn: int, gain: float) -> Value:
    """down(silu(gate(x)) * up(x)), [N, T, hidden] to the same."""
    gate = g.linear(x, ffn, bias=False, name="gate_proj")
    with g.scope("act_fn"):
        gate = g.op("Mul", gate, g.op("Sigmoid", gate))
    y = g.op("Mul", gate, g.linear(x, ffn, bias=False, name="up_proj"))
    return g.linear(y, x.shape[-1], bias=False, gain=4 * gain, name="down_proj")


def llama(
    g: GraphBuilder,
    *,
    sequence: int,
    hidden: int,
    layers: int,
    heads: int,
    kv_heads: int,
    ffn: int,
    vocab: int,
) -> None:
    """``input_ids`` [N, sequence] to ``logits`` [N, sequence, vocab]."""
    if heads % kv_heads or head_size(hidden, heads) % 2:
        raise ValueError("heads must be a multiple of kv_heads, and the size of a head even")
    gain = 1 / (2 * layers)
    ids = g.id_input("input_ids", (g.batch, sequence), vocab)
    with g.scope("model"):
        tables = _rotary_tables(g, sequence, hidden // heads)
        bias = np.where(lower_triangle(sequence), np.float32(0), np.float32(MASKED))
        mask = g.constant(bias, "causal_mask")
        table = g.weight("embed_tokens.weight", (vocab, hidden), normal(math.sqrt(0.5)))
        with g.scope("embed_tokens"):
            x = g.gather(table, ids)
        for layer in range(layers):
            with g.scope("layers", layer):
                y = _rms_norm(g, x, "input_layernorm")
                with g.scope("self_attn"):
                    y = _attention(g, y, tables, mask, heads, kv_heads, gain)
                x = g.op("Add", x, y)
                y = _rms_norm(g, x, "post_attention_layernorm")
                with g.scope("mlp"):
                    y = _swiglu(g, y, ffn, gain)
                x = g.op("Add", x, y)
        x = _rms_norm(g, x, "norm")
    g.output(g.linear(x, vocab, bias=False, name="lm_head"), "logits")


SPECS = (
    architecture(
        "llama",
        "Llama-like decoder",
        llama,
        batch=4,
        sequence=128,
        hidden=256,
        layers=4,
        heads=8,
        kv_heads=4,
        ffn=704,
        vocab=8192,
    ),
)
