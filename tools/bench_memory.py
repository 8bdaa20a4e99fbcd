"""What a process takes for a planned model, against its budget: `make bench-memory`.

    python tools/bench_memory.py [--row NAME ...] [--list] [--threads N] [--json FILE]
    python tools/bench_memory.py --model FILE ... [--kind infer train adamw] [--budget 0.6x 0.8x]

A row is a model and a budget, ``unet_train@0.6x``; ``--row 'bert*'`` takes all that match. With
``--model`` the rows are of these inference models: they themselves, their SGD and AdamW steps. Each
model is built, planned (or for its smallest budget, where there is no plan) and kept in
bench-memory/, then run in fresh processes (memory_process.py):

* ``slab``: `onnxremat.load`, planned addresses; ``region``: the same without the compiled
  allocator, an arena of chosen sizes; ``arena``: a plain session with the planned options;
  ``plain``: the file under default options; ``original``: the original under default options;
  ``trainer``: a `Trainer` (rows of ``_adamw``).

Growth is the high-water mark of the resident size (``VmHWM``, reset before inputs are read and
the session is made) over the resident size just before, after ``--runs`` runs with changing inputs.
Outputs are let go before the next run. Before the mark is reset a session of one node has run and
an array was read from a file, so that what onnxruntime and NumPy take once per process is not in
it; the pages of onnxruntime's library that kernels touch for the first time are, and are listed by
themselves.

``limit``: a run under RLIMIT_DATA = data before the inputs + budget (1.15 times for ``region``) +
4 MiB. Stacks are 1 MiB (``ulimit -s``), because that limit counts the addresses of a stack, not its
pages.

Rows of the tool itself (memory_tool.py): ``optimize_1GiB``, ``optimize_2GiB`` (of weights),
``first_optimize`` (of a fresh installation, against the second).

Times: all ways are open at once, and step in turn; the medians of ratios to ``arena`` and to
``original`` of wall and CPU seconds. Where one misses its target, all are timed again with thrice
the rounds, and that counts. Likewise of memory that is compared with the original's: where it is
more, two more processes of each are weighed, and the least of three counts.
"""

from __future__ import annotations

import argparse
import fnmatch
import itertools
import json
import statistics
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from memory_process import Process  # noqa: E402
from memory_tool import TOOL  # noqa: E402

from onnxremat.device.host import processor_name  # noqa: E402

FOLDER = ROOT / "bench-memory"
SLACK, MIB = 4 << 20, 1 << 20
REGION = 1.15  # of the budget, for sessions without the compiled allocator
TRAINER = ("updates",)  # not counted where a trainer runs a step
Found = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """A model and a budget.

    Attributes:
        net: a name of ``models``, or a model of torchvision.
        kind: ``train``, ``infer``, ``adamw``.
        asked: its budget.
        sizes: arguments of the model.
        file: of the model, for one that is given.
        loss: of its training step.
    """

    net: str
    kind: str
    asked: str
    sizes: tuple[tuple[str, Any], ...] = ()
    file: Path | None = None
    loss: str = "cross-entropy"

    @property
    def model(self) -> str:
        return f"{self.net}_{self.kind}"

    @property
    def name(self) -> str:
        return f"{self.model}@{self.asked}"

    @property
    def binds(self) -> bool:
        """The budget is less than the original takes."""
        return self.asked not in LOOSE

    @property
    def ways(self) -> tuple[str, ...]:
        if self.kind == "adamw":
            return ("trainer",)
        return (
            ("slab", "region", "arena", "plain", "original")
            if self.binds
            else ("slab", "plain", "original")
        )


TIGHT, LOOSE = ("0.6x", "0.8x"), ("1.0x", "1.3x")
SIZES: dict[str, dict[str, Any]] = {
    "vit_train": {"batch": 4}, "mobilenetv2_infer": {"batch": 32, "size": 224},
    "resnet50_infer": {"size": 224}, "efficientnet_infer": {"size": 224, "batch": 8},
}  # fmt: skip
KINDS = ("infer", "train", "adamw")
TRAINED = ("unet", "resnet18", "resnet50", "bert", "vit", "mobilenetv2", "gpt2")
INFERRED = ("mobilenetv2", "unet", "bert", "gpt2")
LAYOUTS = ("resnet50", "mobilenetv2", "efficientnet", "vgg16", "inception")


