"""Waits that keep budgets when devices run side by side.

One after the other, the actions hold what ``device_bytes`` says. Side by side, a value may come to
a device before it would have, or stay longer. So for every action on a device all values are
counted that may be there while it runs, in whatever way the streams happen to run: those neither
surely gone before it nor surely made after it. Where that is over the budget, the pair is put back
in the order it has one after the other, biggest value first, until all is within.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from onnxremat.device.machine import Machine
from onnxremat.errors import OverBudgetError
from onnxremat.execute.device_memory import device_bytes, residents
from onnxremat.execute.inside import Inside
from onnxremat.execute.streams import after_with, before, stream_names
from onnxremat.rewrite.partition import Copy, Key, Partitioned
from onnxremat.units import format_bytes


def waits_within(
    parts: Partitioned,
    machine: Machine,
    inside: Mapping[int, Inside],
    limits: Mapping[str, int],
) -> list[tuple[int, int]]:
    """(before, after) pairs of actions to add to the plan's own dependencies.

    Args:
        inside: what each partition holds, by action.
        limits: bytes per device; devices that are not named have no limit.

    Raises:
        OverBudgetError: a device is over its limit even one action after the other.
    """
    _check(parts, machine, inside, limits)
    search = _Search(parts, machine, inside)
    for device, limit in limits.items():
        search.keep(device, limit)
    return search.added


def worst_case(
    parts: Partitioned,
    machine: Machine,
    inside: Mapping[int, Inside],
    waits: list[tuple[int, int]],
) -> dict[str, int]:
    """Bytes no device can exceed, however its streams happen to run."""
    search = _Search(parts, machine, inside, waits)
    return {
        name: max(search.needs(name).values(), default=search.resident[name].total)
        for name in machine.names
    }


def _check(
    parts: Partitioned,
    machine: Machine,
    inside: Mapping[int, Inside],
    limits: Mapping[str, int],
) -> None:
    alone = device_bytes(parts, machine, inside)
    for device, limit in limits.items():
        found = alone[device]
        if found.peak > limit:
            action, op = found.worst
            at = parts.actions[action] if action >= 0 else None
            raise OverBudgetError(
                f"device '{device}' needs {format_bytes(found.peak)}, its budget is "
                f"{format_bytes(limit)}",
                where=f"op {op}" if op else f"copy of '{at.value}'" if isinstance(at, Copy) else "",
                why=f"{format_bytes(found.resident)} of it are there all the time: "
                f"{found.stays.words}",
                hint=f"--budget {device}={found.peak}, or plan for a smaller budget",
                excess=found.peak - limit,
            )


@dataclass
class _Search:
    parts: Partitioned
    machine: Machine
    inside: Mapping[int, Inside]
    added: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        parts = self.parts
        self.names = stream_names(parts, self.machine)
        self.size = {name: tensor.bytes for name, tensor in parts.graph.tensors.items()}
        self.maker: dict[Key, int] = {}
        self.users: dict[Key, int] = {}  # as bits
        for index, (reads, writes) in enumerate(parts.uses):
            for key in writes:
                if key not in parts.in_place:
                    self.maker[key] = index
                    self.users[key] = 1 << index
            for key in reads:
                if key in self.users:
                    self.users[key] |= 1 << index
        dying = {key for row in parts.dies for key in row}
        self.stay = set(self.maker) - dying
        self.resident = residents(parts, self.machine, self.inside)
        self._order()

    def _order(self) -> None:
        self.done = before(self.names, after_with(self.parts, self.added))

    def _touching(self, device: str) -> list[int]:
        """Actions that run on a device or bring a value to it."""
        return [
            index
            for index, action in enumerate(self.parts.actions)
            if (action.target if isinstance(action, Copy) else action.device) == device
        ]

    def _beside(self, device: str, index: int) -> list[Key]:
        """Values that may be on the device while an action runs, its own results aside."""
        gone = self.done[index]
        return [
            key
            for key, maker in self.maker.items()
            if key[1] == device
            and maker != index
            and not self.done[maker] >> index & 1
            and (key in self.stay or self.users[key] & ~gone)
        ]

    def needs(self, device: str) -> dict[int, int]:
        """Bytes that may be on a device while each action that touches it runs."""
        base = self.resident[device].total
        found = {}
        for index in self._touching(device):
            own = self.inside[index].peak if index in self.inside else self._copied(index)
            found[index] = base + own + sum(self.size[k[0]] for k in self._beside(device, index))
        return found

    def _copied(self, index: int) -> int:
        return sum(self.size[key[0]] for key in self.parts.uses[index][1])

    def keep(self, device: str, limit: int) -> None:
        """Add waits until the device is within its limit in every case."""
        while True:
            needs = self.needs(device)
            over = [index for index, need in needs.items() if need > limit]
            pairs = {pair for index in over for pair in self._pairs(device, index)}
            if not pairs:
                return
            self.added += sorted(pairs)
            self._order()

    def _pairs(self, device: str, index: int) -> list[tuple[int, int]]:
        """Waits that take the biggest stranger out of an action's company."""
        for key in sorted(self._beside(device, index), key=lambda k: -self.size[k[0]]):
            maker, users = self.maker[key], self.users[key]
            if maker > index:  # one after the other it would not be there yet
                return [(index, maker)]
            if key not in self.stay and users < 1 << index:  # it would be gone
                late = users & ~self.done[index]
                return [(user, index) for user in range(index) if late >> user & 1]
        return []
