"""What several processes gain, row by row: ``make bench-workers ARGS='--only data-parallel'``.

Two ranks of one thread each want two idle cores. Every row prints what it measured; nothing is
judged by it.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import onnx
from bench_workers_ranks import MICRO_BATCHES

import models
from models.inputs import feeds
from onnxremat.device.host import processor_name
from onnxremat.grad import differentiate
from onnxremat.grad.description import training_of

ROOT = Path(__file__).parents[1]
RANKS = str(ROOT / "tools" / "bench_workers_ranks.py")
LAYERS = {"sequence": 64, "hidden": 256, "layers": 4, "heads": 8, "vocab": 2000, "positions": 64}
NETS: dict[str, dict[str, Any]] = {
    "resnet18": {"size": 64, "width": 64, "classes": 10},
    "bert": LAYERS,
    "gpt2": LAYERS,
}
ONE_DEVICE = {"densenet121": {"batch": 8, "size": 64}, "mobilenetv2": {"batch": 16, "size": 96}}
WORK = "30000"  # of planning, whatever else the machine does
BUDGETS = ("0.8x", "0.6x")
CORES = len(os.sched_getaffinity(0))
ROWS = 8
RATIOS = (0.3, 0.5, 0.8)  # of communication to compute
LARGE = {"vocab": 16000}
SCHEDULES = ("gpipe", "1f1b", "zb-h1", "fast-forward", "zb-2p", "interleaved", "zb-v", "auto")


# ---- rows ----------------------------------------------------------------------------------------


def prepare(folder: Path, name: str, rows: int, joined: int, **sizes: Any) -> None:
    """A step for so many rows, and one batch of it times ``joined``."""
    model = models.build(name, batch=rows, **NETS[name] | sizes)
    step = differentiate(model, optimizer="sgd", initializers=True)
    onnx.save(step, folder / "step.onnx")
    about = training_of(step)
    kind = {v.name: v.type.tensor_type for v in step.graph.input}[about.target]
    shape = [d.dim_value for d in kind.shape.dim]
    labels = np.random.default_rng(0).integers(0, about.classes, shape)
    batch = {**feeds(model), about.target: labels.astype(np.int64)}
    joined_rows: dict[str, Any] = {n: np.concatenate([a] * joined) for n, a in batch.items()}
    np.savez(folder / "data.npz", **joined_rows)


def together(what: str, folder: Path, ranks: int = 2, **options: Any) -> Any:
    """Start the processes, each on a core of its own where there are enough."""
    mpiexec = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or "mpiexec"
    bound = ["-bind-to", "core"] if ranks <= CORES else []
    command = [sys.executable, RANKS, what, str(folder), json.dumps(options)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run([mpiexec, "-n", str(ranks), *bound, *command], env=environment, check=True)
    return json.loads((folder / "found.json").read_text())


def row_data_parallel(folder: Path) -> None:
    """Throughput of two ranks of one thread against one, turn by turn: 1.85 wanted. Beside it two
    that share nothing, which is what the machine leaves, and the same where each waits for the
    other after every step, as whoever trains together has to; and how near two come to that."""
    for name, rows in itertools.product(NETS, (ROWS, 4 * ROWS)):
        prepare(folder, name, rows, 1)
        turns = together("turns", folder, steps=2, rounds=8)
        median = {key: statistics.median(row[key] for row in turns) for key in turns[0]}
        gains = sorted(2 * row["one"] / row["two"] for row in turns)
        apart, met, share = (
            statistics.median(each)
            for each in (
                [row["one"] * row["rates"] for row in turns],
                [2 * row["one"] / row["met"] for row in turns],
                [row["met"] / row["two"] for row in turns],
            )
        )
        print(
            f"  {name}, {rows} rows a rank: one {median['one'] * 1e3:.1f} ms, two "
            f"{median['two'] * 1e3:.1f} ms for twice the rows: {statistics.median(gains):.2f} x "
            f"({gains[0]:.2f} to {gains[-1]:.2f}); two that share nothing {apart:.2f} x, waiting "
            f"for each other {met:.2f} x: {share:.1%} of that"
        )


def row_results(folder: Path) -> None:
    """Small nets after 20 steps on 2 and 4 ranks: the largest relative difference from one process
    with the joined batch; 1e-5 wanted with SGD, 1e-4 of the losses with AdamW."""
    from tests.workers import test_nets, test_pipelined

    for ranks in (2, 4):
        for (name, optimizer), each in test_nets.trained(folder / f"dp{ranks}", ranks).items():
            off = test_nets.differences(each, name, ranks, optimizer)
            print(f"  data-parallel, {ranks} ranks, {_said(name, optimizer, *off)}")
        for row in test_pipelined.trained(folder / f"pp{ranks}", ranks):
            off = test_pipelined.differences(Path(row["folder"]), row)
            name, optimizer = Path(row["folder"]).name.split("-")
            print(f"  pipeline, {ranks} ranks, {_said(name, optimizer, *off)}")


def _said(name: str, optimizer: str, losses: float, values: float) -> str:
    return f"{name}, {optimizer}: losses {losses:.1e}, parameters and state {values:.1e}"


def row_reverse_first_k(folder: Path) -> None:
    """A slowed network: gain of reverse first-k over plain order, measured, and simulated from what
    parts and sums took in the same steps; and as it was simulated in the trial of the run, and from
    its first steps. With a large vocabulary most gradients are those of the first layer."""
    for name, sizes in [*((name, {}) for name in NETS), *((n, LARGE) for n in NETS if n == "bert")]:
        prepare(folder, name, ROWS, 1, **sizes)
        name += ", large vocabulary" * bool(sizes)
        for row in together("dp", folder, steps=5, rounds=6, ratios=RATIOS):
            said = f"  {name}, communication {row['ratio']} of compute: "
            if row["measured"] is None:
                print(f"{said}plain order is best by simulation, {row['first'][0] * 1e3:.1f} ms")
                continue
            gains = {
                k: row[k][0] / row[k][1] - 1 for k in ("first", "trial", "simulated", "measured")
            }
            spans = {k: " -> ".join(f"{s * 1e3:.1f}" for s in row[k]) for k in gains}
            print(
                f"{said}k = {row['late']}, simulated {spans['simulated']} ms, "
                f"{gains['simulated']:+.1%}; measured {spans['measured']} ms, "
                f"{gains['measured']:+.1%}; stays with k = {row['stays']}; simulated in the trial "
                f"{gains['trial']:+.1%}, from the first steps {gains['first']:+.1%}"
            )


def row_pipeline(folder: Path) -> None:
    """Two ranks, eight micro-batches: measured against simulated, per schedule, in turn; what was
    planned before is of another minute. Gains of zb-h1 are those of neighbours in a turn."""
    for name in NETS:
        prepare(folder, name, ROWS, MICRO_BATCHES)
        took: dict[str, dict[str, list[float]]] = {}
        for row in together("pp", folder, rounds=8, schedules=SCHEDULES):
            took[row["schedule"]] = row
            seconds = statistics.median(row["seconds"])
            print(
                f"  {name}, {row['schedule']}: measured {seconds * 1e3:.1f} ms, of simulated "
                f"{_ratio(row['seconds'], row['simulated']):.3f}, of planned "
                f"{seconds / row['planned']:.2f}; alive {row['alive']} of {row['expected']}"
            )
        measured, simulated = (
            _ratio(took["1f1b"][k], took["zb-h1"][k]) - 1 for k in ("seconds", "simulated")
        )
        print(f"  {name}: zb-h1 against 1f1b {measured:+.1%}, by simulation {simulated:+.1%}")


def _ratio(one: list[float], other: list[float]) -> float:
    """The median of ratios, turn by turn."""
    return statistics.median(a / b for a, b in zip(one, other, strict=True))


def row_pipeline_memory(folder: Path) -> None:
    """Two ranks, GPipe, the same stages: what each takes within a budget. "Kept" is parameters,
    state, sums and values between parts; "grew" is the process, with Python's graphs and
    sessions."""
    for name in NETS:
        prepare(folder, name, ROWS, MICRO_BATCHES)
        free = together("memory", folder, schedule="gpipe", budget=1 << 40)
        _tell_memory(f"{name}, no budget", free["ranks"])
        most = max(free["ranks"], key=lambda row: row["planned"])
        budget = int(most["planned"] - 0.4 * most["values"])
        options: dict[str, Any] = {"schedule": "gpipe", "budget": budget, "stages": free["stages"]}
        tight = together("memory", folder, **options)
        _tell_memory(f"{name}, budget {budget / 2**20:.0f} MiB", tight["ranks"])


def _tell_memory(name: str, found: list[dict[str, int]]) -> None:
    rows = (
        f"rank {k} planned {row['planned'] / 2**20:.0f}, kept {row['kept'] / 2**20:.0f}, "
        f"grew {row['grew'] / 2**20:.0f} MiB, ops again {row['again']}"
        for k, row in enumerate(found)
    )
    print(f"  {name}: {'; '.join(rows)}")


def row_dw_policy(folder: Path) -> None:
    """One device: peaks of both ends of dW's orders, and plans at the same budget: auto is to take
    no more than either."""
    for name, model in one_device().items():
        step = folder / f"{name}.onnx"
        onnx.save(differentiate(model, optimizer="momentum"), step)
        for budget in BUDGETS:
            print(f"  {name} at {budget}")
            for policy in ("asap", "late", "auto"):
                row = planned(step, budget, policy)
                first = [n for n in row.get("notes", ()) if "gradients of weights" in n]
                print(f"    {policy}: {row.get('refused') or in_words(row)}; {' '.join(first)}")


def one_device() -> dict[str, onnx.ModelProto]:
    """Nets whose gradients of weights are ordered; MobileNetV3 where torchvision is there."""
    nets = {name: models.build(name, **sizes) for name, sizes in ONE_DEVICE.items()}
    try:
        import torch

        from tests.zoo.libraries import torchvision
    except ImportError:
        return nets  # without MobileNetV3
    from onnxremat import from_torch

    torch.manual_seed(0)
    images = torch.zeros(16, 3, 96, 96)
    net = torchvision.models.mobilenet_v3_small(num_classes=10, dropout=0.0)
    nets["mobilenetv3"] = from_torch(net, images)
    return nets


def planned(step: Path, budget: str, policy: str) -> dict[str, Any]:
    """What ``onnxremat plan`` says with a policy."""
    said = subprocess.run(
        [sys.executable, "-c", "from onnxremat.cli.app import main; main()", "plan", str(step),
         "--budget", budget, "--dw-policy", policy, "--no-measure", "--json",
         "--work", WORK],
        check=False, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    if said.returncode:
        return {"refused": " ".join(said.stderr.split())}
    facts: dict[str, Any] = json.loads(said.stdout)
    return facts


def in_words(row: dict[str, Any]) -> str:
    """A plan's figures."""
    return (
        f"peak {row['peak_predicted_bytes'] / 2**20:.1f} MiB, {row['overhead_planned']:+.2%}, "
        f"gap {row['gap']:.2%}, {row['plan_seconds']:.1f} s"
    )


