"""Weights that are mapped from a file leave memory while a session is made, and become its own."""

from __future__ import annotations

import ctypes
import mmap
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from onnxremat.memory.mapped import MAPS, can_own, let_go, letting_go, make_own, mapped
from tests.limits import LONG

pytestmark = pytest.mark.skipif(not can_own(), reason="this system does not tell what is mapped")
SIZE = 4 << 20


@pytest.fixture
def weights(tmp_path: Path) -> Iterator[tuple[Path, np.ndarray]]:
    """A file, and its pages as onnxruntime maps weights: private, writable, all read."""
    file = tmp_path / "weights"
    file.write_bytes(np.arange(SIZE // 4, dtype=np.int32).tobytes())
    with file.open("rb") as opened:
        held = mmap.mmap(opened.fileno(), SIZE, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    values = np.frombuffer(held, np.int32)
    assert values.sum(dtype=np.int64) > 0
    yield file, values
    ctypes.CDLL(None).mprotect(
        ctypes.c_void_p(values.ctypes.data), ctypes.c_size_t(SIZE), mmap.PROT_READ | mmap.PROT_WRITE
    )


def resident(file: Path) -> int:
    """Bytes of the file that this process holds through the mapping."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    for line in lines:
        if line.endswith(str(file)):
            return next(int(row.split()[1]) * 1024 for row in lines if row.startswith("Rss:"))
    return 0


def test_pages_leave_and_come_back(weights: tuple[Path, np.ndarray]) -> None:
    file, values = weights
    assert resident(file) == SIZE
    let_go(file)
    assert resident(file) == 0
    assert np.array_equal(values, np.arange(SIZE // 4, dtype=np.int32))
    make_own(mapped(file))
    assert not mapped(file)
    file.write_bytes(b"another")
    assert np.array_equal(values, np.arange(SIZE // 4, dtype=np.int32))


def test_they_leave_again_and_again_while_a_session_is_made(
    weights: tuple[Path, np.ndarray],
) -> None:
    file, values = weights
    end = time.monotonic() + LONG
    with letting_go(file):
        for _ in range(3):
            assert values[-1] == SIZE // 4 - 1
            while resident(file) and time.monotonic() < end:
                time.sleep(0.001)
            assert resident(file) == 0
    assert str(file) in MAPS.read_text()
