"""Training-step time and peak memory against PyTorch eager, paired.

    python tools/bench_train.py --nets resnet18 bert --threads 1 2 --rounds 5

Contenders, all with the same weights, data and plain SGD:

* ``torch``: PyTorch eager as it comes; ``torch_checkpoint``: the same, each block of the net under
  ``torch.utils.checkpoint``;
* ``ours``: the training graph for this machine (convolutions through onnxruntime's blocked kernels
  where they gain), storing everything; ``ours_portable``: the one in standard operators only;
* ``ours_openvino``: the portable step, all of it OpenVINO's; its memory counts from before it was
  opened (not asked for unless named with ``--who``);
* ``ours_bf16``: the same with products in bfloat16, and ``torch_bf16``: eager under autocast, where
  the processor has AMX or AVX512-BF16 (likewise);
* ``torch_float64``: eager in double precision, to tell whose losses are nearer to exact ones;
* ``ours_budget``, ``ours_half``: ``ours`` planned within a budget, chosen so that the process rises
  no further than the one of ``torch_checkpoint``, or half as far as the one of ``torch``.

Each round runs every contender once, in an order drawn anew, each in its own process; times are
medians over rounds of the median step of a process (of six steps, or ``STEPS`` in the environment,
at least, at a learning rate of 0.01, or ``RATE``), ratios medians of the ratios in a round.
Memory is the rise of the resident peak over what was resident before the first step: activations,
gradients and the runtime's buffers. PyTorch is needed for its side only (``.[torch]``).
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from onnxremat.device.host import processor_name

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
NETS: dict[str, dict[str, Any]] = {
    "resnet18": {"batch": 8, "size": 224},
    "mobilenetv2": {"batch": 16, "size": 224},
    "bert": {"batch": 32, "sequence": 128, "hidden": 256, "layers": 4, "heads": 4},
    "vit": {"batch": 8, "size": 224},
}
SETTINGS: dict[str, dict[str, int]] = {"bert": {"layers": 4, "heads": 4}}  # of PyTorch's nets
CONTENDERS = (
    "torch", "torch_checkpoint", "ours", "ours_portable", "ours_budget", "ours_half"
)  # fmt: skip
NAMED = (  # where they can run
    "ours_openvino", "ours_bf16", "torch_bf16", "torch_compiled", "torch_float64"
)  # fmt: skip
# Planned contenders: whose memory they may take, and which part of it.
GOALS = {"ours_budget": ("torch_checkpoint", 1.0), "ours_half": ("torch", 0.5)}
LEAST = int(os.environ.get("STEPS", "6"))  # steps of a process at least; their losses are kept
RATE = float(os.environ.get("RATE", "0.01"))  # of learning
ATTEMPTS = 6  # budgets tried
MIB = 1 << 20


def resident(key: str) -> float:
    """A memory figure of this process in MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) / 1024
    raise KeyError(key)


