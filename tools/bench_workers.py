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

import models
from models.inputs import feeds
from onnxremat.device.host import processor_name
from onnxremat.grad import differentiate
from onnxremat.grad.description import training_of

ROOT = Path(__file__).parents[1]
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
ROWS, MICRO_BATCHES = 8, 8
RATIOS = (0.3, 0.5, 0.8)  # of communication to compute
LARGE = {"vocab": 16000}
SCHEDULES = ("gpipe", "1f1b", "fast-forward", "zb-h1", "zb-2p", "interleaved", "zb-v", "auto")


# ---- one of several processes --------------------------------------------------------------------


def rank_main(what: str, folder: Path, options: dict[str, Any]) -> None:
    """What each process does; the first writes what it found."""
    from onnxremat.workers.mpi import join

    ranks = join()
    with ranks.together():
        found = RANK[what](ranks, folder, options)
        if ranks.first:
            (folder / "found.json").write_text(json.dumps(found))


def _rank_in_turn(ranks: Any, folder: Path, options: dict[str, Any]) -> dict[str, Any]:
    """One process, two that share nothing, freely and step by step, and two that train together."""
    from onnxremat.training.trainer import Trainer
    from onnxremat.workers.data_parallel import DataParallel

    alone = Trainer(folder / "step.onnx", rate=1e-3, threads=1)
    both = DataParallel(folder / "step.onnx", ranks=ranks, rate=1e-3, threads=1)
    batch = dict(np.load(folder / "data.npz"))
    while both.tuning and not both.tuning.done:
        both.step(batch)
    rows: dict[str, list[float]] = {"one": [], "apart": [], "met": [], "two": []}

    def met(given: Any) -> None:
        alone.step(given)
        ranks.meet()

    for _ in range(options["rounds"]):
        for name, step in (
            ("one", alone.step), ("apart", alone.step), ("met", met), ("two", both.step)
        ):  # fmt: skip
            ranks.meet()
            if name != "one" or ranks.first:
                rows[name] += seconds_of(step, batch, options["steps"])
    everyone = ranks.everybody({k: statistics.median(row) for k, row in rows.items() if row})
    return {name: [row[name] for row in everyone if name in row] for name in rows}


def _rank_reverse(ranks: Any, folder: Path, options: dict[str, Any]) -> list[dict[str, Any]]:
    """Per ratio of communication to compute: the exchange found, and plain order, in turn."""
    from onnxremat.workers.courier import Delay
    from onnxremat.workers.data_parallel import DataParallel, Overlap
    from onnxremat.workers.layers import U

    batch, found = dict(np.load(folder / "data.npz")), []

    def trainer(byte: float) -> Any:
        step, overlap = folder / "step.onnx", Overlap(layers=8, delay=Delay(byte=byte))
        one = DataParallel(step, ranks=ranks, rate=1e-3, threads=1, overlap=overlap)
        while one.tuning and not one.tuning.done:
            one.step(batch)
        return one

    probe = trainer(0.0)
    seconds_of(probe.step, batch, options["steps"])
    rows = probe.overlapped.seconds.items()
    compute = ranks.told(sum(statistics.median(row) for (kind, _), row in rows if kind != U))
    size = sum(a.nbytes for a in probe.rooms.slices(range(probe._layers.count)))
    for ratio in options["ratios"]:
        one = trainer(ratio * compute / size)
        quickest, plain = one.tuning.chosen
        row = {
            "ratio": ratio, "late": quickest.exchange.late, "measured": None,
            "stays": one.overlapped.exchange.late, "first": [plain.seconds, quickest.seconds],
            "trial": one.tuning.again,
        }  # fmt: skip
        if quickest != plain:
            took: dict[int, list[float]] = {0: [], 1: []}
            simulated: dict[int, list[float]] = {0: [], 1: []}
            for at in [0, 1] * options["rounds"]:
                one.overlapped.exchange = (plain, quickest)[at].exchange
                one.step(batch)  # what the other order left is done
                one.tuning.begin()
                took[at] += seconds_of(one.step, batch, options["steps"])
                simulated[at] += one.tuning.simulated(options["steps"] + 1)
            for name, each in ("measured", took), ("simulated", simulated):
                row[name] = [statistics.median(each[at]) for at in (0, 1)]
        found.append(row)
    return found


