"""What a process really gains when it runs a model: resident bytes, in a fresh process.

The arena of a session holds more than is live, and the C library keeps freed blocks; neither is
seen by counting bytes asked for. So a child process loads the model, resets its high-water mark,
runs a few times, and reports how far it rose. Linux only.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from onnxremat.ort.profile import Feeds
from onnxremat.ort.session import Options, open_session, session_options
from onnxremat.session.load import load

RUNS = 3


def resident_rise(
    model: Path, feeds: Feeds, options: Options | None = None, threads: int = 0
) -> int | None:
    """Bytes by which a fresh process rises over the opened session while it runs ``model``; None
    where the system does not tell (no ``/proc``), or the run fails.

    Args:
        options: of a plain session; None: as :func:`onnxremat.load` opens it, with ``threads``.
    """
    if not Path("/proc/self/clear_refs").exists():
        return None
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "feeds.npz"
        arrays: dict[str, Any] = dict(feeds)
        np.savez(data, **arrays)
        request = {"model": str(model), "feeds": str(data), "threads": threads}
        request["options"] = options.to_json() if options else None
        done = subprocess.run(
            [sys.executable, "-m", "onnxremat.session.resident", json.dumps(request)],
            capture_output=True,
            text=True,
            check=False,
        )
    lines = done.stdout.split()
    return int(lines[-1]) if done.returncode == 0 and lines else None


def heap_bytes() -> int:
    """Bytes the C library has handed out to this process and not got back (glibc 2.33 and later);
    elsewhere what the process holds in memory, 0 where the system does not tell that either."""
    import ctypes

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
        return _memory("VmRSS") if Path("/proc/self/status").exists() else 0
    ask.restype = Info
    info = ask()
    return int(info.uordblks + info.hblkhd)


def _memory(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return 0


def _child(request: dict[str, Any]) -> int:
    with np.load(request["feeds"]) as file:
        feeds = {name: file[name] for name in file.files}
    if request["options"]:
        options = session_options(Options.from_json(request["options"]))
        session = open_session(request["model"], options)
    else:
        session = load(request["model"], threads=request["threads"])
    Path("/proc/self/clear_refs").write_text("5")
    before = _memory("VmRSS")
    for _ in range(RUNS):
        session.run(None, feeds)
    return _memory("VmHWM") - before


if __name__ == "__main__":
    sys.stdout.write(f"{_child(json.loads(sys.argv[1]))}\n")
