"""Attention and rotary positions of onnxruntime's tools, written out in standard operators.

The definitions are those of onnxruntime's ``docs/ContribOperators.md``; what its CPU kernels do
where that leaves a choice (what is added for a masked key, which positions a prompt has) was found
by running them, and ``tests/grad/test_fused.py`` compares the two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import onnx

from onnxremat.grad.lowering.writer import Writer

T = onnx.TensorProto
MASKED = -10000.0  # what the kernels add for a masked key by default
NEVER = -60000.0  # what stands for a key out of sight; float16 holds it


# ---- masks -----------------------------------------------------------------------------------


def _visible(queries: int, keys: int, causal: bool, window: int = -1) -> np.ndarray | None:
    """Which key a query may look at, [queries, keys]; None when all."""
    ahead = np.arange(keys)[None, :] - np.arange(queries)[:, None]
    if not causal:
        return None
    return (ahead <= 0) & ((ahead > -window) if window > 0 else True)


def _added(w: Writer, padding: str, visible: np.ndarray | None) -> list[str]:
    """What is added to scores: for padding, and (instead of it) for keys out of sight."""
    if visible is None:
        return [padding] if padding else []
    if not padding:
        return [w.like(np.where(visible, 0.0, NEVER))]
    return [w("Where", w.constant(visible, T.BOOL), padding, w.like(NEVER))]


def _hidden(w: Writer, shown: str, filler: float) -> str:
    """``filler`` where an integer or boolean tensor is 0, else 0."""
    if w.real == T.FLOAT16:
        filler = max(filler, NEVER)  # 0 times an infinity is no number
    rest = w("Sub", w.like(1.0), w.cast(shown, w.real))
    return w("Mul", rest, w.like(filler))


def _padding(w: Writer, name: str, keys: int) -> str:
    """A mask as what is added to scores; the forms are those of the operator's documentation."""
    if not name:
        return ""
    shape, batch = w.shape(name), w.shape(w.input(0))[0]
    filler = w.attribute("mask_filter_value", MASKED)
    if len(shape) == 2:
        return _hidden(w, w("Unsqueeze", name, w.constant([1, 2])), filler)
    if len(shape) == 3:
        return _hidden(w, w("Unsqueeze", name, w.constant([1])), filler)
    if shape in ((batch,), (2 * batch,)):
        bounds = w.split(name, [batch] * (shape[0] // batch), 0)
        places = w.constant(np.arange(keys), T.INT32)
        column = w.constant([batch, 1, 1, 1])
        shown = w("Less", places, w("Reshape", w.cast(bounds[0], T.INT32), column))
        if len(bounds) == 2:
            start = w("Reshape", w.cast(bounds[1], T.INT32), column)
            shown = w("And", shown, w("Not", w("Less", places, start)))
        return _hidden(w, shown, filler)
    raise w.unsupported(f"a mask of shape {list(shape)} is not differentiated here")


# ---- products --------------------------------------------------------------------------------


def _heads(w: Writer, x: str, count: int) -> str:
    """[N, S, H] as [N, heads, S, H / heads]."""
    split = w("Reshape", x, w.constant([0, 0, count, -1]))
    return w("Transpose", split, perm=[0, 2, 1, 3])


def _mix(
    w: Writer, heads: tuple[str, str, str], width: int, added: Sequence[str], sink: str = ""
) -> None:
    """softmax(q k.T scale + added) v, heads merged into the op's output. ``sink`` is a score of
    shape [N, heads, S, 1] that takes its share of the softmax and leads to no value."""
    query, key, value = heads
    if width < 1:
        raise w.unsupported("it has more heads than a row has numbers")
    scale = w.attribute("scale", 0.0) or 1.0 / math.sqrt(width)
    scores = w("MatMul", query, w("Transpose", key, perm=[0, 1, 3, 2]))
    scores = w("Mul", scores, w.like(scale))
    cap = w.attribute("softcap", 0.0)
    if cap:
        bent = w("Tanh", w("Mul", scores, w.like(1.0 / cap)))
        scores = w("Mul", bent, w.like(cap))
    for name in added:
        scores = w("Add", scores, name)
    if sink:
        scores = w("Concat", scores, sink, axis=-1)
    share = w("Softmax", scores, axis=-1)
    if sink:
        share = w("Slice", share, w.constant([0]), w.constant([-1]), w.constant([3]))
    merged = w("Transpose", w("MatMul", share, value), perm=[0, 2, 1, 3])
    w("Reshape", merged, w.constant([0, 0, -1]), to=w.output(0))


def _named(w: Writer, output: int, name: str) -> None:
    """A tensor under the name of an output, where that is asked for."""
    if w.output(output):
        w("Identity", name, to=w.output(output))


# ---- the operators ---------------------------------------------------------------------------


def multi_head_attention(w: Writer) -> None:
    """MultiHeadAttention: separate, packed or already split queries, keys and values."""
    w.refuse_inputs(past_key=6, past_value=7, past_sequence_length=8, cache_indirection=9)
    if w.output(3):
        raise w.unsupported("its output 'qk' is not differentiated here")
    heads = w.attribute("num_heads", 1)
    biases = _biases(w, heads)
    query, key, value = _separate(w, heads, biases)
    queries, keys, width = _lengths(w, heads)
    _named(w, 1, key)
    _named(w, 2, value)
    causal = bool(w.attribute("unidirectional", 0))
    if causal and keys > queries:
        raise w.unsupported(
            f"it is causal and has {queries} queries for {keys} keys, all of which onnxruntime's "
            "kernel shows to the last query"
        )
    added = _added(w, _padding(w, w.input(4), keys), _visible(queries, keys, causal))
    _mix(w, (query, key, value), width, [*added, *([w.input(5)] if w.input(5) else [])])


def _lengths(w: Writer, heads: int) -> tuple[int, int, int]:
    """Counts of queries and keys, and elements of a head."""
    query = w.shape(w.input(0))
    if len(query) == 5:
        return query[1], query[1], query[4]
    key = w.shape(w.input(1))
    return query[1], key[2] if len(key) == 4 else key[1], query[2] // heads


def _biases(w: Writer, heads: int) -> list[str]:
    """The bias cut into those of queries, keys and values; "" each without one."""
    if not w.input(3):
        return ["", "", ""]
    width = heads * _lengths(w, heads)[2]
    return w.split(w.input(3), [width, width, w.shape(w.input(3))[0] - 2 * width], 0)


def _separate(w: Writer, heads: int, biases: Sequence[str]) -> list[str]:
    """Queries, keys and values as [N, heads, S, H / heads]."""
    made: list[str] = []
    for position in range(3):
        name = w.input(position)
        rank = len(w.shape(name)) if name else 0
        if rank == 3:
            biased = w("Add", name, biases[position]) if biases[position] else name
            made.append(_heads(w, biased, heads))
        elif rank == 4:  # keys and values of a cross attention, split before
            made.append(name)
        elif rank == 5:  # [N, S, heads, how many, H / heads]
            count = w.shape(name)[3]
            parts = w.split(w("Transpose", name, perm=[0, 2, 3, 1, 4]), [1] * count, 2)
            made += [w("Squeeze", part, w.constant([2])) for part in parts]
        elif len(made) <= position:
            raise w.unsupported(f"its input {position} is missing")
    return [
        w("Add", name, w("Reshape", bias, w.constant([1, heads, 1, -1])))
        if bias and len(w.shape(w.input(0))) == 5
        else name
        for name, bias in zip(made, biases, strict=True)
    ]


def attention(w: Writer) -> None:
    """Attention: one product for queries, keys and values."""
    w.refuse_inputs(past=4, past_sequence_length=6)
    w.refuse_attributes("do_rotary")
    heads, joint = w.attribute("num_heads", 1), w("MatMul", w.input(0), w.input(1))
    if w.input(2):
        joint = w("Add", joint, w.input(2))
    even = [w.shape(w.input(1))[1] // 3] * 3
    sizes = list(w.attribute("qkv_hidden_sizes", None) or even)
    query, key, value = (_heads(w, part, heads) for part in w.split(joint, sizes, 2))
    if w.output(1):
        pair = [w("Unsqueeze", part, w.constant([0])) for part in (key, value)]
        w("Concat", *pair, to=w.output(1), axis=0)
    length = w.shape(w.input(0))[1]
    visible = _visible(length, length, bool(w.attribute("unidirectional", 0)))
    added = _added(w, _padding(w, w.input(3), length), visible)
    added += [w.input(5)] if w.input(5) else []
    _mix(w, (query, key, value), sizes[0] // heads, added)


def group_query_attention(w: Writer) -> None:
    """GroupQueryAttention over a whole sequence: no past, or one without elements."""
    w.refuse_inputs(past_key=3, past_value=4, q_norm_weight=14, k_norm_weight=15)
    w.refuse_attributes("qk_output", "k_quant_type", "v_quant_type", "sliding_window_cache")
    heads, groups = w.attribute("num_heads", 1), w.attribute("kv_num_heads", 1)
    _, length, joint = w.shape(w.input(0))
    if w.input(1):
        width, parts = joint // heads, [w.input(k) for k in range(3)]
    else:
        width = joint // (heads + 2 * groups)
        parts = w.split(w.input(0), [heads * width, groups * width, groups * width], 2)
    query, key, value = (
        _heads(w, part, count) for part, count in zip(parts, (heads, groups, groups), strict=True)
    )
    if w.attribute("do_rotary", 0):
        query, key = _rotated_pair(w, query, key, width, length)
    _named(w, 1, key)
    _named(w, 2, value)
    key, value = (_repeated(w, part, heads // groups, heads) for part in (key, value))
    causal, window = w.attribute("causal", 1), w.attribute("local_window_size", -1)
    if not window:
        raise w.unsupported("its attribute 'local_window_size' = 0 lets no query see a key")
    added = _added(w, _beyond(w, length), _visible(length, length, bool(causal), window))
    added += [w.input(10)] if w.input(10) else []
    _mix(w, (query, key, value), width, added, _sink(w, heads, length))


def _rotated_pair(w: Writer, query: str, key: str, width: int, length: int) -> list[str]:
    """Queries and keys turned by their position, which counts from 0 (or from the first of
    ``position_ids``)."""
    places = w.constant(np.arange(length).reshape(1, length))
    if w.input(9):
        first = w("Slice", w.input(9), w.constant([0, 0]), w.constant([1, 1]))
        places = w("Add", places, w.cast(first, T.INT64))
    angles = _Angles(places, (7, 8), bool(w.attribute("rotary_interleaved", 0)))
    return [_rotate(w, name, angles, width) for name in (query, key)]


def _repeated(w: Writer, name: str, times: int, heads: int) -> str:
    """Every head of [N, groups, S, H] that many times."""
    if times == 1:
        return name
    wide = w("Unsqueeze", name, w.constant([2]))
    wide = w("Expand", wide, w.constant([1, 1, times, 1, 1]))
    batch, length = w.shape(w.input(0))[:2]
    return w("Reshape", wide, w.constant([batch, heads, length, -1]))


def _beyond(w: Writer, keys: int) -> str:
    """What is added for keys after the end of their sequence, "" when there are none."""
    last = w.known.get(w.input(5))
    if last is not None and (np.asarray(last) >= keys - 1).all():
        return ""
    column = w("Reshape", w.cast(w.input(5), T.INT32), w.constant([-1, 1, 1, 1]))
    places = w.constant(np.arange(keys), T.INT32)
    return _hidden(w, w("Not", w("Greater", places, column)), NEVER)


def _sink(w: Writer, heads: int, length: int) -> str:
    """Score of the sink of every head, "" without one."""
    batch = w.shape(w.input(0))[0]
    shape = w.constant([batch, heads, length, 1])
    if w.input(11):
        return w("Expand", w("Reshape", w.input(11), w.constant([1, heads, 1, 1])), shape)
    if w.attribute("smooth_softmax", 0) == 1:
        return w("Expand", w.like(np.zeros((1, 1, 1, 1))), shape)
    return ""


def rotary_embedding(w: Writer) -> None:
    """RotaryEmbedding of the com.microsoft domain."""
    w.refuse_attributes("is_packed_batching")
    if w.attribute("scale", 1.0) != 1.0:
        raise w.unsupported(f"its attribute 'scale' = {w.attribute('scale', 1.0)}")
    shape, positions = w.shape(w.input(0)), w.shape(w.input(1))
    whole = 2 * w.shape(w.input(2))[1]
    flat = len(shape) == 3
    length = shape[1] if flat else shape[2]
    heads = w.attribute("num_heads", 0) or (shape[2] // whole if flat else shape[1])
    x = _heads(w, w.input(0), heads) if flat else w.input(0)
    places = w.input(1)
    if positions == (1,):
        places = w("Add", w.constant(np.arange(length).reshape(1, length)), places)
    width = shape[2] // heads if flat else shape[3]
    interleaved = bool(w.attribute("interleaved", 0))
    to = "" if flat else w.output(0)
    turned = _rotate(w, x, _Angles(places, (2, 3), interleaved), width, to)
    if flat:
        merged = w("Transpose", turned, perm=[0, 2, 1, 3])
        w("Reshape", merged, w.constant([0, 0, -1]), to=w.output(0))


class _Angles(NamedTuple):
    """By what pairs of elements are turned: positions, inputs with cosines and sines by them, and
    whether the two of a pair are neighbours."""

    places: str
    tables: tuple[int, int]
    interleaved: bool


def _rotate(w: Writer, x: str, angles: _Angles, width: int, to: str = "") -> str:
    """[N, heads, S, H] with pairs of elements turned by the angles of their position; elements
    beyond twice the width of the tables stay."""
    places, tables, interleaved = angles
    half = w.shape(w.input(tables[0]))[1]
    cos, sin = (
        w("Unsqueeze", w("Gather", w.input(table), places, axis=0), w.constant([1]))
        for table in tables
    )
    turning, *rest = w.split(x, [2 * half, *([width - 2 * half] if width > 2 * half else [])], 3)
    if interleaved:
        pairs = w("Reshape", turning, w.constant([0, 0, 0, half, 2]))
        one, two = (w("Squeeze", p, w.constant([4])) for p in w.split(pairs, [1, 1], 4))
    else:
        one, two = w.split(turning, [half, half], 3)
    first = w("Sub", w("Mul", one, cos), w("Mul", two, sin))
    second = w("Add", w("Mul", one, sin), w("Mul", two, cos))
    if not interleaved:
        return w("Concat", first, second, *rest, to=to, axis=3)
    both = [w("Unsqueeze", part, w.constant([4])) for part in (first, second)]
    last = "" if rest else to
    turned = w("Reshape", w("Concat", *both, axis=4), w.constant([0, 0, 0, 2 * half]), to=last)
    return w("Concat", turned, *rest, to=to, axis=3) if rest else turned
