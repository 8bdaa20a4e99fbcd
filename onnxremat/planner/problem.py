"""The planner's view of a model on its devices: pure numbers, no ONNX.

One device is a case of several. A :class:`Problem` is what every formulation, search and baseline
reads; what they find is a :class:`~onnxremat.planner.schedule.Schedule`, judged by
:mod:`onnxremat.planner.semantics`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import isfinite

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ints = NDArray[np.int32]
Bytes = NDArray[np.int64]
Floats = NDArray[np.float64]

ANY = -1  # no required device, no group


@dataclass(frozen=True)
class Rows:
    """Lists of ids in compressed sparse rows: row ``i`` is ``index[start[i]:start[i + 1]]``."""

    start: Ints
    index: Ints

    @classmethod
    def of(cls, lists: Sequence[Sequence[int]]) -> Rows:
        """Pack a list of lists."""
        start = np.zeros(len(lists) + 1, np.int32)
        start[1:] = np.cumsum([len(row) for row in lists])
        flat = [item for row in lists for item in row]
        return cls(start, np.asarray(flat, np.int32))

    def __getitem__(self, row: int) -> Ints:
        return self.index[self.start[row] : self.start[row + 1]]

    def __len__(self) -> int:
        return len(self.start) - 1

    def lists(self) -> list[list[int]]:
        """Python lists, which are quicker to walk one by one; they are not to be changed."""
        return self._lists

    @cached_property
    def _lists(self) -> list[list[int]]:
        flat, start = self.index.tolist(), self.start.tolist()
        return [flat[a:b] for a, b in pairwise(start)]


@dataclass(frozen=True)
class Problem:
    """Ops ``0..n-1`` in a topological base order on devices ``0..D-1``, and their values.

    A run of an op on a device starts a new *instance* there of each value it makes, a copy one of
    the value it copies. An instance lives from that step to the last step that reads it on that
    device, being the source of a copy included; a copy takes memory on both sides while it lasts.
    A kept value is made once, by the first run of its op, and copied otherwise; it is placed on a
    device (``required``, or a choice of the schedule where that is -1): the first instance there is
    the only one there and lives to the end. While a step goes on, a device has in use

        fixed + weights of all ops that ever run there + live instances (inputs, outputs included)
        + work[d, v] - takeover   when the step runs op v there,

    where takeover is the size of the first value in ``inplace[v]`` that is not kept and whose
    instance is read for the last time by this step: output 0 of v then moves into its buffer.
    Every op runs at least once on some device.

    A graph input that lies on a device (a host input) is an op that costs nothing, may run again,
    runs only there, and makes a value of size 0 there (the caller holds it); ``host_inputs`` such
    ops come first.

    Attributes:
        names: of the devices, length D.
        cost: seconds per run, shape (D, n); ``inf`` where an op cannot run.
        work: workspace bytes while an op runs, shape (D, n).
        size: bytes of each value on each device, shape (D, m).
        copy: seconds to copy a value from the first to the second device, shape (D, D, m);
            ``inf`` where there is no link.
        reads: values each op reads (only those made by ops; inputs and weights are ``fixed`` or
            outside the account), without repeats.
        writes: values each op makes; every value has exactly one producer.
        inplace: for each op the values whose buffer its output 0 may take over, best first.
        keep: values that must be there at the end, shape (m,).
        required: device where a kept value must be at the end, -1 for any, shape (m,).
        recompute: ops that may run more than once (all devices together), shape (n,); an op whose
            outputs are all kept never needs to.
        group: colocation group of each op, -1 for none, shape (n,): all runs of all ops of a
            group are on one device.
        uses: weights each op reads (n rows); a weight is resident throughout on every device on
            which some op that reads it runs.
        weight: bytes that each weight takes on each device, shape (D, w).
        fixed: bytes resident throughout on each device, shape (D,).
        host_inputs: number of leading ops that only stand for graph inputs.
        copy_busy: seconds of a copy's own that also keep the device it comes from (0) and the one
            it goes to (1) from running ops, shape (2, D, m), no more than the copy takes; None for
            links that do it all by themselves. They count in the makespan only.
    """

    names: tuple[str, ...]
    cost: Floats
    work: Bytes
    size: Bytes
    copy: Floats
    reads: Rows
    writes: Rows
    inplace: Rows
    keep: NDArray[np.bool_]
    required: Ints
    recompute: NDArray[np.bool_]
    group: Ints
    uses: Rows
    weight: Bytes
    fixed: Bytes
    host_inputs: int = 0
    copy_busy: Floats | None = None

    @classmethod
    def plain(
        cls, size: Sequence[int], cost: Sequence[float], reads: Sequence[Sequence[int]]
    ) -> Problem:
        """One device, on which op i makes value i and everything may be recomputed."""
        count = len(size)
        return OneDevice(
            cost=cost,
            work=np.zeros(count, np.int64),
            reads=Rows.of(reads),
            writes=Rows.of([[op] for op in range(count)]),
            size=size,
            keep=np.zeros(count, np.bool_),
            inplace=Rows.of([[] for _ in range(count)]),
            recompute=np.ones(count, np.bool_),
        ).problem()

    @property
    def devices(self) -> int:
        """Number of devices, D."""
        return len(self.names)

    @property
    def ops(self) -> int:
        """Number of ops, n."""
        return int(self.cost.shape[1])

    @property
    def values(self) -> int:
        """Number of values, m."""
        return int(self.size.shape[1])

    @property
    def producer(self) -> Ints:
        """The op that makes each value, shape (m,)."""
        made = np.full(self.values, -1, np.int32)
        for op, row in enumerate(self.writes.lists()):
            made[row] = op
        return made

    @cached_property
    def busy(self) -> Floats:
        """``copy_busy``, zeros where there is none, shape (2, D, m)."""
        if self.copy_busy is None:
            return np.zeros((2, self.devices, self.values))
        return self.copy_busy

    @cached_property
    def resident(self) -> int:
        """Bytes in memory throughout when the first device runs every op: ``fixed`` and weights."""
        return int(self.fixed[0]) + int(self.weight[0, np.unique(self.uses.index)].sum())

    @cached_property
    def skeleton(self) -> Problem:
        """One device with the least cost of each op: same ids, for orders of the ops."""
        if self.devices == 1:
            return self
        return OneDevice(
            cost=self.cost.min(axis=0),
            work=self.work.min(axis=0),
            reads=self.reads,
            writes=self.writes,
            size=self.size.max(axis=0),
            keep=self.keep,
            inplace=self.inplace,
            recompute=self.recompute,
        ).problem()

    @cached_property
    def reference(self) -> float:
        """Seconds that shares of time refer to: each op once on the best single device that can
        run all of them, or each on its own best device when no device can."""
        alone = float(self.cost[:, self.host_inputs :].sum(axis=1).min())
        return alone if isfinite(alone) else float(self.cost.min(axis=0).sum())

    @cached_property
    def alone(self) -> float | None:
        """Seconds of each op once on the best single device, with copies of inputs that lie
        elsewhere; None where no device can run all."""
        found = self.cost[:, self.host_inputs :].sum(axis=1)
        for op in range(self.host_inputs):
            home, (value,) = self.runs_on(op)[0], self.writes[op]
            come = self.copy[home, :, value].copy()
            come[home] = 0.0
            found = found + come
        least = float(found.min())
        return least if isfinite(least) else None

    @cached_property
    def least_seconds(self) -> float:
        """Seconds of each op once on its best device: no schedule takes less."""
        return float(self.cost.min(axis=0).sum()) if self.ops else 0.0

    def runs_on(self, op: int) -> list[int]:
        """Devices an op can run on."""
        return [d for d in range(self.devices) if isfinite(self.cost[d, op])]

    def store_all(self) -> list[int]:
        """The sequence that runs every op once, in the base order."""
        return list(range(self.ops))


@dataclass(frozen=True)
class OneDevice:
    """What a problem of one device holds, n ops and m values.

    Attributes:
        cost, work, recompute: shape (n,).
        reads, writes, inplace: see :class:`Problem`.
        size, keep: shape (m,).
        fixed: bytes resident throughout (weights).
    """

    cost: ArrayLike
    work: ArrayLike
    reads: Rows
    writes: Rows
    size: ArrayLike
    keep: ArrayLike
    inplace: Rows
    recompute: ArrayLike
    fixed: int = 0

    def problem(self) -> Problem:
        """The same with an axis of devices, of length 1."""
        cost, size = np.asarray(self.cost, np.float64), np.asarray(self.size, np.int64)
        ops, values = len(cost), len(size)
        return Problem(
            names=("device0",),
            cost=cost[None],
            work=np.asarray(self.work, np.int64)[None],
            size=size[None],
            copy=np.full((1, 1, values), np.inf),
            reads=self.reads,
            writes=self.writes,
            inplace=self.inplace,
            keep=np.asarray(self.keep, np.bool_),
            required=np.full(values, ANY, np.int32),
            recompute=np.asarray(self.recompute, np.bool_),
            group=np.full(ops, ANY, np.int32),
            uses=Rows(np.zeros(ops + 1, np.int32), np.zeros(0, np.int32)),
            weight=np.zeros((1, 0), np.int64),
            fixed=np.asarray([self.fixed], np.int64),
        )
