"""Sums over processes of one machine, in memory that all of them see.

What MPI adds up within a machine goes through small buffers, piece by piece, by the cores that
compute. Where every process sees the others' gradients, each adds up its share of the elements,
from everybody's and into everybody's: with n processes each number is read n times and written n
times in all, and nothing is copied in between (Rabenseifner's reduce-scatter and allgather, with
loads and stores for messages).
"""

from __future__ import annotations

import mmap
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

BLOCK = 1 << 16  # bytes that are added up at once: they stay in a core's cache
TOKEN = 64  # bytes ahead of a stretch, by which its owner is known again


class Everybody(Protocol):
    """The processes: :class:`~onnxremat.workers.mpi.Ranks`."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def everybody(self, value: Any) -> list[Any]: ...
    def meet(self) -> None: ...


class CommonMemory:
    """Stretches of memory that the processes of one machine have for each other; all ranks have to
    call whatever says so."""

    def __init__(self, ranks: Everybody) -> None:
        self._ranks = ranks
        self._stretches: list[list[np.ndarray]] = []  # everybody's, this rank's at its number

    def stretch(self, size: int) -> np.ndarray | None:
        """So many bytes, zeros, which the others see; each rank gets its own, all have to call.

        Returns:
            None in all ranks where one of them cannot see another's: on another machine, say.
        """
        token = secrets.token_bytes(TOKEN)
        file, own = _made(size, token)
        told = self._ranks.everybody((os.getpid(), file, token))
        views = [own if rank == self._ranks.rank else _seen(size, *row)
                 for rank, row in enumerate(told)]  # fmt: skip
        found = [view for view in views if view is not None]
        everywhere = all(self._ranks.everybody(len(found) == len(views)))
        if file >= 0:
            os.close(file)  # mapped by whoever is to see it
        if not everywhere:
            return None
        self._stretches.append(found)
        return found[self._ranks.rank]

    def one_for_all(self, size: int) -> np.ndarray | None:
        """So many bytes, zeros, the same ones in all ranks; all have to call.

        Returns:
            None as of :meth:`stretch`.
        """
        return None if self.stretch(size) is None else self._stretches.pop()[0]

    def holds(self, arrays: Sequence[np.ndarray]) -> bool:
        """All of them lie in stretches of this rank."""
        return all(self.rows(array) is not None for array in arrays)

    def add_up(self, arrays: Sequence[np.ndarray]) -> None:
        """Each array becomes the sum of all ranks' arrays, the same bits everywhere; all have to
        call. For arrays that lie in stretches."""
        self._ranks.meet()
        self.add_share(arrays)
        self._ranks.meet()

    def add_share(self, arrays: Sequence[np.ndarray], times: float = 1.0) -> None:
        """This rank's share of sums over all ranks, written to everybody's arrays. Nobody may
        change theirs meanwhile, and all are sums when all ranks have done so.

        Args:
            arrays: that lie in stretches, the same parts of them in all ranks.
            times: what sums are multiplied by.
        """
        for array in arrays:
            rows = self.rows(array)
            assert rows is not None
            share = -(-array.size // self._ranks.size)
            begin = self._ranks.rank * share
            _add_up([row[begin : begin + share] for row in rows], times)

    def rows(self, array: np.ndarray) -> list[np.ndarray] | None:
        """The same elements of all ranks; None where they lie in no stretch."""
        first = array.__array_interface__["data"][0]
        for stretch in self._stretches:
            own = stretch[self._ranks.rank]
            at = first - own.__array_interface__["data"][0]
            if at >= 0 and at + array.nbytes <= own.nbytes:
                return [row[at : at + array.nbytes].view(array.dtype) for row in stretch]
        return None


def _made(size: int, token: bytes) -> tuple[int, np.ndarray | None]:
    """Memory of its own file, which has no name; -1 and None where there can be none."""
    if not hasattr(os, "memfd_create"):
        return -1, None
    file = os.memfd_create("onnxremat")
    try:
        os.ftruncate(file, TOKEN + size)
    except OSError:  # longer than a file may be
        os.close(file)
        return -1, None
    return file, _mapped(file, size, token)


def _seen(size: int, process: int, file: int, token: bytes) -> np.ndarray | None:
    """Memory of another process; None where it is not of this machine, or may not be seen."""
    try:
        with Path(f"/proc/{process}/fd/{file}").open("r+b", buffering=0) as opened:
            if os.fstat(opened.fileno()).st_size != TOKEN + size:
                return None
            return _mapped(opened.fileno(), size, token, other=True)
    except OSError:
        return None


def _mapped(file: int, size: int, token: bytes, *, other: bool = False) -> np.ndarray | None:
    memory = np.frombuffer(mmap.mmap(file, TOKEN + size), np.uint8)
    if not other:
        memory[:TOKEN] = np.frombuffer(token, np.uint8)
    elif memory[:TOKEN].tobytes() != token:  # a process of the same number elsewhere
        return None
    return memory[TOKEN:]


def _add_up(rows: Sequence[np.ndarray], times: float) -> None:
    """Every row becomes the sum of all, in the order of the ranks, times a number."""
    step = BLOCK // rows[0].itemsize
    for at in range(0, rows[0].size, step):
        parts = [row[at : at + step] for row in rows]
        total = parts[0] + parts[1]
        for part in parts[2:]:
            total += part
        if times != 1.0:
            total *= total.dtype.type(times)
        for part in parts:
            part[:] = total
