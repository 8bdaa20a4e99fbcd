"""GPT-2: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019."""

import math

import numpy as np

from models.attention import MASKED, attend, lower_triangle, merge_heads, split_heads
from models.builder import GraphBuilder, Value, normal
from models.spec import architecture


def _attention(g: GraphBuilder, x: Value, heads: int, gain: float) -> Value:
    """Causal self-attention with fused projections, [N, T, hidden] to the same."""
    length, hidden = x.shape[1:]
    fused = g.linear(x, 3 * hidden, name="c_attn")
    query, key, value = (split_heads(g, part, heads) for part in g.split(fused, 3, axis=2))
    allowed = g.constant(lower_triangle(length), "causal_mask")

    def causal(scores: Value) -> Value:
        return g.op("Where", allowed, scores, g.scalar(MASKED))

    mixed = merge_heads(g, attend(g, query, key, value, causal))
    return g.linear(mixed, hidden, gain=gain, name="c_proj")


def _block(g: GraphBuilder, x: Value, heads: int, gelu: str, gain: float) -> Value:
    """Pre-norm block, [N, T, hidden] to the same."""
    hidden = x.shape[-1]
    y = g.layer_norm(x, name="ln_1")
    with g.scope("attn"):
        y = _attention(g, y, heads, gain)
    x = g.op("Add", y, x)
    y = g.layer_norm(x, name="ln_2")
    with g.scope("mlp"):
        y = g.linear(y, 4 * hidden, name="c_fc")
        with g.scope("act"):
            y = g.gelu(y, gelu)
        y = g.linear(y, hidden, gain=gain, name="c_proj")
    return g.op("Add", x, y)


def gpt2(
    g: GraphBuilder,
    *,
    sequence: int,
    hidden: int,
    layers: int,
    heads: int,
    vocab: int,
    positions: int,
    tied: bool,
    gelu: str,
) -> None:
    """``input_ids`` [N, sequence] to ``logits`` [N, sequence, vocab].

    A tied head multiplies by the Transpose of the token embedding, as an export without
    constant folding does.
    """
    if sequence > positions:
        raise ValueError(f"sequence {sequence} is longer than the {positions} positions")
    gain = 1 / (2 * layers)  # each of the 2 * layers branches adds its share of variance
    ids = g.id_input("input_ids", (g.batch, sequence), vocab)
    order = g.constant(np.arange(sequence, dtype=np.int64)[None], "position_ids")
    with g.scope("transformer"):
        tokens = g.weight("wte.weight", (vocab, hidden), normal(math.sqrt(1 / hidden)))
        places = g.weight("wpe.weight", (positions, hidden), normal(math.sqrt(1 / hidden)))
        x = g.op("Add", g.gather(tokens, ids), g.gather(places, order))
        for layer in range(layers):
            with g.scope("h", layer):
                x = _block(g, x, heads, gelu, gain)
        x = g.layer_norm(x, name="ln_f")
    if tied:
        with g.scope("lm_head"):
            logits = g.matmul(x, g.transpose(tokens, (1, 0)))
    else:
        logits = g.linear(x, vocab, bias=False, name="lm_head")
    g.output(logits, "logits")


SPECS = (
    architecture(
        "gpt2",
        "GPT-2 with a language-model head",
        gpt2,
        batch=4,
        sequence=128,
        hidden=256,
        layers=6,
        heads=8,
        vocab=8192,
        positions=1024,
        tied=True,
        gelu="tanh",
    ),
)
