"""Flat arrays and work space for the compiled search over schedules.

A step is one number: item << 8 | device << 4 | (source + 1), so that lists of steps are plain
int32 arrays. Kernels take one :class:`Arrays` (the problem) and one :class:`Scratch`, as in
:mod:`onnxremat.planner.search`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numba
import numpy as np
from numba import types
from numpy.typing import NDArray

from onnxremat.planner.problem import Ints, Rows
from onnxremat.planner.problem_lists import ProblemLists
from onnxremat.planner.schedule import Step

Kernel = TypeVar("Kernel", bound=Callable[..., Any])

I32 = types.Array(types.int32, 1, "C")
I64 = types.Array(types.int64, 1, "C")
F64 = types.Array(types.float64, 1, "C")
U8 = types.Array(types.uint8, 1, "C")
U8_2D = types.Array(types.uint8, 2, "C")
I32_2D = types.Array(types.int32, 2, "C")
I64_2D = types.Array(types.int64, 2, "C")
F64_2D = types.Array(types.float64, 2, "C")
F64_3D = types.Array(types.float64, 3, "C")
U64 = types.Array(types.uint64, 1, "C")


class Arrays(NamedTuple):
    """The problem; ``start``/``index`` pairs are compressed rows."""

    cost: NDArray[np.float64]  # (D, n)
    work: NDArray[np.int64]  # (D, n)
    size: NDArray[np.int64]  # (D, m)
    copy: NDArray[np.float64]  # (D, D, m)
    read_start: NDArray[np.int32]
    read_index: NDArray[np.int32]
    write_start: NDArray[np.int32]
    write_index: NDArray[np.int32]
    take_start: NDArray[np.int32]
    take_index: NDArray[np.int32]
    use_start: NDArray[np.int32]
    use_index: NDArray[np.int32]
    weight: NDArray[np.int64]
    fixed: NDArray[np.int64]
    keep: NDArray[np.uint8]
    goal: NDArray[np.int32]
    producer: NDArray[np.int32]
    again: NDArray[np.uint8]  # ops that may run a second time
    group: NDArray[np.int32]
    toll: NDArray[np.float64]  # (2, D, m)


class Scratch(NamedTuple):
    """Work space of one search thread; lengths follow :func:`scratch_for`."""

    first: NDArray[np.int32]  # per step: number of its first instance
    looks: NDArray[np.int32]  # per step: start of the instances it reads
    read: NDArray[np.int32]  # instances read
    taker: NDArray[np.int32]  # per step: start of its takeover candidates
    takes: NDArray[np.int32]  # candidate instances
    taken: NDArray[np.int32]  # per step: instance taken over, -1 for none
    death: NDArray[np.int32]  # per instance: last step that needs it
    owner: NDArray[np.int32]  # per instance: value
    place: NDArray[np.int32]  # per instance: device
    reads: NDArray[np.int32]  # per instance: how often it is read
    current: NDArray[np.int32]  # (D, m): instance, -1 for none
    seen: NDArray[np.int32]  # per op: runs
    home: NDArray[np.int32]  # per group: device
    there: NDArray[np.int32]  # (D, w): weight in use
    resident: NDArray[np.int64]  # per device: bytes throughout
    peak: NDArray[np.int64]  # per device
    over: NDArray[np.int64]  # per step: bytes over budget on the devices it touches
    figures: NDArray[np.float64]  # seconds, excess area, makespan
    random: NDArray[np.uint64]  # one entry: state of the generator


ARRAYS = types.NamedTuple(
    (
        F64_2D, I64_2D, I64_2D, F64_3D, I32, I32, I32, I32, I32, I32, I32, I32, I64, I64, U8, I32,
        I32, U8, I32, F64_3D,
    ),
    Arrays,
)  # fmt: skip
SCRATCH = types.NamedTuple(
    (
        I32, I32, I32, I32, I32, I32, I32, I32, I32, I32, I32_2D, I32, I32, I32_2D, I64, I64, I64,
        F64, U64,
    ),
    Scratch,
)  # fmt: skip


def compiled(signature: Any) -> Callable[[Kernel], Kernel]:
    """Compile a kernel for one signature, cached on disk, without the interpreter lock."""
    decorator: Callable[[Kernel], Kernel] = numba.njit(
        signature, cache=True, nogil=True, error_model="numpy"
    )
    return decorator


def arrays_of(layout: ProblemLists) -> Arrays:
    """Flatten a problem for the kernels."""
    problem = layout.problem
    takes = Rows.of(layout.inplace)
    return Arrays(
        cost=np.ascontiguousarray(problem.cost, np.float64),
        work=np.ascontiguousarray(problem.work, np.int64),
        size=np.ascontiguousarray(problem.size, np.int64),
        copy=np.ascontiguousarray(problem.copy, np.float64),
        read_start=_ints(problem.reads.start),
        read_index=_ints(problem.reads.index),
        write_start=_ints(problem.writes.start),
        write_index=_ints(problem.writes.index),
        take_start=_ints(takes.start),
        take_index=_ints(takes.index),
        use_start=_ints(problem.uses.start),
        use_index=_ints(problem.uses.index),
        weight=np.ascontiguousarray(problem.weight, np.int64),
        fixed=np.ascontiguousarray(problem.fixed, np.int64),
        keep=problem.keep.astype(np.uint8),
        goal=_ints(layout.required),
        producer=_ints(layout.producer),
        again=np.asarray(layout.recomputable, np.uint8),
        group=_ints(problem.group),
        toll=np.ascontiguousarray(problem.busy, np.float64),
    )


def _ints(values: Sequence[int] | Ints) -> Ints:
    return np.ascontiguousarray(values, np.int32)


def scratch_for(arrays: Arrays, steps: int, seed: int) -> Scratch:
    """Work space for schedules of at most ``steps`` steps."""
    devices, values = arrays.size.shape
    widest = int(np.diff(arrays.write_start).max(initial=1))
    reading = int(np.diff(arrays.read_start).max(initial=1))
    taking = int(np.diff(arrays.take_start).max(initial=1))
    groups = int(arrays.group.max(initial=0)) + 1

    def ints(count: int) -> Ints:
        return np.zeros(count, np.int32)

    return Scratch(
        first=ints(steps + 2),
        looks=ints(steps + 2),
        read=ints(steps * max(1, reading) + 2),
        taker=ints(steps + 2),
        takes=ints(steps * max(1, taking) + 2),
        taken=ints(steps + 2),
        death=ints(steps * max(1, widest) + 2),
        owner=ints(steps * max(1, widest) + 2),
        place=ints(steps * max(1, widest) + 2),
        reads=ints(steps * max(1, widest) + 2),
        current=np.zeros((devices, values + 1), np.int32),
        seen=ints(arrays.cost.shape[1] + 1),
        home=ints(groups),
        there=np.zeros((devices, len(arrays.weight) + 1), np.int32),
        resident=np.zeros(devices, np.int64),
        peak=np.zeros(devices, np.int64),
        over=np.zeros(steps + 2, np.int64),
        figures=np.zeros(4, np.float64),
        random=np.asarray([(seed * 2654435761 + 88172645463325252) % (1 << 64)], np.uint64),
    )


def pack(steps: Sequence[Step]) -> Ints:
    """Steps as numbers."""
    return np.asarray([s.item << 8 | s.device << 4 | s.source + 1 for s in steps], np.int32)


def unpack(codes: Ints) -> tuple[Step, ...]:
    """The inverse of :func:`pack`."""
    return tuple(Step(c >> 8, c >> 4 & 15, (c & 15) - 1) for c in codes.tolist())
