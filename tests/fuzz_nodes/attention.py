"""Attention and rotary embeddings, of ONNX and of onnxruntime; its other fused operators."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.fuzz_nodes.draw import MS, Array, Draw, Node, draws, wholes


@draws("Attention")
def attention(d: Draw, op: str) -> Node:
    b, queries, keys, width = d.whole(1, 2), d.whole(1, 4), d.whole(1, 4), d.whole(1, 3)
    groups, wide = d.whole(1, 2), d.whole(1, 3)
    heads, attributes = groups * d.whole(1, 2), dict[str, Any]()
    inputs: list[Array | None]
    if d.chance(0.4):
        inputs = [
            d.normal(b, queries, heads * width), d.normal(b, keys, groups * width),
            d.normal(b, keys, groups * wide),
        ]  # fmt: skip
        attributes |= {"q_num_heads": heads, "kv_num_heads": groups}
    else:
        inputs = [
            d.normal(b, heads, queries, width), d.normal(b, groups, keys, width),
            d.normal(b, groups, keys, wide),
        ]  # fmt: skip
    past = d.whole(1, 3) if d.chance(0.3) else 0
    mask: Array | None = None
    if d.chance(0.5):
        every = keys + past
        lead = d.of(((), (1, 1), (b, 1), (b, heads)))
        shape = (*lead, queries, every)
        mask = d.normal(*shape) if d.chance(0.5) else d.truths(*shape)
    inputs.append(mask)
    if past:
        inputs += [d.normal(b, groups, past, width), d.normal(b, groups, past, wide)]
    attributes |= d.some(is_causal=1, scale=0.7, softcap=1.5) | d.some(softmax_precision=1)
    return Node(op, inputs, attributes, d.of((23, 24)), 3 if past else 1)


@draws("RotaryEmbedding")
def rotary(d: Draw, op: str) -> Node:
    b, s, heads, width = d.whole(1, 2), d.whole(1, 3), d.whole(1, 2), 2 * d.whole(1, 3)
    turned = d.of((0, 2))
    half, attributes = (turned or width) // 2, d.some(interleaved=d.whole(0, 1))
    attributes |= {"rotary_embedding_dim": turned} if turned else {}
    if d.chance(0.5):
        x = d.normal(b, heads, s, width)
    else:
        x = d.normal(b, s, heads * width)
        attributes["num_heads"] = heads
    if d.chance(0.5):
        tables = [d.normal(6, half), d.normal(6, half), d.indices(0, 6, (b, s))]
    else:
        tables = [d.normal(b, s, half), d.normal(b, s, half)]
    return Node(op, [x, *tables], attributes, 23)


@draws("MultiHeadAttention", MS)
def multi_head(d: Draw, op: str) -> Node:
    b, s, keys, heads, width = (
        *d.wholes(1, 2, 1),
        *d.wholes(1, 3, 2),
        *d.wholes(1, 2, 1),
        d.whole(1, 3),
    )
    wide = width if d.chance(0.7) else d.whole(1, 3)
    inputs: list[Array | None]
    kind = d.word("apart apart apart apart keys all")  # packed ones are for other devices
    if kind == "all":
        inputs, keys, wide = [d.normal(b, s, heads, 3, width), None, None], s, width
    elif kind == "keys":
        inputs, wide = (
            [d.normal(b, s, heads * width), d.normal(b, keys, heads, 2, width), None],
            width,
        )
    else:
        inputs = [
            d.normal(b, s, heads * width), d.normal(b, keys, heads * width),
            d.normal(b, keys, heads * wide),
        ]  # fmt: skip
    inputs.append(d.normal(heads * (2 * width + wide)) if d.chance(0.4) else None)
    inputs.append(_words(d, b, keys))
    bias = d.of(((b, heads, s, keys), (1, heads, s, keys), (1, 1, s, keys)))
    inputs.append(d.normal(*bias) if d.chance(0.4) else None)
    attributes: dict[str, Any] = {"num_heads": heads} | d.some(scale=0.6)
    if s == keys:
        attributes |= d.some(unidirectional=1)
    return Node(op, inputs, attributes, 18, domain=MS)


def _words(d: Draw, b: int, keys: int) -> Array | None:
    """Which words there are: their number, a mask, or all."""
    if d.chance(0.3):
        return d.indices(1, keys + 1, (b,)).astype(np.int32)
    if d.chance(0.5):
        mask = d.truths(b, keys).astype(np.int32)
        mask[:, 0] = 1
        return mask
    return None


@draws("Attention", MS)
def packed(d: Draw, op: str) -> Node:
    b, s, width, heads, each = (
        d.whole(1, 2),
        d.whole(1, 3),
        d.whole(1, 4),
        d.whole(1, 2),
        d.whole(1, 3),
    )
    attributes: dict[str, Any] = {"num_heads": heads} | d.some(unidirectional=1)
    columns = 3 * heads * each
    if d.chance(0.3):
        wide = d.whole(1, 3)
        attributes["qkv_hidden_sizes"] = [heads * each, heads * each, heads * wide]
        columns = heads * (2 * each + wide)
    mask = _words(d, b, s)
    if mask is None and d.chance(0.4):
        mask = d.truths(b, s, s).astype(np.int32)
        mask[:, :, 0] = 1
    attributes |= {"scale": 0.5} if d.chance(0.2) else {}
    inputs = [d.normal(b, s, width), d.normal(width, columns), d.normal(columns), mask]
    return Node(op, inputs, attributes, 18, domain=MS)


@draws("GroupQueryAttention", MS)
def grouped(d: Draw, op: str) -> Node:
    b, s, groups, width = d.whole(1, 2), d.whole(1, 4), d.whole(1, 2), 16
    heads = groups * d.whole(1, 2)
    inputs: list[Array | None]
    if d.chance(0.3):
        inputs = [d.normal(b, s, (heads + 2 * groups) * width), None, None]
    else:
        inputs = [
            d.normal(b, s, heads * width), d.normal(b, s, groups * width),
            d.normal(b, s, groups * width),
        ]  # fmt: skip
    inputs += [None, None, np.full(b, s - 1, np.int32), np.array(s, np.int32)]
    attributes: dict[str, Any] = {"num_heads": heads, "kv_num_heads": groups}
    if d.chance(0.4):
        attributes |= {"do_rotary": 1} | d.some(rotary_interleaved=d.whole(0, 1))
        inputs += [d.normal(8, width // 2), d.normal(8, width // 2)]
    rare = {"local_window_size": d.whole(1, 3), "smooth_softmax": 1, "scale": 0.4, "softcap": 2.0}
    attributes |= {name: value for name, value in rare.items() if d.chance(0.25)}
    return Node(op, inputs, attributes, 18, 3, MS, fixed=[5, 6])


@draws("RotaryEmbedding", MS)
def turned(d: Draw, op: str) -> Node:
    b, s, heads, width = d.whole(1, 2), d.whole(1, 3), d.whole(1, 2), 2 * d.whole(1, 3)
    part, flat = d.of((0, 0, 2)), d.chance(0.5)
    attributes = d.some(interleaved=d.whole(0, 1))
    if part or (flat and d.chance(0.7)):
        attributes |= {"num_heads": heads} | ({"rotary_embedding_dim": part} if part else {})
    x = d.normal(b, s, heads * width) if flat else d.normal(b, heads, s, width)
    half = (part or width) // 2
    places = wholes(d.whole(0, 2)) if d.chance(0.4) else d.indices(0, 5, (b, s))
    return Node(op, [x, places, d.normal(6, half), d.normal(6, half)], attributes, 18, domain=MS)


@draws("Gelu BiasGelu FastGelu QuickGelu", MS)
def gelu(d: Draw, op: str) -> Node:
    x = d.normal(*d.shape(least=2))
    bias = op == "BiasGelu" or (op == "FastGelu" and d.chance(0.5))
    attributes = d.some(alpha=d.of((1.0, 1.702, -0.5))) if op == "QuickGelu" else {}
    return Node(op, [x, d.normal(x.shape[-1]) if bias else None], attributes, 18, domain=MS)


@draws("GatherND Trilu", MS)
def taken_over(d: Draw, op: str) -> Node:
    """Operators that ONNX took over unchanged."""
    if op == "Trilu":
        return Node(op, [d.normal(*d.shape(least=2))], d.some(upper=d.whole(0, 1)), 18, domain=MS)
    shape = d.shape(1, 4)
    places = np.stack([d.indices(0, size, (d.whole(1, 1), 2)) for size in shape], -1)
    return Node(op, [d.normal(*shape), places], {}, 18, domain=MS)
