"""Bytes per element of ONNX types."""

from __future__ import annotations

import math
from collections.abc import Sequence

from onnx import TensorProto as T

_BITS = {
    T.FLOAT: 32, T.UINT8: 8, T.INT8: 8, T.UINT16: 16, T.INT16: 16, T.INT32: 32, T.INT64: 64,
    T.BOOL: 8, T.FLOAT16: 16, T.DOUBLE: 64, T.UINT32: 32, T.UINT64: 64, T.COMPLEX64: 64,
    T.COMPLEX128: 128, T.BFLOAT16: 16, T.UINT4: 4, T.INT4: 4,
    T.STRING: 256,  # the std::string object alone (32 bytes): characters are on the heap
    **{
        getattr(T, name): bits
        for name, bits in {
            "FLOAT8E4M3FN": 8, "FLOAT8E4M3FNUZ": 8, "FLOAT8E5M2": 8, "FLOAT8E5M2FNUZ": 8,
            "FLOAT8E8M0": 8, "FLOAT4E2M1": 4, "UINT2": 2, "INT2": 2,
        }.items()
        if hasattr(T, name)  # types newer than the oldest onnx release supported
    },
}  # fmt: skip

# The type names onnxruntime prints in profiles and session signatures.
ORT_NAMES = {name.lower(): kind for name, kind in T.DataType.items() if kind != T.UNDEFINED}


def tensor_bytes(dtype: int, shape: Sequence[int]) -> int:
    """Bytes of a dense tensor; types of less than a byte are packed."""
    return math.ceil(_BITS.get(dtype, 0) * math.prod(shape) / 8)
