"""BERT: Devlin et al., "Pre-training of Deep Bidirectional Transformers", 2018."""

import numpy as np
from onnx import TensorProto

from models.attention import MASKED, attend, merge_heads, split_heads
from models.builder import GraphBuilder, Value, normal
from models.spec import architecture

EPSILON = 1e-12
SEGMENTS = 2


def _embeddings(
    g: GraphBuilder, ids: Value, segments: Value, vocab: int, hidden: int, positions: int
) -> Value:
    """Token, segment and position embeddings: ids [N, T] to [N, T, hidden]."""
    tables = {"word": vocab, "token_type": SEGMENTS, "position": positions}
    word, segment, position = (
        g.weight(f"{kind}_embeddings.weight", (rows, hidden), normal(0.5))
        for kind, rows in tables.items()
    )
    x = g.op("Add", g.gather(word, ids), g.gather(segment, segments))
    order = g.constant(np.arange(ids.shape[1], dtype=np.int64)[None], "position_ids")
    x = g.op("Add", x, g.gather(position, order))
    return g.layer_norm(x, name="LayerNorm", epsilon=EPSILON)


def _score_bias(g: GraphBuilder, mask: Value) -> Value:
    """Attention mask [N, T] of 1 (look) and 0 to what is added to scores, [N, 1, 1, T]."""
    batch, length = mask.shape
    wide = g.op("Unsqueeze", mask, g.integers([1, 2]), shape=(batch, 1, 1, length))
    wide = g.op("Cast", wide, to=TensorProto.FLOAT)
    hidden = g.op("Sub", g.scalar(1.0), wide)
    return g.op("Mul", hidden, g.scalar(MASKED))


def _layer(g: GraphBuilder, x: Value, bias: Value, heads: int, ffn: int, gelu: str) -> Value:
    """Post-norm encoder layer, [N, T, hidden] to the same."""
    hidden = x.shape[-1]
    with g.scope("attention"):
        with g.scope("self"):
            query, key, value = (
                split_heads(g, g.linear(x, hidden, name=part), heads)
                for part in ("query", "key", "value")
            )
            mixed = attend(g, query, key, value, lambda scores: g.op("Add", scores, bias))
            mixed = merge_heads(g, mixed)
        with g.scope("output"):
            y = g.op("Add", g.linear(mixed, hidden, name="dense"), x)
            x = g.layer_norm(y, name="LayerNorm", epsilon=EPSILON)
    with g.scope("intermediate"):
        y = g.linear(x, ffn, name="dense")
        with g.scope("intermediate_act_fn"):
            y = g.gelu(y, gelu)
    with g.scope("output"):
        y = g.op("Add", g.linear(y, hidden, name="dense"), x)
        return g.layer_norm(y, name="LayerNorm", epsilon=EPSILON)


def bert(
    g: GraphBuilder,
    *,
    sequence: int,
    hidden: int,
    layers: int,
    heads: int,
    vocab: int,
    positions: int,
    gelu: str,
) -> None:
    """``input_ids``, ``attention_mask``, ``token_type_ids`` [N, sequence] to
    ``last_hidden_state`` [N, sequence, hidden] and ``pooler_output`` [N, hidden]."""
    if sequence > positions:
        raise ValueError(f"sequence {sequence} is longer than the {positions} positions")
    shape = (g.batch, sequence)
    ids = g.id_input("input_ids", shape, vocab)
    mask = g.id_input("attention_mask", shape, 2)
    segments = g.id_input("token_type_ids", shape, SEGMENTS)
    bias = _score_bias(g, mask)
    with g.scope("embeddings"):
        x = _embeddings(g, ids, segments, vocab, hidden, positions)
    for layer in range(layers):
        with g.scope("encoder", "layer", layer):
            x = _layer(g, x, bias, heads, 4 * hidden, gelu)
    with g.scope("pooler"):
        first = g.gather(x, g.constant(np.array(0, dtype=np.int64), "first"), axis=1)
        pooled = g.op("Tanh", g.linear(first, hidden, name="dense"))
    g.output(x, "last_hidden_state")
    g.output(pooled, "pooler_output")


SPECS = (
    architecture(
        "bert",
        "BERT encoder with pooler",
        bert,
        batch=8,
        sequence=128,
        hidden=256,
        layers=6,
        heads=8,
        vocab=8192,
        positions=512,
        gelu="erf",
    ),
)
