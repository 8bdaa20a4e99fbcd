"""This machine: its memory and processors."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from onnxremat.errors import UsageError
from onnxremat.limits import THREADS, at_least, check

CPUINFO = Path("/proc/cpuinfo")
CORES = Path("/sys/devices/system/cpu")
_KIND = frozenset({
    "vendor_id", "cpu family", "model", "stepping", "flags", "CPU implementer", "CPU architecture",
    "CPU variant", "CPU part", "CPU revision", "Features",
})  # fmt: skip
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def memory_bytes() -> int:
    """Physical memory, or the container's limit where that is less."""
    if hasattr(os, "sysconf"):
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    else:
        total = _windows_memory()
    for name in _LIMITS:
        try:
            total = min(total, int(Path(name).read_text()))
        except (OSError, ValueError):  # no such limit ("max")
            continue
    return total


def _windows_memory() -> int:
    import ctypes

    class Status(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ulong), ("load", ctypes.c_ulong)] + [
            (name, ctypes.c_ulonglong) for name in ("total", "a", "b", "c", "d", "e", "f")
        ]

    status = Status(length=ctypes.sizeof(Status))
    ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status))  # type: ignore[attr-defined]
    return int(status.total)


def bfloat16() -> bool | None:
    """Whether the processor multiplies bfloat16 numbers; None where that cannot be seen."""
    text = _processor_info()
    if not text:
        return None
    flags = set(next((x for x in text.splitlines() if x.startswith("flags")), "").split())
    return bool(flags & {"amx_bf16", "avx512_bf16"}) if flags else None


def made_by_intel() -> bool:
    """Whether the processor says so."""
    return "GenuineIntel" in _processor_info()


def processor_name() -> str:
    """What the processor calls itself; as much as Python knows of it where that cannot be read."""
    lines = _processor_info().splitlines()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def processor_kind() -> str:
    """What tells this processor from others that call themselves alike: of several generations a
    virtual machine says "AMD EPYC", and ARM's have no name."""
    first, _, _ = _processor_info().partition("\n\n")
    rows = (line.partition(":") for line in first.splitlines())
    kind = [value.strip() for name, _, value in rows if name.strip() in _KIND]
    return "\n".join((processor_name(), *kind))


def _processor_info() -> str:
    """What the system says of its processors; "" where it cannot be read."""
    try:
        return CPUINFO.read_text(errors="replace")
    except OSError:
        return ""


def processors() -> int:
    """Processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def own_threads() -> int:
    """Threads of a session that is not told how many: onnxruntime starts one for every core of the
    machine, however few the process may use. What the system does not tell of cores, it may of
    processors."""
    try:
        cores = {file.read_text() for file in CORES.glob("cpu*/topology/thread_siblings_list")}
    except OSError:
        cores = set()
    return len(cores) or os.cpu_count() or 1


def check_threads(count: int) -> None:
    """Raises:
    UsageError: so many threads that they would only wait for each other, or fewer than none.
    """
    have = processors()
    at_least(count, 0, "threads")
    check(
        count, max(THREADS, 4 * have), "threads", kind=UsageError,
        hint=f"0 for one per core of this machine, which has {have}",
    )  # fmt: skip
