"""Models planned for a GPU, run there and measured: what the rows of cuda_rows.py have in common.

``Stand("cuda")`` is the first CUDA device beside the processor. ``Stand("cpu", tiny=True)`` is the
processor under the GPU's name, with nets of toy size: the same code runs, its figures say nothing.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import statistics
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

import models
from onnxremat.cost.analytic import analytic_costs
from onnxremat.cost.detect import with_speeds
from onnxremat.cost.devices import device_costs, roofline
from onnxremat.cost.foreign import foreign_costs
from onnxremat.cost.links import measure_link
from onnxremat.cost.measure import Measuring
from onnxremat.cost.table import CostTable
from onnxremat.device.machine import PROVIDERS, Device, Link, Machine
from onnxremat.errors import UsageError
from onnxremat.execute.deployment import Deployment
from onnxremat.grad import Settings as Training
from onnxremat.graph.ir import Graph
from onnxremat.ort.feeds import seeded_feeds
from onnxremat.ort.providers import load_cuda_libraries
from onnxremat.pipeline.closed_loop import Unfit, attempt
from onnxremat.pipeline.devices.device_plan import DeviceModel
from onnxremat.pipeline.devices.over_devices import OverDevices
from onnxremat.pipeline.devices.several_devices import SeveralDevices
from onnxremat.pipeline.devices.site import Site
from onnxremat.pipeline.phases import Phases
from onnxremat.pipeline.prepare import prepare
from onnxremat.pipeline.prepared import Prepared
from onnxremat.pipeline.settings import Settings
from onnxremat.planner.options import PlanOptions

GPU, HOST = "cuda:0", "cpu"
# Real sizes; those of MAGIS where its table has the net.
SIZES: dict[str, dict[str, Any]] = {
    "resnet50": {"batch": 64, "size": 224, "width": 64},
    "bert": {"batch": 32, "sequence": 128, "hidden": 768, "layers": 12, "heads": 12,
             "vocab": 30522},
    "vit": {"batch": 64, "size": 224, "hidden": 768, "layers": 12, "heads": 12},
    "gpt2": {"batch": 8, "sequence": 512, "hidden": 768, "layers": 12, "heads": 12,
             "vocab": 50257},
    "unet": {"batch": 32, "size": 128, "width": 64},
    "resnet18": {"batch": 64, "size": 224},
    "resnet34": {"batch": 64, "size": 224, "width": 64},
    "vgg16": {"batch": 32, "size": 224, "width": 64, "hidden": 4096},
    "vgg19": {"batch": 32, "size": 224, "width": 64, "hidden": 4096},
    "inception": {"batch": 64, "size": 224},
    "densenet121": {"batch": 32, "size": 224},
    "mobilenetv2": {"batch": 32, "size": 224},
}  # fmt: skip
SMALL: dict[str, dict[str, Any]] = {
    "bert": {"batch": 8, "sequence": 32, "hidden": 16, "layers": 2, "heads": 2, "vocab": 32,
             "positions": 32},
}  # fmt: skip
TOY = (
    "resnet20",
    {"batch": 8, "size": 16, "width": 8, "blocks": 1},
)  # stands in for every net of images
SEQUENCES = ("bert", "gpt2", "vit")
PLAN_SECONDS, TINY_WORK = 10.0, 160
COST_SECONDS = 20.0  # for measuring ops; the rest is estimated
BENCH_SECONDS = 4.0


LAPS: dict[str, float] = {}  # seconds of this process at which something was done
BEGIN = time.monotonic()


def lap(what: str) -> None:
    """Something is done."""
    LAPS[what] = round(time.monotonic() - BEGIN, 2)


@dataclass(frozen=True)
class Stand:
    """Where rows run, and on nets of what size.

    Attributes:
        provider: ``cuda`` or ``cpu``.
        tiny: toy nets, estimated costs, a moment of planning.
        lock: a file that whoever works on the GPU holds, where several rows run at a time.
    """

    provider: str = "cuda"
    tiny: bool = False
    lock: str = ""

    @contextmanager
    def alone(self) -> Iterator[None]:
        """No other row works on the GPU meanwhile; not to be nested."""
        if not self.lock:
            yield
            return
        with Path(self.lock).open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @cached_property
    def gpu(self) -> Device:
        """The device that is looked at."""
        if self.provider == "cpu":
            return Device(
                GPU, PROVIDERS["cpu"], memory=1 << 33, threads=1, flops=1e10, bandwidth=1e9
            )
        device = Device(GPU, PROVIDERS["cuda"], 0, holds_state=True)
        return device if self.tiny else with_speeds(device)

    @cached_property
    def machine(self) -> Machine:
        """The processor, the GPU, and the link between them as measured."""
        host = Device(HOST, PROVIDERS["cpu"], threads=1 if self.tiny else 0)
        if self.tiny:
            there, back = Link(HOST, GPU, 1e10, 1e-5), Link(GPU, HOST, 1e10, 1e-5)
        else:
            there, back = measure_link(host, self.gpu), measure_link(self.gpu, host)
        return Machine((host, self.gpu), (there, back), "cuda-all")

    def net(self, name: str) -> tuple[str, dict[str, Any]]:
        """A net and its size here."""
        if name not in SIZES:
            raise UsageError(f"no size is known of net '{name}'", hint=", ".join(SIZES))
        if not self.tiny:
            return name, SIZES[name]
        return ("bert", SMALL["bert"]) if name in SEQUENCES else TOY

    @property
    def options(self) -> PlanOptions:
        """How to plan."""
        return PlanOptions(work=TINY_WORK) if self.tiny else PlanOptions(time_limit=PLAN_SECONDS)


@dataclass(frozen=True)
class Priced:
    """A model ready to be planned on a machine, its ops priced on the GPU.

    Attributes:
        left: operators of the model that the GPU's provider leaves to the processor.
    """

    stand: Stand
    prepared: Prepared
    tables: Mapping[str, CostTable]
    left: tuple[str, ...]

    @property
    def feeds(self) -> dict[str, Any]:
        return dict(self.prepared.feeds or {})

    def plan(self, limit: int = 0, *, once: bool = False, swap: bool = False) -> Deployment | None:
        """Everything on the GPU within so many bytes (0 for all it has); None where no plan was
        found.

        Args:
            once: no op may run again.
            swap: values may be kept by the processor in between.
        """
        most = limit or self.stand.gpu.memory
        limits = {GPU: most} if most else {}
        target: SeveralDevices = Allowed(
            self.prepared.unmeasured, Site(self.stand.machine, limits), dict(self.tables), Phases(),
            once=once, swap=swap,
        )  # fmt: skip
        found = attempt(target, self.stand.options)
        if isinstance(found, Unfit):
            return None
        artifact = found.artifact
        assert isinstance(artifact, OverDevices)
        return replace(artifact.made, limits={})  # rows set a hard limit where they look at one

    def placed(self, limits: Mapping[str, int]) -> Deployment | None:
        """Ops placed on processor and GPU as is quickest."""
        graph, host = self.prepared.graph, Machine(self.stand.machine.devices[:1])
        costs = {HOST: analytic_costs(graph)}
        if not self.stand.tiny:
            how = Measuring(self.prepared.folder, within=COST_SECONDS)
            with self.stand.alone():
                costs = device_costs(graph, host, self.feeds, how)
        costs[GPU] = self.tables[GPU]
        site = Site(self.stand.machine, limits, objective="makespan")
        target = SeveralDevices(self.prepared.unmeasured, site, costs, Phases())
        found = attempt(target, self.stand.options)
        if isinstance(found, Unfit):
            return None
        assert isinstance(found.artifact, OverDevices)
        return found.artifact.made


@dataclass(frozen=True)
class Allowed(SeveralDevices):
    """A model on a GPU and, where the GPU does not take all of it, the processor.

    Attributes:
        once: no op may run again.
        swap: values may wait on the processor; else they only go there to be read.
    """

    once: bool = False
    swap: bool = True

    @cached_property
    def model(self) -> DeviceModel:
        """The planner's numbers."""
        made = super().model
        problem, host = made.problem, made.problem.names.index(HOST)
        if self.once:
            problem = replace(problem, recompute=problem.recompute & False)
        if not self.swap:
            here = np.isfinite(problem.cost[host])
            read = {v for op in np.flatnonzero(here) for v in problem.reads[int(op)]}
            copy = problem.copy.copy()
            copy[:, host, [v for v in range(copy.shape[2]) if v not in read]] = inf
            problem = replace(problem, copy=copy)
        return replace(made, problem=problem)


