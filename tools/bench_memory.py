"""What a process takes for a planned model, against its budget: `make bench-memory`.

    python tools/bench_memory.py --models unet_train bert --ways slab region --runs 20

Each model is built, optimised to 0.6x and 0.8x of its peak (or to its smallest budget; kept in
bench-memory/), and run in fresh processes:

* ``slab``: `onnxremat.load`, planned addresses; ``region``: the same without the compiled
  allocator, an arena of one region; ``arena``: a plain session with the planned options, as `load`
  opened it before; ``original``: the original under default options.

Growth is the high-water mark of the resident size (``VmHWM``, reset before inputs are read and
the session is made) over the resident size just before, after ``--runs`` runs with changing inputs.
Outputs are let go before the next run. Before the mark is reset a session of one node has run, so
that what onnxruntime takes once per process is not in it; the pages of its library that kernels
touch for the first time are, and are listed by themselves.

``limit``: a run under RLIMIT_DATA = data before the inputs + budget + 4 MiB. Stacks are 1 MiB
(``ulimit -s``), because that limit counts the addresses of a stack, not its pages.

Times: all ways are open at once, and step in turn; the medians of ratios to ``arena`` and to
``original`` of wall and CPU seconds.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import platform
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
FOLDER = ROOT / "bench-memory"
MODELS: dict[str, dict[str, Any]] = {
    "unet_train": {}, "resnet18_train": {}, "bert_train": {}, "vit_train": {},
    "mobilenetv2_train": {}, "gpt2_train": {},
    "mobilenetv2_infer": {"batch": 32, "size": 224}, "unet_infer": {}, "bert_infer": {},
    "gpt2_infer": {},
}  # fmt: skip
BUDGETS = ("0.6x", "0.8x")
WAYS = ("slab", "region", "arena", "original")
TARGETS = {"slab": 1.02, "region": 1.15}  # of the budget, and SLACK on top
SLACK = 4 << 20
MIB = 1 << 20


# ---- models ---------------------------------------------------------------------------------


def prepare(folder: Path, name: str, asked: str, seconds: float) -> Path:
    """The planned model of a name and a budget, with ``<name>.onnx`` and ``<name>.npz`` beside."""
    import onnx

    import models
    from onnxremat import api
    from onnxremat.errors import InfeasibleError, NoPlanError
    from onnxremat.grad import differentiate
    from onnxremat.graph.onnx_io import read_model
    from onnxremat.ort.feeds import seeded_feeds
    from onnxremat.ort.infer import build_graph

    folder.mkdir(exist_ok=True)
    source, feeds = folder / f"{name}.onnx", folder / f"{name}.npz"
    out = folder / f"{name}_{asked}.onnx"
    if not source.exists():
        net, _, kind = name.rpartition("_")
        model = models.build(net, **MODELS[name])
        onnx.save(differentiate(model) if kind == "train" else model, source)
    if not feeds.exists():
        values: dict[str, Any] = seeded_feeds(build_graph(read_model(source), folder))
        np.savez(feeds, **values)
    if not out.exists():
        options = api.PlanOptions(time_limit=seconds)
        try:
            made = api.optimize(source, budget=asked, options=options, bench_seconds=0)
        except (InfeasibleError, NoPlanError) as error:
            least = error.smallest or "min"
            made = api.optimize(source, budget=least, options=options, bench_seconds=0)
        made.save(out)
    return out


# ---- one process ----------------------------------------------------------------------------


def memory(field: str) -> int:
    """A figure of /proc/self/status in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def opener(way: str, threads: int) -> Any:
    """A function that opens a file; everything it imports is imported now."""
    import onnxruntime as ort

    from onnxremat.ort.providers import tiny_model
    from onnxremat.ort.session import DEFAULT, TUNED, Options, open_session, session_options
    from onnxremat.session import held
    from onnxremat.session.load import load

    ort.InferenceSession(tiny_model()).run(None, {"x": np.ones(1, np.float32)})
    if way in ("slab", "region"):
        if way == "region":
            held.missing = lambda: "asked for without"
        return lambda file: load(file, threads=threads)
    base = TUNED if way == "arena" else DEFAULT
    options = Options.from_json({**base.to_json(), "threads": threads})
    return lambda file: open_session(file, session_options(options))


