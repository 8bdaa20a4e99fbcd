"""Nets of ``bench_fission.py`` that are not in ``models/``: blocks of transformers alone, decoders,
detectors."""

from __future__ import annotations

import numpy as np
import onnx

from models.attention import MASKED, attend, lower_triangle
from models.builder import GraphBuilder, Value, normal


def _graph(name: str) -> GraphBuilder:
    return GraphBuilder(name, batch=1, seed=0, symbolic_batch=False, weights=True)


def superres(size: int = 256, width: int = 32, blocks: int = 8) -> onnx.ModelProto:
    """Residual blocks at low resolution, two pixel shuffles to four times the size (EDSR)."""
    graph = _graph("superres")
    head = x = graph.conv(graph.image_input(size), width, 3, name="head")
    for block in range(blocks):
        inner = graph.relu(graph.conv(x, width, 3, name=f"block{block}a"))
        x = graph.op("Add", x, graph.conv(inner, width, 3, name=f"block{block}b", gain=0.1))
    x = graph.op("Add", graph.conv(x, width, 3, name="body"), head)
    for level in range(2):
        x = graph.conv(x, 4 * width, 3, name=f"up{level}", gain=1)
        batch, _, height, _ = x.shape
        shape = (batch, width, 2 * height, 2 * height)
        x = graph.op("DepthToSpace", x, shape=shape, blocksize=2, mode="CRD")
    graph.output(graph.conv(x, 3, 3, name="tail", gain=1), "image")
    return graph.build()


def mlp(tokens: int = 2048, width: int = 768) -> onnx.ModelProto:
    """A transformer's second half, normalised and with its residual; the mean of all tokens."""
    graph = _graph("mlp")
    x = graph.op("Mul", graph.float_input("x", (1, tokens, width)), graph.scalar(1.5))
    y = graph.linear(graph.layer_norm(x, name="norm"), 4 * width, name="up")
    y = graph.linear(graph.gelu(y, "op"), width, name="down")
    graph.output(_mean(graph, graph.op("Add", x, y), 1), "mean")
    return graph.build()


def _mean(graph: GraphBuilder, x: Value, axis: int) -> Value:
    shape = (*x.shape[:axis], *x.shape[axis + 1 :])
    return graph.op("ReduceMean", x, graph.integers([axis]), shape=shape, keepdims=0)


def attention(
    tokens: int = 2048, heads: int = 12, size: int = 64, causal: bool = False
) -> onnx.ModelProto:
    """Queries, keys and values to their mixture; the mean of all tokens."""
    graph = _graph("attention")
    shape = (1, heads, tokens, size)
    query, key, value = (
        graph.op("Mul", graph.float_input(name, shape), graph.scalar(1 + i / 10))
        for i, name in enumerate("qkv")
    )

    def hidden(scores: Value) -> Value:
        allowed = graph.constant(lower_triangle(tokens), "causal_mask")
        return graph.op("Where", allowed, scores, graph.scalar(MASKED))

    mixed = attend(graph, query, key, value, hidden if causal else None)
    graph.output(_mean(graph, mixed, 2), "mean")
    return graph.build()


def loss(tokens: int = 2048, width: int = 256, vocab: int = 50257) -> onnx.ModelProto:
    """The head of a language model and the mean of its cross-entropy."""
    graph = _graph("loss")
    x = graph.float_input("x", (tokens, width))
    labels = graph.id_input("labels", (tokens,), vocab)
    logits = graph.linear(x, vocab, bias=False, name="head")
    graph.output(
        graph.op("SoftmaxCrossEntropyLoss", logits, labels, shape=(), reduction="mean"), "loss"
    )
    return graph.build()


def ffn(rows: int = 16384, width: int = 256, hidden: int = 2048) -> onnx.ModelProto:
    """Two products with a large tensor between them (128 MiB), handed out."""
    graph = _graph("ffn")
    x = graph.float_input("x", (rows, width))
    y = graph.relu(graph.linear(x, hidden, bias=False, name="up", gain=2))
    graph.output(graph.linear(y, width, bias=False, name="down"), "y")
    return graph.build()


