"""What a process really gains when it opens and runs a model: resident bytes, in a fresh process.

The arena of a session holds more than is live, and the C library keeps freed blocks; neither is
seen by counting bytes asked for. So a child process resets its high-water mark, opens the model,
runs it a few times, and reports how far it rose; if asked to, inside a hard limit. Linux only.
"""

from __future__ import annotations

import json
import mmap
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from onnxremat.device.host import own_threads
from onnxremat.graph.temporary import scratch_folder
from onnxremat.memory.native import STACK
from onnxremat.memory.taken import status
from onnxremat.ort.arrays import write_arrays
from onnxremat.ort.binding import BoundSession, BoundState
from onnxremat.ort.profile import Feeds
from onnxremat.ort.providers import tiny_model
from onnxremat.ort.session import Options, open_session, session_options
from onnxremat.session.load import load
from onnxremat.session.process import SLACK

CHILD = "onnxremat.session.resident"
RUNS = 3
THREADS = 2  # whose stacks SLACK and the session's structures hold
NO_LIMIT = "this system does not limit the data of a process"


@dataclass(frozen=True)
class Rise:
    """What became of a fresh process.

    Attributes:
        bytes: by which it rose over what it was before the session was made, its inputs there;
            None where the system does not tell, or it did not end well.
        kept: whether it ran inside the limit; None where there was none.
        why: it did not, or there was no limit.
    """

    bytes: int | None
    kept: bool | None = None
    why: str = ""


def resident_rise(
    model: Path,
    feeds: Feeds,
    options: Options | None = None,
    threads: int = 0,
    room: int = 0,
    updates: Mapping[str, str] | None = None,
) -> Rise:
    """How far a fresh process rises that opens ``model`` and runs it.

    Args:
        options: of a plain session; None: as :func:`onnxremat.load` opens it, with ``threads``.
        room: bytes that it may take, and :data:`SLACK` on top, by ``RLIMIT_DATA``; 0 for no limit.
            Where it does not keep them it is run again without.
        updates: inputs to the outputs that are written over them, as a trainer does.
    """
    request: dict[str, Any] = {"model": str(model), "threads": threads, "room": room}
    request["options"] = options.to_json() if options else None
    request["updates"] = dict(updates or {})
    request["stacks"] = max(0, (threads or own_threads()) - THREADS)
    return rise_of(request, feeds)


def rise_of(request: dict[str, Any], feeds: Feeds) -> Rise:
    """How far a fresh process rises.

    Args:
        request: what :func:`risen` is told; ``child`` is the module that answers it, this one when
            it is not there.
    """
    if not Path("/proc/self/clear_refs").exists():
        return Rise(None, None, NO_LIMIT)
    with scratch_folder() as folder:
        data, room = Path(folder) / "feeds.npz", request["room"]
        write_arrays(data, feeds)
        request = {**request, "feeds": str(data)}
        found, why = _asked(request)
        if found is None and room:
            without, _ = _asked({**request, "room": 0})
            return Rise(None if without is None else without["rise"], False, why)
    if found is None:
        return Rise(None, None, why)
    limited = found["limited"]
    return Rise(found["rise"], True if limited else None, "" if limited or not room else NO_LIMIT)


def _asked(request: Mapping[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """What a child answers, or why it does not."""
    done = subprocess.run(
        [sys.executable, "-m", request.get("child", CHILD), json.dumps(request)],
        capture_output=True, text=True, check=False, preexec_fn=small_stack,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    if done.returncode == 0 and lines:
        return json.loads(lines[-1]), ""
    return None, _reason(done.stderr) or f"it ended with {done.returncode}"


def _reason(said: str) -> str:
    """Of an error that ended a process: why, where it says so in a line of its own, else its last
    line."""
    lines = said.splitlines()
    whys = [line.removeprefix("  why").strip() for line in lines if line.startswith("  why")]
    return (whys or lines or [""])[-1][:200]


def small_stack() -> None:
    """Stacks of 1 MiB in this process, and in what it starts."""
    import resource

    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    resource.setrlimit(resource.RLIMIT_STACK, (STACK, hard))


def _limit(room: int) -> bool:
    """Allow this process ``room`` bytes more; False where the system does not act on that."""
    import resource

    hard, now = resource.getrlimit(resource.RLIMIT_DATA)[1], status("VmData")
    resource.setrlimit(resource.RLIMIT_DATA, (now + SLACK, hard))
    try:
        mmap.mmap(-1, 4 * SLACK, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
        acts = False
    except OSError:
        acts = True
    allowed = now + room if acts else hard
    resource.setrlimit(resource.RLIMIT_DATA, (allowed, hard))
    return acts


def risen(
    request: dict[str, Any],
    opened: Callable[[dict[str, Any], dict[str, Any]], Callable[[], object]],
) -> dict[str, Any]:
    """How far this process rises, and whether within its limit.

    Args:
        request: ``feeds`` (a file), ``room`` (bytes that it may take, 0 for no limit), ``stacks``
            (threads whose stacks come on top: a limit on data counts their addresses).
        opened: opens the model, given the request and its inputs, and returns what runs it once.
    """
    import onnxruntime as ort

    from onnxremat.memory.native import missing, trim

    missing()  # loads what is loaded once
    ort.InferenceSession(tiny_model()).run(None, {"x": np.ones(1, np.float32)})
    with np.load(request["feeds"]) as file:
        feeds = {name: file[name] for name in file.files}
    trim()
    limited = False
    if request["room"]:
        limited = _limit(request["room"] + SLACK + request["stacks"] * STACK)
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    run = opened(request, feeds)
    for _ in range(RUNS):
        run()
    return {"rise": status("VmHWM") - before, "limited": limited}


def _in_session(request: dict[str, Any], feeds: dict[str, Any]) -> Callable[[], object]:
    """One session, its state written over where outputs are."""
    if request["options"]:
        options = session_options(Options.from_json(request["options"]))
        session = open_session(request["model"], options)
    else:
        session = load(request["model"], threads=request["threads"])
    updates = request["updates"]
    state = BoundState({name: feeds.pop(name) for name in updates})
    outputs = [value.name for value in session.get_outputs() if value.name not in updates.values()]
    if updates:
        bound = BoundSession(session, state, updates, outputs)
        return lambda: bound.run(feeds)
    return lambda: session.run(None, feeds)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(risen(json.loads(sys.argv[1]), _in_session)) + "\n")