def row_oracles(folder: Path) -> None:
    """1F1B / fast-forwarding / ZB-H1 with F = B = W = 1, and what auto reaches."""
    from onnxremat.workers.pipeline import Pipeline
    from onnxremat.workers.pipelines.replay import carry_out
    from onnxremat.workers.pipelines.schedules import named
    from onnxremat.workers.pipelines.search import best_order

    for p, m in ((2, 4), (4, 8), (8, 32)):
        one = (1.0,) * p
        pipeline = Pipeline(one, one, one, m, in_flight=p)
        rows = [named(pipeline, name) for name in ("1f1b", "fast-forward", "zb-h1")]
        found = best_order(pipeline)
        spans = " / ".join(f"{carry_out(pipeline, row).makespan:g}" for row in rows)
        print(f"  ({p}, {m}): {spans}; auto {found.replay.makespan:g}, bound {found.bound:g}")


def row_toy(folder: Path) -> None:
    """The study's twelve equal layers, communication 0.5 and 0.8 of compute."""
    from onnxremat.workers.sums.exchange import Network, Times, simulate

    one = (1.0,) * 12
    times = Times(one, (0.0, *one[1:]), one, (1,) * 12)
    for ratio in (0.5, 0.8):
        rows = [simulate(times, Network(0.0, 3 * ratio), k, 1).seconds for k in range(13)]
        print(f"  {ratio}: {rows[0]:.1f} -> {min(rows):.1f} (k = {rows.index(min(rows))})")


