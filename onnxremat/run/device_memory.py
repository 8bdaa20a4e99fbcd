"""Bytes per device of a partitioned model, predicted and measured the same way.

On a device: the weights of all its partitions, which stay; values between partitions, from when
they are made or arrive to the end of the last partition or copy that uses them; and, while a
partition runs, what it holds inside. Inputs the caller holds in the same memory count nowhere;
a copy of them in another memory counts there. State updated in place takes no second buffer, and
counts where it is updated when that device holds its state (``Device.holds_state``).
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from onnxremat.device.machine import Device, Machine
from onnxremat.graph.ir import Graph, Role
from onnxremat.graph.onnx_io import to_model
from onnxremat.ort.binding import wrap
from onnxremat.ort.feeds import seeded_feeds
from onnxremat.ort.profile import Profile
from onnxremat.ort.providers import missing, open_on, tiny_model
from onnxremat.ort.session import TUNED
from onnxremat.ort.values import Stage
from onnxremat.ort.weights import held_by
from onnxremat.rewrite.partition import Copy, Partition, Partitioned, part_graph
from onnxremat.run.executor import Executor, pooled, ready_made
from onnxremat.run.measure import executed
from onnxremat.run.resident import heap_bytes
from onnxremat.schedule.simulate import Rules, simulate


@dataclass(frozen=True)
class DeviceBytes:
    """What one device holds over a run, one entry per op (or kernel, or copy) in order.

    Attributes:
        resident: weights, and inputs of another memory.
        steps: (action, op) of each entry; the op is "" for a copy.
        held: bytes while it goes on, resident ones included.
        how: ``predicted``, ``counted`` (by the allocator) or ``heap of the
            process`` (its growth, for providers that allocate on their own).
        between: bytes after each action, whichever device it was on.
    """

    device: str
    resident: int
    steps: tuple[tuple[int, str], ...]
    held: tuple[int, ...]
    how: str
    between: tuple[int, ...] = ()

    @property
    def peak(self) -> int:
        """Bytes at the worst entry."""
        return max(self.held, default=self.resident)

    @property
    def worst(self) -> tuple[int, str]:
        """(action, op) of the worst entry."""
        index = max(range(len(self.held)), key=self.held.__getitem__, default=-1)
        return self.steps[index] if index >= 0 else (-1, "")


@dataclass(frozen=True)
class Inside:
    """What a partition holds beside what others left on the device.

    Attributes:
        weights: bytes of its session's weights.
        ops, held: bytes of live values and scratch while each of its ops runs.
        how: see :class:`DeviceBytes`.
    """

    weights: int
    ops: tuple[str, ...]
    held: tuple[int, ...]
    how: str

    @property
    def peak(self) -> int:
        """Bytes at the worst op, weights excluded."""
        return max(self.held, default=0)


Known = dict[tuple[str, tuple[str, ...], tuple[str, ...]], Inside]


def predicted_inside(
    part: Partition,
    device: Device,
    scratch: Mapping[str, int],
    updated: Collection[str] = (),
    pool: Collection[str] = (),
) -> Inside:
    """What a partition will hold.

    Args:
        scratch: bytes per op.
        updated: outputs that are written into state.
        pool: values that get their buffer before the partition that makes them starts.
    """
    early = ready_made(part, pool, updated)
    graph = _in_place(part_graph(part, device), {*updated, *early})
    line = simulate(executed(graph, TUNED), Rules(), scratch=scratch)
    there = sum(part.graph.tensors[name].bytes for name in early)
    held = tuple(a + b + there for a, b in zip(line.live, line.scratch, strict=True))
    return Inside(held_by(graph), line.ops, held, "predicted")


def _in_place(graph: Graph, updated: Collection[str]) -> Graph:
    """The graph in which values written into given buffers take no bytes of their own."""
    tensors = dict(graph.tensors)
    for name in updated:
        if name in tensors and tensors[name].role is Role.OUTPUT:
            tensors[name] = replace(tensors[name], bytes=0)
    return graph.with_ops(graph.ops, tensors)


def measured_inside(
    part: Partition, found: Profile, updated: Collection[str] = (), pool: Collection[str] = ()
) -> Inside:
    """What a partition held, from its session's profile; see :func:`predicted_inside`."""
    weights = max(held_by(part.graph), found.weight_bytes)
    # The session was given these, so that its own counters miss them.
    early = ready_made(part, pool, updated)
    there = sum(part.graph.tensors[name].bytes for name in early)
    held = tuple(kernel.live + kernel.scratch + there for kernel in found.kernels)
    return Inside(weights, tuple(k.name for k in found.kernels), held, "counted")


def opaque_inside(part: Partition, device: Device, folder: Path | None) -> Inside:
    """What a partition takes whose provider allocates on its own: by how much the process grows
    when it is opened and run, results aside. Everything of it stays: weights in the provider's own
    form, the model as onnxruntime and the provider keep it, and the buffers it computes in."""
    least = held_by(part.graph)
    results = sum(part.graph.tensors[name].bytes for name in part.graph.outputs)
    _loaded(device)
    feeds = {name: wrap(array) for name, array in seeded_feeds(part.graph).items()}
    before = heap_bytes()
    stage = Stage(
        open_on(device, to_model(part_graph(part, device)), TUNED, folder),
        device,
        part.graph.outputs,
        {},
    )
    for name, value in feeds.items():
        stage.bind(name, value)
    values = stage.run([])
    grown = heap_bytes() - before - results if before else 0
    values.clear()
    return Inside(max(least, grown), (part.name,), (results,), "heap of the process")


_open: dict[Device, object] = {}  # a session per provider, so that its library stays loaded


def _loaded(device: Device) -> None:
    """The library of a provider is loaded: it belongs to no partition."""
    if device not in _open:
        _open[device] = open_on(device, tiny_model(), TUNED)


