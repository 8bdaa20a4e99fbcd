"""In which order a device does its pieces, where samples come back to it: in rounds.

In round t a device does each of its pieces once, piece s with sample t - lag(s), in one order. The
order and the lags are those of a modulo schedule: a piece starts at ``start(s)`` seconds, for
sample n at ``start(s) + n T``, each piece behind the one before it, and those of one device never
at once, modulo T. What is wanted is the least period T, which no device's load exceeds.

Every wait of the threads that carry this out (for the sample, for the piece before on the device,
for room in a queue, for a sample that leaves) is kept by that schedule. So no ring of waits is
without a sample to spare: the threads never stand still, and they pass at least one sample per T.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor

QUEUE = 1  # samples between two stages at least
STEP = 1.005  # from one period that is tried to the next
LEAST = 1e-6  # share of the whole that a piece takes at least: no two start at once
NEAR = 1e-9  # of a period: rounding


@dataclass(frozen=True)
class Rounds:
    """What every device does in a round.

    Attributes:
        lags: per stage, how many samples it is behind the first one of its device.
        order: all stages as they come in a round; a device does its own in this order.
        queues: samples that may wait behind each stage but the last.
        period: seconds from sample to sample.
    """

    lags: tuple[int, ...]
    order: tuple[int, ...]
    queues: tuple[int, ...]
    period: float

    def of(self, stages: Sequence[int]) -> list[tuple[int, int]]:
        """(stage, lag) of some stages of one device, as they come in its round."""
        return [(stage, self.lags[stage]) for stage in self.order if stage in stages]


def cyclic(
    devices: Sequence[str], seconds: Sequence[float], in_flight: int, handing: float = 0.0
) -> Rounds:
    """Rounds of the least period that is found with so many samples inside.

    Args:
        devices: that carries out each stage, in the order in which a sample passes them.
        seconds: of each stage on a sample.
        in_flight: samples inside at most.
        handing: seconds from the end of a stage to the start of the next one.
    """
    whole = sum(seconds) or 1.0
    took = [max(one, LEAST * whole) for one in seconds]
    loads = dict.fromkeys(devices, 0.0)
    for name, one in zip(devices, took, strict=True):
        loads[name] += one
    if len(loads) == len(devices):
        count, passing = len(devices), sum(took) + handing * (len(took) - 1)
        alone = max(*took, passing / in_flight)
        return Rounds((0,) * count, tuple(range(count)), (QUEUE,) * (count - 1), alone)
    period = max(loads.values())
    while True:
        for starts in (_first_gap(devices, took, period, handing),
                       _one_behind_another(devices, took, period, handing)):  # fmt: skip
            if starts and starts[-1] + took[-1] <= in_flight * period * (1 + NEAR):
                return _rounds(devices, took, period, starts)
        # At the time of all pieces there is room for one sample after the other.
        period = min(period * STEP, max(period * (1 + NEAR), sum(took) + handing * len(took)))


def _first_gap(
    devices: Sequence[str], took: Sequence[float], period: float, handing: float
) -> list[float]:
    """Each piece as soon as its device has room; none where one finds no room."""
    busy: dict[str, list[tuple[float, float]]] = {}
    found: list[float] = []
    ready = 0.0
    for name, one in zip(devices, took, strict=True):
        rows = busy.setdefault(name, [])
        begins = [ready, *(ready + (end - ready) % period for _, end in rows)]
        fits = [at for at in begins if all(_apart(at, one, row, period) for row in rows)]
        if not fits:
            return []
        found.append(min(fits))
        rows.append((found[-1], found[-1] + one))
        ready = found[-1] + one + handing
    return found


def _apart(at: float, took: float, other: tuple[float, float], period: float) -> bool:
    """A piece at ``at`` and another one do not meet, modulo the period."""
    begin, end = other
    near = NEAR * period
    behind = (at - begin + near) % period  # that far behind the other one's start
    return behind >= end - begin and behind + took <= period + 2 * near


def _one_behind_another(
    devices: Sequence[str], took: Sequence[float], period: float, handing: float
) -> list[float]:
    """The pieces of a device one behind the other in a round, without gaps: that always fits."""
    free: dict[str, float] = {}
    found: list[float] = []
    ready = 0.0
    for name, one in zip(devices, took, strict=True):
        at = free.get(name, ready)
        at += max(0, ceil((ready - at) / period - NEAR)) * period
        found.append(at)
        free[name] = at + one
        ready = at + one + handing
    return found


def _rounds(
    devices: Sequence[str], took: Sequence[float], period: float, starts: Sequence[float]
) -> Rounds:
    first: dict[str, float] = {}
    lags, offsets = [], []
    for name, start in zip(devices, starts, strict=True):
        behind = start - first.setdefault(name, start)
        lags.append(floor(behind / period + NEAR))
        offsets.append(behind - lags[-1] * period)
    order = sorted(range(len(starts)), key=lambda stage: (offsets[stage], stage))
    queues = [
        max(QUEUE, ceil((starts[stage + 1] - starts[stage] - took[stage]) / period - NEAR))
        for stage in range(len(starts) - 1)
    ]
    return Rounds(tuple(lags), tuple(order), tuple(queues), period)
