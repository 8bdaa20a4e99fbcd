"""Measure placement: one table of value / bound / status / seconds / target / met.

    python tools/bench_place.py [FOLDER] [--only TEXT] [--quick] [--cpu] [--json FILE] [--list]

FOLDER holds the inputs of dnn-partitioning (throughput-inputs, latency-inputs), or is the one that
ONNXREMAT_PLACEMENT names; without it, generated graphs of the same kinds are placed. Seconds are of
one thread's wall clock (with --cpu, of the processor) with compiled kernels in the cache; every row
runs in a process of its own. Exit code 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import monotonic, process_time
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.console import Console
from rich.table import Table

from onnxremat.device.host import processor_name

THROUGHPUT, LATENCY = "throughput-inputs", "latency-inputs"
GRACE = 300.0  # seconds a row may take beyond its limit for loading and compiling
LATE = 1.1  # share of the time limit up to which a row is in time


@dataclass(frozen=True)
class Row:
    """One graph, what is asked, and what must come out.

    Attributes:
        graph: path below the folder, or ``generated:KIND``.
        options: of ``place``.
        most: value that is good enough, 0 for none.
        gap: share of the value that may stay unproven; 1 for any.
        limit: seconds.
        scale: of all edge costs.
        share: of the file's memory.
    """

    graph: str
    options: tuple[str, ...]
    most: float
    gap: float
    limit: float
    scale: float = 1.0
    share: float = 1.0

    @property
    def name(self) -> str:
        words = [self.graph.replace("-inputs", ""), *self.options]
        words += [f"costs x{self.scale:g}"] * (self.scale != 1)
        words += [f"memory x{self.share:g}"] * (self.share != 1)
        return " ".join(words)


CONTIGUOUS = {
    "LayerGraphs/bert24_training": 41.7459,
    "LayerGraphs/gnmt_inference": 32.9107,
    "LayerGraphs/inceptionv3_training": 122.7617,
    "LayerGraphs/resnet50_inference": 33.7747,
    "OperatorGraphs/bert_L-12_training": 437.9977,
    "OperatorGraphs/bert_l-3_inference": 27.9186,
    "OperatorGraphs/bert_l-6_training": 72.8650,
    "OperatorGraphs/resnet50_inference": 124.3489,
}
ANY = {  # value, seconds for it; gap, seconds for that
    "LayerGraphs/bert24_training": (39.7896, 2, 1e-6, 2),
    "OperatorGraphs/bert_l-3_inference": (21.9084, 2, 1e-6, 2),
    "OperatorGraphs/resnet50_inference": (124.3489, 20, 1e-6, 20),
    "LayerGraphs/resnet50_inference": (33.46, 10, 0.005, 60),
    "LayerGraphs/gnmt_inference": (31.6874, 2, 0.01, 60),
    "LayerGraphs/inceptionv3_training": (117.25, 10, 0.004, 60),
    "OperatorGraphs/bert_l-6_training": (72.4717, 10, 0.02, 120),
    "OperatorGraphs/bert_L-12_training": (373.4241, 20, 0.05, 300),
}
CALLED = {  # value, gap, seconds
    "LayerGraphs/gnmt_inference": (225.6479, 1e-6, 120),
    "LayerGraphs/resnet50_inference": (1156.8813, 0.005, 60),
    "OperatorGraphs/bert_l-3_inference": (408.4745, 1e-6, 60),
    "OperatorGraphs/resnet50_inference": (651.1208, 0.01, 60),
}


def rows() -> Iterator[Row]:
    """Everything that is measured."""
    for name, value in CONTIGUOUS.items():
        base = Row(f"{THROUGHPUT}/{name}", (), value, 1e-6, 2)
        yield base
        for count in (2, 4, 8):
            yield replace(base, options=("--accelerators", str(count)), most=0.0, limit=10)
        yield replace(base, share=0.5, most=0.0, limit=10)
        if name.startswith("Layer"):
            yield replace(base, scale=1000.0, most=0.0, limit=10)
    for name, (value, soon, gap, late) in ANY.items():
        if soon < late:
            yield Row(f"{THROUGHPUT}/{name}", ("--any",), value, 1.0, soon)
        yield Row(f"{THROUGHPUT}/{name}", ("--any",), value, gap, late)
    for name in CONTIGUOUS:
        if name.endswith("training"):
            two = ("--objective", "two-maxima")
            yield Row(f"{THROUGHPUT}/{name}", two, 0.0, 1e-6, 10)
            yield Row(f"{THROUGHPUT}/{name}", (*two, "--any"), 0.0, 0.02, 120)
    for name, (value, gap, late) in CALLED.items():
        for q in (1, 2, 3):
            options = ("--objective", "latency", "--calls", str(q))
            yield Row(f"{LATENCY}/{name}", options, value, gap if q == 1 else 1.0, late)
    for kind in ("heads-48", "series-parallel-3000"):
        yield Row(f"generated:{kind}", (), 0.0, 0.01, 60)


def generated(kind: str) -> dict[str, Any]:
    """A large graph: a transformer of so many layers with unfused heads, or a random
    series-parallel graph of so many classes."""
    import numpy as np

    rng = np.random.default_rng(1)
    name, _, size = kind.rpartition("-")
    edges: list[tuple[int, int]] = []
    times: list[float] = []

    def node(time: float, *before: int) -> int:
        times.append(time)
        edges.extend((u, len(times) - 1) for u in before)
        return len(times) - 1

    if name == "heads":
        last = node(1.0)
        for _ in range(int(size)):
            projected = [node(0.6, last) for _ in "qkv"]
            heads = []
            for _ in range(12):
                parts = [node(0.02, p) for p in projected]
                heads.append(node(0.1, node(0.03, node(0.1, *parts[:2])), parts[2]))
            mixed = node(0.1, node(0.6, *heads), last)
            last = node(0.1, node(2.4, node(0.2, node(2.4, mixed))), mixed)
    else:

        def grow(budget: int, begin: int) -> int:
            if budget <= 1:
                return node(float(rng.uniform(0.1, 3)), begin)
            cut = int(rng.integers(1, budget))
            if rng.random() < 0.6 or budget < 4:
                return grow(budget - cut, grow(cut, begin))
            ends = [grow(part, begin) for part in (cut, budget - cut - 1) if part > 0]
            return node(float(rng.uniform(0.1, 3)), *ends)

        sys.setrecursionlimit(100_000)
        grow(int(size), node(1.0))
    out = rng.uniform(0.02, 0.4, len(times))
    return {
        "maxFPGAs": 6, "maxCPUs": 1, "maxSizePerFPGA": 16 << 30,
        "nodes": [
            {"id": v, "supportedOnFpga": 1, "fpgaLatency": time, "cpuLatency": 15 * time,
             "isBackwardNode": 0, "size": 1 << 20}
            for v, time in enumerate(times)
        ],
        "edges": [
            {"sourceId": u, "destId": v, "cost": float(out[u])} for u, v in sorted(set(edges))
        ],
    }  # fmt: skip


def measure(row: Row, folder: Path | None, clock: Callable[[], float]) -> dict[str, Any]:
    """Place one row and return its figures.

    Args:
        clock: that the limit is counted on.
    """
    from onnxremat.placement.answer import Work
    from onnxremat.placement.graph_files import from_json
    from onnxremat.placement.kernels import warm_up
    from onnxremat.placement.methods import Ask, solve

    warm_up()
    if row.graph.startswith("generated:"):
        data = generated(row.graph.partition(":")[2])
    else:
        assert folder is not None
        data = json.loads((folder / f"{row.graph}.json").read_text())
    for edge in data["edges"]:
        edge["cost"] *= row.scale
    data["maxSizePerFPGA"] = int(data["maxSizePerFPGA"] * row.share)
    graph = from_json(data)
    options = dict(zip(row.options, row.options[1:], strict=False))
    if "--accelerators" in options:
        graph = graph.with_limits(accelerators=int(options["--accelerators"]))
    ask = Ask(
        options.get("--objective", "throughput"), "--any" not in row.options,
        int(options.get("--calls", 1)),
    )  # fmt: skip
    began = sum(os.times()[:4])  # of this process and of a solver's
    answer = solve(graph, ask, Work(row.limit, row.gap if row.gap < 1 else 0.0, clock=clock))
    worked = sum(os.times()[:4]) - began
    good = not row.most or answer.value <= row.most * (1 + 2e-6)
    close = answer.status == "optimal" or answer.gap <= row.gap + 1e-9
    met = good and close and answer.seconds <= LATE * row.limit
    return {
        **asdict(row), "name": row.name, "value": answer.value, "bound": answer.bound,
        "status": answer.status, "found_gap": answer.gap, "seconds": answer.seconds,
        "worked": worked, "met": met,
    }  # fmt: skip


def main() -> int:
    """Run the rows that are asked for; 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", default=os.environ.get("ONNXREMAT_PLACEMENT"))
    parser.add_argument("--only", default="", help="rows whose name has this text")
    parser.add_argument("--quick", action="store_true", help="rows of at most ten seconds")
    parser.add_argument("--json", type=Path, help="one object a line")
    parser.add_argument("--cpu", action="store_true", help="limits are CPU seconds: a busy machine")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    given = parser.parse_args()
    folder = Path(given.folder) if given.folder else None
    if given.row:
        row = next(row for row in rows() if f"{row.name} {row.limit}" == given.row)
        print(json.dumps(measure(row, folder, process_time if given.cpu else monotonic)))
        return 0
    chosen = [
        row for row in rows()
        if given.only in row.name and _is_there(row, folder)
        and (not given.quick or row.limit <= 10)
    ]  # fmt: skip
    if given.list:
        print(*(row.name for row in chosen), sep="\n")
        return 0
    found = [_apart(row, folder, given) for row in chosen]
    _show(found)
    return int(any(not entry.get("met") for entry in found))