def rows(batch: int = 0) -> list[Row]:
    """All of them, of another batch than usual where one is given."""
    listed: list[tuple[str, str, tuple[str, ...]]]
    listed = [(net, "train", TIGHT) for net in TRAINED]
    listed += [(net, "infer", TIGHT) for net in INFERRED]
    listed += [(net, "infer", LOOSE) for net in LAYOUTS] + [("bert", "adamw", ("min",))]
    more = {"batch": batch} if batch else {}
    return [
        Row(net, kind, asked, tuple({**SIZES.get(f"{net}_{kind}", {}), **more}.items()))
        for net, kind, budgets in listed
        for asked in budgets
    ]


def given(args: argparse.Namespace) -> list[Row]:
    """Those of the models that are given."""
    return [
        Row(file.stem, kind, asked, file=file, loss=args.loss)
        for file in args.model
        for kind in args.kind
        for asked in args.budget
    ]


# ---- models ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Files:
    """Of a row: the original, inputs, the planned model, the model it is a training step of."""

    source: Path
    feeds: Path
    out: Path
    weights: Path


def prepare(row: Row, args: argparse.Namespace) -> Files:
    """Build and plan what is not there yet."""
    import onnx

    from onnxremat.grad import Settings, differentiate
    from onnxremat.graph.onnx_io import read_model
    from onnxremat.ort.feeds import seeded_feeds
    from onnxremat.ort.infer import build_graph

    folder = args.folder
    files = Files(
        folder / f"{row.model}.onnx", folder / f"{row.model}.npz",
        folder / f"{row.model}_{row.asked}.onnx", folder / f"{row.model}_weights.onnx",
    )  # fmt: skip
    if not files.source.exists():
        model = built(row, folder)
        if row.kind == "infer":
            onnx.save(model, files.source)
        else:
            onnx.save(model, files.weights)
            optimizer = "adamw" if row.kind == "adamw" else "sgd"
            settings = Settings(optimizer=optimizer, loss=row.loss)
            onnx.save(differentiate(model, settings=settings), files.source)
    if not files.feeds.exists():
        values: dict[str, Any] = seeded_feeds(build_graph(read_model(files.source), folder))
        np.savez(files.feeds, **values)
    if not files.out.exists():
        planned(row, files, args.time_limit)
    return files


def built(row: Row, folder: Path) -> Any:
    """The inference model of a row."""
    import onnx

    import models
    from onnxremat.graph.onnx_io import read_model

    if row.file is not None:
        return onnx.load(row.file)
    if row.net in models.names():
        return models.build(row.net, **dict(row.sizes))
    import torch

    from onnxremat.exporting.write import export
    from tests.zoo.libraries import torchvision

    sizes, file = dict(row.sizes), folder / f"{row.net}_exported.onnx"
    torch.manual_seed(0)
    images = torch.randn(sizes["batch"], 3, sizes["size"], sizes["size"])
    export(torchvision.models.efficientnet_b0().eval(), (images,), file)
    return read_model(file)


def planned(row: Row, files: Files, seconds: float) -> None:
    """Write the planned model of a row."""
    from onnxremat import api
    from onnxremat.errors import InfeasibleError, NoPlanError

    options = api.PlanOptions(time_limit=seconds)
    settings = api.Settings(not_counted=TRAINER if row.kind == "adamw" else ())

    def within(budget: str) -> Any:
        return api.optimize(
            files.source, budget=budget, settings=settings, options=options, bench_seconds=0
        )

    try:
        made = within(row.asked)
    except (InfeasibleError, NoPlanError):
        made = within("min")
    made.save(files.out)


# ---- measurements ---------------------------------------------------------------------------


def grown(way: str, files: Files, args: argparse.Namespace) -> Found:
    """What a fresh process grows by."""
    process = started(way, files, args.threads)
    finite = [process.say("step").get("finite") for _ in range(args.runs)]
    return {**process.end(), "finite": all(finite)}


def limited(way: str, files: Files, args: argparse.Namespace, room: int) -> str:
    """Whether a run goes through in a limit on data: "ok", or the error."""
    process = started(way, files, args.threads, room)
    steps = [bool(process.say("step")) for _ in range(3)] if process.facts else [False]
    facts = process.end()
    return "ok" if all(steps) else facts["error"] or "died"


def started(way: str, files: Files, threads: int, room: int = 0) -> Process:
    """A worker of the file that a way opens."""
    file = files.source if way == "original" else files.out
    return Process(way, file, files.feeds, threads, room, str(files.weights))


