"""Sums in memory that all processes of a machine see; threads play the processes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxremat.workers.sums import common_memory
from onnxremat.workers.sums.common_memory import CommonMemory


@dataclass
class Room:
    """Where so many threads meet, and what they say to each other."""

    size: int
    said: dict[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(self.size)


@dataclass
class Rank:
    rank: int
    room: Room

    @property
    def size(self) -> int:
        return self.room.size

    def meet(self) -> None:
        self.room.barrier.wait(60)

    def everybody(self, value: Any) -> list[Any]:
        self.room.said[self.rank] = value
        self.meet()
        found = [self.room.said[rank] for rank in range(self.size)]
        self.meet()
        return found


def together(size: int, work: Any) -> list[Any]:
    room = Room(size)
    with ThreadPoolExecutor(size) as pool:
        return [one.result(60) for one in [pool.submit(work, Rank(k, room)) for k in range(size)]]


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int64])
def test_everybody_has_the_sum(size: int, kind: type) -> None:
    """Of stretches longer than a block, that no number of ranks divides, and of a part of one."""
    count, part = 40_003, slice(17, 20)
    rows = np.random.default_rng(size).integers(-99, 99, (size, count)).astype(kind)

    def work(rank: Rank) -> tuple[np.ndarray, np.ndarray]:
        memory = CommonMemory(rank)
        stretches = [memory.stretch(count * rows.itemsize) for _ in range(2)]
        arrays = [each.view(kind) for each in stretches if each is not None]
        assert len(arrays) == 2
        assert not any(array.any() for array in arrays)
        for array in arrays:
            array[:] = rows[rank.rank]
        assert memory.holds([arrays[0], arrays[1][part]])
        assert not memory.holds([np.zeros(3, kind)])
        memory.add_up([arrays[0], arrays[1][part]])
        return arrays[0], arrays[1]

    total = rows.sum(axis=0)
    for rank, (whole, other) in enumerate(together(size, work)):
        np.testing.assert_array_equal(whole, total)
        wanted = rows[rank].copy()
        wanted[part] = total[part]
        np.testing.assert_array_equal(other, wanted)


def test_all_do_without_where_one_cannot_see_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """As between machines, where a process of that number is another one, or none."""
    seen = common_memory._seen

    def elsewhere(size: int, process: int, file: int, token: bytes) -> np.ndarray | None:
        return seen(size, process, file, token[::-1])

    def stretch(rank: Rank) -> np.ndarray | None:
        return CommonMemory(rank).stretch(100)

    open_files = len(list(Path("/proc/self/fd").iterdir()))
    monkeypatch.setattr(common_memory, "_seen", elsewhere)
    assert together(2, stretch) == [None, None]
    monkeypatch.setattr(common_memory, "_seen", lambda *_: None)
    assert together(2, stretch) == [None, None]
    monkeypatch.setattr(common_memory, "_made", lambda *_: (-1, None))
    assert together(2, stretch) == [None, None]
    assert len(list(Path("/proc/self/fd").iterdir())) == open_files
