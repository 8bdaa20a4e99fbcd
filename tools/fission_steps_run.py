"""Training steps of MAGIS's evaluation that run: their batch in parts, planned and measured.

The nets of ``fission_training.py`` in sizes that two cores and 4 GiB take. Bytes are parameters,
values, gradients and workspace of a step of SGD that updates parameters in place; planned ones are
simulated, measured ones are what the allocator was asked for. Times are of a run under planned
options on one thread: planned by the roofline, measured in turns with the whole, processor time,
median of the ratios. Nothing is recomputed.
"""

from __future__ import annotations

import platform
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import fission_nets as nets
import onnx

from models import build
from onnxremat.cost.analytic import analytic_costs
from onnxremat.errors import TrainingWarning, UnsupportedError
from onnxremat.fission.training import BATCH, StepParts
from onnxremat.grad import Settings as Training
from onnxremat.graph.onnx_io import to_model
from onnxremat.ort.profile import Profiling, profile, run_session
from onnxremat.ort.session import open_session, session_options
from onnxremat.pipeline.prepare import Prepared, Settings, prepare
from onnxremat.pipeline.step_in_parts import prepare_step
from onnxremat.schedule.updates import given_memory
from onnxremat.session.compare import compare
from onnxremat.session.process import UPDATES

ROUNDS = 5  # of the whole and of parts in turns
TITLE = (
    "| step | batch | parts | ops | MiB planned | MiB measured | share planned | measured "
    "| time planned | measured | differs |\n|---|---|---|---|---|---|---|---|---|---|---|"
)


@dataclass(frozen=True)
class Step:
    """A net that is run.

    Attributes:
        note: what is smaller than in MAGIS's evaluation, beside the batch.
    """

    make: Callable[..., onnx.ModelProto]
    batch: int
    note: str = ""


def _net(name: str, **sizes: Any) -> Callable[..., onnx.ModelProto]:
    return partial(build, name, **sizes)


BASE = {"hidden": 768, "heads": 12, "layers": 3}
SHORT = {"sequence": 128, "positions": 128}
STEPS = {
    "resnet50": Step(_net("resnet50", size=224, width=64), 8),
    "bert-base": Step(
        _net("bert", **BASE, sequence=512, positions=512), 8, "3 of 12 layers"
    ),
    "vit-base": Step(_net("vit", **BASE, size=224), 16, "3 of 12 layers"),
    "unet": Step(_net("unet", size=256, width=64), 2),
    "unet++": Step(nets.nested_unet, 2),
    "gpt-neo-1.3b": Step(
        _net("gpt2", hidden=2048, heads=16, layers=3, **SHORT), 2,
        "3 of 24 layers, 128 of 512 tokens",
    ),
    "btlm-3b": Step(
        _net("gpt2", hidden=2560, heads=20, layers=2, **SHORT), 2,
        "2 of 32 layers, 128 of 512 tokens",
    ),
}  # fmt: skip
SMALL = {
    "resnet50": Step(_net("resnet50", size=32, width=8), 4),
    "bert-base": Step(_net("bert", hidden=32, heads=2, layers=1), 2),
    "unet": Step(_net("unet", size=32, width=4, levels=2), 2),
}


class _Run:
    """A step that is open, and what it took.

    Attributes:
        bytes: parameters, values and workspace, by the allocator's counters.
    """

    def __init__(self, prepared: Prepared) -> None:
        assert prepared.feeds is not None
        self.feeds, self.bound = prepared.feeds, given_memory(prepared.graph)
        model, options = to_model(prepared.graph), prepared.tuned
        ran = profile(
            model, self.feeds, options, Profiling(bound=self.bound), folder=prepared.folder
        )
        self.outputs = ran.outputs
        self.bytes = ran.peak + _parameters(prepared)
        self.session = open_session(model, session_options(options), prepared.folder)

    def seconds(self) -> float:
        """Of one run, processor time."""
        begin = time.process_time()
        run_session(self.session, self.feeds, bound=self.bound)
        return time.process_time() - begin


def _parameters(prepared: Prepared) -> int:
    return prepared.everything_in(prepared.graph).state


def _row(name: str, parts: int, prepared: Prepared, run: _Run, whole: Prepared, first: _Run) -> str:
    planned, stored = (p.store_all_peak + _parameters(p) for p in (prepared, whole))
    row = (
        f"| {name} | {parts} | {len(prepared.graph.ops)} "
        f"| {planned / 2**20:.1f} | {run.bytes / 2**20:.1f} "
        f"| {planned / stored:.3f} | {run.bytes / first.bytes:.3f} "
    )
    if run is first:
        return row + "| | | |"
    ratios = []
    for _ in range(ROUNDS):
        before = first.seconds()
        ratios.append(run.seconds() / before)
    worst = compare(run.outputs, first.outputs).worst
    longer = prepared.costs.total / whole.costs.total - 1
    return row + f"| {longer:+.1%} | {statistics.median(ratios) - 1:+.1%} | {worst:.1g} |"


def rows(names: list[str] | None, small: bool) -> Iterator[str]:
    """Lines of the table.

    Args:
        names: of these steps; None for all.
        small: sizes of a few seconds each; of three nets alone.
    """
    steps = SMALL if small else STEPS
    if names and not steps.keys() >= set(names):
        raise SystemExit(f"no small step but of {', '.join(steps)}")
    yield f"processor: {platform.processor() or platform.machine()}"
    yield TITLE
    for name in names or steps:
        step = steps[name]
        settings = Settings(
            threads=1, target="host", train=Training(optimizer="sgd", batch_norm="frozen"),
            costs=analytic_costs, not_counted=(UPDATES,),
        )  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TrainingWarning)  # a pooler that no loss reads
            whole = prepare(step.make(batch=step.batch), settings)
        first = _Run(whole)
        title = f"{name}, {step.note} | {step.batch}" if step.note else f"{name} | {step.batch}"
        yield _row(title, 1, whole, first, whole, first)
        parts = 2
        while parts <= step.batch:
            try:
                made = prepare_step(whole, StepParts(BATCH, parts))
            except UnsupportedError as error:
                yield f"| {title} | {parts} | {error.what}: {error.why} |"
                break
            yield _row(title, parts, made, _Run(made), whole, first)
            parts *= 2
