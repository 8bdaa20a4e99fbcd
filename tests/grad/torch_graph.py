"""Runs an ONNX graph in PyTorch, so that its autograd is a second opinion on gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper


class TorchGraph:
    """The ops of an inference model as PyTorch calls, with BatchNormalization in training mode.

    Args:
        model: weights as initializers.
        dtype: floating-point type of parameters and constants.
    """

    def __init__(self, model: onnx.ModelProto, dtype: Any = None) -> None:
        import torch

        self.torch, self.dtype = torch, dtype or torch.float32
        self.model = model
        self.values = {
            t.name: self.tensor(numpy_helper.to_array(t)) for t in model.graph.initializer
        }

    def tensor(self, array: np.ndarray) -> Any:
        value = self.torch.from_numpy(np.array(array))
        return value.to(self.dtype) if value.is_floating_point() else value

    def require(self, names: list[str]) -> None:
        for name in names:
            self.values[name].requires_grad_(True)

    def run(self, feeds: Mapping[str, np.ndarray], until: str) -> Any:
        values = {**self.values, **{name: self.tensor(value) for name, value in feeds.items()}}
        for node in self.model.graph.node:
            attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            inputs = [values[name] if name else None for name in node.input]
            result = _CALLS[node.op_type](self.torch, inputs, attributes, node)
            result = result if isinstance(result, tuple | list) else [result]
            values.update(zip(node.output, result, strict=False))
            if until in node.output:
                break
        return values[until]


def _conv(torch: Any, x: list, a: dict, node: Any) -> Any:
    rank = x[0].dim() - 2
    pads = a.get("pads", [0] * 2 * rank)
    call = (torch.conv1d, torch.conv2d, torch.conv3d)[rank - 1]
    data, pads = _symmetric(torch, x[0], pads, 0.0)
    bias = x[2] if len(x) > 2 else None
    return call(data, x[1], bias, a.get("strides", [1] * rank), pads,
                a.get("dilations", [1] * rank), a.get("group", 1))  # fmt: skip


def _symmetric(torch: Any, x: Any, pads: list[int], value: float) -> tuple[Any, list[int]]:
    rank = len(pads) // 2
    if pads[:rank] == pads[rank:]:
        return x, list(pads[:rank])
    flat = [p for k in reversed(range(rank)) for p in (pads[k], pads[rank + k])]
    return torch.nn.functional.pad(x, flat, value=value), [0] * rank


def _max_pool(torch: Any, x: list, a: dict, node: Any) -> Any:
    kernel = a["kernel_shape"]
    data, pads = _symmetric(torch, x[0], a.get("pads", [0] * 4), -float("inf"))
    return torch.max_pool2d(data, kernel, a.get("strides", [1, 1]), pads, 1,
                            bool(a.get("ceil_mode", 0)))  # fmt: skip


def _average_pool(torch: Any, x: list, a: dict, node: Any) -> Any:
    return torch.nn.functional.avg_pool2d(
        x[0], a["kernel_shape"], a.get("strides", [1, 1]), a.get("pads", [0] * 4)[:2],
        bool(a.get("ceil_mode", 0)), bool(a.get("count_include_pad", 0)),
    )  # fmt: skip


def _batch_norm(torch: Any, x: list, a: dict, node: Any) -> Any:
    return torch.nn.functional.batch_norm(
        x[0], x[3].detach().clone(), x[4].detach().clone(), x[1], x[2], True,
        1.0 - a.get("momentum", 0.9), a.get("epsilon", 1e-5),
    )  # fmt: skip


def _gemm(torch: Any, x: list, a: dict, node: Any) -> Any:
    left = x[0].T if a.get("transA", 0) else x[0]
    right = x[1].T if a.get("transB", 0) else x[1]
    y = a.get("alpha", 1.0) * (left @ right)
    return y + a.get("beta", 1.0) * x[2] if len(x) > 2 else y


def _reshape(torch: Any, x: list, a: dict, node: Any) -> Any:
    target = [x[0].shape[k] if d == 0 else int(d) for k, d in enumerate(x[1].tolist())]
    return x[0].reshape(target)


def _slice(torch: Any, x: list, a: dict, node: Any) -> Any:
    starts, ends = x[1].tolist(), x[2].tolist()
    axes = x[3].tolist() if len(x) > 3 and x[3] is not None else range(len(starts))
    steps = x[4].tolist() if len(x) > 4 else [1] * len(starts)
    index = [slice(None)] * x[0].dim()
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        index[axis] = slice(start, end, step)
    return x[0][tuple(index)]


def _gather(torch: Any, x: list, a: dict, node: Any) -> Any:
    axis, index = a.get("axis", 0) % x[0].dim(), x[1]
    index = torch.where(index < 0, index + x[0].shape[axis], index)
    picked = x[0].index_select(axis, index.reshape(-1))
    return picked.reshape(*x[0].shape[:axis], *index.shape, *x[0].shape[axis + 1 :])


def _split(torch: Any, x: list, a: dict, node: Any) -> Any:
    axis = a.get("axis", 0)
    if len(x) > 1:
        return torch.split(x[0], x[1].tolist(), axis)
    return torch.chunk(x[0], len(node.output), axis)


def _squeeze(torch: Any, x: list, a: dict, node: Any) -> Any:
    axes = a["axes"] if "axes" in a else x[1].tolist()
    for axis in sorted((axis % x[0].dim() for axis in axes), reverse=True):
        x[0] = x[0].squeeze(axis)
    return x[0]


def _unsqueeze(torch: Any, x: list, a: dict, node: Any) -> Any:
    axes = a["axes"] if "axes" in a else x[1].tolist()
    rank = x[0].dim() + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        x[0] = x[0].unsqueeze(axis)
    return x[0]


def _mean(torch: Any, x: list, a: dict, node: Any) -> Any:
    axes = a["axes"] if "axes" in a else x[1].tolist()
    return x[0].mean(list(axes), keepdim=bool(a.get("keepdims", 1)))


def _clip(torch: Any, x: list, a: dict, node: Any) -> Any:
    low, high = (float(x[k]) if len(x) > k and x[k] is not None else None for k in (1, 2))
    if low == 0.0 and high is not None:
        return torch.nn.functional.hardtanh(x[0], low, high)
    return x[0].clamp(low, high)


def _layer_norm(torch: Any, x: list, a: dict, node: Any) -> Any:
    shape = x[0].shape[a.get("axis", -1) :]
    return torch.nn.functional.layer_norm(
        x[0], shape, x[1], x[2] if len(x) > 2 else None, a.get("epsilon", 1e-5)
    )


def _conv_transpose(torch: Any, x: list, a: dict, node: Any) -> Any:
    return torch.conv_transpose2d(
        x[0], x[1], x[2] if len(x) > 2 else None, a.get("strides", [1, 1]),
        a.get("pads", [0] * 4)[:2], a.get("output_padding", [0, 0]), a.get("group", 1),
        a.get("dilations", [1, 1]),
    )  # fmt: skip


def _lrn(torch: Any, x: list, a: dict, node: Any) -> Any:
    return torch.nn.functional.local_response_norm(
        x[0], a["size"], a.get("alpha", 1e-4), a.get("beta", 0.75), a.get("bias", 1.0)
    )


_CALLS: dict[str, Callable[[Any, list, dict, Any], Any]] = {
    "Add": lambda t, x, a, n: x[0] + x[1],
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "Cast": lambda t, x, a, n: x[0].to(t.float32 if a["to"] == 1 else t.int64),
    "Clip": _clip,
    "Concat": lambda t, x, a, n: t.cat(x, a["axis"]),
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Div": lambda t, x, a, n: x[0] / x[1],
    "Dropout": lambda t, x, a, n: x[0],
    "Erf": lambda t, x, a, n: t.erf(x[0]),
    "Expand": lambda t, x, a, n: x[0] * t.ones(x[1].tolist(), dtype=x[0].dtype),
    "Flatten": lambda t, x, a, n: x[0].flatten(a.get("axis", 1)),
    "Gather": _gather,
    "Gemm": _gemm,
    "GlobalAveragePool": lambda t, x, a, n: x[0].mean(list(range(2, x[0].dim())), keepdim=True),
    "LRN": _lrn,
    "LayerNormalization": _layer_norm,
    "MatMul": lambda t, x, a, n: x[0] @ x[1],
    "MaxPool": _max_pool,
    "Mul": lambda t, x, a, n: x[0] * x[1],
    "Neg": lambda t, x, a, n: -x[0],
    "Pow": lambda t, x, a, n: x[0] ** x[1],
    "ReduceMean": _mean,
    "Relu": lambda t, x, a, n: t.relu(x[0]),
    "Reshape": _reshape,
    "Shape": lambda t, x, a, n: t.tensor(x[0].shape[a.get("start", 0) : a.get("end", None)]),
    "Sigmoid": lambda t, x, a, n: t.sigmoid(x[0]),
    "Slice": _slice,
    "Softmax": lambda t, x, a, n: t.softmax(x[0], a.get("axis", -1)),
    "Split": _split,
    "Sqrt": lambda t, x, a, n: t.sqrt(x[0]),
    "Squeeze": _squeeze,
    "Sub": lambda t, x, a, n: x[0] - x[1],
    "Sum": lambda t, x, a, n: sum(x[1:], x[0]),
    "Tanh": lambda t, x, a, n: t.tanh(x[0]),
    "Transpose": lambda t, x, a, n: x[0].permute(*a["perm"]),
    "Unsqueeze": _unsqueeze,
    "Where": lambda t, x, a, n: t.where(x[0], x[1], x[2]),
}