def vae(latent: int = 64, widths: tuple[int, ...] = (512, 512, 256, 128)) -> onnx.ModelProto:
    """The decoder of latent diffusion: 4 channels to an image of eight times the size."""
    graph = _graph("vae")
    x = graph.conv(graph.float_input("z", (1, 4, latent, latent)), widths[0], 3, name="in", gain=1)
    x = _residual(graph, x, widths[0], "mid0")
    x = _image_attention(graph, x)
    x = _residual(graph, x, widths[0], "mid1")
    for level, width in enumerate(widths):
        for block in range(3):
            x = _residual(graph, x, width, f"up{level}.{block}")
        if level < len(widths) - 1:
            x = graph.conv(_twice(graph, x), width, 3, name=f"up{level}.grow", gain=1)
    x = _silu(graph, _group_norm(graph, x, "out.norm"))
    graph.output(graph.conv(x, 3, 3, name="out", gain=1), "image")
    return graph.build()


def _residual(graph: GraphBuilder, x: Value, width: int, name: str) -> Value:
    y = graph.conv(
        _silu(graph, _group_norm(graph, x, f"{name}.norm1")), width, 3, name=f"{name}.conv1",
        bias=True,
    )  # fmt: skip
    y = graph.conv(
        _silu(graph, _group_norm(graph, y, f"{name}.norm2")), width, 3, name=f"{name}.conv2",
        bias=True, gain=0.1,
    )  # fmt: skip
    if x.shape[1] != width:
        x = graph.conv(x, width, 1, name=f"{name}.shortcut", bias=True, gain=1)
    return graph.op("Add", x, y)


def _silu(graph: GraphBuilder, x: Value) -> Value:
    return graph.op("Mul", x, graph.op("Sigmoid", x))