def row_cluster(folder: Path) -> None:
    """A step as large as GPT-Neo-1.3B's on 8, 64 and 512 ranks: under 30 s each is wanted."""
    from onnx import TensorProto

    sizes = {"sequence": 1024, "hidden": 2048, "layers": 24, "heads": 16, "vocab": 50257}
    model = models.build("gpt2", batch=1, positions=2048, weights=False, **sizes)  # 1.3 billion
    place, weights = 0, [v for v in model.graph.input if v.name != "input_ids"]
    for value in weights:  # initializers in a file of holes
        dims = [d.dim_value for d in value.type.tensor_type.shape.dim]
        tensor = model.graph.initializer.add(name=value.name, data_type=1, dims=dims)
        tensor.data_location = TensorProto.EXTERNAL
        size = 4 * int(np.prod(dims))
        for key, said in (("location", "w.bin"), ("offset", str(place)), ("length", str(size))):
            tensor.external_data.add(key=key, value=said)
        place += -(-size // 4096) * 4096
        model.graph.input.remove(value)
    with (folder / "w.bin").open("wb") as file:
        file.truncate(place)
    onnx.save(differentiate(model, folder=folder, optimizer="adamw"), folder / "neo.onnx")
    for cluster in ("a100-nodes", "v100-ethernet"):
        for ranks, stages in ((8, 4), (64, 8), (512, 8)):
            begin = time.perf_counter()
            options = ["--data-parallel", str(ranks // stages), "--pipeline", str(stages)]
            ran = subprocess.run(
                [sys.executable, "-c", "from onnxremat.cli.app import main; main()", "simulate",
                 str(folder / "neo.onnx"), "--cluster", cluster, *options, "--micro-batches", "32",
                 "--schedule", "zb-h1", "--json"],
                check=True, capture_output=True, text=True,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
            )  # fmt: skip
            facts = json.loads(ran.stdout)
            print(
                f"  {cluster}, {ranks} ranks: step {facts['step']:.3g} s, computing "
                f"{facts['efficiency']:.0%}; simulated in {time.perf_counter() - begin:.1f} s"
            )


TABLE: dict[str, Callable[[Path], None]] = {
    "toy": row_toy,
    "oracles": row_oracles,
    "dw-policy": row_dw_policy,
    "results": row_results,
    "data-parallel": row_data_parallel,
    "reverse-first-k": row_reverse_first_k,
    "pipeline": row_pipeline,
    "pipeline-memory": row_pipeline_memory,
    "cluster": row_cluster,
}


def main() -> None:
    """Every row asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=TABLE, default=list(TABLE))
    parser.add_argument("--nets", nargs="+", choices=list(NETS), default=list(NETS))
    given = parser.parse_args()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # rows as they come, into a file too
    NETS.update({name: NETS.pop(name) for name in given.nets})
    for name in set(NETS) - set(given.nets):
        del NETS[name]
    print(f"{processor_name()}, {CORES} cores to use")
    for name in given.only:
        print(f"{name}: {TABLE[name].__doc__}")
        with tempfile.TemporaryDirectory() as folder:
            TABLE[name](Path(folder))


if __name__ == "__main__":
    main()
