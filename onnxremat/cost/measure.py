"""Measured costs: onnxruntime's own kernel times, kept by content.

Ops of equal signature (operator, attributes, shapes) share their samples, inside a model and
between models: a cached entry is used when every op of a graph has one. What rounds of measuring do
not say alike is measured again, and not kept (:mod:`onnxremat.cost.rounds`). Where measuring would
take longer than there is time, costs are what the cache knows and estimates, which is said.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path

import onnx

from onnxremat import plain_json
from onnxremat.cost.analytic import analytic_costs
from onnxremat.cost.kept import cache_folder
from onnxremat.cost.rounds import Rounds
from onnxremat.cost.table import CostTable, signatures
from onnxremat.device.host import own_threads, processor_kind, processor_name, processors
from onnxremat.errors import OnnxrematError
from onnxremat.graph.atomic import atomic
from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import to_model
from onnxremat.limits import OP_SECONDS, TENSOR_BYTES
from onnxremat.ort.profile import Feeds, Profile, Profiling, profile, run_session
from onnxremat.ort.session import TUNED, Options, open_session, runtime_version, session_options

SECONDS = 6.0  # aim for this much measuring
RUNS = (4, 24)
FEWEST = 5  # runs that measuring takes at least
EVENT = 5e-5  # seconds to write down one run of one op, and to read that
EVENTS = 60_000  # of a profile, where that is enough runs
AGAIN = 2  # rounds more where two do not agree
KEPT = 3  # of what a cache holds; costs that nobody had doubted are 1, keys without values 2
LEAST = 1e-9  # seconds of an op that is quicker than the clock
DISPATCH_LIMIT = 1e-5  # seconds per op
UNMEASURED = (
    "the costs of {share:.0%} of a run are estimated: timing ops takes longer than there is time "
    "for; a longer --time-limit measures them"
)


@dataclass(frozen=True)
class Measuring:
    """How costs are measured.

    Attributes:
        folder: where external weights are.
        fresh: measure even what the cache knows.
        within: seconds that measuring on processors may take: fewer runs, and none where these are
            too long.
    """

    folder: Path | None = None
    fresh: bool = False
    within: float = inf


AS_USUAL = Measuring()
CACHED = "cached"  # where the costs of a table are from


def measure_costs(
    graph: Graph,
    feeds: Feeds,
    how: Measuring = AS_USUAL,
    *,
    threads: int = 0,
    estimate: CostTable | None = None,
) -> tuple[CostTable, Profile | None]:
    """Costs of every op on this machine's CPU, and the profile of the run that gave them.

    Args:
        graph: measured in its listed order.
        feeds: inputs to run on.
        threads: intra-op threads, 0 for one per core.
        estimate: costs of ops that are not measured; how long a run is, too. A roofline if None.

    Returns:
        the table, and the profile (None when nothing was run).

    Raises:
        ModelError: onnxruntime refuses the model or a run fails.
    """
    path = cache_folder() / f"costs-{machine_key(threads)}.json"
    kept = read_cache(path)
    known = {} if how.fresh else kept
    keys = signatures(graph, feeds)
    if all(key in known for key in keys.values()):
        return _table(keys, known, CACHED), None
    if how.within <= FEWEST * (estimate.total if estimate else 0.0):
        return _estimated(keys, known, estimate or analytic_costs(graph)), None
    until = time.monotonic() + how.within
    meter = Meter(to_model(graph), feeds, replace(TUNED, threads=threads), how.folder, until)
    timed = _timed(meter, keys, until)
    entries, doubtful = timed.entries(), timed.rounds.doubtful
    sure = {key: row for key, row in entries.items() if key not in doubtful}
    write_cache(path, {**kept, **sure})
    table = _table(keys, {**entries, **known, **sure}, "measured")
    return replace(table, notes=timed.rounds.notes()), timed.first


class Meter:
    """Times a model by this machine's clocks."""

    def __init__(
        self,
        model: onnx.ModelProto,
        feeds: Feeds,
        options: Options,
        folder: Path | None,
        until: float = inf,
    ) -> None:
        self.model, self.feeds, self.options, self.folder = model, feeds, options, folder
        self.until = until

    def runs(self) -> list[tuple[float, float]]:
        """Of some unprofiled runs the seconds, and those for which the calling thread had a core:
        it computes its share, and waits for other threads awake. A third of the time that there
        is at most."""
        session = open_session(self.model, session_options(self.options), self.folder)
        times: list[tuple[float, float]] = []
        start, left = time.perf_counter(), (self.until - time.monotonic()) / 3
        while len(times) < 2 or (
            time.perf_counter() - start < left
            and (
                len(times) < RUNS[0] + 1
                or (time.perf_counter() - start < SECONDS / 3 and len(times) < RUNS[1])
            )
        ):
            begin, core = time.perf_counter(), time.thread_time()
            run_session(session, self.feeds)
            times.append((time.perf_counter() - begin, time.thread_time() - core))
        return times[1:]

    def profiled(self, runs: int) -> Profile:
        """Some runs with the profiler on."""
        asked = Profiling(runs, warmup=1)
        return profile(self.model, self.feeds, self.options, asked, folder=self.folder)


