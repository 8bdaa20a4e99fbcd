"""The moments at which a process opens a file to write, renames or removes one, and those at which
a command begins something that it tells of or counts the time of: counted, not timed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from onnxremat.cli.console import Voice
from onnxremat.pipeline.phases import Phases

WRITES = os.O_WRONLY | os.O_RDWR
_CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}


def at(number: int, act: Callable[[], None]) -> Callable[[], int]:
    """Call ``act`` right before the moment of that number in this process; the hook stays for good.

    Returns:
        how many moments there were so far.
    """
    seen = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        if event == "open":
            path, _, flags = arguments
            if not flags & WRITES or str(path).startswith("/dev/"):
                return
        elif event not in _CHANGES:
            return
        if "__pycache__" in str(arguments[0]):
            return
        seen += 1
        if seen == number + 1:
            act()

    sys.addaudithook(hook)
    return lambda: seen


def at_phase(number: int, act: Callable[[], None]) -> Callable[[], int]:
    """As :func:`at`, as a phase begins."""
    seen = 0

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def begun(*arguments: Any, **more: Any) -> Any:
            nonlocal seen
            seen += 1
            if seen == number + 1:
                act()
            return real(*arguments, **more)

        return begun

    for holder, name in ((Voice, "say"), (Phases, "phase")):
        setattr(holder, name, counted(getattr(holder, name)))
    return lambda: seen
