"""A library with the kernels of one kind of GPU."""

from __future__ import annotations

import struct
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import cuda_pack


def kernels(arch: int, content: bytes) -> bytes:
    header = struct.pack("<HHIQ", 2, 0, 64, len(content)) + bytes(12) + struct.pack("<I", arch)
    return header + bytes(64 - len(header)) + content


def library() -> bytes:
    """An ELF file with two containers of kernels, as far as its section table goes."""
    entries = [kernels(80, b"a" * 24) + kernels(90, b"b" * 32), kernels(90, b"c" * 8)]
    held = b"".join(struct.pack("<IHHQ", cuda_pack.MAGIC, 1, 16, len(e)) + e for e in entries)
    names = b"\0.text\0.nv_fatbin\0"
    head = bytearray(64)
    head[:6] = b"\x7fELF\x02\x01"
    struct.pack_into("<Q", head, 0x28, 64 + len(held) + len(names))
    struct.pack_into("<HHH", head, 0x3A, 64, 3, 2)
    rows = [(0, 0, 0), (7, 64, len(held)), (0, 64 + len(held), len(names))]
    table = b"".join(
        struct.pack("<I", name) + bytes(0x14) + struct.pack("<QQ", at, size) + bytes(24)
        for name, at, size in rows
    )
    return bytes(head) + held + names + table


def test_kernels_of_other_gpus_are_written_over_in_place(tmp_path: Path) -> None:
    whole = library()
    with zipfile.ZipFile(tmp_path / "onnxruntime_gpu.whl", "w") as wheel:
        wheel.writestr(f"onnxruntime/capi/{cuda_pack.LIBRARY}", whole)
        wheel.writestr("onnxruntime/capi/libonnxruntime_providers_tensorrt.so", b"left out")
        wheel.writestr("onnxruntime/__init__.py", b"pass\n")
    parts = cuda_pack.pack([tmp_path / "onnxruntime_gpu.whl"], tmp_path, 90, 100)
    assert len(parts) > 1
    joined = tmp_path / "joined.tar.xz"
    joined.write_bytes(b"".join(part.read_bytes() for part in parts))
    with tarfile.open(joined) as archive:
        archive.extractall(tmp_path / "site", filter="data")
    found = (tmp_path / "site/onnxruntime/capi" / cuda_pack.LIBRARY).read_bytes()
    assert found == whole.replace(b"a" * 24, bytes(24))
    assert (tmp_path / "site/onnxruntime/__init__.py").read_bytes() == b"pass\n"
    assert not list(tmp_path.glob("site/onnxruntime/capi/*tensorrt*"))


def test_a_gpu_that_it_has_no_kernels_for_is_named() -> None:
    with pytest.raises(ValueError, match="no kernels for 120, only for 80, 90"):
        cuda_pack.keep_only(bytearray(library()), 120)
    with pytest.raises(ValueError, match="no 64-bit"):
        cuda_pack.keep_only(bytearray(b"MZ" + bytes(100)), 90)
