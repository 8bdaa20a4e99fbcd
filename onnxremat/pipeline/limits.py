"""What a budget leaves for weights and values: a budget is what the process takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from onnxremat.device.host import memory_bytes
from onnxremat.device.machine import Machine
from onnxremat.pipeline.prepared import Prepared
from onnxremat.rewrite.partition import Counted
from onnxremat.session.process import SESSION, further_bytes
from onnxremat.units import Budget


@dataclass(frozen=True)
class Limit:
    """A budget of one session.

    A number of bytes, or a share of this machine's memory, is for the whole process: what a plan
    may take depends on what its session takes beside. A share of the original's peak (``0.6x``) is
    for what a plan changes, weights and values; the rest, which is the same in the original, comes
    on top.

    Attributes:
        planned: bytes for weights and values, in a session of the graph that stores everything.
        total: bytes for the process, None where that is not what was asked for.
    """

    planned: int
    total: int | None = None

    def of(self, beside: int) -> int:
        """Bytes for weights and values in a process that takes ``beside`` bytes more."""
        return self.planned if self.total is None else max(1, self.total - beside)

    def asked(self, beside: int) -> int:
        """The budget itself, of a process that takes ``beside`` bytes beside weights and values."""
        return self.planned + beside if self.total is None else self.total


def limit_of(prepared: Prepared, budget: Budget) -> Limit | None:
    """A budget in bytes, None for ``min``."""
    size = budget.resolve(device_bytes=memory_bytes(), peak_bytes=prepared.baseline_peak)
    if size is None or budget.of_peak:
        return None if size is None else Limit(size)
    return Limit(max(1, size - prepared.beside.total), size)


def hopeless(prepared: Prepared, budget: Budget) -> bool:
    """No way keeps the budget, whatever is in parts."""
    limit = limit_of(prepared, budget)
    return limit is not None and prepared.floor.above(limit)


def counted_on(prepared: Prepared, machine: Machine, limits: Mapping[str, int]) -> Counted:
    """What budgets of devices count beside what lies on them.

    What the caller holds in the processor's memory (inputs, parameters and state) is on no device
    in particular: devices that compute there have shares of it like their shares of the limits.
    State that devices hold counts on these (``Device.holds_state``) and is in no share.

    Args:
        limits: bytes per device that has a limit; one without takes it all.
    """
    hosts = [d.name for d in machine.devices if d.computes and d.in_host_memory]
    sessions = "session" not in prepared.settings.not_counted
    if not hosts:
        return Counted({}, sessions)
    size = prepared.beside.inputs
    if not any(device.holds_state for device in machine.devices):
        size += prepared.beside.state
    free = [name for name in hosts if name not in limits]
    shares = {name: limits[name] for name in hosts} if not free else {free[0]: 1}
    given, total = {}, sum(shares.values()) or 1  # a share of nothing is nothing
    for name, share in shares.items():
        given[name] = size * share // total
    given[next(iter(given))] += size - sum(given.values())
    return Counted({name: each for name, each in given.items() if each}, sessions)


def device_limits(
    machine: Machine, budgets: Mapping[str, Budget], peak: int, beside: Mapping[str, int]
) -> dict[str, int]:
    """Bytes per device that has a limit, all that its budget counts.

    Args:
        peak: of the original, weights and values; budgets such as ``0.6x`` are shares of it.
        beside: bytes per device that come on top of a share.

    Raises:
        UsageError: see :meth:`Machine.limits`.
    """
    found = machine.limits(budgets, dict.fromkeys(machine.names, peak))
    for name, budget in budgets.items():
        if budget.of_peak:
            found[name] += beside.get(name, 0)
    return found


def on_top(prepared: Prepared, machine: Machine, counted: Counted) -> dict[str, int]:
    """Bytes per device that come on top of a share of the original's weights and values: its share
    of inputs and state, and what a session of the whole model keeps."""
    session = SESSION + further_bytes(prepared.graph) if counted.sessions else 0
    return {
        d.name: counted.given.get(d.name, 0) + session * (d.computes and d.in_host_memory)
        for d in machine.devices
    }
