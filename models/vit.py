"""Vision transformer: Dosovitskiy et al., "An Image is Worth 16x16 Words", 2020."""

import numpy as np

from models.attention import attend, head_size, merge_heads
from models.builder import GraphBuilder, Value, normal
from models.spec import architecture

EPSILON = 1e-6


def _class_token(g: GraphBuilder, patches: Value) -> Value:
    """The learned token for every image, [N, 1, hidden]; reads N off ``patches``."""
    batch, _, hidden = patches.shape
    token = g.weight("cls_token", (1, 1, hidden), normal(0.5))
    count = g.op("Shape", patches, shape=(1,), start=0, end=1)
    target = g.op("Concat", count, g.integers([1, hidden]), shape=(3,), axis=0)
    return g.op("Expand", token, target, shape=(batch, 1, hidden))


def _attention(g: GraphBuilder, x: Value, heads: int, gain: float) -> Value:
    """Self-attention with one fused projection, [N, T, hidden] to the same."""
    batch, length, hidden = x.shape
    each = head_size(hidden, heads)
    fused = g.reshape(g.linear(x, 3 * hidden, name="qkv"), (batch, length, 3, heads, each))
    stacked = g.transpose(fused, (2, 0, 3, 1, 4))
    query, key, value = (
        g.op("Squeeze", part, g.integers([0]), shape=part.shape[1:])
        for part in g.split(stacked, 3, axis=0)
    )
    return g.linear(merge_heads(g, attend(g, query, key, value)), hidden, gain=gain, name="proj")


def _block(g: GraphBuilder, x: Value, heads: int, gelu: str, gain: float) -> Value:
    """Pre-norm block, [N, T, hidden] to the same."""
    hidden = x.shape[-1]
    y = g.layer_norm(x, name="norm1", epsilon=EPSILON)
    with g.scope("attn"):
        y = _attention(g, y, heads, gain)
    x = g.op("Add", x, y)
    y = g.layer_norm(x, name="norm2", epsilon=EPSILON)
    with g.scope("mlp"):
        y = g.linear(y, 4 * hidden, name="fc1")
        with g.scope("act"):
            y = g.gelu(y, gelu)
        y = g.linear(y, hidden, gain=gain, name="fc2")
    return g.op("Add", x, y)


def vit(
    g: GraphBuilder,
    *,
    size: int,
    patch: int,
    hidden: int,
    layers: int,
    heads: int,
    classes: int,
    gelu: str,
) -> None:
    """[N, 3, size, size] to ``logits`` [N, classes] through (size / patch)^2 + 1 tokens."""
    if size % patch:
        raise ValueError(f"size {size} is not a multiple of the patch {patch}")
    gain = 1 / (2 * layers)
    with g.scope("patch_embed"):
        image = g.image_input(size)
        x = g.conv(image, hidden, patch, stride=patch, padding=0, bias=True, name="proj")
        x = g.reshape(x, (g.batch, hidden, (size // patch) ** 2))
        x = g.transpose(x, (0, 2, 1))
    x = g.concat([_class_token(g, x), x], axis=1)
    x = g.op("Add", x, g.weight("pos_embed", (1, *x.shape[1:]), normal(0.5)))
    for layer in range(layers):
        with g.scope("blocks", layer):
            x = _block(g, x, heads, gelu, gain)
    x = g.layer_norm(x, name="norm", epsilon=EPSILON)
    first = g.gather(x, g.constant(np.array(0, dtype=np.int64), "first"), axis=1)
    g.output(g.linear(first, classes, name="head"), "logits")


SPECS = (
    architecture(
        "vit",
        "Vision transformer",
        vit,
        batch=8,
        size=224,
        patch=16,
        hidden=192,
        layers=12,
        heads=3,
        classes=1000,
        gelu="erf",
    ),
)