def _is_there(row: Row, folder: Path | None) -> bool:
    if row.graph.startswith("generated:"):
        return True
    return folder is not None and (folder / f"{row.graph}.json").is_file()


def _apart(row: Row, folder: Path | None, given: argparse.Namespace) -> dict[str, Any]:
    """One row in a process of its own."""
    command = [sys.executable, __file__, "--row", f"{row.name} {row.limit}"]
    command += ["--cpu"] * given.cpu
    ended = subprocess.run(
        command + ([str(folder)] if folder else []), capture_output=True, text=True,
        timeout=None if given.cpu else row.limit * 2 + GRACE,
    )  # fmt: skip
    failed = {"name": row.name, "status": (ended.stderr.strip() or "failed").splitlines()[-1]}
    entry = json.loads(ended.stdout) if ended.returncode == 0 else failed
    if given.json:
        with given.json.open("a") as file:
            file.write(json.dumps(entry) + "\n")
    return entry


def _show(found: list[dict[str, Any]]) -> None:
    table = Table(title=f"placement, one thread, {processor_name()}")
    for name in ("graph", "value", "bound", "gap", "status", "seconds", "CPU s", "target", "met"):
        table.add_column(name, justify="left" if name in ("graph", "status") else "right")
    for entry in found:
        if "value" not in entry:
            table.add_row(entry["name"], "", "", "", entry["status"], "", "", "", "no")
            continue
        goals = [f"{entry['most']:g}"] * bool(entry["most"])
        goals += [f"gap {entry['gap']:.3g}"] * (entry["gap"] < 1)
        table.add_row(
            entry["name"], f"{entry['value']:.6g}", f"{entry['bound']:.6g}",
            f"{entry['found_gap']:.3%}", entry["status"], f"{entry['seconds']:.2f}",
            f"{entry['worked']:.2f}",
            ", ".join([*goals, f"{entry['limit']:g} s"]), "yes" if entry["met"] else "no",
        )  # fmt: skip
    Console(width=160).print(table)


if __name__ == "__main__":
    sys.exit(main())
