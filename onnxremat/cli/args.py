"""Options shared by commands, so that each means the same everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onnxremat.cli.console import Voice
from onnxremat.errors import UsageError
from onnxremat.planner.options import FORMULATIONS, MOST_COLUMNS, PLANNERS
from onnxremat.report.suffix import check_suffix

if TYPE_CHECKING:
    from onnxremat.fission.region import Region
    from onnxremat.pipeline.artifact import Check
    from onnxremat.pipeline.study_problem import Subject
    from onnxremat.pipeline.weight_order import DwPolicy

ModelOrGraph = Annotated[
    Path,
    typer.Argument(
        metavar="IN",
        help="ONNX model, or graph file of a planner study (.json: nodes with sizes and costs).",
        show_default=False,
    ),
]
Model = Annotated[Path, typer.Argument(metavar="IN", help="ONNX model.", show_default=False)]
Budget = Annotated[
    str,
    typer.Option(
        "--budget",
        "-b",
        help="2GiB, 2GB, bytes, 60% (of this machine's memory), 0.6x (of the unoptimised peak), "
        "or min.",
        show_default=False,
    ),
]
Shape = Annotated[
    list[str] | None, typer.Option("--shape", help="Input shape, name:1,3,224,224 (repeatable).")
]
Dim = Annotated[
    list[str] | None, typer.Option("--dim", help="Symbolic dimension, batch=8 (repeatable).")
]
Target = Annotated[
    str,
    typer.Option(
        help="What the file may contain: none (as given), portable (standard operators), "
        "onnxruntime (its fused operators), host (layouts of this processor too); auto leaves it "
        "as given where that keeps the budget, else host."
    ),
]
Threads = Annotated[
    int,
    typer.Option(min=0, help="Threads of onnxruntime and of the planner, 0 for one per core."),
]
Data = Annotated[
    Path | None,
    typer.Option(help="Inputs to measure and verify on (.npz), instead of seeded ones."),
]
Measure = Annotated[
    bool,
    typer.Option(
        "--measure/--no-measure",
        help="Run the model to measure costs, peak and outputs; without, estimates are used.",
    ),
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Measure costs again even when cached.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of inputs and search.")]
TimeLimit = Annotated[
    float,
    typer.Option(
        min=0.1,
        help="Seconds for planning; measuring costs takes at most half as many, or estimates.",
    ),
]
Work = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Units of work (about a millisecond each) for each call of the planner instead of "
        "seconds: the same costs, seed and work give the same plan on any machine, however busy.",
    ),
]
Gap = Annotated[
    float, typer.Option(min=0.0, help="Good enough: found minus bound, share of store-all time.")
]
Solver = Annotated[str, typer.Option(help="auto, scip, highs or gurobi.")]
Planner = Annotated[
    str,
    typer.Option(
        "--planner",
        help="Who plans: " + ", ".join(PLANNERS) + ". Published rules run to their end.",
    ),
]
Formulation = Annotated[
    str,
    typer.Option(
        "--formulation",
        help="Solve one formulation as it is written: " + ", ".join(FORMULATIONS) + ".",
    ),
]
MaxColumns = Annotated[
    int, typer.Option("--max-columns", min=1, help="Refuse formulations with larger models.")
]
WarmStart = Annotated[
    bool,
    typer.Option(
        "--warm-start/--no-warm-start", help="Start a formulation's solver from a quick plan."
    ),
]
Jobs = Annotated[int, typer.Option("--jobs", "-j", min=1, help="Processes that plan at once.")]
FixedOrder = Annotated[
    bool, typer.Option("--fixed-order", help="Keep the file's order of first runs.")
]
DwPolicyName = Annotated[
    str | None,
    typer.Option(
        "--dw-policy",
        help="When a training step makes gradients of weights: asap, late, reverse-first-k=K, or "
        "auto (as the planner finds best, beginning with the better of both ends).",
        show_default=False,
    ),
]
SplitBatch = Annotated[
    str,
    typer.Option(
        "--split-batch",
        help="Compute the batch of an inference in parts, which need less at a time: so many, or "
        "of so many rows each (5,3); 1 keeps it whole. auto: where that is quicker than "
        "recomputing, or than dealing out ops to --devices.",
    ),
]
Fission = Annotated[
    str,
    typer.Option(
        "--fission",
        help="Compute regions of an inference's graph in parts (rows of images, tokens, heads), or "
        "the forward pass of a step that --train makes (batch, rows), which need less at a time: "
        "auto, where the budget is not kept without, or by slower recomputing; off.",
    ),
]
MaxOverhead = Annotated[
    str | None,
    typer.Option(
        "--max-overhead",
        help="Instead of --budget: the least memory at no more than so much extra time (10%).",
    ),
]
Devices = Annotated[
    str | None,
    typer.Option(
        "--devices",
        help="Plan for several devices: a machine file, or a shipped one's name "
        "(onnxremat devices show NAME). Then --budget takes cpu=1GiB,cuda:0=6GiB.",
    ),
]
Pin = Annotated[
    list[str] | None,
    typer.Option("--pin", help="With --devices: PATTERN=DEVICE, by op name or type (repeatable)."),
]
Objective = Annotated[
    str,
    typer.Option(
        help="With --devices: time (of all runs and copies), makespan (devices side by side), "
        "throughput (a pipeline: devices work on different samples), auto."
    ),
]
InFlight = Annotated[
    int | None,
    typer.Option(
        "--in-flight",
        min=1,
        help="With --objective throughput: samples inside the pipeline at most; without it as many "
        "as are of use and fit.",
    ),
]
Replicas = Annotated[
    int | None,
    typer.Option(
        "--replicas",
        min=1,
        help="With --objective throughput: devices at most that take the samples of one stage in "
        "turn (1: a device per stage); without it as many as are of use and fit.",
    ),
]
Contiguous = Annotated[
    bool | None,
    typer.Option(
        "--contiguous/--any",
        help="With --objective throughput: devices form a chain of stages; or a placement of any "
        "shape, where each has several and takes them in one fixed cyclic order. Without it the "
        "quicker one.",
        show_default=False,
    ),
]
NotCounted = Annotated[
    str,
    typer.Option(
        "--not-counted",
        help="Parts of the process that --budget leaves out, of inputs,state,session,updates: what "
        "the caller holds anyway, parameters and state of a training step, onnxruntime's "
        "structures, and new parameters and state, which a Trainer writes over the old ones.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
Verbose = Annotated[
    int,
    typer.Option(
        "--verbose",
        "-v",
        count=True,
        help="Say more: each phase and its seconds as it ends, also of a refusal; recomputed ops "
        "(-vv: tracebacks).",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")]
Plot = Annotated[
    Path | None, typer.Option("--plot", help="Write the memory timeline (.png or .svg).")
]
Trace = Annotated[
    Path | None, typer.Option("--trace", help="Write a Chrome/Perfetto trace (.json).")
]
PLOTS = (".png", ".svg")
LARGEST = MOST_COLUMNS


def check_drawings(plot: Path | None, trace: Path | None) -> None:
    """Fail before planning when a drawing cannot be written.

    Raises:
        UsageError: unknown suffix, or not writable.
    """
    from onnxremat.graph.atomic import check_writable

    for path, accepted in ((plot, PLOTS), (trace, (".json",))):
        if path is not None:
            check_suffix(path, accepted)
            check_writable(path)


def parse_shapes(texts: list[str] | None) -> dict[str, tuple[int, ...]]:
    """``name:1,3,224,224`` or ``name:[1,3,224,224]``.

    Raises:
        UsageError: malformed, or a dimension that is not positive.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for text in texts or ():
        name, colon, dims = text.rpartition(":")
        sizes = [_size(d) for d in dims.strip("[] ").split(",")] if dims.strip("[] ") else []
        if not colon or not name or None in sizes:
            raise UsageError(f"--shape '{text}' is not understood", hint="--shape x:1,3,224,224")
        if name in shapes:
            raise UsageError(f"--shape names input '{name}' twice")
        shapes[name] = tuple(size for size in sizes if size)
    return shapes