def _rank_pipeline(ranks: Any, folder: Path, options: dict[str, Any]) -> list[dict[str, Any]]:
    """Per schedule what a step takes, and what it takes by simulation with the parts' own times."""
    from onnxremat.workers.layers import J
    from onnxremat.workers.pipeline import Pipeline, W
    from onnxremat.workers.pipelined import PipelineParallel
    from onnxremat.workers.replay import carry_out
    from onnxremat.workers.staged import Wanted
    from onnxremat.workers.stages import grouped

    batch, found = dict(np.load(folder / "data.npz")), []
    for schedule in options["schedules"]:
        wanted = Wanted(MICRO_BATCHES, schedule)
        given = folder / "step.onnx"
        trainer = PipelineParallel(given, ranks=ranks, wanted=wanted, rate=1e-3, threads=1)
        seconds = []
        for k in range(options["steps"] + 2):
            if k == 2:
                trainer.seconds.clear()
            ranks.meet()
            begin = time.perf_counter()
            trainer._batches(batch)
            ranks.meet()
            seconds += [time.perf_counter() - begin] * (k >= 2)
            trainer._update_all(1e-3)
        each = {key: statistics.median(row) for key, row in trainer.seconds.items()}
        for kind, stage in [key for key in each if key[0] == J]:  # no action of a schedule's
            each[W, stage] = each.get((W, stage), 0.0) + each.pop((kind, stage))
        merged = {key: value for row in ranks.everybody(each) for key, value in row.items()}
        alive = {k: v for row in ranks.everybody(trainer.alive) for k, v in row.items()}
        plan = trainer.staged.replay
        now = grouped(merged, range(plan.pipeline.stages + 1), MICRO_BATCHES, None)
        now = Pipeline(
            now.forward, now.backward, now.weight, MICRO_BATCHES, plan.pipeline.communication
        )
        replay = carry_out(now, trainer.staged.order)
        found.append({
            "schedule": schedule, "seconds": statistics.median(seconds),
            "planned": plan.makespan, "simulated": replay.makespan,
            "alive": [alive[k] for k in sorted(alive)], "expected": replay.peak,
        })  # fmt: skip
    return found


def _rank_memory(ranks: Any, folder: Path, options: dict[str, Any]) -> dict[str, Any]:
    """What processes take within a budget: as planned, and by how much they grew."""
    from onnxremat.memory.native import trim
    from onnxremat.workers.pipelined import PipelineParallel
    from onnxremat.workers.staged import Wanted

    batch = dict(np.load(folder / "data.npz"))
    wanted = Wanted(MICRO_BATCHES, options["schedule"], budget=options["budget"])
    given = folder / "step.onnx"
    import onnxruntime  # noqa: F401

    before = _anonymous()
    trainer = PipelineParallel(given, ranks=ranks, wanted=wanted, rate=1e-3, threads=1)
    trim()
    for _ in range(3):
        trainer.step(batch)
    own = {name: size for name, size in trainer.sizes().items() if name != "resident"}
    planned = trainer.staged.fitted.memory[ranks.rank]
    row = {"planned": planned.total, "values": planned.values, "pool": own["values"],
           "kept": sum(own.values()), "grew": _anonymous() - before,
           "again": sum(len(each.ops) for each in trainer.staged.fitted.again)}  # fmt: skip
    return {"ranks": ranks.everybody(row)}


