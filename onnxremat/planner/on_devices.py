"""Device problems from single-device ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from onnxremat.planner.problem import ANY, Bytes, Floats, Ints, Problem, Rows

MOST = 15  # devices: the search packs a step into 32 bits


@dataclass(frozen=True)
class HostInput:
    """A graph input that the caller holds on a device, where it takes no room.

    Attributes:
        size: bytes it takes on any other device it is copied to.
        home: device that has it.
        readers: ops of the model that read it.
        copy: seconds to copy it, shape (D, D).
    """

    size: int
    home: int
    readers: tuple[int, ...]
    copy: Floats


def copy_seconds(size: ArrayLike, latency: ArrayLike, bandwidth: ArrayLike) -> Floats:
    """Seconds to copy each value over each link: latency + bytes / bandwidth.

    Args:
        size: bytes, shape (m,).
        latency: seconds, shape (D, D).
        bandwidth: bytes per second, shape (D, D); 0 where there is no link.

    Returns:
        Shape (D, D, m), ``inf`` without a link; the diagonal is ``inf`` too.
    """
    rate = np.array(bandwidth, np.float64)
    np.fill_diagonal(rate, 0.0)
    moved = np.asarray(size, np.float64) / np.where(rate > 0, rate, np.inf)[:, :, None]
    seconds: Floats = np.asarray(latency, np.float64)[:, :, None] + moved
    seconds[rate <= 0] = np.inf
    return seconds


@dataclass(frozen=True)
class Devices:
    """What several devices say of a problem of n ops and m values.

    Attributes:
        cost: seconds per run, shape (D, n); ``inf`` where an op cannot run, a whole row for a
            device that only stores (swapping).
        copy: seconds per copy, shape (D, D, m); ``inf`` without a link. See :func:`copy_seconds`.
        names: of the devices; ``device0, device1, ..`` when None.
        work: workspace bytes, shape (D, n); that of ``problem`` on every device when None.
        allowed: where each op may run, shape (D, n) of booleans (pins); everywhere when None.
        group: colocation group per op, -1 for none.
        required: device per value where it must be at the end, -1 for any; for kept values only.
        uses, weight: weights each op reads (n rows) and their bytes, shape (w,), or (D, w) where
            they are not the same on every device.
        fixed: bytes resident throughout per device, shape (D,). When None: ``problem.fixed`` less
            the bytes of ``weight`` on every device that computes, 0 on the others.
        host_inputs: graph inputs that lie on a device; each becomes an op in front, so ops of
            ``problem`` are numbered from ``len(host_inputs)`` on, and a value after those of
            ``problem``.
        copy_busy: seconds of a copy of each value that keep its two devices busy, shape (2, D, m).
    """

    cost: ArrayLike
    copy: ArrayLike
    names: Sequence[str] | None = None
    work: ArrayLike | None = None
    allowed: ArrayLike | None = None
    group: Sequence[int] | None = None
    required: Sequence[int] | None = None
    uses: Rows | None = None
    weight: ArrayLike | None = None
    fixed: ArrayLike | None = None
    host_inputs: Sequence[HostInput] = ()
    copy_busy: ArrayLike | None = None


def on_devices(problem: Problem, given: Devices) -> Problem:
    """A problem of one device on several.

    Args:
        problem: ops, values, in-place and kept values; its costs and workspace are defaults only.

    Raises:
        ValueError: shapes that do not fit, negative numbers, or an op that can run nowhere.
    """
    seconds = np.array(given.cost, np.float64, ndmin=2)
    devices, ops = seconds.shape
    if given.allowed is not None:
        seconds = np.where(np.asarray(given.allowed, np.bool_), seconds, np.inf)
    links = np.array(given.copy, np.float64)
    _expect("cost", seconds, (devices, problem.ops))
    _expect("copy", links, (devices, devices, problem.values))
    links[np.arange(devices), np.arange(devices)] = np.inf
    space = np.broadcast_to(
        problem.work if given.work is None else np.asarray(given.work), (devices, ops)
    )
    sizes = np.broadcast_to(problem.size, (devices, problem.values))
    weights = np.atleast_2d(np.asarray([] if given.weight is None else given.weight, np.int64))
    weights = np.array(np.broadcast_to(weights, (devices, weights.shape[1])))
    placed = np.asarray(ANY if given.required is None else given.required)
    base = Problem(
        names=tuple(given.names) if given.names else tuple(f"device{d}" for d in range(devices)),
        cost=seconds,
        work=np.array(space, np.int64),
        size=np.array(sizes, np.int64),
        copy=links,
        reads=problem.reads,
        writes=problem.writes,
        inplace=problem.inplace,
        keep=problem.keep,
        required=np.where(problem.keep, placed, ANY).astype(np.int32),
        recompute=problem.recompute,
        group=np.asarray([ANY] * ops if given.group is None else given.group, np.int32),
        uses=given.uses if given.uses is not None else Rows.of([[] for _ in range(ops)]),
        weight=weights,
        fixed=_fixed(problem, seconds, weights, given.fixed),
        copy_busy=None if given.copy_busy is None else np.array(given.copy_busy, np.float64),
    )
    made = _with_host_inputs(base, given.host_inputs) if given.host_inputs else base
    _validate(made)
    return made


def _fixed(
    problem: Problem, cost: Floats, weights: Bytes, fixed: ArrayLike | None
) -> NDArray[np.int64]:
    if fixed is not None:
        return np.array(fixed, np.int64, ndmin=1)
    rest = np.maximum(0, int(problem.fixed[0]) - weights.sum(axis=1))
    return np.where(np.isfinite(cost).any(axis=1), rest, 0).astype(np.int64)


def _with_host_inputs(base: Problem, host_inputs: Sequence[HostInput]) -> Problem:
    """Source ops in front, their values at the end."""
    count, devices = len(host_inputs), base.devices
    cost = np.full((devices, count), np.inf)
    size = np.repeat(np.asarray([[item.size for item in host_inputs]], np.int64), devices, axis=0)
    copy = np.stack([np.asarray(item.copy, np.float64) for item in host_inputs], axis=2)
    reads = base.reads.lists()
    for k, item in enumerate(host_inputs):
        cost[item.home, k], size[item.home, k] = 0.0, 0
        for op in item.readers:
            reads[op].append(base.values + k)
    none: list[list[int]] = [[] for _ in host_inputs]
    ids: Ints = np.full(count, ANY, np.int32)
    return Problem(
        names=base.names,
        cost=np.hstack([cost, base.cost]),
        work=np.hstack([np.zeros((devices, count), np.int64), base.work]),
        size=np.hstack([base.size, size]),
        copy=np.concatenate([base.copy, copy], axis=2),
        reads=Rows.of(none + reads),
        writes=Rows.of([[base.values + k] for k in range(count)] + base.writes.lists()),
        inplace=Rows.of(none + base.inplace.lists()),
        keep=np.concatenate([base.keep, np.zeros(count, np.bool_)]),
        required=np.concatenate([base.required, ids]),
        recompute=np.concatenate([np.ones(count, np.bool_), base.recompute]),
        group=np.concatenate([ids, base.group]),
        uses=Rows.of(none + base.uses.lists()),
        weight=base.weight,
        fixed=base.fixed,
        host_inputs=count,
        copy_busy=None
        if base.copy_busy is None
        else np.dstack([base.copy_busy, np.zeros((2, devices, count))]),
    )


def _expect(name: str, array: NDArray[np.generic], shape: tuple[int, ...]) -> None:
    if array.shape != shape:
        raise ValueError(f"{name} has shape {array.shape}, expected {shape}")


def _validate(problem: Problem) -> None:
    devices, ops, values = problem.devices, problem.ops, problem.values
    if devices > MOST:
        raise ValueError(f"{devices} devices: at most {MOST} are supported")
    for name, shape in (
        ("cost", (devices, ops)), ("work", (devices, ops)), ("size", (devices, values)),
        ("copy", (devices, devices, values)), ("keep", (values,)), ("required", (values,)),
        ("recompute", (ops,)), ("group", (ops,)), ("fixed", (devices,)),
        ("busy", (2, devices, values)),
    ):  # fmt: skip
        array = getattr(problem, name)
        _expect(name, array, shape)
        if name in ("cost", "work", "size", "copy", "fixed", "busy") and not bool(
            (array >= 0).all()
        ):
            raise ValueError(f"{name} has a negative entry or one that is no number")
    for name, rows in (("reads", problem.reads), ("writes", problem.writes),
                       ("inplace", problem.inplace), ("uses", problem.uses)):  # fmt: skip
        if len(rows) != ops:
            raise ValueError(f"{name} has {len(rows)} rows for {ops} ops")
    if (problem.copy < np.maximum(problem.busy[0][:, None], problem.busy[1])).any():
        raise ValueError("copy_busy has an entry above the seconds of a copy")
    if (problem.required >= devices).any():
        raise ValueError(f"a value is required on a device above {devices - 1}")
    nowhere = np.flatnonzero(~np.isfinite(problem.cost).any(axis=0))
    if len(nowhere):
        raise ValueError(f"op {nowhere[0]} can run on no device: allow it somewhere")