def resting() -> float:
    """MiB of this process, without what it could give back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # else what building the step left behind would be used again
    return resident("VmRSS")


def measure(step: Callable[[], float], seconds: float, base: float | None = None) -> dict[str, Any]:
    """Time and memory of repeated steps; memory over ``base``, else over what there was before."""
    now = resting()
    base = now if base is None else base
    Path("/proc/self/clear_refs").write_text("5")
    losses = [step(), step()]
    wall, cpu = list[float](), list[float]()
    start = time.monotonic()
    while len(losses) < LEAST or (time.monotonic() - start < seconds and len(wall) < 30):
        begin, used = time.perf_counter(), time.process_time()
        losses.append(step())
        wall.append(time.perf_counter() - begin)
        cpu.append(time.process_time() - used)
    return {
        "wall": statistics.median(wall),
        "cpu": statistics.median(cpu),
        "peak": resident("VmHWM") - base,
        "losses": [round(loss, 8) for loss in losses[:LEAST]],
    }


def data(net: str) -> tuple[Any, dict[str, np.ndarray], np.ndarray]:
    """The model, its inputs and labels."""
    import models

    model = models.build(net, **NETS[net])
    shape = [d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim]
    labels = np.random.default_rng(0).integers(0, shape[-1], shape[:-1])
    return model, models.feeds(model), labels


# ---- contenders, each in a process of its own ----------------------------------------------------


def training(portable: bool = False) -> Any:
    """How our training steps are made."""
    from onnxremat.grad import Settings
    from onnxremat.ort.blocks import block_size

    return Settings(optimizer="sgd", dropout=False, blocked=0 if portable else block_size())


def ours(
    net: str, threads: int, seconds: float, portable: bool = False, file: str = ""
) -> dict[str, Any]:
    """A step of the training graph (or of a planned one in a file) through the Trainer."""
    from onnxremat.grad import differentiate
    from onnxremat.training.trainer import Trainer

    model, feeds, labels = data(net)
    graph = file or differentiate(model, settings=training(portable))
    trainer = Trainer(graph, model, threads=threads, rate=RATE)
    del model, graph
    batch = {**feeds, trainer.training.target: labels}
    return measure(lambda: trainer.step(batch), seconds)


def openvino(net: str, threads: int, seconds: float, narrow: bool = False) -> dict[str, Any]:
    """A step that OpenVINO computes as a whole, through the Trainer."""
    from onnxremat.cost.table import CostTable
    from onnxremat.device.files import read_machine
    from onnxremat.execute.deployment import deploy, training_pairs
    from onnxremat.execute.partition_cuts import Terms
    from onnxremat.grad import differentiate
    from onnxremat.graph.onnx_io import write_model
    from onnxremat.ort.infer import build_graph
    from onnxremat.schedule.assign import assigned
    from onnxremat.training.trainer import Trainer

    model, feeds, labels = data(net)
    step = differentiate(model, settings=training(portable=True))
    graph, machine = build_graph(step), read_machine("cpu-openvino")
    machine = machine.in_bfloat16() if narrow else machine
    machine = machine.with_devices([replace(d, threads=threads) for d in machine.devices])
    table = CostTable({op.name: 1e-4 for op in graph.ops}, {}, "none")
    plan = assigned(graph, {op.name: "openvino" for op in graph.ops}, machine)
    made = deploy(
        graph, plan, machine, dict.fromkeys(machine.names, table), Terms(pairs=training_pairs(step))
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "step.onnx"
        write_model(made.model(), file)
        del made, step, graph, plan, table
        base = resting()
        trainer = Trainer(file, model, threads=threads, rate=RATE)
    batch = {**feeds, trainer.training.target: labels}
    return measure(lambda: trainer.step(batch), seconds, base)


def torch_step(
    net: str, threads: int, seconds: float, checkpointed: bool = False, narrow: bool = False,
    compiled: bool = False, exact: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """A step of the same net, weights and data in PyTorch: eager, compiled, or exact."""
    import torch
    from onnx import numpy_helper
    from torch.utils.checkpoint import checkpoint
    from torch_nets import FORWARDS

    torch.set_num_threads(threads)
    model, feeds, labels = data(net)
    stored = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    real = torch.float64 if exact else torch.float32
    values = {
        name: torch.tensor(a, dtype=real) for name, a in stored.items() if a.dtype == np.float32
    }
    parameters = [
        value.requires_grad_(True)
        for name, value in values.items()
        if value.dim() and "running" not in name and not name.startswith("/")
    ]
    del model, stored
    inputs = {name: torch.tensor(value) for name, value in feeds.items()}
    inputs = {name: x.to(real) if x.is_floating_point() else x for name, x in inputs.items()}
    targets = torch.tensor(labels).reshape(-1)
    block = partial(checkpoint, use_reentrant=False) if checkpointed else _as_it_is
    optimizer = torch.optim.SGD(parameters, lr=RATE)

    def forward() -> Any:
        y = FORWARDS[net](values, inputs, block, **SETTINGS.get(net, {}))
        return torch.nn.functional.cross_entropy(y.reshape(-1, y.shape[-1]), targets)

    loss_of = torch.compile(forward) if compiled else forward

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
            loss = loss_of()
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return measure(step, seconds)


def _as_it_is(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


RUN: dict[str, Callable[..., dict[str, Any]]] = {
    "torch": torch_step,
    "torch_checkpoint": partial(torch_step, checkpointed=True),
    "torch_compiled": partial(torch_step, compiled=True),
    "torch_float64": partial(torch_step, exact=True),
    "ours": ours,
    "ours_portable": partial(ours, portable=True),
    "ours_openvino": openvino,
    "ours_bf16": partial(openvino, narrow=True),
    "torch_bf16": partial(torch_step, narrow=True),
    **dict.fromkeys(GOALS, ours),
}


# ---- driver ------------------------------------------------------------------------------------


def run_child(net: str, who: str, threads: int, seconds: float, file: str = "") -> dict[str, Any]:
    """One contender in a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    command = [sys.executable, __file__, "--child", who, "--nets", net, "--threads", str(threads),
               "--seconds", str(seconds), "--file", file]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(f"{net} {who}: {done.stderr.strip()[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def planned(net: str, threads: int, goal: float, folder: Path) -> tuple[str, list[dict[str, Any]]]:
    """A file with our step planned so that a process rises by at most ``goal`` MiB (none if it
    never does), and the figures of the search."""
    budget, tried = int(goal * MIB), []
    for attempt in range(ATTEMPTS):
        path = folder / f"{net}-{threads}-{int(goal)}-{attempt}.onnx"
        made = plan_file(net, threads, budget, path)
        rise = run_child(net, "ours_budget", threads, 0.0, str(path))["peak"]
        tried.append({**made, "rise_mib": round(rise)})
        if rise <= goal:
            return str(path), tried
        budget = int(made["peak_bytes"] * 0.99 * goal / rise)
    return "", tried


def plan_file(net: str, threads: int, budget: int, path: Path) -> dict[str, Any]:
    """``onnxremat optimize --train --target host --budget`` of a net, in a process of its own."""
    command = [sys.executable, __file__, "--plan", str(budget), "--nets", net,
               "--threads", str(threads), "--file", str(path)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{net} plan: {done.stderr.strip()[-2000:]}")
    made: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return made


def plan_child(net: str, threads: int, budget: str, path: str) -> dict[str, Any]:
    """What :func:`plan_file` runs."""
    from onnxremat import optimize
    from onnxremat.pipeline.settings import Settings

    settings = Settings(train=training(), target="host", threads=threads)
    result = optimize(data(net)[0], budget=budget, settings=settings, bench_seconds=0.0)
    result.save(path)
    facts = result.facts()
    return {
        "budget_bytes": int(budget),
        "peak_bytes": facts["peak_measured_bytes"],
        "store_all_bytes": facts["store_all_peak_bytes"],
        "overhead_planned": facts["overhead_planned"],
    }


def compare(
    net: str, threads: int, rounds: int, seconds: float, who: Sequence[str]
) -> dict[str, Any]:
    """All contenders over all rounds; medians, and medians of the ratios in a round."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in who}
    row: dict[str, Any] = {"net": net, "threads": threads}
    draw = random.Random(f"{net}{threads}")
    with tempfile.TemporaryDirectory() as folder:
        files = dict.fromkeys(found, "")
        for name in [name for name in found if name in GOALS]:
            other, part = GOALS[name]
            goal = part * run_child(net, other, threads, 0.0)["peak"]
            files[name], tried = planned(net, threads, goal, Path(folder))
            row[f"{name}_search"] = {"goal_mib": round(goal), "tried": tried}
            if not files[name]:
                del found[name]
        for _ in range(rounds):
            for name in draw.sample(list(found), len(found)):
                found[name].append(run_child(net, name, threads, seconds, files[name]))
    for name, results in found.items():
        for key in ("wall", "cpu", "peak"):
            row[f"{name}_{key}"] = round(statistics.median(r[key] for r in results), 4)
            row[f"{name}_{key}_ratio"] = _ratio(results, found.get("torch", results), key)
        row[f"{name}_losses"] = results[0]["losses"]
    return row


def _ratio(results: list[dict[str, Any]], others: list[dict[str, Any]], key: str) -> float:
    pairs = zip(results, others, strict=True)
    return float(round(statistics.median(a[key] / b[key] for a, b in pairs), 3))


def table(rows: Sequence[dict[str, Any]], who: Sequence[str]) -> str:
    """Markdown: seconds a step, ratio to PyTorch eager, and MiB."""
    lines = ["| net | threads | " + " | ".join(who) + " |", "|---|---:|" + "---|" * len(who)]
    for row in rows:
        cells = [
            f"{row[f'{n}_wall']:.3f} s ({row[f'{n}_wall_ratio']:.2f}), {row[f'{n}_peak']:.0f} MiB"
            if f"{n}_wall" in row
            else "none"
            for n in who
        ]
        lines.append(f"| {row['net']} | {row['threads']} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *_losses(rows, who)])


def _losses(rows: Sequence[dict[str, Any]], who: Sequence[str]) -> list[str]:
    """How far losses are from those of PyTorch, and from exact ones where asked, at most."""
    found = []
    for row in rows:
        losses = {n: np.array(row[f"{n}_losses"]) for n in who if f"{n}_losses" in row}
        for reference in ("torch" if "torch" in losses else who[0], "torch_float64"):
            if reference in losses:
                expected = losses[reference]
                off = {n: np.max(np.abs(each / expected - 1)) for n, each in losses.items()}
                words = ", ".join(f"{n} {value:.1e}" for n, value in off.items() if n != reference)
                found.append(
                    f"losses of {len(expected)} steps at rate {RATE:g}, {row['net']}, "
                    f"{row['threads']} threads, from those of {reference}: {words}"
                )
    return found


def machine() -> str:
    """Processor and versions."""
    import onnxruntime
    import torch

    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = next((line for line in lines if line.startswith("flags")), "")
    wide = "AVX-512" if "avx512f" in flags else "AVX2" if "avx2" in flags else "no AVX2"
    return (
        f"{processor_name()} ({wide}, {os.cpu_count()} cores), {platform.system()}, onnxruntime "
        f"{onnxruntime.__version__}, PyTorch {torch.__version__}"
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--nets", nargs="+", default=list(NETS), choices=list(NETS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--who", nargs="+", default=list(CONTENDERS), choices=(*CONTENDERS, *NAMED))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--out", type=Path, help="JSON lines of all figures.")
    for hidden in ("--child", "--plan", "--file"):
        parser.add_argument(hidden, default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    net, threads = given.nets[0], given.threads[0]
    if given.plan:
        print(json.dumps(plan_child(net, threads, given.plan, given.file)))
        return
    if given.child:
        extra = {"file": given.file} if given.file else {}
        print(json.dumps(RUN[given.child](net, threads, given.seconds, **extra)))
        return
    rows = []
    for threads in given.threads:
        for net in given.nets:
            rows.append(compare(net, threads, given.rounds, given.seconds, given.who))
            print(json.dumps(rows[-1]), flush=True)
            if given.out:
                given.out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(f"\n{machine()}\n\n{table(rows, given.who)}")


if __name__ == "__main__":
    main()