def priced(stand: Stand, net: str, *, train: bool, measured: bool = True) -> Priced:
    """A net of its size here, as it is or as a training step, with seeded inputs.

    Args:
        measured: measure what ops cost on the GPU; for rows that plan.
    """
    name, size = stand.net(net)
    training = Training(optimizer="sgd", portable=True, dropout=False) if train else None
    settings = Settings(
        train=training, target="portable", measure=False, threads=1 if stand.tiny else 0
    )
    made = prepare(models.build(name, **size), settings)
    feeds = seeded_feeds(made.graph)
    made = replace(made, unsplit=replace(made.unsplit, feeds=feeds))
    lap("built")
    with stand.alone():
        lap("waited for the GPU")
        ideal = roofline(stand.gpu)
        assert stand.machine  # measured here
        if stand.tiny or not measured:
            table = analytic_costs(made.graph, ideal)
        else:
            how = Measuring(made.folder, within=COST_SECONDS)
            table = foreign_costs(made.graph, feeds, stand.gpu, ideal, how)
    lap("priced")
    host = analytic_costs(made.graph, roofline(stand.machine.device(HOST)))
    left = [op for op in made.graph.ops if op.name not in table.seconds]
    rest = {op.name: host.seconds[op.name] for op in left}
    tables = {HOST: replace(host, seconds=rest), GPU: table}
    return Priced(stand, made, tables, tuple(sorted({op.op_type for op in left})))


