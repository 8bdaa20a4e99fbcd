"""One fresh process of `make bench-memory`: opens a model, steps when told, says what it took.

    python tools/memory_process.py WAY MODEL FEEDS THREADS ROOM [WEIGHTS]

Words on stdin: ``step``, ``end``; an answer is one line of JSON on stdout. ROOM bytes limit the
data of the process (RLIMIT_DATA) from before the inputs are read; 0 for no limit.
"""

from __future__ import annotations

import ctypes
import gc
import io
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from onnxremat.memory.taken import status  # noqa: E402
from onnxremat.session.resident import small_stack  # noqa: E402


def opener(way: str, threads: int) -> Callable[[str], Any]:
    """A function that opens a file; everything it imports is imported now."""
    import onnxruntime as ort

    from onnxremat.ort.providers import tiny_model
    from onnxremat.ort.session import DEFAULT, TUNED, Options, open_session, session_options
    from onnxremat.session import held
    from onnxremat.session.load import load

    ort.InferenceSession(tiny_model()).run(None, {"x": np.ones(1, np.float32)})
    if way in ("slab", "region"):
        if way == "region":
            held.missing = lambda: "asked for without"  # type: ignore[attr-defined]
        return lambda file: load(file, threads=threads)
    base = TUNED if way == "arena" else DEFAULT
    options = Options.from_json({**base.to_json(), "threads": threads})
    return lambda file: open_session(file, session_options(options))


class Training:
    """A trainer that looks like a session."""

    def __init__(self, step: str, weights: str, threads: int) -> None:
        from onnxremat.training.trainer import Trainer

        self.trainer = Trainer(step, weights, rate=1e-3, threads=threads)
        self.describe = self.trainer.describe

    def run(self, _: None, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        """One step on what of the feeds is data."""
        fed = self.trainer.training.fed
        return [np.array(self.trainer.step({name: feeds[name] for name in fed}))]


def data_of(step: str) -> list[str]:
    """Inputs of a training step that are no parameters or state, nor set by the trainer."""
    from onnxremat.grad import training_of
    from onnxremat.graph.wire import read_light

    about = training_of(read_light(Path(step)).head)
    return [*about.data, about.target]


def trainer_of(weights: str, threads: int) -> Callable[[str], Any]:
    """A function that opens a training step."""
    import onnxruntime as ort

    import onnxremat.training.trainer  # noqa: F401  # imported before anything is weighed
    from onnxremat.ort.providers import tiny_model

    ort.InferenceSession(tiny_model()).run(None, {"x": np.ones(1, np.float32)})
    return lambda step: Training(step, weights, threads)


def limit_data(room: int) -> None:
    """Allow this process ``room`` bytes more of data."""
    most = status("VmData") + room
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def warm_reader() -> None:
    """Read an array from a file, as inputs are: the first time takes 1.4 MiB of Python's own."""
    kept = io.BytesIO()
    np.savez(kept, x=np.zeros(1, np.float32))
    kept.seek(0)
    with np.load(kept) as given:
        given["x"]


def change(feeds: dict[str, np.ndarray], count: int) -> None:
    """Other inputs of the same kind, in the same memory."""
    for value in feeds.values():
        if value.dtype.kind == "f":
            value *= value.dtype.type(1.001 if count % 2 else 1 / 1.001)
        elif value.ndim and value.size > 1:
            value[...] = np.roll(value, 1)


def work(way: str, file: str, data: str, threads: int, room: int, weights: str = "") -> None:
    """Open, then do what stdin says."""
    opened = trainer_of(weights, threads) if way == "trainer" else opener(way, threads)
    warm_reader()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    fields = ("VmRSS", "RssAnon", "RssFile", "VmData")
    Path("/proc/self/clear_refs").write_text("5")
    base = {field: status(field) for field in fields}
    if room:
        limit_data(room)
    with np.load(data) as given:
        names = data_of(file) if way == "trainer" else given.files
        feeds = {name: given[name] for name in names}
    inputs = sum(value.nbytes for value in feeds.values())
    begin = time.perf_counter()
    session = opened(file)
    facts = {
        "seconds": time.perf_counter() - begin,
        "opened": status("RssAnon") - base["RssAnon"] - inputs,
        "inputs": inputs,
        "opening": status("VmHWM") - base["VmRSS"],
    }
    print(json.dumps(facts), flush=True)
    for count, line in enumerate(sys.stdin):
        if line.strip() != "step":
            break
        change(feeds, count)
        print(json.dumps(stepped(session, feeds)), flush=True)
    facts = {
        "growth": status("VmHWM") - base["VmRSS"],
        "file": status("RssFile") - base["RssFile"],
        "data": status("VmData") - base["VmData"],
        "says": session.describe() if hasattr(session, "describe") else "",
    }
    print(json.dumps(facts), flush=True)


def stepped(session: Any, feeds: dict[str, np.ndarray]) -> dict[str, Any]:
    """One run: seconds, and whether its outputs are numbers. Outputs are let go."""
    wall, cpu = time.perf_counter(), time.process_time()
    found = session.run(None, feeds)
    row: dict[str, Any] = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    row["finite"] = all(np.isfinite(v.ravel()[:999]).all() for v in found if v.dtype.kind == "f")
    return row


class Process:
    """A worker, stepped from here."""

    def __init__(
        self, way: str, file: Path, data: Path, threads: int, room: int = 0, weights: str = ""
    ) -> None:
        words = [sys.executable, __file__, way, file, data, threads, room, weights]
        self.child = subprocess.Popen(
            [*map(str, words)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, preexec_fn=small_stack,
        )  # fmt: skip
        self.facts = self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.child.stdout is not None
        line = self.child.stdout.readline()
        while line and not line.startswith("{"):
            line = self.child.stdout.readline()
        return json.loads(line) if line else {}

    def say(self, word: str) -> dict[str, Any]:
        """What the worker answers; nothing where it has died."""
        assert self.child.stdin is not None
        try:
            self.child.stdin.write(word + "\n")
            self.child.stdin.flush()
        except BrokenPipeError:
            return {}
        return self._answer()

    def end(self) -> dict[str, Any]:
        """Its last facts."""
        facts = self.say("end")
        _, error = self.child.communicate()
        return {**self.facts, **facts, "error": (error.splitlines() or [""])[-1][:160]}


if __name__ == "__main__":
    way, file, data, threads, room, *weights = sys.argv[1:]
    work(way, file, data, int(threads), int(room), *weights)