def _group_norm(graph: GraphBuilder, x: Value, name: str, groups: int = 32) -> Value:
    """As PyTorch exports it: an instance normalisation of groups, scale and bias behind it."""
    batch, width = x.shape[:2]
    flat = graph.reshape(x, (batch, groups, int(np.prod(x.shape[1:])) // groups))
    ones = graph.constant(np.ones(groups, np.float32), "ones")
    zeros = graph.constant(np.zeros(groups, np.float32), "zeros")
    flat = graph.op(
        "InstanceNormalization", flat, ones, zeros, shape=flat.shape, epsilon=1e-6
    )  # fmt: skip
    y = graph.reshape(flat, x.shape)
    with graph.scope(name):
        scale = graph.weight("weight", (1, width, 1, 1), normal(0.1, 1))
        bias = graph.weight("bias", (1, width, 1, 1), normal(0.1))
    return graph.op("Add", graph.op("Mul", y, scale), bias)


def _image_attention(graph: GraphBuilder, x: Value) -> Value:
    batch, width, height, _ = x.shape
    norm = _group_norm(graph, x, "attend.norm")
    query, key, value = (
        graph.reshape(
            graph.conv(norm, width, 1, name=f"attend.{name}", gain=1),
            (batch, 1, width, height * height),
        )
        for name in "qkv"
    )
    order = (0, 1, 3, 2)
    query, key, value = (graph.transpose(each, order) for each in (query, key, value))
    mixed = graph.transpose(attend(graph, query, key, value), order)
    mixed = graph.reshape(mixed, x.shape)
    return graph.op("Add", x, graph.conv(mixed, width, 1, name="attend.out", gain=0.1))


def _twice(graph: GraphBuilder, x: Value) -> Value:
    batch, width, height, across = x.shape
    return graph.op(
        "Resize", x, Value("", ()), graph.constant(np.array([1, 1, 2, 2], np.float32), "scales"),
        shape=(batch, width, 2 * height, 2 * across), mode="nearest",
        coordinate_transformation_mode="asymmetric", nearest_mode="floor",
    )  # fmt: skip


EFFICIENT = (  # expansion, kernel, stride, channels, blocks: EfficientNet-B0
    (1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3), (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4), (6, 3, 1, 320, 1),
)  # fmt: skip


def efficientnet(size: int = 224) -> onnx.ModelProto:
    """EfficientNet-B0, normalisations folded: squeeze and excite in every block."""
    graph = _graph("efficientnet")
    x = _silu(graph, graph.conv(graph.image_input(size), 32, 3, stride=2, bias=True, name="stem"))
    number = 0
    for expansion, kernel, stride, width, blocks in EFFICIENT:
        for block in range(blocks):
            x = _mbconv(graph, x, width, expansion, kernel, 1 if block else stride, f"b{number}")
            number += 1
    x = _silu(graph, graph.conv(x, 1280, 1, bias=True, name="head"))
    graph.output(graph.linear(graph.flatten(graph.global_average_pool(x)), 1000, name="fc"), "y")
    return graph.build()


def _mbconv(
    graph: GraphBuilder, x: Value, width: int, expansion: int, kernel: int, stride: int, name: str
) -> Value:  # fmt: skip
    before, inner = x, x.shape[1] * expansion
    with graph.scope(name):
        if expansion > 1:
            x = _silu(graph, graph.conv(x, inner, 1, bias=True, name="expand"))
        x = graph.conv(x, inner, kernel, stride=stride, groups=inner, bias=True, name="depthwise")
        x = _silu(graph, x)
        s = graph.conv(
            graph.global_average_pool(x), max(1, before.shape[1] // 4), 1, bias=True, name="squeeze"
        )
        s = graph.conv(_silu(graph, s), inner, 1, bias=True, name="excite")
        x = graph.op("Mul", x, graph.op("Sigmoid", s))
        x = graph.conv(x, width, 1, bias=True, name="project", gain=1)
    return graph.op("Add", before, x) if before.shape == x.shape else x


def yolo(size: int = 640, width: int = 32) -> onnx.ModelProto:
    """A one-stage detector: a backbone of cross-stage blocks, fast pooling, a pyramid upwards and
    three heads (YOLOv5 without its last decoding)."""
    graph = _graph("yolo")
    x = _cbs(graph, graph.image_input(size), width, 6, 2, "stem", padding=2)
    levels = []
    for level, blocks in enumerate((1, 2, 3, 1)):
        x = _cbs(graph, x, x.shape[1] * 2, 3, 2, f"down{level}")
        x = _cross_stage(graph, x, x.shape[1], blocks, f"stage{level}")
        levels.append(x)
    y = _cbs(graph, x, x.shape[1] // 2, 1, 1, "pool.in")
    pools = [y]
    for _ in range(3):
        pools.append(graph.max_pool(pools[-1], 5, stride=1, padding=2))
    x = _cbs(graph, graph.concat(pools, 1), x.shape[1], 1, 1, "pool.out")
    heads = [x]
    for level in (2, 1):
        x = _cbs(graph, x, levels[level].shape[1], 1, 1, f"lateral{level}")
        x = graph.concat([_twice(graph, x), levels[level]], 1)
        x = _cross_stage(graph, x, levels[level].shape[1], 1, f"merge{level}", shortcut=False)
        heads.append(x)
    for number, head in enumerate(heads):
        graph.output(graph.conv(head, 255, 1, bias=True, name=f"head{number}"), f"y{number}")
    return graph.build()


def _cbs(
    graph: GraphBuilder, x: Value, width: int, kernel: int, stride: int, name: str,
    padding: int | None = None,
) -> Value:  # fmt: skip
    return _silu(
        graph, graph.conv(x, width, kernel, stride=stride, padding=padding, bias=True, name=name)
    )


def _cross_stage(
    graph: GraphBuilder, x: Value, width: int, blocks: int, name: str, shortcut: bool = True
) -> Value:
    y, z = (_cbs(graph, x, width // 2, 1, 1, f"{name}.{side}") for side in ("a", "b"))
    for block in range(blocks):
        inner = _cbs(graph, y, width // 2, 1, 1, f"{name}.{block}.1")
        inner = _cbs(graph, inner, width // 2, 3, 1, f"{name}.{block}.2")
        y = graph.op("Add", y, inner) if shortcut else inner
    return _cbs(graph, graph.concat([y, z], 1), width, 1, 1, f"{name}.out")


def nested_unet(
    batch: int = 1, size: int = 256, width: int = 32, levels: int = 4, weights: bool = True
) -> onnx.ModelProto:
    """U-Net++ (Zhou et al. 2018): every level is decoded from all levels below it."""
    graph = GraphBuilder("unet++", batch=batch, seed=0, symbolic_batch=False, weights=weights)

    def block(x: Value, level: int, name: str) -> Value:
        for index in (1, 2):
            x = graph.conv(x, width << level, 3, name=f"{name}conv{index}", bias=True)
            x = graph.relu(x, f"{name}relu{index}")
        return x

    rows: list[list[Value]] = []
    x = graph.image_input(size)
    for level in range(levels + 1):
        x = x if not level else graph.max_pool(x, 2, stride=2, name=f"pool{level}")
        x = block(x, level, f"x{level}_0")
        rows.append([x])
    for depth in range(1, levels + 1):
        for level in range(levels + 1 - depth):
            name = f"x{level}_{depth}"
            up = graph.conv_transpose(rows[level + 1][-1], width << level, 2, name=f"{name}up")
            rows[level].append(block(graph.concat([*rows[level], up], axis=1), level, name))
    graph.output(graph.conv(rows[0][-1], 2, 1, bias=True, name="mask"), "mask")
    return graph.build()
