"""Matrix products."""

from __future__ import annotations

from itertools import permutations

import torch
from torch.nn import functional as F  # noqa: N812

from tests.torch.node import Node, Operator, Tensor


def _gemm(n: Node) -> Tensor:
    left = n[0].T if n.get("transA", 0) else n[0]
    right = n[1].T if n.get("transB", 0) else n[1]
    y = n.get("alpha", 1.0) * (left @ right)
    return y + n.get("beta", 1.0) * n[2] if n.has(2) else y


def _fused_matmul(n: Node) -> Tensor:
    sides = []
    for name, side in zip("AB", (n[0], n[1]), strict=True):
        side = side.movedim(0, -2) if n.get(f"transBatch{name}", 0) else side
        sides.append(side.mT if n.get(f"trans{name}", 0) else side)
    return n.get("alpha", 1.0) * (sides[0] @ sides[1])


def _few_bits(n: Node) -> Tensor:
    """Weights of a few bits, the first in a byte's lowest, by a scale and a zero for each block."""
    rows, width, block, bits = (n.get(name) for name in ("N", "K", "block_size", "bits"))
    blocks = -(-width // block)

    def unpacked(packed: Tensor) -> Tensor:
        parts = [(packed.int() >> shift) & (2**bits - 1) for shift in range(0, 8, bits)]
        return torch.stack(parts, -1).reshape(rows, -1)

    zeros = unpacked(n[3])[:, :blocks, None] if n.has(3) else 2 ** (bits - 1)
    numbers = unpacked(n[1]).reshape(rows, blocks, block) - zeros
    weight = (numbers * n[2].reshape(rows, blocks, 1)).reshape(rows, -1)[:, :width]
    return F.linear(n[0], weight, n.maybe(5))


def _activated(n: Node, y: Tensor, settings: list[float]) -> Tensor:
    """The activation of a fused product."""
    return {
        "Relu": lambda: F.relu(y),
        "Sigmoid": lambda: y.sigmoid(),
        "Tanh": lambda: y.tanh(),
        "LeakyRelu": lambda: F.leaky_relu(y, *settings),
        "Clip": lambda: y.clamp(*settings),
        "HardSigmoid": lambda: (settings[0] * y + settings[1]).clamp(0, 1),
    }[n.get("activation")]()


def _fused_gemm(n: Node) -> Tensor:
    return _activated(n, _gemm(n), [n.get("activation_alpha", 0.01)])


def _fused_conv(n: Node) -> Tensor:
    pads = n.get("pads", [0] * 4)
    y = F.conv2d(F.pad(n[0], (pads[1], pads[3], pads[0], pads[2])), n[1], n.maybe(2))
    return _activated(n, y + n[3] if n.has(3) else y, list(n.get("activation_params", [])))


def _det(n: Node) -> Tensor:
    """Leibniz's sum over permutations: PyTorch's own gradient of a singular matrix is 0, where that
    of a matrix of rank n - 1 is not."""
    x = n[0]
    rows = range(x.shape[-1])
    total = torch.zeros(x.shape[:-2], dtype=x.dtype)
    for order in permutations(rows):
        turned = sum(order[i] > order[j] for i in rows for j in range(i + 1, len(rows)))
        total = total + (-1) ** turned * x[..., list(rows), list(order)].prod(-1)
    return total


PRODUCTS: dict[str, Operator] = {
    "Det": _det,
    "Einsum": lambda n: torch.einsum(n.get("equation"), *(t for t in n.inputs if t is not None)),
    "Gemm": _gemm,
    "MatMul": lambda n: n[0] @ n[1],
    "com.microsoft.FusedConv": _fused_conv,
    "com.microsoft.FusedGemm": _fused_gemm,
    "com.microsoft.FusedMatMul": _fused_matmul,
    "com.microsoft.Inverse": lambda n: torch.linalg.inv(n[0]),
    "com.microsoft.MatMulNBits": _few_bits,
    "com.microsoft.TransposeMatMul": _fused_matmul,
}