def device_bytes(
    parts: Partitioned, machine: Machine, inside: Mapping[int, Inside]
) -> dict[str, DeviceBytes]:
    """Bytes per device, actions being carried out one after the other.

    Args:
        inside: what each partition holds, by action.
    """
    sizes = {name: tensor.bytes for name, tensor in parts.graph.tensors.items()}
    resident = dict.fromkeys(machine.names, 0)
    for index, found in inside.items():
        resident[parts.actions[index].device] += found.weights  # type: ignore[union-attr]
    for name, device in placed_inputs(parts, machine):
        resident[device] += sizes[name]
    between = dict(resident)
    steps: dict[str, list[tuple[int, str]]] = {name: [] for name in machine.names}
    held: dict[str, list[int]] = {name: [] for name in machine.names}
    after: dict[str, list[int]] = {name: [] for name in machine.names}
    for index, action in enumerate(parts.actions):
        writes = [key for key in parts.uses[index][1] if key not in parts.in_place]
        if isinstance(action, Copy):
            between[action.target] += sizes[action.value]
            steps[action.target].append((index, ""))
            held[action.target].append(between[action.target])
        else:
            at, found = action.device, inside[index]
            steps[at] += [(index, op) for op in found.ops]
            held[at] += [between[at] + extra for extra in found.held]
            between[at] += sum(sizes[key[0]] for key in writes)
        for key in parts.dies[index]:
            if key not in parts.in_place:
                between[key[1]] -= sizes[key[0]]
        for name in machine.names:
            after[name].append(between[name])
    used = {part.device: inside[i].how for i, part in enumerate(parts.actions)
            if isinstance(part, Partition)}  # fmt: skip
    return {
        name: DeviceBytes(
            name, resident[name], tuple(steps[name]), tuple(held[name]),
            used.get(name, "counted"), tuple(after[name]),
        )
        for name in machine.names
    }  # fmt: skip


def placed_inputs(parts: Partitioned, machine: Machine) -> set[tuple[str, str]]:
    """(input, device) where an input of the model counts: in a memory other than the caller's, and
    state on a device that holds it."""
    found, state = set(), {old for old, _ in parts.pairs}
    for part, (reads, _) in zip(parts.actions, parts.uses, strict=True):
        if not isinstance(part, Partition):
            continue
        device = machine.device(part.device)
        came = {key[0] for key in reads}
        found |= {
            (name, part.device)
            for name in part.graph.inputs
            if name in parts.graph.inputs and name not in came
            and (not device.in_host_memory or (device.holds_state and name in state))
        }  # fmt: skip
    return found


def insides(
    parts: Partitioned,
    machine: Machine,
    scratch: Mapping[str, Mapping[str, int]],
    known: Known | None = None,
    folder: Path | None = None,
    *,
    measure: bool = True,
) -> dict[int, Inside]:
    """What each partition will hold, by action.

    Args:
        scratch: bytes per device and op.
        known: kept from call to call while only some partitions change.
        folder: where external weights are.
        measure: open and run partitions of providers that allocate on their own; else, and where
            such a provider is not here, they count as if the processor ran them.
    """
    updated = [new for _, new in parts.pairs]
    known = {} if known is None else known
    pool = pooled(parts, machine)
    found = {}
    for index, part in enumerate(parts.actions):
        if isinstance(part, Partition):
            key = (part.device, tuple(op.name for op in part.graph.ops), part.graph.outputs)
            if key not in known:
                device = machine.device(part.device)
                known[key] = (
                    opaque_inside(part, device, folder)
                    if measure and device.opaque and not missing(device)
                    else predicted_inside(part, device, scratch.get(device.name, {}), updated, pool)
                )
            found[index] = known[key]
    return found


def predicted_bytes(
    parts: Partitioned, machine: Machine, scratch: Mapping[str, Mapping[str, int]]
) -> dict[str, DeviceBytes]:
    """What each device will hold.

    Args:
        scratch: bytes per device and op.
    """
    return device_bytes(parts, machine, insides(parts, machine, scratch))


@dataclass(frozen=True)
class Recorded:
    """A run of a partitioned model under the meter.

    Attributes:
        profiles: per action.
        taken: node to provider, per action.
        bytes: per device.
        outputs: what it returned.
    """

    profiles: dict[int, Profile]
    taken: dict[int, dict[str, str]]
    bytes: dict[str, DeviceBytes]
    outputs: dict[str, np.ndarray]


def record(
    parts: Partitioned,
    machine: Machine,
    feeds: Mapping[str, np.ndarray],
    *,
    folder: Path | None = None,
    state: Mapping[str, np.ndarray] | None = None,
    runs: int = 1,
) -> Recorded:
    """Run under the meter, one action after the other.

    Args:
        runs: measured runs after a first one; bytes are of the last.

    Raises:
        MissingComponentError, ModelError: see :class:`Executor`.
    """
    with (
        tempfile.TemporaryDirectory() as scratch,
        Executor(parts, machine, folder=folder, state=state, record=Path(scratch)) as executor,
    ):
        for _ in range(1 + runs):
            outputs = executor.run(feeds)
        taken = {index: executor.taken(index) for index in executor.stages}
        profiles = executor.profiles(warmup=1)
    inside, pool = {}, pooled(parts, machine)
    updated = [new for old, new in parts.pairs if old in (state or {})]
    for index, part in enumerate(parts.actions):
        if isinstance(part, Partition):
            device = machine.device(part.device)
            inside[index] = (
                opaque_inside(part, device, folder)
                if device.opaque
                else measured_inside(part, profiles[index], updated, pool)
            )
    return Recorded(profiles, taken, device_bytes(parts, machine, inside), outputs)
