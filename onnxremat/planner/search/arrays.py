"""The problem and its budgets as flat arrays, work space of a replay, and steps as numbers.

The one file of the search that reads the planner's types. A step is one number: the op or value,
the device, and where a copy comes from, so that lists of steps are plain int32 arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from onnxremat.planner.problem import Bytes, Floats, Ints, Rows
from onnxremat.planner.problem_lists import ProblemLists
from onnxremat.planner.schedule import Step
from onnxremat.planner.search.compiled import (
    F64,
    F64_2D,
    F64_3D,
    I32,
    I32_2D,
    I64,
    I64_2D,
    U8,
    U64,
    Random,
    compiled,
    generator,
)

Flags = NDArray[np.uint8]


class Arrays(NamedTuple):
    """The problem and what is asked; ``start``/``index`` pairs are compressed rows.

    Shapes: D devices, n ops, m values, w weights.
    """

    cost: Floats  # (D, n)
    work: Bytes  # (D, n)
    size: Bytes  # (D, m)
    copy: Floats  # (D, D, m)
    busy: Floats  # (2, D, m)
    read_start: Ints
    read_index: Ints
    write_start: Ints
    write_index: Ints
    take_start: Ints
    take_index: Ints
    use_start: Ints
    use_index: Ints
    reader_start: Ints
    reader_index: Ints
    weight: Bytes  # (D, w)
    fixed: Bytes  # (D,)
    budget: Bytes  # (D,)
    keep: Flags  # (m,)
    required: Ints  # (m,)
    producer: Ints  # (m,)
    again: Flags  # (n,): ops that may run a second time
    group: Ints  # (n,)
    free: Flags  # one entry: first runs may leave the base order


class Scratch(NamedTuple):
    """Work space and result of one replay; lengths follow :func:`scratch_for`."""

    first: Ints  # per step: number of its first instance
    looks: Ints  # per step: start of the instances it reads
    read: Ints  # instances read
    taker: Ints  # per step: start of its takeover candidates
    takes: Ints  # candidate instances
    taken: Ints  # per step: instance taken over, -1 for none
    death: Ints  # per instance: last step that needs it
    owner: Ints  # per instance: value
    place: Ints  # per instance: device
    reads: Ints  # per instance: how often it is read
    current: Ints  # (D, m): instance, -1 for none
    seen: Ints  # per op: 1 when it ran
    home: Ints  # per group: device
    there: Ints  # (D, w): weight in use
    resident: Bytes  # per device: bytes throughout
    use: Bytes  # (D, steps): bytes in use
    peak: Bytes  # per device
    figures: Floats  # seconds, excess area
    random: Random


ARRAYS = types.NamedTuple(
    (
        F64_2D, I64_2D, I64_2D, F64_3D, F64_3D, I32, I32, I32, I32, I32, I32, I32, I32, I32, I32,
        I64_2D, I64, I64, U8, I32, I32, U8, I32, U8,
    ),
    Arrays,
)  # fmt: skip
SCRATCH = types.NamedTuple(
    (
        I32, I32, I32, I32, I32, I32, I32, I32, I32, I32, I32_2D, I32, I32, I32_2D, I64, I64_2D,
        I64, F64, U64,
    ),
    Scratch,
)  # fmt: skip

# Of a step's bits four are for the device, four for the source (+ 1, 0 when it runs an op): no
# problem has more than 15 devices.


@compiled(types.int64(types.int64))
def item(code: int) -> int:
    """The op that a step runs, or the value that it copies."""
    return code >> 8


@compiled(types.int64(types.int64))
def device(code: int) -> int:
    """Where a step runs, or where it copies to."""
    return code >> 4 & 15


@compiled(types.int64(types.int64))
def source(code: int) -> int:
    """Where a step copies from, -1 when it runs an op."""
    return (code & 15) - 1


@compiled(types.int64(types.int64, types.int64))
def run_of(op: int, where: int) -> int:
    """The step that runs an op on a device."""
    return op << 8 | where << 4


@compiled(types.int64(types.int64, types.int64, types.int64))
def copy_of(value: int, start: int, to: int) -> int:
    """The step that copies a value from a device to another."""
    return value << 8 | to << 4 | start + 1


def pack(steps: Sequence[Step]) -> Ints:
    """Steps as numbers."""
    return np.asarray([s.item << 8 | s.device << 4 | s.source + 1 for s in steps], np.int32)


def unpack(codes: Ints) -> tuple[Step, ...]:
    """The inverse of :func:`pack`."""
    return tuple(Step(c >> 8, c >> 4 & 15, (c & 15) - 1) for c in codes.tolist())


def runs_in(codes: Ints) -> tuple[Ints, Ints]:
    """The ops that some steps run, and where."""
    runs = codes[codes & 15 == 0]
    return runs >> 8, runs >> 4 & 15


def arrays_of(lists: ProblemLists, budgets: Sequence[int]) -> Arrays:
    """Flatten a problem for the kernels."""
    problem = lists.problem
    takes, readers = Rows.of(lists.inplace), Rows.of(lists.readers)
    return Arrays(
        cost=np.ascontiguousarray(problem.cost, np.float64),
        work=np.ascontiguousarray(problem.work, np.int64),
        size=np.ascontiguousarray(problem.size, np.int64),
        copy=np.ascontiguousarray(problem.copy, np.float64),
        busy=np.ascontiguousarray(problem.busy, np.float64),
        read_start=_ints(problem.reads.start),
        read_index=_ints(problem.reads.index),
        write_start=_ints(problem.writes.start),
        write_index=_ints(problem.writes.index),
        take_start=_ints(takes.start),
        take_index=_ints(takes.index),
        use_start=_ints(problem.uses.start),
        use_index=_ints(problem.uses.index),
        reader_start=_ints(readers.start),
        reader_index=_ints(readers.index),
        weight=np.ascontiguousarray(problem.weight, np.int64),
        fixed=np.ascontiguousarray(problem.fixed, np.int64),
        budget=np.array(budgets, np.int64),
        keep=problem.keep.astype(np.uint8),
        required=_ints(lists.required),
        producer=_ints(lists.producer),
        again=np.asarray(lists.recomputable, np.uint8),
        group=_ints(problem.group),
        free=np.zeros(1, np.uint8),
    )


def _ints(values: Sequence[int] | Ints) -> Ints:
    return np.ascontiguousarray(values, np.int32)


def scratch_for(arrays: Arrays, steps: int, seed: int) -> Scratch:
    """Work space for schedules of at most ``steps`` steps."""
    devices, values = arrays.size.shape
    made = steps * max(1, int(np.diff(arrays.write_start).max(initial=1))) + 2
    reading = max(1, int(np.diff(arrays.read_start).max(initial=1)))
    taking = max(1, int(np.diff(arrays.take_start).max(initial=1)))
    groups = int(arrays.group.max(initial=0)) + 1

    def ints(count: int) -> Ints:
        return np.zeros(count, np.int32)

    return Scratch(
        first=ints(steps + 2),
        looks=ints(steps + 2),
        read=ints(steps * reading + 2),
        taker=ints(steps + 2),
        takes=ints(steps * taking + 2),
        taken=ints(steps + 2),
        death=ints(made),
        owner=ints(made),
        place=ints(made),
        reads=ints(made),
        current=np.zeros((devices, values + 1), np.int32),
        seen=ints(arrays.cost.shape[1] + 1),
        home=ints(groups),
        there=np.zeros((devices, arrays.weight.shape[1] + 1), np.int32),
        resident=np.zeros(devices, np.int64),
        use=np.zeros((devices, steps + 2), np.int64),
        peak=np.zeros(devices, np.int64),
        figures=np.zeros(2, np.float64),
        random=generator(seed),
    )
