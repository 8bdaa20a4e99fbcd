"""What one run really did: executed order, seconds and bytes per kernel.

Bytes come from the allocator's own counters, which onnxruntime writes into its profile
(``mem_bytes_requested_in_use``: bytes asked for and not yet given back when a kernel ends), and
from its node-memory file (scratch bytes inside a kernel). Their sum is exact: it is what the
allocator was asked for, not what the process happens to hold.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from onnxremat.errors import (
    MissingComponentError,
    ModelError,
    OnnxrematError,
    UnsupportedError,
)
from onnxremat.graph.dtypes import ORT_NAMES
from onnxremat.graph.temporary import cut_short, scratch_folder
from onnxremat.ort.binding import empty, wrap
from onnxremat.ort.session import (
    DEFAULT,
    Options,
    first_line,
    open_session,
    runtime_version,
    session_options,
)
from onnxremat.ort.trips import require_few_trips

Feeds = Mapping[str, np.ndarray]
Read = Callable[[Path], onnx.ModelProto]  # of a model's file
SEQUENCES = ("SplitToSequence", "SequenceConstruct", "SequenceInsert", "SequenceErase")
# A row of the node-memory file: nothing in a name is quoted, lines, commas and quotes included.
_ROW = re.compile(r"(.*?)_\d+,\d*,\d*,\d*,(\d+)\n", re.DOTALL)
SIZES_KEY = "session.collect_node_memory_stats_to_file"
MADE_UP = 256  # NumPy numbers the types that others add to it (bfloat16, int4) from here
IN_USE = "mem_bytes_requested_in_use"


@dataclass(frozen=True)
class Kernel:
    """One executed kernel, in execution order.

    Attributes:
        name: node name.
        seconds: median over the measured runs.
        live: bytes in use when the kernel ends, inputs and outputs included, weights excluded.
        scratch: bytes it took and gave back while it ran.
        outputs: (element type, shape) of each output.
        provider: execution provider that ran it.
        each: seconds of every measured run.
    """

    name: str
    op_type: str
    seconds: float
    live: int
    scratch: int
    outputs: tuple[tuple[int, tuple[int, ...]], ...]
    provider: str
    each: tuple[float, ...] = ()


@dataclass(frozen=True)
class Profile:
    """A measured run.

    Attributes:
        kernels: in execution order.
        weight_bytes: bytes the session holds before the first kernel (weights as the kernels
            want them, packed or not).
        arena_bytes: bytes the arena holds after the last run (it never gives them back).
        outputs: what the model returned, by name.
        fused: what onnxruntime made of the model at load, as it was read; None where nobody asked.
    """

    kernels: tuple[Kernel, ...]
    weight_bytes: int
    arena_bytes: int
    outputs: dict[str, Any]
    fused: onnx.ModelProto | None = field(default=None, repr=False)

    @property
    def live_peak(self) -> int:
        """Largest live + scratch bytes of one run, weights excluded."""
        return max((k.live + k.scratch for k in self.kernels), default=0)

    @property
    def peak(self) -> int:
        """Weights + live values + scratch at the worst kernel: what a budget counts."""
        return self.weight_bytes + self.live_peak

    @property
    def seconds(self) -> float:
        """Sum of the kernel times."""
        return sum(k.seconds for k in self.kernels)


@dataclass(frozen=True)
class Profiling:
    """What a profiled session does.

    Attributes:
        runs: measured runs; seconds are medians per kernel, bytes are of the last run.
        warmup: runs before them.
        fused: reads what onnxruntime makes of the model; None where nobody asks.
        bound: outputs that are written into memory of the caller, and so take none of the session.
    """

    runs: int = 1
    warmup: int = 0
    fused: Read | None = None
    bound: Sequence[str] = ()


ONCE = Profiling()


def profile(
    model: onnx.ModelProto | str | Path,
    feeds: Feeds,
    options: Options,
    asked: Profiling = ONCE,
    *,
    folder: Path | None = None,
) -> Profile:
    """Run a model with the profiler on.

    Args:
        folder: where external weights are, for a model in memory.

    Raises:
        ModelError: onnxruntime refuses the model or a run fails.
    """
    if isinstance(model, onnx.ModelProto):
        require_few_trips(model)
    with scratch_folder() as scratch:
        sizes = Path(scratch) / "memory.csv"
        made = session_options(as_profiled(options))
        made.enable_profiling = True
        made.profile_file_prefix = str(Path(scratch) / "profile")
        made.add_session_config_entry(SIZES_KEY, str(sizes))
        saved = Path(scratch) / "fused.onnx"
        if asked.fused is not None:
            made.optimized_model_filepath = str(saved)
        session = open_session(str(model) if isinstance(model, Path) else model, made, folder)
        fused = None if asked.fused is None else asked.fused(saved)
        saved.unlink(missing_ok=True)
        names = [value.name for value in session.get_outputs()]
        outputs = run_session(session, feeds, asked.warmup + asked.runs, asked.bound)
        found = ended(session, sizes, asked.runs, asked.warmup)
        del session
    return replace(found, outputs=owned(names, outputs), fused=fused)


def as_profiled(options: Options) -> Options:
    """The options of a session with the profiler on: the byte counters exist only with the arena,
    and only piecewise without a pattern."""
    return replace(options, arena=True, pattern=False)


def ended(session: Any, sizes: Path, runs: int, warmup: int = 0) -> Profile:
    """End the profiling of a session that ran ``warmup + runs`` times, and read what it wrote.

    Args:
        sizes: the node-memory file, given to the session under :data:`SIZES_KEY`.

    Raises:
        MissingComponentError: this onnxruntime writes no bytes into its profile.
    """
    events = _events(Path(session.end_profiling()))
    kernels, weights, arena = _kernels(events, warmup, runs, _scratch_bytes(sizes))
    return Profile(kernels, weights, arena, {})


def _events(path: Path) -> list[dict[str, Any]]:
    """Events of a profile; names of ops are in it as they are, line breaks included."""
    try:
        found: list[dict[str, Any]] = json.loads(path.read_text(errors="replace"), strict=False)
    except ValueError as error:
        raise cut_short("the profile of a run") from error
    return found


def run_session(session: Any, feeds: Feeds, runs: int = 1, bound: Sequence[str] = ()) -> list[Any]:
    """Run and return the outputs of the last run.

    Args:
        bound: see :func:`profile`.

    Raises:
        ModelError: the run fails (out of memory, wrong input).
        UnsupportedError: an input or output of an element type that NumPy itself does not have.
    """
    outputs: list[Any] = []
    # Sequences and maps (of scikit-learn's classifiers, say) cannot be copied from a binding.
    bind = bound and all(info.type.startswith("tensor(") for info in session.get_outputs())
    run = _binding(session, feeds, bound) if bind else lambda: session.run(None, dict(feeds))
    for _ in range(runs):
        outputs.clear()
        try:
            outputs = run()
        except Exception as error:
            raise _no_array(session, error) or _not_run(feeds, error) from error
    return outputs


_MADE_UP = (
    "--data with inputs of yours, if made-up ones may be what it does not take "
    "(thresholds, divisors, indices)"
)
_ODD_BIAS = (
    "no data helps: onnxruntime refuses what the exporter wrote for a convolution without a bias; "
    "export it without optimize=False, or with onnxremat.export (--train leaves the bias out)"
)


def _no_array(session: Any, error: Exception) -> OnnxrematError | None:
    """The error for an output that cannot be handed over, None for another failure."""
    said = first_line(error)
    if "No corresponding Numpy type" not in said:
        return None
    kind = said.split()[-1].lower().removesuffix("x2")  # two 4-bit numbers in a byte
    names = [info.name for info in session.get_outputs() if info.type == f"tensor({kind})"]
    return UnsupportedError(
        f"output '{names[0]}' is {kind}" if names else f"an output is {kind}",
        why="onnxruntime's Python interface gives no arrays of it",
        hint="give the model a Cast to float32 or int8 before that output",
    )


def _not_run(feeds: Feeds, error: Exception) -> OnnxrematError:
    """The error for a run that failed."""
    name = next((name for name in feeds if feeds[name].dtype.num >= MADE_UP), "")
    if not name or "MLDataType" not in str(error):
        # PyTorch 2.13 writes Conv3d(bias=False) so, with optimize=False.
        odd = "Compute Conv : bias must be" in str(error)
        hint = _ODD_BIAS if odd else _MADE_UP
        return ModelError("the model does not run", why=first_line(error), hint=hint)
    return UnsupportedError(
        f"input '{name}' is {feeds[name].dtype.name}",
        why="onnxruntime's Python interface takes no arrays of it",
        hint="give the model a float32 or int32 input and a Cast behind it",
    )


def _binding(session: Any, feeds: Feeds, bound: Sequence[str]) -> Callable[[], list[Any]]:
    """A run that writes some outputs into memory that is there before."""
    binding = session.io_binding()
    for name, value in feeds.items():
        binding.bind_cpu_input(name, value)
    there = {info.name: wrap(empty(info)) for info in session.get_outputs() if info.name in bound}

    def run() -> list[Any]:
        binding.clear_binding_outputs()  # what the run before returned is let go
        for info in session.get_outputs():
            if info.name in there:
                binding.bind_ortvalue_output(info.name, there[info.name])
            else:
                binding.bind_output(info.name, "cpu")
        session.run_with_iobinding(binding)
        return binding.copy_outputs_to_cpu()

    return run


def named_outputs(
    model: onnx.ModelProto, feeds: Feeds, folder: Path | None, options: Options = DEFAULT
) -> dict[str, Any]:
    """What a model returns, by name; under onnxruntime's default options where none are given.

    Raises:
        ModelError: onnxruntime refuses it, or the run fails.
    """
    session = open_session(model, session_options(options), folder)
    names = [value.name for value in session.get_outputs()]
    return owned(names, run_session(session, feeds))


def owned(names: Sequence[str], outputs: list[Any]) -> dict[str, Any]:
    """Outputs of a run by name, each in memory of its own; the list is emptied.

    An array that onnxruntime returns lies in the memory pool of its session, and while one of
    them is held all of the pool stays, however small they are and long after the session.
    """
    found = {}
    for name in reversed(names):
        value = outputs.pop()
        found[name] = value.copy() if isinstance(value, np.ndarray) else value
    return dict(reversed(found.items()))


def _scratch_bytes(path: Path) -> dict[str, int]:
    """Node name to bytes taken inside the kernel. The file's key is ``name_hash``."""
    if not path.exists():
        return {}
    text = path.read_text(errors="replace").partition("\n")[2]
    found: dict[str, int] = {}
    for name, count in _ROW.findall(text):  # of files of others bodies may have names twice
        found[name] = max(int(count), found.get(name, 0))
    return found


