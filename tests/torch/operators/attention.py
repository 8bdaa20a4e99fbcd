"""Attention, embeddings and rotary positions, of ONNX and of onnxruntime."""

from __future__ import annotations

import torch
from torch.nn import functional as F  # noqa: N812

from tests.torch.node import Node, Operator, Tensor

MASKED = -10000.0  # what onnxruntime's kernels add for a masked key


def _heads(x: Tensor, count: int) -> Tensor:
    """[N, S, H] as [N, heads, S, H / heads]."""
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def _merged(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


def _attention(n: Node) -> list[Tensor]:
    query, key, value, flat = n[0], n[1], n[2], n[0].dim() == 3
    if flat:
        query = _heads(query, n.get("q_num_heads"))
        key, value = (_heads(t, n.get("kv_num_heads")) for t in (key, value))
    if n.has(4):  # of the past; a causal mask counts it, which is not modelled here
        assert not n.get("is_causal", 0)
        key, value = torch.cat([n[4], key], -2), torch.cat([n[5], value], -2)
    mixed = F.scaled_dot_product_attention(
        query, key, value, n.maybe(3), is_causal=bool(n.get("is_causal", 0)), scale=n.get("scale"),
        enable_gqa=query.shape[1] != key.shape[1],
    )  # fmt: skip
    return [_merged(mixed) if flat else mixed, key, value]


def _split(n: Node, x: Tensor, heads: int) -> Tensor:
    return x if x.dim() == 4 else _heads(x, heads)


def _mixed(n: Node, parts: list[Tensor], mask: Tensor | None, bias: Tensor | None) -> list[Tensor]:
    """Attention of queries, keys and values, and the split keys and values."""
    query, key, value = (_split(n, t, n.get("num_heads")) for t in parts)
    added = query.new_zeros(1, 1, query.shape[-2], key.shape[-2])
    if mask is not None:
        shown = _shown(mask, query.shape[0], key.shape[-2]).to(query.dtype)
        added = added + n.get("mask_filter_value", MASKED) * (1 - shown)
    if n.get("unidirectional", 0):
        ahead = torch.ones(added.shape[-2:], dtype=torch.bool).triu(1)
        added = added.masked_fill(ahead, -torch.inf)
    if bias is not None:
        added = added + bias
    scale = n.get("scale") or None
    mixed = F.scaled_dot_product_attention(query, key, value, added, scale=scale)
    return [_merged(mixed), key, value]


def _shown(mask: Tensor, batch: int, keys: int) -> Tensor:
    """A mask in one of its forms as [N, 1, queries or 1, keys], 1 where to look."""
    if mask.dim() == 3:
        return mask[:, None]
    if mask.dim() == 2:
        return mask[:, None, None]
    places, ends = torch.arange(keys), mask[:batch, None]
    shown = places < ends
    if mask.numel() == 2 * batch:
        shown = shown & (places >= mask[batch:, None])
    return shown[:, None, None]


def _multi_head(n: Node) -> list[Tensor]:
    parts = [n[0], n[1], n[2]]
    if n.has(3):
        biases = n[3].split([t.shape[-1] for t in parts])
        parts = [t + b for t, b in zip(parts, biases, strict=True)]
    return _mixed(n, parts, n.maybe(4), n.maybe(5))


def _joint(n: Node) -> list[Tensor]:
    joint = n[0] @ n[1]
    joint = joint + n[2] if n.has(2) else joint
    sizes = n.get("qkv_hidden_sizes") or [joint.shape[-1] // 3] * 3
    mixed, key, value = _mixed(n, list(joint.split(sizes, -1)), n.maybe(3), n.maybe(5))
    return [mixed, torch.stack([key, value])] if n.outputs > 1 else [mixed]


def _grouped(n: Node) -> list[Tensor]:
    """Grouped-query attention of a whole sequence."""
    heads, groups = n.get("num_heads"), n.get("kv_num_heads")
    if n.has(1):
        query, key, value = _heads(n[0], heads), _heads(n[1], groups), _heads(n[2], groups)
    else:
        query, key, value = _heads(n[0], heads + 2 * groups).split([heads, groups, groups], 1)
    length = query.shape[2]
    if n.get("do_rotary", 0):
        tables, flip = (n[7][None, :length], n[8][None, :length]), n.get("rotary_interleaved", 0)
        query, key = (_turned(x, *tables, flip) for x in (query, key))
    wide = [x.repeat_interleave(heads // groups, 1) for x in (key, value)]
    scores = query @ wide[0].mT * (n.get("scale") or query.shape[-1] ** -0.5)
    if n.get("softcap", 0.0):
        scores = n.get("softcap") * torch.tanh(scores / n.get("softcap"))
    near = torch.ones(length, length).tril()
    if n.get("local_window_size", -1) > 0:
        near = near.triu(1 - n.get("local_window_size"))
    scores = scores.masked_fill(near == 0, -torch.inf)
    if n.has(10):
        scores = scores + n[10]
    if n.has(11) or n.get("smooth_softmax", 0):
        sink = n[11] if n.has(11) else scores.new_zeros(heads)
        column = sink.reshape(1, heads, 1, 1).expand(*scores.shape[:3], 1)
        share = torch.cat([scores, column], -1).softmax(-1)[..., :-1]
    else:
        share = scores.softmax(-1)
    return [_merged(share @ wide[1]), key, value]


def _turned(x: Tensor, cos: Tensor, sin: Tensor, interleaved: int) -> Tensor:
    """Pairs of elements of [N, heads, S, D] turned; tables are [N or 1, S, at most D / 2]."""
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    wide = 2 * cos.shape[-1]
    rest, x = x[..., wide:], x[..., :wide]
    a, b = (x[..., 0::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
    pair = [a * cos - b * sin, a * sin + b * cos]
    y = torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
    return torch.cat([y, rest], -1)


def _rotary(n: Node) -> Tensor:
    """Pairs of elements turned by an angle per position, [N, heads, S, D] or [N, S, heads D]."""
    x, flat = n[0], n[0].dim() == 3
    x = _heads(x, n.get("num_heads")) if flat else x
    cos, sin = n[1], n[2]
    if n.has(3):
        cos, sin = cos[n[3]], sin[n[3]]
    y = _turned(x, cos, sin, n.get("interleaved", 0))
    return _merged(y) if flat else y


def _rotary_of_tables(n: Node) -> Tensor:
    """The same with the positions first, which may be the first position only."""
    flat, places = n[0].dim() == 3, n[1]
    x = _heads(n[0], n.get("num_heads")) if flat else n[0]
    if places.numel() == 1:
        places = torch.arange(x.shape[2])[None] + places
    y = _turned(x, n[2][places], n[3][places], n.get("interleaved", 0))
    return _merged(y) if flat else y


def _embedded(n: Node) -> list[Tensor]:
    """Rows of up to three tables added up and normalised."""
    places = n[8].long() if n.has(8) else torch.arange(n[0].shape[1])
    total = n[2][n[0].long()] + n[3][places]
    if n.has(1):
        total = total + n[4][n[1].long()]
    y = F.layer_norm(total, total.shape[-1:], n[5], n[6], n.get("epsilon", 1e-12))
    return [y, n[7].sum(1) if n.has(7) else torch.zeros(n[0].shape[0]), total]


ATTENTION: dict[str, Operator] = {
    "Attention": _attention,
    "RotaryEmbedding": _rotary,
    "com.microsoft.Attention": _joint,
    "com.microsoft.EmbedLayerNormalization": _embedded,
    "com.microsoft.GroupQueryAttention": _grouped,
    "com.microsoft.MultiHeadAttention": _multi_head,
    "com.microsoft.RotaryEmbedding": _rotary_of_tables,
}
