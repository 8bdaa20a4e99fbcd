"""Training steps of MAGIS's evaluation (ASPLOS'24, figures 9 and 10) with their batch in parts.

Planned only, at full size, by the cost model (a roofline of a processor): weights have no values
and nothing runs. Bytes are weights, gradients, values and results of a step of SGD that updates
weights in place, against those of the step stored whole in its best order. MAGIS's figures, in
brackets, are of a graphics card. Batch normalisations have frozen statistics (MAGIS has none).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import fission_nets as nets
import onnx

from models import build
from onnxremat.cost.analytic import analytic_costs
from onnxremat.errors import UnsupportedError
from onnxremat.fission.training import BATCH, StepParts
from onnxremat.grad import differentiate, updated_inputs
from onnxremat.ort.infer import build_graph
from onnxremat.pipeline.original.base_order import base_order
from onnxremat.schedule.simulate import simulate
from onnxremat.schedule.updates import written_over

MOST_OPS = 128_000  # of a step in parts; steps that are run have 32,000 at most
RESTING = ("running", "pooler")  # statistics, and what no loss of these steps reads
TITLE = (
    "| step | batch | ops | GiB whole | < 10 % | < 5 % | longer at 40 % | planning, s |\n"
    "|---|---|---|---|---|---|---|---|"
)


@dataclass(frozen=True)
class Workload:
    """A net, its batch, and what MAGIS reaches: shares of memory at less than 10 and 5 % more time,
    and how much longer 40 % of the memory take."""

    make: Callable[..., onnx.ModelProto]
    batch: int
    magis: tuple[float, float, float]


def _net(name: str, **sizes: Any) -> Callable[..., onnx.ModelProto]:
    return partial(build, name, weights=False, **sizes)


BASE = {"hidden": 768, "heads": 12, "layers": 12}
WORKLOADS = {
    "resnet50": Workload(_net("resnet50", size=224, width=64), 64, (0.51, 0.64, 0.14)),
    "bert-base": Workload(
        _net("bert", **BASE, sequence=512, positions=512), 32, (0.47, 0.70, 0.15)
    ),
    "vit-base": Workload(_net("vit", **BASE, size=224), 64, (0.37, 0.61, 0.10)),
    "unet": Workload(_net("unet", size=256, width=64), 32, (0.26, 0.50, 0.06)),
    "unet++": Workload(partial(nets.nested_unet, weights=False), 16, (0.13, 0.26, 0.04)),
    "gpt-neo-1.3b": Workload(
        _net("gpt2", hidden=2048, heads=16, layers=24, sequence=512, positions=2048), 32,
        (0.42, 0.64, 0.10),
    ),
    "btlm-3b": Workload(
        _net("gpt2", hidden=2560, heads=20, layers=32, sequence=512, positions=2048), 32,
        (0.27, 0.43, 0.08),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Point:
    """A step, stored whole or in parts."""

    bytes: int
    seconds: float
    ops: int


def point(model: onnx.ModelProto, parts: StepParts | None) -> Point:
    """What a step takes, nothing recomputed."""
    weights = [value.name for value in model.graph.input if "." in value.name]
    trained = [name for name in weights if not any(part in name for part in RESTING)]
    step = differentiate(model, trainable=trained, batch_norm="frozen", parting=parts)
    graph = build_graph(step, None)
    graph = written_over(graph, updated_inputs(step).values())
    graph = base_order(graph, graph, fixed=False)
    held = sum(graph.tensors[name].bytes for name in weights if name in graph.tensors)
    costs = analytic_costs(graph)
    peak = simulate(graph, scratch=costs.scratch, weight_bytes=0).peak
    return Point(held + peak, costs.total, len(graph.ops))


def _points(workload: Workload, model: onnx.ModelProto, whole: Point) -> Iterator[Point]:
    parts = 2
    while parts <= workload.batch and parts * whole.ops <= MOST_OPS:
        try:
            yield point(model, StepParts(BATCH, parts))
        except UnsupportedError:
            return
        parts *= 2


def rows(names: list[str] | None) -> Iterator[str]:
    """Lines of the table."""
    yield TITLE
    for name in names or WORKLOADS:
        workload = WORKLOADS[name]
        begin = time.process_time()
        model = workload.make(batch=workload.batch)
        whole = point(model, None)
        found = [whole, *_points(workload, model, whole)]
        spent = time.process_time() - begin
        shares = [
            min(p.bytes for p in found if p.seconds < limit * whole.seconds) / whole.bytes
            for limit in (1.10, 1.05)
        ]
        small = [p.seconds / whole.seconds - 1 for p in found if p.bytes <= 0.4 * whole.bytes]
        less = f"{min(small):+.1%}" if small else "-"
        ten, five, longer = workload.magis
        yield (
            f"| {name} (planned only) | {workload.batch} | {whole.ops} "
            f"| {whole.bytes / 2**30:.2f} | {shares[0]:.3f} ({ten}) | {shares[1]:.3f} ({five}) "
            f"| {less} ({longer:+.0%}) | {spent:.0f} |"
        )
