"""Models x budgets: what is planned, what is measured, and whether it got worse.

    make regress                       all models, about half an hour
    python tools/regress.py --quick    a few models
    python tools/regress.py --accept   make this run the reference

Every model of `models/` (and the training graphs of `../shared/models`, where they are) is
optimised to 90, 70 and 50 % of its unoptimised peak, or to its smallest budget where that is
higher, and to `min`. One table goes to regress-out/ as JSON and Markdown and is held against
tools/regress.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import onnx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import models  # noqa: E402
from onnxremat import api  # noqa: E402
from onnxremat.errors import InfeasibleError, NoPlanError, OnnxrematError  # noqa: E402
from onnxremat.units import format_bytes  # noqa: E402

REFERENCE = ROOT / "tools" / "regress.json"
OUT = ROOT / "regress-out"
SHARED = ROOT.parent / "shared" / "models"
BUDGETS = ("0.9x", "0.7x", "0.5x", "min")
QUICK = ("resnet18", "vit", "bert_train", "resnet50_train")
KEYS = (
    "status", "budget_bytes", "limit_bytes", "baseline_peak_bytes", "peak_predicted_bytes",
    "peak_measured_bytes", "peak_default_options_bytes", "overhead_planned", "overhead_to_whole",
    "overhead_measured",
    "bound", "gap", "plan_seconds", "recomputed_ops", "ops", "bit_equal", "order_kept",
    "order_kept_default_options",
)  # fmt: skip


def sources(folder: Path) -> dict[str, Path]:
    """Name to file of every model."""
    found = {}
    for name in models.names():
        path = folder / f"{name}.onnx"
        onnx.save(models.build(name), path)
        found[name] = path
    if SHARED.is_dir():
        found |= {path.stem: path for path in sorted(SHARED.glob("*.onnx"))}
    else:
        print(f"no training graphs beside the checkout ({SHARED.name}/): skipped")
    return found


def one(path: Path, budget: str, time_limit: float, bench_seconds: float) -> dict[str, Any]:
    """Optimise, write and check one model; its row of the table."""
    options = api.PlanOptions(time_limit=time_limit)
    asked = budget
    try:
        result = api.optimize(path, budget=budget, options=options, bench_seconds=bench_seconds)
    except (InfeasibleError, NoPlanError) as error:
        asked = f"{budget} (smallest)"
        result = api.optimize(
            path, budget=error.smallest or "min", options=options, bench_seconds=bench_seconds
        )
    facts = result.facts()
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "out.onnx"
        result.save(written)
        _check(written)
    parts = bool(facts["fission"]) or len(facts["split_batch"]) > 1
    return {"asked": asked, "in_parts": parts, **{key: facts[key] for key in KEYS}}


def _check(written: Path) -> None:
    """onnx's own checks, but where onnxruntime's fused operators use the standard's domain: they
    are no operators that onnx knows (it has been run and compared by then)."""
    graph = onnx.load(written, load_external_data=False).graph
    fused = {
        node.op_type
        for node in graph.node
        if node.domain in ("", "ai.onnx") and not onnx.defs.has(node.op_type)
    }
    if not fused:
        onnx.checker.check_model(str(written), full_check=True)


def complaints(name: str, budget: str, row: dict[str, Any], old: dict[str, Any]) -> list[str]:
    """What is wrong with a row, by itself and against the reference."""
    where = f"{name} {budget}"
    if "error" in row:
        return [f"{where}: {row['error']}"] if "error" not in old else []
    found = []
    if row["peak_measured_bytes"] > row["limit_bytes"]:
        found.append(f"{where}: measured peak over the limit")
    if abs(row["peak_predicted_bytes"] / row["peak_measured_bytes"] - 1) > 0.02:
        found.append(f"{where}: predicted peak more than 2 % off")
    # Products of parts, and of other fused ops, may round otherwise; beyond tolerance is refused.
    same_ops = row["ops"] == old.get("ops", row["ops"])
    same = row["bit_equal"] or row["in_parts"] or not same_ops
    if not row["order_kept"] or not same:
        found.append(f"{where}: outputs or order differ")
    if "(smallest)" in row["asked"] and "(smallest)" not in old.get("asked", "(smallest)"):
        found.append(f"{where}: no plan; there was one")
    # Where only one of the two keeps the share asked for, they are plans for other budgets.
    if row["asked"] == old.get("asked") and "overhead_planned" in old:
        if row["gap"] > max(1e-3, 1.5 * old["gap"]):
            found.append(f"{where}: gap {row['gap']:.3%}, was {old['gap']:.3%}")
        more, before = overhead(row), overhead(old)
        if more is not None and before is not None and more > before * 1.25 + 0.02:
            found.append(f"{where}: overhead {more:.2%}, was {before:.2%}")
        if row["plan_seconds"] > 3 * old["plan_seconds"] + 10:
            found.append(
                f"{where}: {row['plan_seconds']:.0f} s to plan, was {old['plan_seconds']:.0f}"
            )
    return found


def overhead(row: dict[str, Any]) -> float | None:
    """Against the whole graph that stores everything, whether the plan is in parts or not: what
    plans can be compared by. None of a reference in parts that does not know it."""
    if row.get("overhead_to_whole") is not None:
        return float(row["overhead_to_whole"])
    return None if row.get("in_parts") else row["overhead_planned"]


def markdown(rows: dict[str, dict[str, Any]]) -> str:
    """The table for people."""
    head = (
        "| model | budget | ops | unoptimised | limit | predicted | measured | default options | "
        "planned | to the whole | measured | bound | gap | plan s |\n"
        + "|---|---|"
        + "---:|" * 12
        + "\n"
    )
    lines = []
    for key, row in rows.items():
        name, _, budget = key.partition(" ")
        if "error" in row:
            lines.append(f"| {name} | {budget} | {row['error']} |" + " |" * 11)
            continue
        sizes = [
            "-" if row[k] is None else format_bytes(row[k])
            for k in (
                "baseline_peak_bytes", "limit_bytes", "peak_predicted_bytes",
                "peak_measured_bytes", "peak_default_options_bytes",
            )
        ]  # fmt: skip
        shares = [
            f"{row[k]:+.2%}" if row.get(k) is not None else "-"
            for k in ("overhead_planned", "overhead_to_whole", "overhead_measured", "bound", "gap")
        ]
        lines.append(
            f"| {name} | {row['asked']} | {row['ops']} | {' | '.join(sizes)} | "
            f"{' | '.join(shares)} | {row['plan_seconds']:.1f} |"
        )
    return head + "\n".join(lines) + "\n"


def write(rows: dict[str, dict[str, Any]]) -> None:
    """The table so far: an interrupted run keeps its rows."""
    OUT.mkdir(exist_ok=True)
    (OUT / "regress.json").write_text(json.dumps(rows, indent=1) + "\n")
    (OUT / "regress.md").write_text(markdown(rows))


def main() -> int:
    """Run everything; 1 when something is wrong or worse."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="models; all without")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--accept", action="store_true", help="make this run the reference")
    parser.add_argument("--budgets", default=",".join(BUDGETS))
    parser.add_argument("--time-limit", type=float, default=60.0)
    parser.add_argument("--bench-seconds", type=float, default=3.0)
    arguments = parser.parse_args()
    reference = json.loads(REFERENCE.read_text()) if REFERENCE.exists() else {}
    rows: dict[str, dict[str, Any]] = {}
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        for name, path in sources(Path(folder)).items():
            if arguments.names and name not in arguments.names:
                continue
            if arguments.quick and name not in QUICK:
                continue
            for budget in arguments.budgets.split(","):
                try:
                    row = one(path, budget, arguments.time_limit, arguments.bench_seconds)
                except OnnxrematError as error:
                    row = {"error": f"{type(error).__name__}: {error.what}"}
                key = f"{name} {budget}"
                rows[key] = row
                wrong += complaints(name, budget, row, reference.get(key, {}))
                print(markdown({key: row}).splitlines()[-1], flush=True)
                write(rows)
    print(f"table: {OUT.name}/regress.md, {len(rows)} rows")
    for text in wrong:
        print("WORSE", text)
    if arguments.accept:
        REFERENCE.write_text(json.dumps({**reference, **rows}, indent=1) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
