"""Training steps of MAGIS's evaluation that run: their batch in parts, planned and measured.

The nets of ``fission_training.py`` in sizes that two cores and 4 GiB take, or 10 (``--large``).
Bytes are parameters, values, gradients and workspace of a step of SGD that updates parameters in
place; planned ones are simulated, measured ones are what the allocator was asked for. Times are of
a run under planned options on two threads: planned by the roofline, measured as the least wall time
of two runs (one of both sides where the whole takes more than 40 s), each side in a process of its
own. Nothing is recomputed.

    python tools/fission_steps_run.py FOLDER PARTS RUNS

runs one that was planned before, and says what it took.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import fission_nets as nets
import numpy as np
import onnx

from models import build
from onnxremat.cost.analytic import analytic_costs
from onnxremat.device.host import processor_name
from onnxremat.errors import TrainingWarning, UnsupportedError
from onnxremat.fission.training import BATCH, StepParts
from onnxremat.grad import Settings as Training
from onnxremat.graph.onnx_io import to_model, write_model
from onnxremat.ort.feeds import seeded_feeds
from onnxremat.ort.profile import SIZES_KEY, as_profiled, ended, run_session
from onnxremat.ort.session import Options, open_session, session_options
from onnxremat.pipeline.in_parts.step_in_parts import prepare_step
from onnxremat.pipeline.prepare import prepare
from onnxremat.pipeline.prepared import Prepared
from onnxremat.pipeline.settings import Settings
from onnxremat.schedule.updates import given_memory
from onnxremat.session.compare import compare
from onnxremat.session.process import UPDATES

RUNS, LONG = 2, 40.0  # and seconds of a run that is not done again
MODEL, FACTS, INPUTS, OUTPUTS = "model.onnx", "facts.json", "inputs.npz", "outputs.npz"
TITLE = (
    "| step | batch | parts | ops | MiB planned | MiB measured | share planned | measured "
    "| time planned | measured | differs |\n|---|---|---|---|---|---|---|---|---|---|---|"
)


@dataclass(frozen=True)
class Step:
    """A net that is run.

    Attributes:
        note: what is smaller than in MAGIS's evaluation, beside the batch.
        parts: of the batch, as many as are run; 2, 4, 8 ... where there are none.
    """

    make: Callable[..., onnx.ModelProto]
    batch: int
    note: str = ""
    parts: tuple[int, ...] = ()

    @property
    def counts(self) -> tuple[int, ...]:
        """Parts that are run."""
        twos = (2**n for n in range(1, self.batch.bit_length()))
        return self.parts or tuple(count for count in twos if count <= self.batch)


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
TWELVE = {"hidden": 768, "heads": 12, "layers": 12}
LARGE = {
    "resnet50": Step(_net("resnet50", size=224, width=64), 64, "", (4,)),
    "bert-base": Step(
        _net("bert", **TWELVE, sequence=512, positions=512), 16, "batch 16 of 32", (8,)
    ),
    "vit-base": Step(_net("vit", **TWELVE, size=224), 64, "", (8,)),
    "unet": Step(_net("unet", size=256, width=64), 16, "batch 16 of 32", (8,)),
    "unet++": Step(nets.nested_unet, 16, "", (16,)),
    "gpt-neo-1.3b": Step(
        _net("gpt2", hidden=2048, heads=16, layers=1, sequence=512, positions=512), 16,
        "batch 16 of 32, 1 of 24 layers", (16,),
    ),
    "btlm-3b": Step(
        _net("gpt2", hidden=2560, heads=20, layers=1, sequence=512, positions=512), 32,
        "1 of 32 layers", (16,),
    ),
}  # fmt: skip
SMALL = {
    "resnet50": Step(_net("resnet50", size=32, width=8), 4),
    "bert-base": Step(_net("bert", hidden=32, heads=2, layers=1), 2),
    "unet": Step(_net("unet", size=32, width=4, levels=2), 2),
}


@dataclass(frozen=True)
class _Planned:
    """A step that was written into a folder.

    Attributes:
        bytes: planned, parameters among them.
        seconds: of a run, by the roofline.
        bound: results that are written over what they replace.
    """

    ops: int
    bytes: int
    state: int
    seconds: float
    options: dict[str, object]
    bound: tuple[str, ...]

    @classmethod
    def read(cls, folder: Path) -> _Planned:
        """What was written."""
        return cls(**json.loads((folder / FACTS).read_text()))


@dataclass(frozen=True)
class _Ran:
    """What a step took: parameters and live bytes, and seconds of the quickest run."""

    bytes: int
    seconds: float
    runs: int


def _keep(prepared: Prepared, folder: Path) -> None:
    """Write a step, and what is planned of it."""
    folder.mkdir(parents=True, exist_ok=True)
    write_model(to_model(prepared.graph), folder / MODEL, prepared.folder)
    state = prepared.everything_in(prepared.graph).state
    facts = {
        "ops": len(prepared.graph.ops), "bytes": prepared.store_all_peak + state, "state": state,
        "seconds": prepared.costs.total, "options": prepared.tuned.to_json(),
        "bound": given_memory(prepared.graph),
    }  # fmt: skip
    (folder / FACTS).write_text(json.dumps(facts))


def plan(step: Step, folder: Path) -> None:
    """Plan a step whole and in parts, without running it; what is in the folder stays."""
    if (folder / INPUTS).exists():
        return
    settings = Settings(
        threads=2, target="host", measure=False, costs=analytic_costs, not_counted=(UPDATES,),
        train=Training(optimizer="sgd", batch_norm="frozen"),
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrainingWarning)  # a pooler that no loss reads
        whole = prepare(step.make(batch=step.batch), settings)
    _keep(whole, folder / "1")
    for count in step.counts:
        try:
            _keep(prepare_step(whole, StepParts(BATCH, count)), folder / str(count))
        except UnsupportedError as error:
            print(f"{count} parts: {error.what}: {error.why}", file=sys.stderr)
    np.savez(folder / INPUTS, **dict[str, Any](seeded_feeds(whole.graph)))


def ran(folder: Path, count: int, runs: int) -> _Ran:
    """Run one that was planned, in this process; once where that takes long."""
    own = folder / str(count)
    planned, feeds = _Planned.read(own), dict(np.load(folder / INPUTS))
    seconds: list[float] = []
    with tempfile.TemporaryDirectory() as scratch:
        sizes = Path(scratch) / "memory.csv"
        options = session_options(as_profiled(Options.from_json(planned.options)))
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(scratch) / "profile")
        options.add_session_config_entry(SIZES_KEY, str(sizes))
        session = open_session(own / MODEL, options)
        while len(seconds) < runs and not (seconds and count == 1 and seconds[0] > LONG):
            begin = time.perf_counter()
            outputs = run_session(session, feeds, bound=planned.bound)
            seconds.append(time.perf_counter() - begin)
        names = [value.name for value in session.get_outputs()]
        np.savez(own / OUTPUTS, **dict(zip(names, outputs, strict=True)))
        found = ended(session, sizes, len(seconds))
    return _Ran(found.peak + planned.state, min(seconds), len(seconds))


def _measured(folder: Path, count: int, runs: int = RUNS) -> _Ran | None:
    """The same in a process of its own, once per folder; None where it was not planned."""
    kept = folder / str(count) / "ran.json"
    if not (folder / str(count) / FACTS).exists():
        return None
    if not kept.exists():
        command = [sys.executable, __file__, str(folder), str(count), str(runs)]
        kept.write_text(subprocess.run(command, check=True, capture_output=True).stdout.decode())
    return _Ran(**json.loads(kept.read_text()))


def _rows(title: str, step: Step, folder: Path) -> Iterator[str]:
    first, whole = _measured(folder, 1), _Planned.read(folder / "1")
    assert first is not None
    wanted = dict(np.load(folder / "1" / OUTPUTS))
    for count in (1, *step.counts):
        found = _measured(folder, count, first.runs)
        if found is None:
            continue
        planned = _Planned.read(folder / str(count))
        row = (
            f"| {title} | {count} | {planned.ops} "
            f"| {planned.bytes / 2**20:.1f} | {found.bytes / 2**20:.1f} "
            f"| {planned.bytes / whole.bytes:.3f} | {found.bytes / first.bytes:.3f} "
        )
        if count == 1:
            yield row + f"| | {first.seconds:.1f} s | |"
            continue
        worst = compare(dict(np.load(folder / str(count) / OUTPUTS)), wanted).worst
        longer, took = planned.seconds / whole.seconds - 1, found.seconds / first.seconds - 1
        yield row + f"| {longer:+.1%} | {took:+.1%} | {worst:.1g} |"


def rows(names: list[str] | None, size: str, keep: Path, plan_only: bool) -> Iterator[str]:
    """Lines of the table.

    Args:
        names: of these steps; None for all.
        size: ``small`` (of three nets alone, a few seconds each), ``large`` or else "".
        keep: a folder: what was planned or run there is not planned or run again.
        plan_only: run nothing.
    """
    steps = {"small": SMALL, "large": LARGE}.get(size, STEPS)
    if names and not steps.keys() >= set(names):
        raise SystemExit(f"no such step but of {', '.join(steps)}")
    yield f"processor: {processor_name()}"
    yield TITLE
    for name in names or steps:
        step, folder = steps[name], keep / f"{name}{size and f'-{size}'}"
        plan(step, folder)
        if not plan_only:
            title = f"{name}, {step.note} | {step.batch}" if step.note else f"{name} | {step.batch}"
            yield from _rows(title, step, folder)


if __name__ == "__main__":
    print(json.dumps(asdict(ran(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))))