def worker(way: str, file: str, data: str, threads: int, budget: int) -> None:
    """Open, then do what stdin says, one JSON line a word: ``step``, ``end``. A budget other than
    0 limits the data of the process."""
    opened = opener(way, threads)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    fields = ("VmRSS", "RssAnon", "RssFile", "VmData")
    Path("/proc/self/clear_refs").write_text("5")
    base = {field: memory(field) for field in fields}
    if budget:
        limit = base["VmData"] + budget + SLACK
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    with np.load(data) as given:
        feeds = {name: given[name] for name in given.files}
    inputs = sum(value.nbytes for value in feeds.values())
    begin = time.perf_counter()
    session = opened(file)
    facts = {
        "seconds": time.perf_counter() - begin,
        "opened": memory("RssAnon") - base["RssAnon"] - inputs,
        "inputs": inputs,
        "opening": memory("VmHWM") - base["VmRSS"],
    }
    print(json.dumps(facts), flush=True)
    for count, line in enumerate(sys.stdin):
        if line.strip() != "step":
            break
        change(feeds, count)
        wall, cpu = time.perf_counter(), time.process_time()
        found = session.run(None, feeds)
        row = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        row["finite"] = all(
            np.isfinite(v.ravel()[:999]).all() for v in found if v.dtype.kind == "f"
        )
        del found
        print(json.dumps(row), flush=True)
    facts = {
        "growth": memory("VmHWM") - base["VmRSS"],
        "file": memory("RssFile") - base["RssFile"],
        "data": memory("VmData") - base["VmData"],
        "slab": getattr(session, "slab_bytes", 0),
        "says": session.describe() if hasattr(session, "describe") else "",
    }
    print(json.dumps(facts), flush=True)


def change(feeds: dict[str, np.ndarray], count: int) -> None:
    """Other inputs of the same kind, in the same memory."""
    for value in feeds.values():
        if value.dtype.kind == "f":
            value *= value.dtype.type(1.001 if count % 2 else 1 / 1.001)
        elif value.ndim and value.size > 1:
            value[...] = np.roll(value, 1)


class Process:
    """A worker, stepped from here."""

    def __init__(self, way: str, file: Path, data: Path, threads: int, budget: int = 0) -> None:
        words = [sys.executable, __file__, "--worker", way, file, data, threads, budget]
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


def small_stack() -> None:
    """Stacks of 1 MiB in the child."""
    resource.setrlimit(resource.RLIMIT_STACK, (MIB, resource.getrlimit(resource.RLIMIT_STACK)[1]))


# ---- measurements ---------------------------------------------------------------------------


def grown(way: str, file: Path, data: Path, threads: int, runs: int) -> dict[str, Any]:
    """What a fresh process grows by."""
    process = Process(way, file, data, threads)
    finite = [process.say("step").get("finite") for _ in range(runs)]
    return {**process.end(), "finite": all(finite)}


def limited(way: str, file: Path, data: Path, threads: int, budget: int) -> str:
    """Whether a run goes through in a limit on data: "ok", or the error."""
    process = Process(way, file, data, threads, budget)
    steps = [bool(process.say("step")) for _ in range(3)] if process.facts else [False]
    facts = process.end()
    return "ok" if all(steps) else facts["error"] or "died"


def timed(files: dict[str, Path], data: Path, threads: int, rounds: int) -> dict[str, Any]:
    """Seconds per step of each way, all stepping in turn."""
    processes = {way: Process(way, file, data, threads) for way, file in files.items()}
    rows: dict[str, list[dict[str, Any]]] = {way: [] for way in files}
    ways = list(files)
    for turn in range(rounds + 2):
        for way in ways[turn % len(ways) :] + ways[: turn % len(ways)]:
            rows[way].append(processes[way].say("step"))
    for process in processes.values():
        process.end()
    return {way: [row for row in found[2:] if row] for way, found in rows.items()}