def small_step(stand: Stand, net: str) -> Graph:
    """The training step of a net of the size that it has by default."""
    name, size = stand.net(net) if stand.tiny else (net, {})
    training = Training(optimizer="adamw", portable=True, dropout=False)
    settings = Settings(train=training, target="portable", measure=False)
    return prepare(models.build(name, **size), settings).graph


# ---- what is in use ------------------------------------------------------------------------------


def in_use(stand: Stand) -> int:
    """Bytes in use on the GPU by everybody; of this process where the processor stands in."""
    if stand.provider == "cpu":
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) << 10
        return 0
    load_cuda_libraries()
    runtime = _runtime()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    if runtime.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total)):
        raise RuntimeError("cudaMemGetInfo does not answer")
    return total.value - free.value


def _runtime() -> Any:
    """CUDA's runtime library, as onnxruntime has loaded it."""
    for name in ("libcudart.so.13", "libcudart.so.12", "libcudart.so"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise RuntimeError("no libcudart was found: pip install 'onnxruntime-gpu[cuda,cudnn]'")


@contextmanager
def watched(stand: Stand) -> Iterator[list[int]]:
    """Bytes by which use has risen, looked at every two milliseconds; the largest comes last."""
    gc.collect()
    base, rise, over = in_use(stand), [0], threading.Event()

    def look() -> None:
        while not over.is_set():
            rise[0] = max(rise[0], in_use(stand) - base)
            time.sleep(0.002)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield rise
    finally:
        over.set()
        thread.join()


def gpu_facts() -> dict[str, str]:
    """Name, driver and memory of the first GPU, by NVIDIA's own tool; empty without it."""
    fields = ("name", "driver_version", "memory.total", "compute_cap")
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return {}
    lines = done.stdout.strip().splitlines()
    return (
        dict(zip(fields, (part.strip() for part in lines[0].split(",")), strict=True))
        if lines
        else {}
    )


def median_seconds(runs: int, run: Any) -> float:
    """Of some runs behind two that are not timed."""
    times = []
    for index in range(runs + 2):
        begin = time.perf_counter()
        run()
        if index > 1:
            times.append(time.perf_counter() - begin)
    return statistics.median(times)