def _anonymous() -> int:
    """Bytes of memory of no file that this process has."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("RssAnon")))


RANK = {"dp": _rank_reverse, "pp": _rank_pipeline, "turns": _rank_in_turn, "memory": _rank_memory}


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
    command = [sys.executable, __file__, "--rank", what, str(folder), json.dumps(options)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run([mpiexec, "-n", str(ranks), *bound, *command], env=environment, check=True)
    return json.loads((folder / "found.json").read_text())


def seconds_of(step: Callable[[Any], Any], batch: Any, steps: int) -> list[float]:
    """Of so many steps, after one that does not count."""
    seconds = []
    for _ in range(steps + 1):
        begin = time.perf_counter()
        step(batch)
        seconds.append(time.perf_counter() - begin)
    return seconds[1:]


def row_data_parallel(folder: Path) -> None:
    """Throughput of two ranks of one thread against one: 1.85 wanted. Beside it two that share
    nothing, which is what the machine leaves, and the same where each waits for the other after
    every step, as whoever trains together has to."""
    for name, rows in itertools.product(NETS, (ROWS, 4 * ROWS)):
        prepare(folder, name, rows, 1)
        found = together("turns", folder, steps=4, rounds=3)
        (one,), two, met = found["one"], max(found["two"]), max(found["met"])
        print(
            f"  {name}, {rows} rows a rank: one {one * 1e3:.1f} ms, two {two * 1e3:.1f} ms for "
            f"twice the rows: {2 * one / two:.2f} x; two that share nothing "
            f"{sum(one / each for each in found['apart']):.2f} x, waiting for each other "
            f"{2 * one / met:.2f} x"
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
    """Two ranks, eight micro-batches: measured against simulated, per schedule."""
    for name in NETS:
        prepare(folder, name, ROWS, MICRO_BATCHES)
        took: dict[str, tuple[float, float]] = {}
        for row in together("pp", folder, steps=6, schedules=SCHEDULES):
            took[row["schedule"]] = row["seconds"], row["simulated"]
            print(
                f"  {name}, {row['schedule']}: measured {row['seconds'] * 1e3:.1f} ms, simulated "
                f"{row['simulated'] * 1e3:.1f} ms ({row['seconds'] / row['simulated']:.2f}); "
                f"planned {row['planned'] * 1e3:.1f} ms ({row['seconds'] / row['planned']:.2f}); "
                f"alive {row['alive']} of {row['expected']}"
            )
        measured, simulated = (took["1f1b"][k] / took["zb-h1"][k] - 1 for k in (0, 1))
        print(f"  {name}: zb-h1 against 1f1b {measured:+.1%}, by simulation {simulated:+.1%}")


def row_pipeline_memory(folder: Path) -> None:
    """Two ranks, GPipe: what each takes within a budget. "Kept" is parameters, state, sums and
    values between parts; "grew" is the process, with Python's graphs and sessions."""
    for name in NETS:
        prepare(folder, name, ROWS, MICRO_BATCHES)
        free = together("memory", folder, schedule="gpipe", budget=1 << 40)["ranks"]
        most = max(free, key=lambda row: row["planned"])
        budget = int(most["planned"] - 0.4 * most["values"])
        for limit in (None, budget):
            options: dict[str, Any] = {"schedule": "gpipe", "budget": limit or 1 << 40}
            found = free if limit is None else together("memory", folder, **options)["ranks"]
            said = "no budget" if limit is None else f"budget {limit / 2**20:.0f} MiB"
            rows = (
                f"rank {k} planned {row['planned'] / 2**20:.0f}, kept {row['kept'] / 2**20:.0f}, "
                f"grew {row['grew'] / 2**20:.0f} MiB"
                for k, row in enumerate(found)
            )
            print(f"  {name}, {said}: {'; '.join(rows)}; ops again {found[0]['again']}")


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
    from onnxremat.workers.replay import carry_out
    from onnxremat.workers.schedules import named
    from onnxremat.workers.search import best_order

    for p, m in ((2, 4), (4, 8), (8, 32)):
        one = (1.0,) * p
        pipeline = Pipeline(one, one, one, m, in_flight=p)
        rows = [named(pipeline, name) for name in ("1f1b", "fast-forward", "zb-h1")]
        found = best_order(pipeline)
        spans = " / ".join(f"{carry_out(pipeline, row).makespan:g}" for row in rows)
        print(f"  ({p}, {m}): {spans}; auto {found.replay.makespan:g}, bound {found.bound:g}")


def row_toy(folder: Path) -> None:
    """The study's twelve equal layers, communication 0.5 and 0.8 of compute."""
    from onnxremat.workers.exchange import Network, Times, simulate

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
    parser.add_argument("--rank", nargs=3, metavar=("WHAT", "FOLDER", "OPTIONS"))
    given = parser.parse_args()
    if given.rank:
        what, folder, options = given.rank
        rank_main(what, Path(folder), json.loads(options))
        return
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
