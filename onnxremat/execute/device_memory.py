"""Bytes per device of a partitioned model, predicted and measured the same way.

On a device: the weights of all its partitions, which stay; values between partitions, from when
they are made or arrive to the end of the last partition or copy that uses them; and, while a
partition runs, what it holds inside. State updated in place takes no second buffer, and counts
where it is updated when that device holds its state (``Device.holds_state``). A copy of an input in
another memory counts there.

Where budgets count them (:class:`~onnxremat.rewrite.partition.Counted`): what onnxruntime keeps of
sessions and nodes, and each device's share of what the caller holds in the processor's memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from onnxremat.device.machine import Machine
from onnxremat.execute.inside import Inside
from onnxremat.execute.pools import pooled
from onnxremat.rewrite.partition import Copy, Partition, Partitioned
from onnxremat.session.process import SESSION
from onnxremat.units import format_bytes


@dataclass(frozen=True)
class Resident:
    """Bytes of a device that are there all the time.

    Attributes:
        weights: of all its partitions.
        inputs: copies of inputs in its memory, and state that it holds.
        given: its share of what the caller holds in the processor's memory.
        session: what onnxruntime keeps of its sessions and their nodes.
    """

    weights: int
    inputs: int
    given: int
    session: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.inputs + self.given + self.session

    @property
    def words(self) -> str:
        """The parts, for people."""
        parts = {
            "weights": self.weights,
            "inputs and state": self.inputs + self.given,
            "the sessions' structures": self.session,
        }
        named = (f"{format_bytes(size)} {name}" for name, size in parts.items() if size)
        return ", ".join(named) or "nothing"


@dataclass(frozen=True)
class DeviceBytes:
    """What one device holds over a run, one entry per op (or kernel, or copy) in order.

    Attributes:
        stays: what is there all the time.
        steps: (action, op) of each entry; the op is "" for a copy.
        held: bytes while it goes on, resident ones included.
        how: ``predicted``, ``counted`` (by the allocator) or ``heap of the
            process`` (its growth, for providers that allocate on their own).
        between: bytes after each action, whichever device it was on.
    """

    device: str
    stays: Resident
    steps: tuple[tuple[int, str], ...]
    held: tuple[int, ...]
    how: str
    between: tuple[int, ...] = ()

    @property
    def resident(self) -> int:
        """Bytes that are there all the time."""
        return self.stays.total

    @property
    def peak(self) -> int:
        """Bytes at the worst entry."""
        return max(self.held, default=self.resident)

    @property
    def worst(self) -> tuple[int, str]:
        """(action, op) of the worst entry."""
        index = max(range(len(self.held)), key=self.held.__getitem__, default=-1)
        return self.steps[index] if index >= 0 else (-1, "")


def device_bytes(
    parts: Partitioned, machine: Machine, inside: Mapping[int, Inside]
) -> dict[str, DeviceBytes]:
    """Bytes per device, actions being carried out one after the other.

    Args:
        inside: what each partition holds, by action.
    """
    sizes = {name: tensor.bytes for name, tensor in parts.graph.tensors.items()}
    stays = residents(parts, machine, inside)
    between = {name: row.total for name, row in stays.items()}
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
            name, stays[name], tuple(steps[name]), tuple(held[name]),
            used.get(name, "counted"), tuple(after[name]),
        )
        for name in machine.names
    }  # fmt: skip


def residents(
    parts: Partitioned, machine: Machine, inside: Mapping[int, Inside]
) -> dict[str, Resident]:
    """What is on each device all the time.

    Args:
        inside: what each partition holds, by action.
    """
    sizes, placed = parts.graph.tensors, placed_inputs(parts, machine)
    weights, session = dict.fromkeys(machine.names, 0), _sessions(parts, machine, inside)
    for index, part in enumerate(parts.actions):
        if isinstance(part, Partition):
            weights[part.device] += inside[index].weights
    return {
        name: Resident(
            weights[name],
            sum(sizes[value].bytes for value, at in placed if at == name),
            parts.counted.given.get(name, 0),
            session[name],
        )
        for name in machine.names
    }


def _sessions(parts: Partitioned, machine: Machine, inside: Mapping[int, Inside]) -> dict[str, int]:
    """What is kept of the sessions of each device and their nodes. It lies in the processor's
    memory: of a device that has its own it counts on the first that computes there, and nowhere
    where none does."""
    found = dict.fromkeys(machine.names, 0)
    host = next((d.name for d in machine.devices if d.computes and d.in_host_memory), "")
    for index, part in enumerate(parts.actions):
        if isinstance(part, Partition):
            at = part.device if machine.device(part.device).in_host_memory else host
            if at:
                found[at] += inside[index].session
    return {name: size + SESSION if size else 0 for name, size in found.items()}


def placed_inputs(parts: Partitioned, machine: Machine) -> set[tuple[str, str]]:
    """(input, device) where an input of the model counts all the time: where it is read without
    having been moved there, in a memory other than the caller's, or that a plugin provider shares
    with the processor; and state on the device that updates it, or reads it so, when that holds its
    state."""
    found, olds = set(), {new: old for old, new in parts.pairs}
    state, pool = set(olds.values()), pooled(parts, machine)
    for part, (reads, _) in zip(parts.actions, parts.uses, strict=True):
        if not isinstance(part, Partition):
            continue
        device = machine.device(part.device)
        came = {key[0] for key in reads}
        names = {n for n in part.graph.inputs if n in parts.graph.inputs and n not in came}
        if device.holds_state:
            names = (names & state) | {olds[n] for n in part.graph.outputs if n in olds}
        elif device.in_host_memory:
            names = {name for name in names if pool.get(name) == device}
        found |= {(name, part.device) for name in names}
    return found
