"""onnxruntime for one kind of GPU, small: for a GPU machine without a network that takes little.

    pip download --no-deps -d .cuda onnxruntime-gpu==1.31.1 onnx-graphsurgeon highspy   # see below
    python tools/cuda_pack.py .cuda --arch 90 --part-mib 50      # here: .cuda/part0, part1, ...
    cat part* | tar -xJ -C SITE                                  # there, and PYTHONPATH=SITE

The wheel of onnxruntime-gpu is 245 MiB, most of it kernels compiled for six generations of GPUs.
Those of all but one (``--arch``: 75, 80, 86, 89, 90 or 120; an H100 or H200 is 90) are written over
with zeros in the archive, in the library's section .nv_fatbin; nothing else changes. With kernels
of another generation alone the library does not run: the driver says so.

Download for the Python and the platform of that machine:
``--only-binary=:all: --python-version 3.12 --platform manylinux_2_28_x86_64`` and, for highspy,
``--platform manylinux_2_24_x86_64`` as well. Wheels that it needs where Python has NumPy, Numba,
SciPy, onnx, Typer, Rich and Matplotlib: onnxruntime-gpu, onnx-graphsurgeon, highspy (the planner's
solver; SCIP and Gurobi are looked for only when asked for). CUDA 13's cuBLAS, cuRAND, cuFFT, NVRTC
and cuDNN 9 are taken from PyTorch's packages (``nvidia-*``) when PyTorch for CUDA 13 is there;
otherwise ``onnxruntime-gpu[cuda,cudnn]`` names them, and they are larger than all of this.
"""

from __future__ import annotations

import argparse
import io
import lzma
import struct
import sys
import tarfile
import zipfile
from pathlib import Path

LIBRARY = "libonnxruntime_providers_cuda.so"
LEFT_OUT = ("libonnxruntime_providers_tensorrt.so",)
MAGIC = 0xBA55ED50  # of a container of kernels
SECTION = b".nv_fatbin"


def section(library: bytes | bytearray, name: bytes) -> tuple[int, int]:
    """Offset and size of a section of a 64-bit little-endian ELF file.

    Raises:
        ValueError: no such file, or no such section.
    """
    if library[:6] != b"\x7fELF\x02\x01":
        raise ValueError("no 64-bit little-endian ELF file")
    table, entry, count, names = (
        struct.unpack_from("<Q", library, 0x28)[0], *struct.unpack_from("<HHH", library, 0x3A)
    )  # fmt: skip
    strings = struct.unpack_from("<Q", library, table + names * entry + 0x18)[0]
    for index in range(count):
        at = table + index * entry
        start = strings + struct.unpack_from("<I", library, at)[0]
        if library[start : library.index(b"\0", start)] == name:
            offset, size = struct.unpack_from("<QQ", library, at + 0x18)
            return offset, size
    raise ValueError(f"no section {name.decode()}")


def keep_only(library: bytearray, arch: int) -> dict[int, int]:
    """Write zeros over the kernels of all generations but one; returns bytes by generation.

    A container is a header (magic, version, its own size, the size of what follows) and entries,
    each with a header (kind, its own size at 4, the size of the kernels at 8, generation at 28).

    Raises:
        ValueError: the file is built otherwise, or has no kernels for the generation.
    """
    at, size = section(library, SECTION)
    end, found = at + size, dict[int, int]()
    while at + 16 <= end:
        magic, _, header, length = struct.unpack_from("<IHHQ", library, at)
        if magic != MAGIC:
            at += 8  # containers are aligned
            continue
        entry, last = at + header, at + header + length
        while entry < last:
            skip = struct.unpack_from("<I", library, entry + 4)[0]
            held = struct.unpack_from("<Q", library, entry + 8)[0]
            kind = struct.unpack_from("<I", library, entry + 28)[0]
            if not skip or entry + skip + held > last:
                raise ValueError("the kernels of the library are stored in an unknown way")
            found[kind] = found.get(kind, 0) + held
            if kind != arch:
                library[entry + skip : entry + skip + held] = bytes(held)
            entry += skip + held
        at = last
    if arch not in found:
        raise ValueError(f"no kernels for {arch}, only for {', '.join(map(str, sorted(found)))}")
    return found


def pack(wheels: list[Path], target: Path, arch: int, part: int) -> list[Path]:
    """Everything in the wheels as one compressed archive, cut to parts of so many bytes."""
    packed = io.BytesIO()
    with (
        lzma.open(packed, "w", preset=6) as compressed,
        tarfile.open(fileobj=compressed, mode="w|") as archive,
    ):
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as file:
                for info in file.infolist():
                    if info.is_dir() or Path(info.filename).name in LEFT_OUT:
                        continue
                    content = bytearray(file.read(info))
                    if Path(info.filename).name == LIBRARY:
                        kept = keep_only(content, arch)
                        print({kind: f"{size >> 20} MiB" for kind, size in sorted(kept.items())})
                    member = tarfile.TarInfo(info.filename)
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
    whole, made = packed.getvalue(), []
    for index, start in enumerate(range(0, len(whole), part)):
        made.append(target / f"part{index}")
        made[-1].write_bytes(whole[start : start + part])
    return made


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path, help="the wheels; the parts are written here")
    parser.add_argument("--arch", type=int, default=90, help="compute capability without its dot")
    parser.add_argument("--part-mib", type=int, default=50)
    given = parser.parse_args()
    wheels = sorted(given.folder.glob("*.whl")) if given.folder.is_dir() else []
    if not wheels:
        parser.error(
            f"{given.folder} holds no wheels: pip download --no-deps -d {given.folder} ..."
        )
    if given.part_mib < 1:
        parser.error("--part-mib has to be 1 or more")
    try:
        parts = pack(wheels, given.folder, given.arch, given.part_mib << 20)
    except (ValueError, zipfile.BadZipFile) as error:
        parser.error(str(error))
    print(*(f"{path}: {path.stat().st_size / (1 << 20):.1f} MiB" for path in parts), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
