"""Products with weights that are whole numbers of few bits: gradients pass, weights stay."""

from __future__ import annotations

from onnx import TensorProto as T

from onnxremat.grad.call import Call
from onnxremat.grad.registry import Cotangents, vjp

MICROSOFT = "com.microsoft"
BYTE = 8
UNTRAINED = {2: "scales", 3: "zero_points"}


@vjp("MatMulNBits", domain=MICROSOFT, reads="x1 x2 x3", flat="x1 x4")
def few_bits(call: Call) -> Cotangents:
    """y = a w' + b, w [N, K] = (q - z) s, a scale s and a zero z per block of a row. da = dy w.
    The weights are unpacked once dy is there, and freed after the product.

    Raises:
        UnsupportedError: columns in another order (``g_idx``), or trained scales.
    """
    if call.input(4) is not None:
        raise call.unsupported("its input 'g_idx' is not differentiated")
    for position, name in UNTRAINED.items():
        if call.need(position):
            raise call.unsupported(f"its input '{name}' is trained")
    t = call.tape
    found: list[str | None] = [None] * len(call.op.inputs)
    if call.need(5):
        found[5] = t.sum(call.dy, range(t.rank(call.dy) - 1))
    if call.need(0):
        found[0] = t.matmul(call.dy, _weights(call))
    return found


def _weights(call: Call) -> str:
    """w [N, K], unpacked."""
    t, kind = call.tape, call.tape.dtype(call.x)
    rows, width, block = (call.attribute(name) for name in ("N", "K", "block_size"))
    bits, blocks = call.attribute("bits", 4), -(-width // block)
    packed = t.reshape(t.later(call.op.inputs[1], call.dy), (rows, blocks * block * bits // BYTE))
    numbers = t.cast(t.reshape(_unpacked(call, packed, bits), (rows, blocks, block)), kind)
    zeros = call.input(3)
    if zeros is None:
        zero = float(1 << (bits - 1))
        numbers = t.sub(numbers, zero)
    else:
        if t.dtype(zeros) == T.UINT8:
            count = t.size(zeros) // rows
            parts = _unpacked(call, t.reshape(zeros, (rows, count)), bits)
            zeros = t.cast(t.slice(parts, [1], [0], [blocks]), kind)
        numbers = t.sub(numbers, t.reshape(zeros, (rows, blocks, 1)))
    scaled = t.mul(numbers, t.reshape(call.op.inputs[2], (rows, blocks, 1)))
    return t.slice(t.reshape(scaled, (rows, blocks * block)), [1], [0], [width])


def _unpacked(call: Call, packed: str, bits: int) -> str:
    """Numbers of a few bits [rows, n], of bytes [rows, n * bits / 8] that hold the first in their
    lowest bits."""
    t, (rows, count) = call.tape, call.tape.shape(packed)
    if bits == BYTE:
        return packed
    parts = []
    for shift in range(0, BYTE, bits):
        moved = packed
        if shift:
            moved = t.op(
                "BitShift", packed, t.constant(shift, T.UINT8), shape=(rows, count),
                direction="RIGHT",
            )  # fmt: skip
        if shift + bits < BYTE:
            mask = t.constant((1 << bits) - 1, T.UINT8)
            moved = t.op("BitwiseAnd", moved, mask, shape=(rows, count))
        parts.append(t.reshape(moved, (rows, count, 1)))
    return t.reshape(t.concat(parts, 2), (rows, count * len(parts)))
