"""Cuts that keep budgets: a session holds its inputs and results until it is done, a cut lets them
go, to another device or altogether."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from onnxremat.device.machine import Machine
from onnxremat.execute.device_memory import DeviceBytes, device_bytes
from onnxremat.execute.inside import Known, insides
from onnxremat.rewrite.partition import Copy, Counted, Key, Partition, Partitioned, partition
from onnxremat.rewrite.pins import is_added
from onnxremat.rewrite.stretches import eager_cuts
from onnxremat.schedule.devices import Followed, Ran
from onnxremat.session.process import further_bytes

MOST = 400  # cuts; each costs a few microseconds a run


@dataclass(frozen=True)
class Terms:
    """What partitions have to suit, beside their plan.

    Attributes:
        limits: bytes per device.
        pairs: (input, output) tensors that a trainer binds to one buffer.
        folder: where external weights are.
        known: what partitions hold, kept from plan to plan of one graph.
        counted: by the limits.
    """

    limits: Mapping[str, int] = field(default_factory=dict)
    pairs: Sequence[tuple[str, str]] = ()
    folder: Path | None = None
    known: Known = field(default_factory=dict)
    counted: Counted = field(default_factory=Counted)


def partition_within(
    followed: Followed,
    machine: Machine,
    scratch: Mapping[str, Mapping[str, int]],
    terms: Terms,
    *,
    eager: bool = False,
) -> Partitioned:
    """Partitions, cut further at the worst op of a device that is over its limit while that lets
    dead inputs go. A limit may stay missed: the caller looks.

    Args:
        scratch: bytes per device and op.
        eager: begin with :func:`~onnxremat.rewrite.stretches.eager_cuts`.
    """
    cuts = eager_cuts(followed, terms.pairs) if eager else set()
    parts = partition(followed, pairs=terms.pairs, cuts=cuts, counted=terms.counted)
    most = len(cuts) + MOST
    while len(cuts) < most:
        inside = insides(parts, machine, scratch, terms.known, terms.folder)
        found = device_bytes(parts, machine, inside)
        more = {
            op
            for name, limit in terms.limits.items()
            for action, worst in _over(found[name], limit).items()
            for op in _cut(parts, found[name], action, worst)
        } - cuts
        if not more:
            return parts
        cuts |= more
        parts = partition(followed, pairs=terms.pairs, cuts=cuts, counted=terms.counted)
    return parts


def _over(device: DeviceBytes, limit: int) -> dict[int, str]:
    """The worst op of every action that is over the limit."""
    worst: dict[int, tuple[int, str]] = {}
    for (action, op), held in zip(device.steps, device.held, strict=True):
        if held > max(limit, worst.get(action, (0, ""))[0]):
            worst[action] = held, op
    return {action: op for action, (_, op) in worst.items()}


def _cut(parts: Partitioned, device: DeviceBytes, action: int, op: str) -> list[str]:
    """The op to cut before, where that lets values go: inputs that nobody reads from there on,
    and results that only wait to be copied to another device."""
    part = parts.actions[action]
    if not isinstance(part, Partition):
        return []
    ops = [o.name for o in part.graph.ops]
    listed = [name for at, name in device.steps if at == action]
    real = [name for name in listed[: listed.index(op) + 1] if not is_added(name)]
    place = ops.index(real[-1]) if real and real[-1] in ops else 0
    still = {name for o in part.graph.ops[place:] for name in o.reads}
    dying = {key[0] for key in parts.dies[action]}
    gone = [n for n in part.graph.inputs if n in dying]
    before = {name for o in part.graph.ops[:place] for name in o.writes}
    gone += [name for name in _leaving(parts, action, ops[place]) if name in before]
    least = further_bytes() if parts.counted.sessions else 0  # what one partition more takes
    if place and sum(parts.graph.tensors[n].bytes for n in gone if n not in still) > least:
        return [ops[place]]
    return []


def _leaving(parts: Partitioned, action: int, op: str) -> list[str]:
    """Results of a partition that are copied away before an op of it runs, and used no more."""
    step = next(
        event.step
        for event in parts.followed.events
        if isinstance(event, Ran) and event.op.name == op
    )
    used: dict[Key, list[bool]] = {key: [] for key in parts.uses[action][1]}
    for later in range(action + 1, len(parts.actions)):
        other = parts.actions[later]
        for key in parts.uses[later][0]:
            if key in used:
                used[key].append(isinstance(other, Copy) and other.begin < step)
    return [key[0] for key, rows in used.items() if rows and all(rows)]