def parse_dims(texts: list[str] | None) -> dict[str, int]:
    """``batch=8``.

    Raises:
        UsageError: malformed, or not positive.
    """
    dims: dict[str, int] = {}
    for text in texts or ():
        name, _, number = (part.strip() for part in text.rpartition("="))
        size = _size(number)
        if not name or size is None:
            raise UsageError(f"--dim '{text}' is not understood", hint="--dim batch=8")
        if name in dims:
            raise UsageError(f"--dim names '{name}' twice")
        dims[name] = size
    return dims


def _size(text: str) -> int | None:
    """A positive dimension that ONNX can write (64 bits), None for anything else."""
    text = text.strip()
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        return None
    return int(text) or None


def parse_parts(text: str) -> tuple[str, ...]:
    """``inputs,state``; which there are is checked as a model is prepared."""
    return tuple(part for part in (part.strip() for part in text.split(",")) if part)


def parse_pins(texts: list[str] | None) -> list[tuple[str, str]]:
    """``PATTERN=DEVICE``.

    Raises:
        UsageError: malformed.
    """
    pins = []
    for text in texts or ():
        pattern, _, device = (part.strip() for part in text.rpartition("="))
        if not pattern or not device:
            raise UsageError(f"--pin '{text}' is not understood", hint="--pin 'Conv*=cuda:0'")
        pins.append((pattern, device))
    return pins


