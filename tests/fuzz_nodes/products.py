"""Matrix products, Einsum, recurrences and Fourier transforms."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.fuzz_nodes.draw import MS, Array, Draw, Node, draws
from tests.fuzz_nodes.windows import ACTIVATIONS


@draws("MatMul")
def product(d: Draw, op: str) -> Node:
    rows, inner, columns = d.wholes(1, 3, 3)
    lead = d.shape(high=3, least=0, most=2)
    a = (*d.broadcastable(lead), rows, inner) if d.chance(0.8) else (inner,)
    b = (*d.broadcastable(lead), inner, columns) if d.chance(0.8) else (inner,)
    return Node(op, [d.normal(*a), d.normal(*b)], {}, d.of((9, 13)))


@draws("Det")
def determinant(d: Draw, op: str) -> Node:
    lead, rows = d.shape(high=3, least=0, most=2), d.whole(1, 4)
    return Node(op, [d.normal(*lead, rows, rows)], {}, d.of((11, 22)))


@draws("Inverse", MS)
def inverse(d: Draw, op: str) -> Node:
    lead, rows = d.shape(high=3, least=0, most=2), d.whole(1, 4)
    x = d.normal(*lead, rows, rows)
    return Node(op, [x + 4 * np.eye(rows, dtype=x.dtype)], domain=MS)


@draws("FusedMatMul TransposeMatMul", MS)
def transposed_product(d: Draw, op: str) -> Node:
    rows, inner, columns = d.wholes(1, 3, 3)
    lead = d.shape(high=3, least=0, most=2)
    attributes = d.some(transA=1, transB=1, alpha=d.of((0.5, -2.0)))
    a, b = [*lead, rows, inner], [*lead, inner, columns]
    for name, shape in (("A", a), ("B", b)):
        if f"trans{name}" in attributes:
            shape[-2:] = shape[:-3:-1]
        if op == "FusedMatMul" and len(shape) > 2 and d.chance(0.3):
            attributes[f"transBatch{name}"] = 1
            shape[:] = [*shape[1:-1], shape[0], shape[-1]]
    return Node(op, [d.normal(*a), d.normal(*b)], attributes, 18, domain=MS)


@draws("MatMulNBits", MS)
def few_bits(d: Draw, op: str) -> Node:
    rows, block, bits = d.whole(1, 3), d.of((16, 32)), d.of((2, 4, 4, 8))
    blocks = d.whole(1, 3)
    width = blocks * block - d.of((0, 0, 2, 6))
    a = d.normal(*d.shape(high=3, least=1, most=2), width)
    packed = d.indices(0, 256, (rows, blocks, block * bits // 8)).astype(np.uint8)
    zeros: Array | None = None
    if d.chance(0.6):
        zeros = d.indices(0, 256, (rows * -(-blocks * bits // 8),)).astype(np.uint8)
    bias = d.normal(rows) if d.chance(0.4) else None
    attributes = {"K": width, "N": rows, "block_size": block, "bits": bits}
    inputs = [a, packed, d.positive(rows * blocks) / 8, zeros, None, bias]
    return Node(op, inputs, attributes, 18, domain=MS, fixed=[1, 2, 3])


@draws("Gemm")
def gemm(d: Draw, op: str) -> Node:
    rows, inner, columns = d.wholes(1, 3, 3)
    attributes = d.some(transA=1, transB=1, alpha=d.of((0.5, -2.0)), beta=d.of((0.0, 0.3)))
    a = d.normal(*((inner, rows) if "transA" in attributes else (rows, inner)))
    b = d.normal(*((columns, inner) if "transB" in attributes else (inner, columns)))
    bias = ((rows, columns), (1, columns), (columns,), (rows, 1), (1,), (), (1, 1))
    c = d.normal(*d.of(bias)) if d.chance(0.7) else None
    return Node(op, [a, b, c], attributes, d.of((11, 13)))


@draws("FusedGemm", MS)
def fused_gemm(d: Draw, op: str) -> Node:
    made = gemm(d, "Gemm")
    kind = d.of([name for name in ACTIVATIONS if name != "Clip"])
    attributes: dict[str, Any] = {**made.attributes, "activation": kind}
    names = ("activation_alpha", "activation_beta")
    attributes |= dict(zip(names, ACTIVATIONS[kind], strict=False))
    return Node(op, made.inputs, attributes, 18, domain=MS)


@draws("Einsum")
def einsum(d: Draw, op: str) -> Node:
    sizes = {label: d.whole(1, 3) for label in "abcde"}
    terms = ["".join(d.of("abcde") for _ in range(d.whole(1, 3))) for _ in range(d.whole(1, 3))]
    seen = sorted({label for term in terms for label in term})
    made = "".join(d.random.sample(seen, d.whole(0, len(seen))))
    lead = d.shape(high=2, most=2) if d.chance(0.3) else ()
    dots = "..." if lead else ""
    text = ",".join(dots + term for term in terms)
    if d.chance(0.85):
        text += f"->{dots}{made}"
    if d.chance(0.3):
        text = text.replace(",", " , ").replace("->", " -> ")
    inputs = [d.normal(*lead, *(sizes[label] for label in term)) for term in terms]
    return Node(op, inputs, {"equation": text}, 12)


GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
KINDS = {"RNN": 1, "GRU": 2, "LSTM": 3}  # activations per direction


@draws("RNN GRU LSTM")
def recurrent(d: Draw, op: str) -> Node:
    steps, batch, width, hidden = d.whole(1, 4), d.whole(1, 3), d.whole(1, 3), d.whole(1, 3)
    way, gates = d.word("forward reverse bidirectional"), GATES[op]
    ways = 2 if way == "bidirectional" else 1

    def maybe(*shape: int) -> Array | None:
        return d.normal(*shape) if d.chance(0.5) else None

    inputs: list[Array | None] = [
        d.normal(steps, batch, width), d.normal(ways, gates * hidden, width),
        d.normal(ways, gates * hidden, hidden), maybe(ways, 2 * gates * hidden),
        d.indices(1, steps + 1, (batch,)).astype(np.int32) if d.chance(0.5) else None,
        maybe(ways, batch, hidden),
    ]  # fmt: skip
    attributes: dict[str, Any] = {"hidden_size": hidden} | d.some(direction=way)
    if "direction" not in attributes and way != "forward":
        attributes["direction"] = way
    if op == "LSTM":
        inputs += [maybe(ways, batch, hidden), maybe(ways, 3 * hidden)]
        attributes |= d.some(input_forget=0)
    if op == "GRU":
        attributes |= d.some(linear_before_reset=d.whole(0, 1))
    if d.chance(0.3):
        kinds = [d.word("Tanh Sigmoid HardSigmoid Relu") for _ in range(KINDS[op] * ways)]
        gate = range(0, len(kinds), KINDS[op]) if op != "RNN" else range(0)
        attributes["activations"] = [
            "Sigmoid" if k in gate else kinds[k] for k in range(len(kinds))
        ]
    attributes |= {"clip": 0.5} if d.chance(0.1) else {}
    return Node(op, inputs, attributes, d.of((14, 22)), d.whole(1, 3 if op == "LSTM" else 2))


@draws("DFT")
def fourier(d: Draw, op: str) -> Node:
    back, shape = d.chance(0.4), d.shape(1, 5, 2, 3)
    onesided = not back and d.chance(0.4)
    x = d.normal(*shape, 1 if onesided or (not back and d.chance(0.5)) else 2)
    axis = d.whole(0, len(shape) - 1)
    attributes = {"inverse": int(back)} | ({"onesided": 1} if onesided else {})
    length = np.array(d.whole(1, 6), np.int64) if d.chance(0.3) else None
    if d.chance(0.5):
        return Node(op, [x, length], attributes | {"axis": axis}, 17, fixed=[1])
    place = np.array(d.spelled(axis, len(shape) + 1) if axis else axis, np.int64)
    return Node(op, [x, length, place], attributes, 20, fixed=[1, 2])


@draws("STFT")
def short_fourier(d: Draw, op: str) -> Node:
    signal, frame = d.whole(6, 12), d.whole(2, 5)
    x = d.normal(d.whole(1, 2), signal, 1)
    window = d.positive(frame) if d.chance(0.6) else None
    length = np.array(frame, np.int64)
    inputs = [x, np.array(d.whole(1, 3), np.int64), window, length]
    return Node(op, inputs, d.some(onesided=d.whole(0, 1)), 17, fixed=[1, 3])
