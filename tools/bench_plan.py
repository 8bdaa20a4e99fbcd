"""Measure the planner: one row per instance and budget with found, bound and seconds.

    python tools/bench_plan.py [--quick] [--only TEXT] [--seconds S] [--json FILE] [--graphs FOLDER]

Overheads and gaps are in percent of the store-all time. ``need`` is what the project promises for
that row: a gap in percentage points within a time. Rows of study graphs are skipped with a note
when the folder is absent. Exit code 1 when a promise is broken.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from plan_instances import transformer

from onnxremat.plan import Problem, peak, seconds, solve
from onnxremat.plan.baselines import BASELINES
from onnxremat.plan.bounds import largest_need
from onnxremat.plan.graph_files import read_graph
from onnxremat.plan.search import warm_up
from onnxremat.plan.wiring import Wiring

GRAPHS = Path(os.environ.get("ONNXREMAT_GRAPHS", Path(__file__).parents[2] / "shared" / "graphs"))


@dataclass(frozen=True)
class Row:
    """One promise: at ``share`` of the store-all peak, ``gap`` points within ``limit`` seconds."""

    name: str
    load: Callable[[], Problem]
    share: float
    gap: float
    limit: float
    fixed: bool = False
    quick: bool = True


def rows(folder: Path) -> Iterator[Row]:
    """Every promise, study graphs first."""
    for name in ("vgg16_b256", "vgg_unet_b32", "mobilenet_b512", "resnet50_b256"):
        path = folder / f"{name}_train.json"
        for share in (0.9, 0.7, 0.5):
            yield Row(name, lambda p=path: read_graph(p), share, 0.01, 5)
        if name[0] in "mr":
            yield Row(name, lambda p=path: read_graph(p), 0.3, 0.01, 60)
        if name[0] == "r":
            for share in (0.2, 0.15):
                yield Row(name, lambda p=path: read_graph(p), share, 1.0, 300, quick=False)
    for count, gap in ((100, 0.001), (500, 0.3), (1000, 0.05)):
        path = folder / f"random_layered_n{count}.json"
        name = f"random_{count}"
        yield Row(name, lambda p=path: read_graph(p), 0.9, 0.01, 30, fixed=True)
        yield Row(name, lambda p=path: read_graph(p), 0.8, gap, 300, fixed=True, quick=count == 100)
        if count == 100:
            yield Row(name, lambda p=path: read_graph(p), 0.9, 0.001, 30)
            yield Row(name, lambda p=path: read_graph(p), 0.8, 0.001, 30)
    for share in (0.9, 0.7, 0.5, 0.3, 0.2, 0.15):
        yield Row("bert_12", lambda: transformer(12), share, 0.01, 10)
    for share in (0.9, 0.7, 0.5, 0.3):
        yield Row("bert_48", lambda: transformer(48), share, 0.01, 20)
    yield Row("bert_160", lambda: transformer(160), 0.5, 0.01, 60)
    yield Row("bert_320", lambda: transformer(320), 0.5, 0.01, 120, quick=False)
    yield Row("bert_1000", lambda: transformer(1000), 0.5, 0.01, 600, quick=False)


def measure(row: Row, baselines: bool) -> dict[str, Any]:
    """Plan one row and return its figures."""
    problem = row.load()
    store_all = problem.store_all()
    top, total = peak(problem, store_all), seconds(problem, store_all)
    budget = int(row.share * top)
    need = largest_need(Wiring(problem), fixed_order=row.fixed).bytes
    answer = solve(problem, budget, time_limit=row.limit, gap=row.gap / 200, fixed_order=row.fixed)
    gap = 100 * answer.gap(total)
    entry: dict[str, Any] = {
        "graph": row.name,
        "ops": problem.ops,
        "budget": row.share,
        "order": "fixed" if row.fixed else "free",
        "status": answer.status.value,
        "found": None if answer.sequence is None else 100 * (answer.time / total - 1),
        "bound": 100 * (answer.certificate.bound / total - 1),
        "gap": gap,
        "any_order": answer.certificate.any_order,
        "kind": answer.certificate.kind,
        "seconds": answer.plan_seconds,
        "need_gap": row.gap,
        "need_seconds": row.limit,
        "memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "kept": need > budget or gap <= row.gap,
    }
    if baselines:
        entry["baselines"] = {
            name: None if found.sequence is None else 100 * (found.time / total - 1)
            for name, planner in BASELINES.items()
            for found in [planner(problem, budget)]
        }
    return entry


def line(entry: dict[str, Any]) -> str:
    """One row of the table."""
    found = "none" if entry["found"] is None else f"{entry['found']:.4f}"
    return (
        f"{entry['graph']:16} {entry['ops']:6} {entry['budget']:5.2f} {entry['order']:5} "
        f"{entry['status']:10} {found:>9} {entry['bound']:9.4f} {entry['gap']:8.4f} "
        f"{'any' if entry['any_order'] else 'base':4} {entry['seconds']:7.2f} "
        f"{entry['memory_mib']:6} {entry['need_gap']:6} in {entry['need_seconds']:4.0f} s "
        f"{'' if entry['kept'] else 'BROKEN'}"
    )


def main() -> int:
    """Run the table; the number of broken promises decides the exit code."""
    parser = argparse.ArgumentParser(description="found, bound and seconds per instance")
    parser.add_argument("--quick", action="store_true", help="leave out the rows of minutes")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--seconds", type=float, help="replace every time limit")
    parser.add_argument("--graphs", type=Path, default=GRAPHS, help="folder of study graphs")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--baselines", action="store_true", help="plan with the baselines too")
    options = parser.parse_args()
    print(f"kernels ready after {warm_up():.1f} s")
    print(f"{'graph':16} {'ops':>6} share order {'status':10} {'found %':>9} {'bound %':>9} "
          f"{'gap':>8} for  {'s':>7} {'MiB':>6}   need")  # fmt: skip
    entries, skipped = [], 0
    for row in rows(options.graphs):
        if options.only not in row.name or (options.quick and not row.quick):
            continue
        if options.seconds:
            row = Row(**{**row.__dict__, "limit": options.seconds})
        try:
            entries.append(measure(row, options.baselines))
        except ValueError as error:
            skipped += 1
            print(f"{row.name:16} skipped: {error}")
            continue
        print(line(entries[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
    broken = sum(not entry["kept"] for entry in entries)
    print(f"{len(entries)} rows, {broken} promises broken, {skipped} skipped")
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