def _outermost(rows: Sequence[dict[str, Any]], scratch: Mapping[str, int]) -> list[dict[str, Any]]:
    """The kernels of the graph itself, each with its ``scratch`` bytes.

    Kernels of a body are reported before their If, Loop or Scan, and begin after it. What they
    hold beyond what is left at its end is its scratch.
    """
    outer: list[dict[str, Any]] = []
    for row in rows:
        taken = scratch.get(row["name"].removesuffix("_kernel_time"), 0)
        while outer and outer[-1]["ts"] > row["ts"]:
            inner = outer.pop()
            taken = max(taken, _in_use(inner) + inner["scratch"] - _in_use(row))
        outer.append({**row, "scratch": taken})
    return outer


def _in_use(row: Mapping[str, Any]) -> int:
    return int(row["args"].get(IN_USE, 0))


def _kernels(
    events: list[dict[str, Any]], warmup: int, runs: int, scratch: Mapping[str, int]
) -> tuple[tuple[Kernel, ...], int, int]:
    rows = [
        event
        for event in events
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time")
    ]
    if rows and not any(IN_USE in row["args"] for row in rows):
        raise MissingComponentError(
            f"onnxruntime {runtime_version()} does not say what a run holds",
            why=f"its profile has no {IN_USE}, by which budgets are kept",
            hint="pip install 'onnxruntime-gpu>=1.31', or another flavour of that version",
        )
    rows = _outermost(rows, scratch)
    per_run, rest = divmod(len(rows), warmup + runs)
    if rest:
        raise ModelError(
            "the number of executed kernels differs from run to run",
            why=f"{len(rows)} kernels in {warmup + runs} runs",
        )
    timed = [rows[r * per_run : (r + 1) * per_run] for r in range(warmup, warmup + runs)]
    last = timed[-1]
    made: list[Kernel] = []
    held: dict[str, int] = {}  # by provider: each counts the bytes of its own memory
    for index, row in enumerate(last):
        args = row["args"]
        name = row["name"].removesuffix("_kernel_time")
        outputs = tuple(
            (ORT_NAMES.get(dtype, 0), tuple(shape))
            for entry in args.get("output_type_shape", ())
            for dtype, shape in entry.items()
        )
        in_use = _in_use(row)
        # What goes into a sequence is in use when the kernel ends: it is no scratch.
        scratched = 0 if args["op_name"] in SEQUENCES else row["scratch"]
        provider = args.get("provider", "")
        if provider not in held:
            held[provider] = in_use - int(args.get("mem_requested_in_use_delta", 0))
        each = tuple(run[index]["dur"] * 1e-6 for run in timed)
        made.append(
            Kernel(
                name, args["op_name"], statistics.median(each), in_use - held[provider], scratched,
                outputs, provider, each,
            )
        )  # fmt: skip
    arena = int(last[-1]["args"].get("mem_arena_held", 0)) if last else 0
    return tuple(made), max(held.values(), default=0), arena
