"""What this process takes now, as the system and the C library tell."""

from __future__ import annotations

import ctypes
from pathlib import Path


def status(field: str) -> int:
    """A figure of ``/proc/self/status`` in bytes (``VmRSS``, ``VmHWM``, ``VmData``); 0 where it is
    not told."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return 0


def heap_bytes() -> int:
    """Bytes the C library has handed out to this process and not got back (glibc 2.33 and later);
    elsewhere what the process holds in memory, 0 where the system does not tell that either."""

    class Info(ctypes.Structure):
        _fields_ = [
            (name, ctypes.c_size_t)
            for name in (
                "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
                "fordblks", "keepcost",
            )
        ]  # fmt: skip

    try:
        ask = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):  # another C library
        return status("VmRSS") if Path("/proc/self/status").exists() else 0
    ask.restype = Info
    info = ask()
    return int(info.uordblks + info.hblkhd)