def ratio(rows: dict[str, Any], way: str, base: str, key: str) -> float | None:
    """Median of the ratios in a round."""
    if not rows.get(way) or len(rows[way]) != len(rows.get(base, ())):
        return None
    pairs = zip(rows[way], rows[base], strict=True)
    return statistics.median(a[key] / b[key] for a, b in pairs)


def measure(args: argparse.Namespace, name: str, asked: str) -> list[dict[str, Any]]:
    """The rows of one model and budget."""
    from onnxremat.graph.wire import read_light
    from onnxremat.rewrite.emit import metadata
    from onnxremat.session.process import counted

    out = prepare(args.folder, name, asked, args.time_limit)
    source, data = args.folder / f"{name}.onnx", args.folder / f"{name}.npz"
    facts = json.loads(metadata(read_light(out).head)["facts"])
    budget, weights = facts["budget_bytes"], facts["weight_bytes"]
    said = f"{counted(facts).words or 'nothing'} beside weights and values"
    print(f"{name} {asked}: a budget of {budget / MIB:.1f} MiB counts {said}", flush=True)
    files = {way: source if way == "original" else out for way in args.ways}
    times = timed(files, data, args.threads, args.rounds) if args.rounds else {}
    found = []
    for way, file in files.items():
        row = {"model": name, "asked": asked, "way": way, "budget": budget, "weights": weights}
        row |= {"peak": facts["peak_measured_bytes"]}
        row |= grown(way, file, data, args.threads, args.runs)
        row["limit"] = limited(way, file, data, args.threads, budget)
        if way in TARGETS:
            row["kept"] = row["growth"] <= TARGETS[way] * budget + SLACK
        for base in ("arena", "original"):
            for key in ("cpu", "wall"):
                row[f"{key}_to_{base}"] = ratio(times, way, base, key)
        found.append(row)
        print(line(row), flush=True)
    return found


# ---- the table ------------------------------------------------------------------------------

HEAD = (
    "| model | asked | way | budget | growth | of it | over the plan | structures | library | "
    "opening | target | in the limit | CPU to arena | to original | wall to arena | to original |\n"
    "|---|---|---|" + "---:|" * 13
)


def line(row: dict[str, Any]) -> str:
    """A row for people; MiB."""
    mib = [
        f"{row[key] / MIB:.1f}" if key in row else "-" for key in ("budget", "growth")
    ]  # fmt: skip
    share = f"{row['growth'] / row['budget']:.2f}" if "growth" in row else "-"
    own = [
        row.get("growth", 0) - row["peak"] - row.get("inputs", 0),
        row.get("opened", 0) - row["weights"],
    ]
    own += [row.get("file", 0), row.get("opening", 0)]
    ratios = [row[f"{key}_to_{base}"] for key in ("cpu", "wall") for base in ("arena", "original")]
    cells = [
        row["model"], row["asked"], row["way"], *mib, share, *(f"{v / MIB:.1f}" for v in own),
        {True: "kept", False: "missed"}.get(row.get("kept"), ""),
        "yes" if row["limit"] == "ok" else "no",
        *("-" if value is None else f"{value:.3f}" for value in ratios),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def processor() -> str:
    """The processor's name."""
    found = Path("/proc/cpuinfo")
    if found.exists():
        for text in found.read_text().splitlines():
            if text.startswith("model name"):
                return text.partition(":")[2].strip()
    return platform.processor()


def main() -> int:
    """Print the table; 1 where a target was missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--budgets", nargs="+", default=list(BUDGETS))
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--runs", type=int, default=20, help="in the process that is weighed")
    parser.add_argument("--rounds", type=int, default=15, help="of timing; 0 for none")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--time-limit", type=float, default=20, help="of planning, seconds")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--json", type=Path, help="write all rows there")
    args = parser.parse_args()
    print(f"{processor()}, {args.threads} threads\n\n{HEAD}", flush=True)
    rows = []
    for name in args.models:
        for asked in args.budgets:
            rows += measure(args, name, asked)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))
    missed = [row for row in rows if row.get("kept") is False]
    print(f"\n{len(missed)} of {sum('kept' in row for row in rows)} targets missed")
    return 1 if missed else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]), int(sys.argv[6]))
    else:
        sys.exit(main())