def tell_checks(voice: Voice, checks: Sequence[Check]) -> None:
    """One line per check."""
    for check in checks:
        voice.note(f"{'PASSED' if check.ok else 'FAILED'}  {check.name}: {check.text}")


def tell_beside(voice: Voice, subject: Subject) -> None:
    """What budgets count beside weights and values."""
    if subject.model is not None and subject.beside:
        voice.note(
            f"counted beside weights and values: {subject.model.beside.words}, and the nodes of "
            "recomputations"
        )


def parse_fission(text: str) -> tuple[Region, ...] | None:
    """``auto`` (None) or ``off``.

    Raises:
        UsageError: something else.
    """
    if text not in ("auto", "off"):
        raise UsageError(f"--fission '{text}' is not understood", hint="auto or off")
    return None if text == "auto" else ()


def parse_overhead(text: str | None) -> float | None:
    """``10%`` or 0.1 as a share.

    Raises:
        UsageError: something else.
    """
    if text is None:
        return None
    number, percent, rest = text.strip().partition("%")
    try:
        share = float(number) / (100 if percent else 1)
    except ValueError:
        share = -1.0
    if rest or not 0 <= share < float("inf"):
        raise UsageError(f"--max-overhead '{text}' is not understood", hint="10%, or 0.1")
    return share


def parse_split(text: str) -> tuple[int, ...] | None:
    """``auto`` (None), a number of parts, or the rows of each.

    Raises:
        UsageError: something else.
    """
    if text == "auto":
        return None
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = (0,)
    if min(found) < 1:
        raise UsageError(
            f"--split-batch '{text}' is not understood",
            hint="a number of parts (--split-batch 2), or rows of each (--split-batch 5,3)",
        )
    return () if found == (1,) else found


def parse_dw_policy(text: str | None, devices: str | None = None) -> DwPolicy | None:
    """Of ``--dw-policy``.

    Raises:
        UsageError: unknown, or over several devices.
    """
    from onnxremat.pipeline.weight_order import DwPolicy

    if text is not None and devices is not None:
        raise UsageError(
            "--dw-policy is for one device", hint="over several the placement decides who runs when"
        )
    return None if text is None else DwPolicy.parse(text)