def timed(row: Row, files: Files, args: argparse.Namespace, rounds: int) -> dict[str, list[Found]]:
    """Seconds per step of each way, all stepping in turn."""
    processes = {way: started(way, files, args.threads) for way in row.ways}
    found: dict[str, list[Found]] = {way: [] for way in row.ways}
    ways = list(row.ways)
    for turn in range(rounds + 2):
        for way in ways[turn % len(ways) :] + ways[: turn % len(ways)]:
            found[way].append(processes[way].say("step"))
    for process in processes.values():
        process.end()
    return {way: [row for row in steps[2:] if row] for way, steps in found.items()}


def ratio(times: dict[str, list[Found]], way: str, base: str, key: str) -> float | None:
    """Median of the ratios in a round."""
    if not times.get(way) or len(times[way]) != len(times.get(base, ())):
        return None
    pairs = zip(times[way], times[base], strict=True)
    return float(statistics.median(a[key] / b[key] for a, b in pairs))


def measure(row: Row, args: argparse.Namespace) -> list[Found]:
    """A line per way of a row."""
    from onnxremat.graph.wire import read_light
    from onnxremat.rewrite.emit import metadata
    from onnxremat.session.process import counted

    files = prepare(row, args)
    facts = json.loads(metadata(read_light(files.out).head)["facts"])
    budget = facts["budget_bytes"]
    said = f"{counted(facts).words or 'nothing'} beside weights and values"
    print(f"{row.name}: a budget of {budget / MIB:.1f} MiB counts {said}", flush=True)
    found = []
    for way in row.ways:
        line = {
            "row": row.name,
            "way": way,
            "budget": budget,
            "recomputed": facts["recomputed_ops"],
        }
        line |= {"weights": facts["weight_bytes"], "peak": facts["peak_measured_bytes"]}
        line |= grown(way, files, args)
        if row.binds and way != "plain":
            room = int(budget * (REGION if way == "region" else 1)) + SLACK
            line["limit"] = limited(way, files, args, room)
        found.append(line)
    weigh_again(row, files, args, found)
    for rounds in (args.rounds, 3 * args.rounds):
        times = timed(row, files, args, rounds) if rounds and len(row.ways) > 1 else {}
        for line, base, key in itertools.product(found, ("arena", "original"), ("cpu", "wall")):
            line[f"{key}_to_{base}"] = ratio(times, line["way"], base, key)
        if not any(late(row, line, args.key) for line in found):
            break
    for line in found:
        line["missed"] = [*missed(row, line, found[-1]), *late(row, line, args.key)]
        line["missed"] += refused(files, budget) if row.name == "bert_adamw@min" else []
        print(shown(line), flush=True)
    return found


def weigh_again(row: Row, files: Files, args: argparse.Namespace, found: list[Found]) -> None:
    """Two processes more of what takes more than the original, and of that: the least counts."""
    original = found[-1]
    over = [line for line in found if (not row.binds or line["way"] == "plain")
            and line.get("growth", 0) > original.get("growth", inf)]  # fmt: skip
    for line in [*over, original] if over else ():
        more = [grown(line["way"], files, args).get("growth", inf) for _ in range(2)]
        line["growth"] = min(line["growth"], *more)


def missed(row: Row, line: Found, original: Found) -> list[str]:
    """The targets of memory that a way misses, and of its running at all."""
    way, growth, budget = line["way"], line.get("growth"), line["budget"]
    if way in ("arena", "original"):
        return []
    if growth is None:
        return [f"does not run: {line['error']}"]
    found = [] if line["finite"] else ["results are no numbers"]
    if not row.binds or way == "plain":
        if growth > original["growth"]:
            found.append(f"takes {(growth - original['growth']) / MIB:+.1f} MiB to the original")
        return found
    most = {"slab": 1.02, "trainer": 1.02, "region": REGION}[way] * budget + SLACK
    if growth > most:
        found.append(f"takes {(growth - most) / MIB:+.1f} MiB to its target")
    if line["limit"] != "ok":
        found.append(f"does not run in its limit: {line['limit']}")
    return found


def late(row: Row, line: Found, key: str) -> list[str]:
    """The targets of time that a way misses."""
    if line["way"] in ("arena", "original") or (row.binds and line["way"] != "slab"):
        return []
    if not row.binds:
        return slower(line, "original", 1.03, key)
    whole = [] if line["recomputed"] else slower(line, "original", 1.02, key)
    return [*slower(line, "arena", 1.05, key), *whole]


def slower(line: Found, base: str, most: float, key: str) -> list[str]:
    """Whether a step takes more than ``most`` times another's."""
    took = line[f"{key}_to_{base}"]
    if took is None or took <= most:
        return []
    return [f"{took:.3f} times the {key} seconds of {base} (at most {most})"]


