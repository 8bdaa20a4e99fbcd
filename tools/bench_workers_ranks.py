"""What each of several processes does for ``bench_workers.py``, which starts them by ``mpiexec``.

Where a machine's speed changes by the minute, as a virtual one's does whose neighbours work, what
is compared is run in turn, step by step, and each comparison is one of a turn.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

MICRO_BATCHES = 8


def seconds_of(step: Callable[[Any], Any], batch: Any, steps: int) -> list[float]:
    """Of so many steps, after one that does not count."""
    seconds = []
    for _ in range(steps + 1):
        begin = time.perf_counter()
        step(batch)
        seconds.append(time.perf_counter() - begin)
    return seconds[1:]


def rank_main(what: str, folder: Path, options: dict[str, Any]) -> None:
    """What each process does; the first writes what it found."""
    from onnxremat.workers.mpi import join

    ranks = join()
    with ranks.together():
        found = RANK[what](ranks, folder, options)
        if ranks.first:
            (folder / "found.json").write_text(json.dumps(found))


def _rank_in_turn(ranks: Any, folder: Path, options: dict[str, Any]) -> list[dict[str, float]]:
    """One process, two that share nothing, freely and step by step, and two that train together:
    seconds of each, turn by turn; the sum of rates of those that share nothing."""
    from onnxremat.training.trainer import Trainer
    from onnxremat.workers.sums.data_parallel import DataParallel

    alone = Trainer(folder / "step.onnx", rate=1e-3, threads=1)
    both = DataParallel(folder / "step.onnx", ranks=ranks, rate=1e-3, threads=1)
    batch = dict(np.load(folder / "data.npz"))
    while both.tuning and not both.tuning.done:
        both.step(batch)

    def met(given: Any) -> None:
        alone.step(given)
        ranks.meet()

    found = []
    for _ in range(options["rounds"]):
        took = dict[str, float]()
        for name, step in (
            ("one", alone.step), ("apart", alone.step), ("met", met), ("two", both.step)
        ):  # fmt: skip
            ranks.meet()
            if name != "one" or ranks.first:
                took[name] = statistics.median(seconds_of(step, batch, options["steps"]))
        everyone = ranks.everybody(took)
        row = {name: max(each.get(name, 0.0) for each in everyone) for name in everyone[0]}
        found.append(row | {"rates": sum(1 / each["apart"] for each in everyone)})
    return found


def _rank_reverse(ranks: Any, folder: Path, options: dict[str, Any]) -> list[dict[str, Any]]:
    """Per ratio of communication to compute: the exchange found, and plain order, in turn."""
    from onnxremat.workers.courier import Delay
    from onnxremat.workers.sums.data_parallel import DataParallel, Overlap
    from onnxremat.workers.sums.layers import U

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
    """Per schedule, step by step in turn, what a step takes, and what it takes by simulation with
    its parts' own times. Schedules of as many stages have the same ones."""
    from onnxremat.workers.pipelines.pipelined import PipelineParallel
    from onnxremat.workers.pipelines.staged import Wanted

    cuts, trainers = dict[int, str](), dict[str, Any]()
    for name in options["schedules"]:
        several = 2 if name in ("interleaved", "zb-v") else 1
        wanted = Wanted(MICRO_BATCHES, name, cuts.get(several, ""))
        given = folder / "step.onnx"
        one = PipelineParallel(given, ranks=ranks, wanted=wanted, rate=1e-3, threads=1)
        cuts.setdefault(several, ",".join(one.staged.cuts))
        trainers[name] = one
    batch = dict(np.load(folder / "data.npz"))
    took: dict[str, list[float]] = {name: [] for name in trainers}
    simulated: dict[str, list[float]] = {name: [] for name in trainers}
    for turn in range(options["rounds"] + 1):
        for name, one in trainers.items():
            seconds, replay = _one_step(one, ranks, batch)
            if turn:  # the first does not count
                took[name].append(seconds)
                simulated[name].append(replay.makespan)
    found = []
    for name, one in trainers.items():
        alive = {k: v for row in ranks.everybody(one.alive) for k, v in row.items()}
        found.append({
            "schedule": name, "seconds": took[name], "simulated": simulated[name],
            "planned": one.staged.replay.makespan, "alive": [alive[k] for k in sorted(alive)],
            "expected": one.staged.replay.peak,
        })  # fmt: skip
    return found


def _one_step(trainer: Any, ranks: Any, batch: Any) -> tuple[float, Any]:
    """Seconds of the micro-batches of a step, and their schedule with what each part took."""
    from onnxremat.workers.pipeline import Pipeline, W
    from onnxremat.workers.pipelines.replay import carry_out
    from onnxremat.workers.pipelines.stages import grouped
    from onnxremat.workers.sums.layers import J

    trainer.seconds.clear()
    ranks.meet()
    begin = time.perf_counter()
    trainer._batches(batch)
    ranks.meet()
    seconds = time.perf_counter() - begin
    trainer._update_all(1e-3)
    each = {key: statistics.fmean(row) for key, row in trainer.seconds.items()}
    for kind, stage in [key for key in each if key[0] == J]:  # no action of a schedule's
        each[W, stage] = each.get((W, stage), 0.0) + each.pop((kind, stage))
    merged = {key: value for row in ranks.everybody(each) for key, value in row.items()}
    plan = trainer.staged.replay.pipeline
    now = grouped(merged, range(plan.stages + 1), MICRO_BATCHES, None)
    times = Pipeline(now.forward, now.backward, now.weight, MICRO_BATCHES, plan.communication)
    return ranks.told(seconds), carry_out(times, trainer.staged.order)


def _rank_memory(ranks: Any, folder: Path, options: dict[str, Any]) -> dict[str, Any]:
    """What processes take within a budget: as planned, and by how much they grew."""
    from onnxremat.memory.native import trim
    from onnxremat.workers.pipelines.pipelined import PipelineParallel
    from onnxremat.workers.pipelines.staged import Wanted

    batch = dict(np.load(folder / "data.npz"))
    stages = options.get("stages", "")
    wanted = Wanted(MICRO_BATCHES, options["schedule"], stages, budget=options["budget"])
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
           "again": len(trainer.staged.fitted.again[ranks.rank].ops)}  # fmt: skip
    return {"ranks": ranks.everybody(row), "stages": ",".join(trainer.staged.cuts)}


def _anonymous() -> int:
    """Bytes of memory of no file that this process has."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("RssAnon")))


RANK = {"dp": _rank_reverse, "pp": _rank_pipeline, "turns": _rank_in_turn, "memory": _rank_memory}


if __name__ == "__main__":
    named, at, given = sys.argv[1:]
    rank_main(named, Path(at), json.loads(given))
