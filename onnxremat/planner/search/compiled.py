"""Numba with explicit signatures and an on-disk cache: no compiler and no build step for users.

Kernels take one :class:`Arrays` (the problem) and one :class:`Scratch` (work space), both named
tuples of flat arrays, so that every kernel has one signature and compiles once per machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numba
import numpy as np
from numba import types
from numpy.typing import NDArray

from onnxremat.planner.problem import Problem, Rows
from onnxremat.planner.problem_lists import ProblemLists

Kernel = TypeVar("Kernel", bound=Callable[..., Any])

I32 = types.Array(types.int32, 1, "C")
I64 = types.Array(types.int64, 1, "C")
F64 = types.Array(types.float64, 1, "C")
U8 = types.Array(types.uint8, 1, "C")
U64 = types.Array(types.uint64, 1, "C")


class Arrays(NamedTuple):
    """The problem as flat arrays; ``start``/``index`` pairs are compressed rows."""

    cost: NDArray[np.float64]
    work: NDArray[np.int64]
    read_start: NDArray[np.int32]
    read_index: NDArray[np.int32]
    write_start: NDArray[np.int32]
    write_index: NDArray[np.int32]
    take_start: NDArray[np.int32]
    take_index: NDArray[np.int32]
    size: NDArray[np.int64]
    keep: NDArray[np.uint8]
    producer: NDArray[np.int32]
    reader_start: NDArray[np.int32]
    reader_index: NDArray[np.int32]
    again: NDArray[np.uint8]  # ops that may run a second time
    fixed: NDArray[np.int64]  # one entry: bytes resident throughout


class Scratch(NamedTuple):
    """Work space of one search thread; lengths follow :func:`scratch_for`."""

    first: NDArray[np.int32]  # per step: number of its first instance
    taker: NDArray[np.int32]  # per step: start of its takeover candidates
    takes: NDArray[np.int32]  # candidate instances
    death: NDArray[np.int32]  # per instance: last step that reads it
    owner: NDArray[np.int32]  # per instance: value
    current: NDArray[np.int32]  # per value: instance
    seen: NDArray[np.int32]  # per op: stamp
    uses: NDArray[np.int32]  # per step: reads of what it made
    use: NDArray[np.int64]  # per step: bytes
    figures: NDArray[np.float64]  # time, peak, excess area


ARRAYS = types.NamedTuple(
    (F64, I64, I32, I32, I32, I32, I32, I32, I64, U8, I32, I32, I32, U8, I64), Arrays
)
SCRATCH = types.NamedTuple((I32, I32, I32, I32, I32, I32, I32, I32, I64, F64), Scratch)


def compiled(signature: Any, *, lean: bool = False) -> Callable[[Kernel], Kernel]:
    """Compile a kernel for one signature, cached on disk, without the interpreter lock.

    Args:
        lean: the kernel makes no arrays, so the arrays it is given need no reference counts. Taking
            an array out of a named tuple counts twice, atomically: left in, counting takes five
            sixths of the time of the search.
    """
    decorator: Callable[[Kernel], Kernel] = numba.njit(
        signature, cache=True, nogil=True, error_model="numpy", _nrt=not lean
    )
    return decorator


def arrays_of(problem: Problem) -> Arrays:
    """Flatten a problem for the kernels."""
    wiring = ProblemLists(problem)
    take_start = np.zeros(problem.ops + 1, np.int32)
    take_start[1:] = np.cumsum([len(row) for row in wiring.inplace])
    takes = [value for row in wiring.inplace for value in row]
    readers = Rows.of(wiring.readers)
    return Arrays(
        cost=np.ascontiguousarray(problem.cost[0], np.float64),
        work=np.ascontiguousarray(problem.work[0], np.int64),
        read_start=np.ascontiguousarray(problem.reads.start, np.int32),
        read_index=np.ascontiguousarray(problem.reads.index, np.int32),
        write_start=np.ascontiguousarray(problem.writes.start, np.int32),
        write_index=np.ascontiguousarray(problem.writes.index, np.int32),
        take_start=take_start,
        take_index=np.asarray(takes, np.int32),
        size=np.ascontiguousarray(problem.size[0], np.int64),
        keep=problem.keep.astype(np.uint8),
        producer=problem.producer,
        reader_start=np.ascontiguousarray(readers.start, np.int32),
        reader_index=np.ascontiguousarray(readers.index, np.int32),
        again=np.asarray(wiring.recomputable, np.uint8),
        fixed=np.asarray(problem.fixed, np.int64),
    )


def scratch_for(arrays: Arrays, steps: int) -> Scratch:
    """Work space for sequences of at most ``steps`` steps."""
    widest = int(np.diff(arrays.write_start).max(initial=1))
    taking = int(np.diff(arrays.take_start).max(initial=1))
    return Scratch(
        first=np.zeros(steps + 2, np.int32),
        taker=np.zeros(steps + 2, np.int32),
        takes=np.zeros(steps * max(1, taking) + 2, np.int32),
        death=np.zeros(steps * max(1, widest) + 2, np.int32),
        owner=np.zeros(steps * max(1, widest) + 2, np.int32),
        current=np.zeros(len(arrays.size) + 1, np.int32),
        seen=np.zeros(len(arrays.cost) + 1, np.int32),
        uses=np.zeros(steps + 2, np.int32),
        use=np.zeros(steps + 2, np.int64),
        figures=np.zeros(4, np.float64),
    )


def generator(seed: int) -> NDArray[np.uint64]:
    """State of the random generator of one search."""
    return np.asarray([(seed * 2654435761 + 88172645463325252) % (1 << 64)], np.uint64)
