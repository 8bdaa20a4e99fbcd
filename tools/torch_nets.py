"""The benched nets in PyTorch's functional API: what their modules' forward does, on the weights of
the ONNX models. ``block`` runs a block of the net: as it is, or checkpointed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

Values = dict[str, torch.Tensor]
Block = Callable[..., torch.Tensor]  # block(function, tensor, ...)


def _norm(p: Values, name: str, x: torch.Tensor) -> torch.Tensor:
    return functional.batch_norm(
        x, p[f"{name}.running_mean"], p[f"{name}.running_var"], p[f"{name}.weight"],
        p[f"{name}.bias"], torch.is_grad_enabled(), 0.1, 1e-5,
    )  # fmt: skip


def _conv(p: Values, name: str, x: torch.Tensor, stride: int = 1, groups: int = 1) -> torch.Tensor:
    w = p[f"{name}.weight"]
    return functional.conv2d(x, w, None, stride, w.shape[-1] // 2, 1, groups)


def _resnet(p: Values, inputs: Values, block: Block, counts: tuple[int, ...]) -> torch.Tensor:
    """A ResNet; its blocks are the residual ones: two convolutions, or three with the stride on the
    middle one."""

    def stem(x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(_norm(p, "bn1", _conv(p, "conv1", x, 2)))
        return functional.max_pool2d(x, 3, 2, 1)

    def residual(x: torch.Tensor, name: str, stride: int) -> torch.Tensor:
        deep = f"{name}.conv3.weight" in p
        y = _conv(p, f"{name}.conv1", x, 1 if deep else stride)
        y = _conv(p, f"{name}.conv2", torch.relu(_norm(p, f"{name}.bn1", y)), stride if deep else 1)
        y = _norm(p, f"{name}.bn2", y)
        if deep:
            y = _norm(p, f"{name}.bn3", _conv(p, f"{name}.conv3", torch.relu(y)))
        if f"{name}.downsample.0.weight" in p:
            x = _norm(p, f"{name}.downsample.1", _conv(p, f"{name}.downsample.0", x, stride))
        return torch.relu(x + y)

    x = block(stem, inputs["input"])
    for stage, count in enumerate(counts, start=1):
        for k in range(count):
            x = block(residual, x, f"layer{stage}.{k}", 2 if stage > 1 and k == 0 else 1)
    x = functional.adaptive_avg_pool2d(x, 1).flatten(1)
    return functional.linear(x, p["fc.weight"], p["fc.bias"])


def resnet18(p: Values, inputs: Values, block: Block) -> torch.Tensor:
    """ResNet-18."""
    return _resnet(p, inputs, block, (2, 2, 2, 2))


def resnet50(p: Values, inputs: Values, block: Block) -> torch.Tensor:
    """ResNet-50."""
    return _resnet(p, inputs, block, (3, 4, 6, 3))


def mobilenetv2(p: Values, inputs: Values, block: Block) -> torch.Tensor:
    """MobileNetV2; its blocks are the inverted residuals."""
    relu6 = functional.relu6

    def stem(x: torch.Tensor) -> torch.Tensor:
        return relu6(_norm(p, "features.0.1", _conv(p, "features.0.0", x, 2)))

    def inverted(x: torch.Tensor, name: str, stride: int) -> torch.Tensor:
        y, part = x, 0
        if f"{name}.3.weight" in p:
            y = relu6(_norm(p, f"{name}.0.1", _conv(p, f"{name}.0.0", y)))
            part = 1
        depth = f"{name}.{part}"
        y = _conv(p, f"{depth}.0", y, stride, p[f"{depth}.0.weight"].shape[0])
        y = relu6(_norm(p, f"{depth}.1", y))
        y = _norm(p, f"{name}.{part + 2}", _conv(p, f"{name}.{part + 1}", y))
        return x + y if stride == 1 and x.shape == y.shape else y

    def head(x: torch.Tensor) -> torch.Tensor:
        return relu6(_norm(p, "features.18.1", _conv(p, "features.18.0", x)))

    x = block(stem, inputs["input"])
    strides = [1, 2, 1, 2, 1, 1, 2, 1, 1, 1, 1, 1, 1, 2, 1, 1, 1]
    for k, stride in enumerate(strides, start=1):
        x = block(inverted, x, f"features.{k}.conv", stride)
    x = functional.adaptive_avg_pool2d(block(head, x), 1).flatten(1)
    return functional.linear(x, p["classifier.1.weight"], p["classifier.1.bias"])


def _linear(p: Values, name: str, x: torch.Tensor) -> torch.Tensor:
    return functional.linear(x, p[f"{name}.weight"].T, p[f"{name}.bias"])


def _layer_norm(p: Values, name: str, x: torch.Tensor, epsilon: float) -> torch.Tensor:
    weight = p[f"{name}.weight"]
    return functional.layer_norm(x, weight.shape, weight, p[f"{name}.bias"], epsilon)


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: Any = 0.0) -> torch.Tensor:
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + bias
    return (torch.softmax(scores, -1) @ v).transpose(1, 2).flatten(2)


def bert(p: Values, inputs: Values, block: Block, *, layers: int, heads: int) -> torch.Tensor:
    """BERT's encoder, attention written out; its blocks are the layers."""
    ids = inputs["input_ids"]
    bias = (1.0 - inputs["attention_mask"][:, None, None].float()) * torch.finfo(torch.float32).min

    def layer(x: torch.Tensor, name: str) -> torch.Tensor:
        query, key, value = (
            _linear(p, f"{name}.attention.self.{part}", x)
            .unflatten(-1, (heads, -1))
            .transpose(1, 2)
            for part in ("query", "key", "value")
        )
        mixed = _attend(query, key, value, bias)
        x = x + _linear(p, f"{name}.attention.output.dense", mixed)
        x = _layer_norm(p, f"{name}.attention.output.LayerNorm", x, 1e-12)
        y = functional.gelu(_linear(p, f"{name}.intermediate.dense", x))
        x = x + _linear(p, f"{name}.output.dense", y)
        return _layer_norm(p, f"{name}.output.LayerNorm", x, 1e-12)

    x = functional.embedding(ids, p["embeddings.word_embeddings.weight"])
    kinds = p["embeddings.token_type_embeddings.weight"]
    x = x + functional.embedding(inputs["token_type_ids"], kinds)
    x = x + p["embeddings.position_embeddings.weight"][: ids.shape[1]]
    x = _layer_norm(p, "embeddings.LayerNorm", x, 1e-12)
    for k in range(layers):
        x = block(layer, x, f"encoder.layer.{k}")
    return x


