"""Short stretches at real-time priority, so that other work on the machine does not bend times."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def undisturbed() -> Iterator[bool]:
    """All threads of this process run before those of others; tells whether the system let them.
    Threads keep the priority they are started with, so what is made inside runs so as well."""
    allowed = _all_threads(real_time=True)
    try:
        yield allowed
    finally:
        _all_threads(real_time=False)


def _all_threads(*, real_time: bool) -> bool:
    if not hasattr(os, "sched_setscheduler"):
        return False
    policy = os.SCHED_FIFO if real_time else os.SCHED_OTHER
    for thread in Path("/proc/self/task").iterdir():
        try:
            os.sched_setscheduler(int(thread.name), policy, os.sched_param(5 if real_time else 0))
        except ProcessLookupError:  # it has ended
            continue
        except PermissionError:
            return False
    return True
