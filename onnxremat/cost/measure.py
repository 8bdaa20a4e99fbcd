"""Measured costs: onnxruntime's own kernel times, median of runs, kept by content.

Ops of equal signature (operator, attributes, shapes) share their samples, inside a model and
between models: a cached entry is used when every op of a graph has one.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import tempfile
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import onnx

from onnxremat import plain_json
from onnxremat.cost.table import CostTable, signature
from onnxremat.errors import UsageError
from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import atomic, to_model
from onnxremat.limits import OP_SECONDS, TENSOR_BYTES
from onnxremat.ort.profile import Feeds, Profile, profile, run_session
from onnxremat.ort.session import TUNED, Options, open_session, runtime_version, session_options

SECONDS = 6.0  # aim for this much measuring
RUNS = (3, 25)
LEAST = 1e-9  # seconds of an op that is quicker than the clock
DISPATCH_LIMIT = 1e-5  # seconds per op


def cache_folder() -> Path:
    """Where measured costs are kept (``ONNXREMAT_CACHE`` overrides)."""
    if os.environ.get("ONNXREMAT_CACHE"):
        return Path(os.environ["ONNXREMAT_CACHE"])
    try:
        home = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    except RuntimeError:  # a user without a home
        return Path(tempfile.gettempdir()) / f"onnxremat-{os.getuid()}"
    return Path(home) / "onnxremat"


def measure_costs(
    graph: Graph,
    feeds: Feeds,
    *,
    threads: int = 0,
    folder: Path | None = None,
    fresh: bool = False,
) -> tuple[CostTable, Profile | None]:
    """Costs of every op on this machine's CPU, and the profile of the run that gave them.

    Args:
        graph: measured in its listed order.
        feeds: inputs to run on.
        threads: intra-op threads, 0 for one per core.
        folder: where external weights are.
        fresh: measure even when every op is in the cache.

    Returns:
        the table, and the profile (None when the cache answered).

    Raises:
        ModelError: onnxruntime refuses the model or a run fails.
    """
    path = cache_folder() / f"costs-{machine_key(threads)}.json"
    kept = read_cache(path)
    known = {} if fresh else kept
    keys = {op.name: signature(graph, op) for op in graph.ops}
    if all(key in known for key in keys.values()):
        return _table(keys, known, "cached"), None
    options = replace(TUNED, threads=threads)
    model = to_model(graph)
    wall, runs = _wall_seconds(model, feeds, options, folder)
    measured = profile(model, feeds, options, runs=runs, warmup=1, folder=folder)
    samples = defaultdict(list)
    scratch: dict[str, int] = {}
    for kernel in measured.kernels:
        key = keys.get(kernel.name)
        if key is not None:
            samples[key].append(kernel.seconds)
            scratch[key] = max(scratch.get(key, 0), kernel.scratch)
    # The profiler slows small kernels down, and leaves out what is spent between kernels: make
    # the sum of the parts the time of the whole.
    dispatch = max(0.0, wall - measured.seconds) / max(1, len(measured.kernels))
    dispatch = min(dispatch, DISPATCH_LIMIT)  # more than that is another process, not dispatch
    scale = min(1.0, wall / measured.seconds) if measured.seconds else 1.0
    entries = {
        key: [max(LEAST, statistics.median(times) * scale + dispatch), scratch[key], dispatch]
        for key, times in samples.items()
    }
    write_cache(path, {**kept, **entries})
    return _table(keys, {**known, **entries}, "measured"), measured


def _wall_seconds(
    model: onnx.ModelProto, feeds: Feeds, options: Options, folder: Path | None
) -> tuple[float, int]:
    """Median seconds of an unprofiled run, and how many runs fit the measuring time."""
    session = open_session(model, session_options(options), folder)
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < RUNS[0] + 1 or (
        time.perf_counter() - start < SECONDS / 3 and len(times) < RUNS[1]
    ):
        begin = time.perf_counter()
        run_session(session, feeds)
        times.append(time.perf_counter() - begin)
    wall = statistics.median(times[1:])
    runs = int(min(RUNS[1], max(RUNS[0], SECONDS / max(wall, 1e-6) / 2)))
    return wall, runs


def _table(keys: dict[str, str], known: dict[str, list[float]], source: str) -> CostTable:
    rows = {name: known[key] for name, key in keys.items() if key in known}
    rest = [name for name, key in keys.items() if key not in known]
    seconds = {name: float(row[0]) for name, row in rows.items()}
    # Kernels the runtime did not report (folded at load): dispatch only.
    dispatch = statistics.median([row[2] for row in rows.values()]) if rows else 0.0
    seconds.update(dict.fromkeys(rest, dispatch))
    return CostTable(
        seconds, {name: int(row[1]) for name, row in rows.items()}, source, dispatch, _cpu_name()
    )


def machine_key(threads: int, *others: object) -> str:
    """What costs depend on besides the op: runtime, processor, threads, and what is given."""
    import hashlib

    text = repr((runtime_version(), _cpu_name(), threads or os.cpu_count(), 1, *others))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def read_cache(path: Path) -> dict[str, list[float]]:
    """Entries of a cost cache; none when it is not there or damaged."""
    try:
        entries = plain_json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(entries, dict):
        return {}
    return {key: row for key, row in entries.items() if _is_entry(row)}


def _is_entry(row: object) -> bool:
    """Whether a row is seconds, scratch bytes and dispatch seconds as a measurement may give them;
    what is not is measured again."""
    if not isinstance(row, list) or len(row) != 3:
        return False
    if not all(type(number) in (int, float) for number in row):  # true is no number
        return False
    seconds, scratch, dispatch = row
    return 0 < seconds <= OP_SECONDS and 0 <= scratch <= TENSOR_BYTES and 0 <= dispatch <= seconds


def write_cache(path: Path, entries: dict[str, list[float]]) -> None:
    """Keep entries, where the folder can be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic(path) as temporary:
            temporary.write_text(json.dumps(entries))
    except (OSError, UsageError):  # a read-only home is no reason to fail
        return