def vit(
    p: Values, inputs: Values, block: Block, *, layers: int = 12, heads: int = 3
) -> torch.Tensor:
    """ViT-tiny, attention written out; its blocks are the layers."""

    def layer(x: torch.Tensor, name: str) -> torch.Tensor:
        y = _linear(p, f"{name}.attn.qkv", _layer_norm(p, f"{name}.norm1", x, 1e-6))
        q, key, v = y.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + _linear(p, f"{name}.attn.proj", _attend(q, key, v))
        y = _linear(p, f"{name}.mlp.fc1", _layer_norm(p, f"{name}.norm2", x, 1e-6))
        return x + _linear(p, f"{name}.mlp.fc2", functional.gelu(y))

    filters = p["patch_embed.proj.weight"]
    x = functional.conv2d(inputs["input"], filters, p["patch_embed.proj.bias"], 16)
    x = x.flatten(2).transpose(1, 2)
    x = torch.cat([p["cls_token"].expand(x.shape[0], -1, -1), x], 1) + p["pos_embed"]
    for k in range(layers):
        x = block(layer, x, f"blocks.{k}")
    x = _layer_norm(p, "norm", x, 1e-6)
    return functional.linear(x[:, 0], p["head.weight"], p["head.bias"])


FORWARDS: dict[str, Callable[..., torch.Tensor]] = {
    "resnet18": resnet18, "resnet50": resnet50, "mobilenetv2": mobilenetv2, "bert": bert,
    "vit": vit,
}  # fmt: skip
