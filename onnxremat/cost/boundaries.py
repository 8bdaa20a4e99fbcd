"""What cutting a model to sessions costs beside its ops.

A session's inputs and outputs each have a buffer of their own, which no other op of it reuses while
it is in the cache: what goes from one session to another goes through memory. It is written (which
fetches the line first: two transfers per byte) and read again (one).
"""

from __future__ import annotations

from onnxremat.cost.table import CostTable

CALL = 1e-5  # seconds: binding, the call and bookkeeping (tools/bench_devices.py --boundary)


def call_seconds(table: CostTable, values: int = 0) -> float:
    """Seconds to call a session with so many inputs and outputs on a device."""
    return max(CALL, table.call) + values * table.value


def traffic_seconds(table: CostTable, *, read: int = 0, written: int = 0) -> float:
    """Seconds for bytes that a session reads from, or leaves for, other sessions."""
    return (read + 2 * written) / table.bandwidth if table.bandwidth else 0.0


def leaving_seconds(source: CostTable, size: int) -> float:
    """Seconds that a device loses by handing on a value: it is written to memory, and the device's
    next session is called."""
    return CALL + source.value + traffic_seconds(source, written=size)


def arriving_seconds(target: CostTable, size: int) -> float:
    """Seconds that a device loses by taking a value: a session is called that reads it."""
    return call_seconds(target, 1) + traffic_seconds(target, read=size)


def crossing_seconds(source: CostTable | None, target: CostTable | None, size: int) -> float:
    """Seconds that a value costs by going from a session on one device to one on another, the
    link's own aside; None for a device that only stores. Of the two calls one would be there
    without the value."""
    out = leaving_seconds(source, size) if source else 0.0
    into = arriving_seconds(target, size) if target else 0.0
    return out + into - (CALL if source and target else 0.0)