def refused(files: Files, budget: int) -> list[str]:
    """A quarter less must be refused with a proof."""
    words: list[object]
    words = [sys.executable, "-c", "from onnxremat.cli.app import main; main()", "optimize"]
    words += [files.source, files.out.with_suffix(".less.onnx"), "--budget", budget * 3 // 4, "-q"]
    words += ["--not-counted", ",".join(TRAINER)]
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, cwd=ROOT)
    print(f"a quarter less: exit {done.returncode}\n{done.stderr[-600:]}", flush=True)
    return [] if done.returncode == 3 else [f"a quarter less ends with exit {done.returncode}"]


# ---- the table ------------------------------------------------------------------------------

HEAD = (
    "| row | way | budget | growth | of it | over the plan | structures | library | opening | "
    "in the limit | CPU to arena | to original | wall to arena | to original | missed |\n"
    "|---|---|" + "---:|" * 12 + "---|"
)


def shown(line: Found) -> str:
    """A line for people; MiB."""
    growth, budget = line.get("growth"), line["budget"]
    own = [
        (growth or 0) - line["peak"] - line.get("inputs", 0),
        line.get("opened", 0) - line["weights"], line.get("file", 0), line.get("opening", 0),
    ]  # fmt: skip
    ratios = [line[f"{key}_to_{base}"] for key in ("cpu", "wall") for base in ("arena", "original")]
    cells = [
        line["row"], line["way"], f"{budget / MIB:.1f}",
        "-" if growth is None else f"{growth / MIB:.1f}",
        "-" if growth is None else f"{growth / budget:.3f}", *(f"{v / MIB:.1f}" for v in own),
        {"ok": "yes", None: ""}.get(line.get("limit"), "no"),
        *("-" if value is None else f"{value:.3f}" for value in ratios),
        "; ".join(line["missed"]),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def chosen(names: Iterable[str], patterns: list[str] | None) -> list[str]:
    """Those that match a pattern; all of them without patterns."""
    return [
        name for name in names if not patterns or any(fnmatch.fnmatch(name, p) for p in patterns)
    ]


def main() -> int:
    """Print the table; 1 where a target was missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--row", nargs="+", help="names, or patterns of them")
    parser.add_argument("--model", nargs="+", type=Path, help="files of inference models instead")
    parser.add_argument("--kind", nargs="+", default=KINDS, choices=KINDS, help="of --model")
    parser.add_argument("--budget", nargs="+", default=TIGHT, help="of --model")
    parser.add_argument("--loss", default="cross-entropy", help="of steps of --model")
    parser.add_argument("--list", action="store_true", help="the names")
    parser.add_argument("--runs", type=int, default=20, help="in the process that is weighed")
    parser.add_argument("--rounds", type=int, default=15, help="of timing; 0 for none")
    parser.add_argument(
        "--key", default="wall", choices=("wall", "cpu"), help="seconds to judge by"
    )
    parser.add_argument("--batch", type=int, default=0, help="of all models; with a new --folder")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--time-limit", type=float, default=20, help="of planning, seconds")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--json", type=Path, help="add a JSON object per line of the table")
    args = parser.parse_args()
    models = {row.name: row for row in (given(args) if args.model else rows(args.batch))}
    wanted = chosen([*models, *([] if args.model else TOOL)], args.row)
    if not wanted:
        parser.error(f"no row is called {' or '.join(args.row)}; --list has the names")
    if args.list:
        print("\n".join(wanted))
        return 0
    args.folder.mkdir(exist_ok=True)
    print(f"{processor_name()}, {args.threads} threads\n\n{HEAD}", flush=True)
    missing = [name for name in wanted if not shown_row(name, models.get(name), args)]
    print(f"\n{len(missing)} of {len(wanted)} rows missed a target: {', '.join(missing) or 'none'}")
    return 1 if missing else 0


def shown_row(name: str, row: Row | None, args: argparse.Namespace) -> bool:
    """Measure a row and print it; whether it met its targets."""
    if row is None:
        missed = TOOL[name](args.folder, args.threads)
        print(f"{name}: {'; '.join(missed) or 'met'}", flush=True)
        return not missed
    found = measure(row, args)
    if args.json:
        with args.json.open("a") as out:
            out.writelines(json.dumps(line) + "\n" for line in found)
    return not any(line["missed"] for line in found)


if __name__ == "__main__":
    sys.exit(main())
