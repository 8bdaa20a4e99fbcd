"""What a link between two devices gives, by real copies."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

import numpy as np

from onnxremat.device.machine import Device, Link
from onnxremat.ort.binding import wrap
from onnxremat.ort.values import Copies, moved

SIZES = (1 << 12, 1 << 18, 1 << 22, 1 << 25)  # bytes
Clock = Callable[[], float]  # seconds since some moment
SECONDS = 0.3  # aim for this much measuring per link


def measure_link(source: Device, target: Device, clock: Clock = time.perf_counter) -> Link:
    """Copy values of several sizes, and read bandwidth and latency off a line through the times.

    Devices in one memory hand values over: then the latency is that of one thread waking another,
    and the bandwidth that of a copy, should one be made.

    Args:
        clock: what times are read off.
    """
    times = {size: _copy_seconds(source, target, size, clock) for size in SIZES}
    big, small = SIZES[-1], SIZES[0]
    bandwidth = (big - small) / max(times[big] - times[small], 1e-9)
    shared = source.in_host_memory and target.in_host_memory
    latency = (
        handover_seconds(clock=clock) if shared else max(0.0, times[small] - small / bandwidth)
    )
    return Link(source.name, target.name, bandwidth, latency, shared, "measured")


def _copy_seconds(source: Device, target: Device, size: int, clock: Clock) -> float:
    copies = Copies()
    array = np.ones(size // 4, np.float32)
    value = wrap(array) if source.in_host_memory else moved(wrap(array), source, copies)
    times: list[float] = []
    start = clock()
    while len(times) < 4 or (clock() - start < SECONDS / len(SIZES) and len(times) < 50):
        begin = clock()
        moved(value, target, copies)
        times.append(clock() - begin)
    return statistics.median(times[1:])


def handover_seconds(rounds: int = 200, clock: Clock = time.perf_counter) -> float:
    """Seconds for one thread to wake another that waits, and be passed a value."""
    there: SimpleQueue[bool] = SimpleQueue()
    back: SimpleQueue[bool] = SimpleQueue()

    def answer() -> None:
        while there.get():
            back.put(True)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    times = []
    for _ in range(rounds):
        begin = clock()
        there.put(True)
        back.get()
        times.append(clock() - begin)
    there.put(False)
    thread.join()
    return statistics.median(times) / 2