@dataclass
class _Timed:
    """A graph that was timed.

    Attributes:
        wall: seconds of an unprofiled run.
        first: the profile of the first two rounds.
        scratch: bytes per key.
    """

    rounds: Rounds
    wall: float
    first: Profile
    scratch: dict[str, int] = field(default_factory=dict)

    def add(self, measured: Profile, rounds: int) -> None:
        """Runs of a profile, as so many rounds."""
        for kernel in measured.kernels:
            key = self.rounds.keys.get(kernel.name)
            if key is not None:
                self.scratch[key] = max(self.scratch.get(key, 0), kernel.scratch)
        size = max(1, min(len(kernel.each) for kernel in measured.kernels) // rounds)
        for first in range(0, rounds * size, size):
            last = None if first + size == rounds * size else first + size
            self.rounds.add([(k.name, k.each[first:last]) for k in measured.kernels])

    def entries(self) -> dict[str, list[float]]:
        """Seconds, scratch bytes and dispatch seconds per key.

        The profiler slows small kernels down, and leaves out what is spent between kernels: the sum
        of the parts is made the time of the whole.
        """
        seconds, kernels = self.rounds.seconds, self.first.kernels
        total = sum(seconds.get(self.rounds.keys.get(k.name, ""), k.seconds) for k in kernels)
        dispatch = max(0.0, self.wall - total) / max(1, len(kernels))
        dispatch = min(dispatch, DISPATCH_LIMIT)  # more than that is another process, not dispatch
        scale = min(1.0, self.wall / total) if total else 1.0
        return {
            key: [max(LEAST, least * scale + dispatch), self.scratch[key], dispatch]
            for key, least in seconds.items()
        }


def _timed(meter: Meter, keys: Mapping[str, str], until: float) -> _Timed:
    """Two rounds of runs, and more where these do not agree and there is time."""
    times = meter.runs()
    wall = min(seconds for seconds, _ in times)
    core = max(core / seconds if seconds else 1.0 for seconds, core in times)
    usual = statistics.median(seconds for seconds, _ in times)
    usual += EVENT * len(keys) / max(core, 0.05)
    runs = int(min(RUNS[1], EVENTS // len(keys), SECONDS / max(wall, 1e-6) / 2))
    runs = max(RUNS[0], runs)
    runs = max(2, min(runs, _fitting(until, usual)))
    first = meter.profiled(runs)
    timed = _Timed(Rounds(keys, core=core), wall, first)
    if first.kernels:
        timed.add(first, 2)
    for _ in range(AGAIN):
        again = min(max(1, runs // 2), _fitting(until, usual))
        if not timed.rounds.disagree or not again:
            break
        timed.add(meter.profiled(again), 1)
    return timed


def _fitting(until: float, seconds: float) -> int:
    """Runs of so many seconds that there is time for, after one to warm up."""
    left = (until - time.monotonic()) / max(seconds, 1e-6)
    return RUNS[1] if left > RUNS[1] else max(0, int(left) - 1)


def _estimated(
    keys: dict[str, str], known: dict[str, list[float]], estimate: CostTable
) -> CostTable:
    """What is known, and estimates of the rest."""
    rows = {name: known[key] for name, key in keys.items() if key in known}
    share = sum(estimate.seconds[name] for name in keys if name not in rows) / (
        estimate.total or 1.0
    )
    return replace(
        estimate,
        seconds=estimate.seconds | {name: float(row[0]) for name, row in rows.items()},
        scratch=estimate.scratch | {name: int(row[1]) for name, row in rows.items()},
        source="estimated",
        notes=(UNMEASURED.format(share=share),),
    )


def _table(keys: dict[str, str], known: dict[str, list[float]], source: str) -> CostTable:
    rows = {name: known[key] for name, key in keys.items() if key in known}
    rest = [name for name, key in keys.items() if key not in known]
    seconds = {name: float(row[0]) for name, row in rows.items()}
    # Kernels the runtime did not report (folded at load): dispatch only.
    dispatch = statistics.median([row[2] for row in rows.values()]) if rows else 0.0
    seconds.update(dict.fromkeys(rest, dispatch))
    return CostTable(
        seconds,
        {name: int(row[1]) for name, row in rows.items()},
        source,
        dispatch,
        processor_name(),
    )


def machine_key(threads: int, *others: object) -> str:
    """What costs depend on besides the op: runtime, processor, threads, how many of them can run at
    a time (a process may be kept to some processors), and what is given."""
    import hashlib

    here = processors()
    count = threads or own_threads()
    crowded = (f"on {here}",) if here < count else ()
    text = repr((runtime_version(), processor_kind(), count, KEPT, *others, *crowded))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


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
    except (OSError, OnnxrematError):  # a read-only home is no reason to fail
        return
