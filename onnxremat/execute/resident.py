"""What a process really gains when it runs a model over devices of the processor: in a fresh one,
inside a hard limit (:mod:`onnxremat.session.resident`)."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onnxremat.device.host import own_threads
from onnxremat.execute.deployment import Deployment, read_deployment
from onnxremat.ort.profile import Feeds
from onnxremat.ort.providers import CPU
from onnxremat.session.resident import THREADS, Rise, rise_of, risen

CHILD = "onnxremat.execute.resident"


def devices_rise(path: Path, made: Deployment, feeds: Feeds, room: int = 0) -> Rise | None:
    """How far a fresh process rises that opens a model over devices and runs it, its state written
    over; None where a device is not the processor, whose provider maps what it likes.

    Args:
        path: of the model.
        made: what it holds.
        room: bytes that it may take beside inputs and state; see :func:`rise_of`.
    """
    devices = [made.machine.device(part.device) for part in made.parts.partitions]
    if any(device.provider != CPU for device in devices):
        return None
    # A session has its own threads, a device one that runs its sessions.
    stacks = sum((d.threads or own_threads()) - 1 for d in devices) + len(set(devices))
    request = {"child": CHILD, "model": str(path), "room": room}
    return rise_of({**request, "stacks": max(0, stacks - THREADS)}, feeds)


def _over_devices(request: dict[str, Any], feeds: dict[str, Any]) -> Callable[[], object]:
    made = read_deployment(request["model"], mapped=True)
    state = {old: feeds.pop(old) for old, _ in made.parts.pairs}
    executor = made.executor(state)
    return lambda: executor.run(feeds)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(risen(json.loads(sys.argv[1]), _over_devices)) + "\n")
