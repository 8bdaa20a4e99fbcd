"""Measure the planner: one table of found / bound / gap / seconds / peak memory / target / met.

    python tools/bench_plan.py [--quick] [--only TEXT] [--graphs FOLDER] [--seconds S]
                               [--work N] [--threads N] [--seed S] [--json FILE] [--list]
                               [--ablate [NAME ...]]

Overheads and gaps are percent of the store-all time. Every row runs in a process of its own, so
that its memory is its own, and is written to FILE (one JSON object a line) when it ends: an
interrupted run keeps its rows. The graphs of the Checkmate and MOCCASIN studies are read from
FOLDER, or from the folder that ONNXREMAT_GRAPHS names; where a file is missing, an instance of the
same kind is generated, and the column ``from`` says so. Rows whose planner is not there are skipped
with the reason. Exit code 1 when a target is missed.

--work counts the limit of every row in units of work instead of seconds (``--work`` of
``onnxremat plan``): figures are then the same on any machine and load, but for the seconds, which
are not judged. To be compared are runs of the same N.

--ablate plans some rows (those of --only, or eight that are hard) with everything, and again
without each heuristic (or those named): what is found and what is proven, and by how much they
are worse.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from plan_ablations import ABLATIONS, switch_off
from plan_ablations import ROWS as HARD
from plan_rows import Row, load, rows
from rich.console import Console
from rich.table import Table
from rich.text import Text

from onnxremat.planner import Status, peak, seconds, solve
from onnxremat.planner.options import PlanOptions

MOST_MEMORY = 4096  # MiB, of every row up to 10 000 ops
MOST_OPS = 10_000  # beyond, memory is shown and not judged
LATE = 1.1  # share of the time limit up to which a row is in time
GRACE = 120.0  # seconds a row may take beyond its limit for loading and compiling


def measure(row: Row, folder: Path | None, asked: PlanOptions) -> dict[str, Any]:
    """Plan one row and return its figures."""
    problem, source = load(row.graph, folder)
    how = {"threads": asked.threads, "seed": asked.seed, "work": asked.work}
    entry = {**row.to_json(), "ops": problem.ops, "from": source, **how}
    entry |= (_devices if row.devices else _alone)(row, problem, asked)
    entry["memory_mib"] = _memory()
    small = entry["memory_mib"] <= MOST_MEMORY or problem.ops > MOST_OPS
    if "skipped" in entry or entry["status"] == Status.INFEASIBLE.value:
        entry["met"] = None
    else:
        in_time = asked.work is not None or entry["seconds"] <= LATE * row.limit
        entry["met"] = entry["gap_found"] <= row.gap and in_time and small
    return entry


def _alone(row: Row, problem: Any, options: PlanOptions) -> dict[str, Any]:
    from onnxremat.planner.search import warm_up

    warm_up()
    everything = problem.store_all()
    total = seconds(problem, everything)
    budget = int(row.share * peak(problem, everything))
    found = solve(problem, budget, options)
    none = found.sequence is None
    return {
        "status": found.status.value,
        "found": None if none else 100 * (found.time / total - 1),
        "bound": 100 * (found.certificate.bound / total - 1),
        "gap_found": 100 * found.gap,
        "any_order": found.certificate.any_order,
        "kind": found.certificate.kind,
        "planner": found.planner,
        "seconds": found.plan_seconds,
    }


def _devices(row: Row, problem: Any, options: PlanOptions) -> dict[str, Any]:
    """A row of the planner for several devices, where it is there."""
    try:
        import device_instances

        from onnxremat.planner.search import warm_up
    except ImportError as error:
        return {"skipped": f"no planner for devices: {error}"}
    warm_up(2)
    make = {"two": device_instances.two_devices, "host": device_instances.with_host}[row.devices]
    top = peak(problem, problem.store_all())
    budgets = [row.share * top, row.share * top if row.devices == "two" else float("inf")]
    found = solve(make(problem), budgets, options)
    whole = found.reference
    none = found.schedule is None
    return {
        "status": found.status.value,
        "found": None if none else 100 * (found.value / whole - 1),
        "bound": 100 * (found.certificate.bound / whole - 1),
        "gap_found": 100 * found.gap,
        "any_order": found.certificate.any_order,
        "kind": found.certificate.kind,
        "planner": found.planner,
        "seconds": found.plan_seconds,
    }


def _asked(row: Row, options: argparse.Namespace) -> PlanOptions:
    return PlanOptions(
        time_limit=row.limit,
        work=options.work,
        gap=row.gap / 200,
        fixed_order=row.fixed,
        threads=options.threads,
        seed=options.seed,
    )


def _memory() -> int:
    """Largest resident size of this process in MiB (not ru_maxrss where /proc has it: that counts
    the parent's pages from before this program was loaded)."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) // 1024
    unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // unit


def run_row(row: Row, options: argparse.Namespace, without: str = "") -> dict[str, Any]:
    """Measure a row in a process of its own, without one heuristic if it is named."""
    command = [sys.executable, __file__, "--row", row.name, "--threads", str(options.threads)]
    command += ["--seed", str(options.seed)]
    command += ["--work", str(options.work)] if options.work else []
    command += ["--without", without] if without else []
    if options.graphs:
        command += ["--graphs", str(options.graphs)]
    if options.seconds:
        command += ["--seconds", str(options.seconds)]
    failed = {**row.to_json(), "status": "failed", "met": False}
    try:
        limit = (options.seconds or row.limit) + GRACE if options.work is None else None
        ended = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return {**failed, "why": f"no answer {GRACE:.0f} s after its time limit"}
    if ended.returncode:
        last = ended.stderr.strip().splitlines() or [f"code {ended.returncode}"]
        return {**failed, "why": last[-1]}
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def table(entries: Sequence[dict[str, Any]]) -> Table:
    """All rows."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    made.add_column("graph", no_wrap=True)
    for name in ("n", "budget", "found %", "bound %", "gap", "s", "MiB"):
        made.add_column(name, justify="right", no_wrap=True)
    for name in ("bound for", "from", "target", "met"):
        made.add_column(name, no_wrap=True)
    for entry in entries:
        made.add_row(*_cells(entry))
    return made


def _cells(entry: dict[str, Any]) -> list[Text]:
    name = entry["graph"] + (f" +{entry['devices']}" if entry["devices"] else "")
    budget = f"{entry['share']:.0%}"
    target = f"{entry['gap']:g} in {entry['limit']:g} s"
    if "seconds" not in entry:
        why = entry.get("skipped") or entry.get("why") or entry["status"]
        word = "skipped" if "skipped" in entry else "failed"
        row = [name, "", budget, "", "", "", "", "", "", "", target, f"{word}: {why}"]
        return [Text(cell) for cell in row]
    proven = entry["status"] == "infeasible"
    order = "fixed order" if entry["fixed"] else "any order" if entry["any_order"] else "base order"
    found = "none" if entry["found"] is None else f"{entry['found']:.4f}"
    met = {True: "yes", False: "NO", None: "infeasible"}[entry["met"]]
    return [
        Text(cell)
        for cell in (
            name, str(entry["ops"]), budget, "-" if proven else found,
            "-" if proven else f"{entry['bound']:.4f}",
            "-" if proven or entry["found"] is None else f"{entry['gap_found']:.4f}",
            f"{entry['seconds']:.2f}", str(entry["memory_mib"]), order, entry["from"], target, met,
        )
    ]  # fmt: skip


def chosen(options: argparse.Namespace) -> list[Row]:
    """The rows asked for, with the time limit asked for."""
    found = [
        row
        for row in rows()
        if options.only in row.name
        and options.row in ("", row.name)
        and (row.quick or not options.quick)
    ]
    if options.seconds:
        found = [Row(**{**row.__dict__, "limit": options.seconds}) for row in found]
    return found


def main() -> int:
    """Run the table; a missed target makes the exit code 1."""
    given = os.environ.get("ONNXREMAT_GRAPHS")
    parser = argparse.ArgumentParser(description="found, bound and seconds per instance")
    parser.add_argument("--quick", action="store_true", help="leave out the rows of minutes")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--graphs", type=Path, default=Path(given) if given else None,
                        help="folder of study graphs")  # fmt: skip
    parser.add_argument("--seconds", type=float, help="replace every time limit")
    parser.add_argument("--work", type=int, help="units of work per row, instead of its seconds")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=0, help="seed of the search")
    parser.add_argument("--json", type=Path, default=Path("bench-plan.jsonl"))
    parser.add_argument("--list", action="store_true", help="name the rows and stop")
    parser.add_argument("--ablate", nargs="*", metavar="NAME",
                        help="what each heuristic earns, or those named; a+b: both")  # fmt: skip
    parser.add_argument("--row", default="", help=argparse.SUPPRESS)
    parser.add_argument("--without", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    wanted = chosen(options)
    if options.row:
        if options.without:
            for name in options.without.split("+"):
                switch_off(name)
        row = wanted[0]
        print(json.dumps(measure(row, options.graphs, _asked(row, options))))
        return 0
    if not wanted:
        parser.error(f"no row has '{options.only}' in its name; --list names all")
    if options.list:
        print("\n".join(row.name for row in wanted))
        return 0
    if options.graphs and not options.graphs.is_dir():
        parser.error(f"no such folder: {options.graphs}")
    if options.ablate is not None:
        known = {one.name for one in ABLATIONS}
        if not known.issuperset(name for names in options.ablate for name in names.split("+")):
            parser.error(f"--ablate knows {', '.join(sorted(known))}")
        return ablate([row for row in wanted if options.only or row.name in HARD], options)
    return report(wanted, options)


def ablate(wanted: Sequence[Row], options: argparse.Namespace) -> int:
    """Plan each row with everything and without each heuristic; print what that changes."""
    console = Console(width=None if sys.stdout.isatty() else 150)
    made = Table(box=None, pad_edge=False, header_style="bold", title="percent, and + where worse")
    for name in ("row", "without", "found %", "worse", "bound %", "worse", "s"):
        made.add_column(
            name, no_wrap=True, justify="left" if name in ("row", "without") else "right"
        )
    names = ["", *(options.ablate or [one.name for one in ABLATIONS])]
    try:
        with options.json.open("w", encoding="utf-8") as file:
            for row in wanted:
                whole: dict[str, Any] = {}
                for name in names:
                    entry = {**run_row(row, options, name), "without": name}
                    whole = whole or entry
                    file.write(json.dumps(entry) + "\n")
                    file.flush()
                    made.add_row(row.name, name or "(everything)", *_against(entry, whole))
                    print(row.name, name, *_against(entry, whole), file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    console.print(made)
    for one in ABLATIONS:
        if any(one.name in name.split("+") for name in names):
            console.print(f"{one.name}: {one.what}")
    return 0


def _against(entry: dict[str, Any], whole: dict[str, Any]) -> list[str]:
    """Cells of a row of the table of ablations."""
    cells = []
    for key, sign in (("found", 1), ("bound", -1)):
        here, there = entry.get(key), whole.get(key)
        cells.append("none" if here is None else f"{here:.4f}")
        if entry is whole or here is None or there is None:
            cells.append("")
        else:
            cells.append(f"{sign * (here - there):+.4f}")
    return [*cells, f"{entry['seconds']:.1f}" if "seconds" in entry else entry["status"]]


def report(wanted: Sequence[Row], options: argparse.Namespace) -> int:
    """Run rows one after the other, write each, print the table at the end or at Ctrl-C."""
    console = Console(width=None if sys.stdout.isatty() else 150)
    entries: list[dict[str, Any]] = []
    try:
        with options.json.open("w", encoding="utf-8") as file:
            for row in wanted:
                entries.append(run_row(row, options))
                file.write(json.dumps(entries[-1]) + "\n")
                file.flush()
                told = " ".join(cell.plain for cell in _cells(entries[-1])[3:] if cell.plain)
                done = f"{len(entries)} of {len(wanted)}: {row.name}: {told}"
                print(done, file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    console.print(table(entries))
    missed = sum(entry["met"] is False for entry in entries)
    generated = sorted({entry["graph"] for entry in entries if entry.get("from") == "generated"})
    console.print(f"{len(entries)} of {len(wanted)} rows, {missed} targets missed")
    console.print(f"generated: {', '.join(generated) or 'none'}; figures in {options.json}")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
