"""Paired, interleaved timing: medians and ratios that a busy machine does not bend.

A contender is a model in one session, or one planned for several devices; both become a function
that runs it once, and all take turns in a shuffled order.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx

from onnxremat.device.machine import Device
from onnxremat.errors import MissingComponentError, ModelError, UsageError
from onnxremat.execute.deployment import Deployment, read_deployment
from onnxremat.graph.ir import Graph, Tensor
from onnxremat.graph.light import read_structure
from onnxremat.graph.onnx_io import to_model
from onnxremat.ort.binding import wrap
from onnxremat.ort.feeds import load_feeds, seeded_feeds
from onnxremat.ort.infer import bind, build_graph
from onnxremat.ort.offline import weight_bytes
from onnxremat.ort.profile import Feeds, run_session
from onnxremat.ort.providers import open_on
from onnxremat.ort.session import DEFAULT, TUNED, Options, open_session, session_options
from onnxremat.ort.values import Copies, Stage, moved
from onnxremat.pipeline.original.first_values import without_first_values
from onnxremat.pipeline.original.source import read_source
from onnxremat.pipeline.settings import Settings
from onnxremat.rewrite.emit import metadata, unpack
from onnxremat.session.load import options_of

Runner = Callable[[], object]
Stop = Callable[[], bool]
ROUNDS = (5, 60)
LATE, FEWEST = 2.0, 2  # times the seconds asked for, from which so many rounds are enough
TIMED = 3  # runs of a turn where data has to be brought near first
TOGETHER = 128 << 20  # bytes of weights up to which all contenders are open at a time


class Contender(Protocol):
    """Something that can be timed."""

    @property
    def name(self) -> str:
        """For people."""

    @property
    def near(self) -> bool:
        """A turn begins with a run that is not timed: it brings the data near, as the run before
        does in a loop."""

    @property
    def weights(self) -> int:
        """Bytes of weights that it holds while it is open; 0 where others depend on it."""

    def beside(self) -> list[Contender]:
        """It and what it is timed against where no other model is given."""

    def open(self, stack: ExitStack, feeds: Feeds) -> Runner | None:
        """What runs it once, open until the stack is left; None where it does not run. What it
        returns as a float is the seconds it wants to be told, instead of those it took."""


@dataclass(frozen=True)
class InSession:
    """A model in one session, and the options it runs with."""

    name: str
    model: onnx.ModelProto | str | Path
    options: Options
    folder: Path | None = None
    near: bool = False

    @property
    def weights(self) -> int:
        """See :class:`Contender`."""
        if isinstance(self.model, onnx.ModelProto):
            return weight_bytes(self.model)
        return weight_bytes(read_structure(self.model))

    def beside(self) -> list[Contender]:
        return [self]

    def open(self, stack: ExitStack, feeds: Feeds) -> Runner:
        model = str(self.model) if isinstance(self.model, Path) else self.model
        session = open_session(model, session_options(self.options), self.folder)
        return lambda: run_session(session, feeds)


@dataclass(frozen=True)
class OnDevices:
    """A model over several devices; one partition after the other unless they may overlap."""

    name: str
    made: Deployment
    overlap: bool | None = None
    near: bool = True
    weights: int = 0

    def beside(self) -> list[Contender]:
        """See :class:`Contender`."""
        return beside_devices(self.made)

    def open(self, stack: ExitStack, feeds: Feeds) -> Runner:
        """See :class:`Contender`. A training step updates its state in place, as a trainer does."""
        state, given = self.made.state_and_rest(feeds)
        executor = stack.enter_context(self.made.executor(state, self.overlap))
        return lambda: executor.run(given)


@dataclass(frozen=True)
class Alone:
    """The whole graph in one session on a device; what its provider does not take, onnxruntime
    puts on the processor: its own fall-back."""

    device: Device
    graph: Graph
    made: Deployment
    near: bool = True
    weights: int = 0

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.device.name} alone"

    def beside(self) -> list[Contender]:
        return [self]

    def open(self, stack: ExitStack, feeds: Feeds) -> Runner | None:
        try:
            session = open_on(self.device, to_model(self.graph), TUNED, self.made.folder)
        except (MissingComponentError, ModelError):
            return None
        values = {n: wrap(np.array(feeds[n], order="C")) for n in self.graph.inputs}
        if not self.device.in_host_memory:  # else every run would bring its results back
            values = {n: moved(value, self.device, Copies()) for n, value in values.items()}
        pairs = () if self.device.opaque else self.made.parts.pairs
        fixed = {new: values[old] for old, new in pairs}
        stage = Stage(session, self.device, self.graph.outputs, fixed)
        for name, value in values.items():
            stage.bind(name, value)
        return lambda: stage.run([])


@dataclass(frozen=True)
class Timing:
    """One contender's time against the first one's.

    Attributes:
        seconds: median of its turns.
        ratio: median over rounds of its time / the first contender's time of that round.
        spread: half the interquartile range of these ratios.
        rounds: how many rounds were run.
    """

    name: str
    seconds: float
    ratio: float
    spread: float
    rounds: int


def bench(
    contenders: Sequence[Contender],
    feeds: Feeds,
    *,
    seconds: float = 10.0,
    rounds: tuple[int, int] = ROUNDS,
    stop: Stop | None = None,
) -> list[Timing]:
    """Run the contenders in turn, each round in a shuffled order; those that do not run are left
    out.

    A run finds the caches as the run before left them, so no contender may always follow itself
    or always another one. Where all together would hold much memory, one is open at a time, for
    some runs in a row.

    Args:
        contenders: the first is the reference.
        seconds: stop after this long, within the limits of ``rounds``; the fewest are not waited
            for where they take more than twice as long.
        stop: ends early when it says so (after one round at least).

    Raises:
        ModelError, MissingComponentError: the first does not run.
    """
    if sum(one.weights for one in contenders) > TOGETHER:
        times = _rounds(
            len(contenders), lambda index: _turn_anew(contenders[index], feeds), seconds, rounds,
            stop,
        )  # fmt: skip
        names = [one.name for one in contenders]
        return [timing(name, row, times[0]) for name, row in zip(names, times, strict=True) if row]
    with ExitStack() as stack:
        opened = [(one.name, one.near, one.open(stack, feeds)) for one in contenders]
        runners = [(name, near, runner) for name, near, runner in opened if runner is not None]
        for _, near, runner in runners:
            for _ in range(1 if near else 2):
                runner()
        times = _rounds(
            len(runners), lambda index: _turn(*runners[index][1:]), seconds, rounds, stop
        )
    return [timing(name, row, times[0]) for (name, _, _), row in zip(runners, times, strict=True)]


def _rounds(
    count: int,
    turn: Callable[[int], list[float]],
    seconds: float,
    rounds: tuple[int, int],
    stop: Stop | None,
) -> list[list[float]]:
    """Seconds of so many contenders, in turn, each round in a shuffled order.

    Args:
        turn: seconds that a turn of one of them gives; none where it does not run.
    """
    times: list[list[float]] = [[] for _ in range(count)]
    shuffle = random.Random(0)
    start = time.perf_counter()
    while len(times[0]) < rounds[1]:
        spent = time.perf_counter() - start
        least = rounds[0] if spent <= LATE * seconds else min(FEWEST, rounds[0])
        if (spent > seconds and len(times[0]) >= least) or (stop and stop() and times[0]):
            break
        order = list(range(count))
        shuffle.shuffle(order)
        for index in order:
            times[index] += turn(index)
    return times


def _turn(near: bool, runner: Runner) -> list[float]:
    """One that is open: a run, or the median of some once its data is near."""
    if near:
        runner()
    return [statistics.median(_seconds(runner) for _ in range(TIMED if near else 1))]


def _turn_anew(one: Contender, feeds: Feeds) -> list[float]:
    """One opened anew: some runs in a row; none where it does not run."""
    with ExitStack() as stack:
        runner = one.open(stack, feeds)
        if runner is None:
            return []
        runner()
        found = [_seconds(runner) for _ in range(TIMED)]
        del runner
    return found


def _seconds(runner: Runner) -> float:
    begin = time.perf_counter()
    told = runner()
    return told if isinstance(told, float) else time.perf_counter() - begin


def timing(name: str, row: list[float], reference: list[float]) -> Timing:
    """Seconds of each round against the reference's of the same round."""
    ratios = sorted(a / b for a, b in zip(row, reference, strict=True))
    quarter = len(ratios) // 4
    spread = (ratios[-1 - quarter] - ratios[quarter]) / 2
    return Timing(name, statistics.median(row), statistics.median(ratios), spread, len(row))


def beside_devices(made: Deployment, whole: Graph | None = None) -> list[Contender]:
    """A plan over several devices (the reference), the same one partition after the other, and the
    whole graph on each device alone.

    Args:
        whole: the graph for one session; the deployment's own, which may have its batch in parts,
            when None.
    """
    found: list[Contender] = [OnDevices("as planned", made)]
    if made.side_by_side:
        found.append(OnDevices("one by one", made, overlap=False))
    devices = [device for device in made.machine.devices if device.computes]
    return [*found, *(Alone(device, whole or made.graph, made) for device in devices)]


def bench_files(
    paths: Sequence[Path],
    settings: Settings,
    seconds: float,
    stop: Stop | None,
    of_devices: Callable[[str, Deployment], Contender] = OnDevices,
) -> list[Timing]:
    """Time files in turn on the same inputs; planned models run as planned, others under default
    options. One file for several devices alone: against each of them.

    Open dimensions of unplanned models are bound as the planned ones were, unless given.

    Args:
        of_devices: what runs a model for several devices.

    Raises:
        UsageError: the models have different inputs.
    """
    contenders, feeds = _of_files(paths, settings, of_devices)
    if settings.threads and not any(isinstance(one, InSession) for one in contenders):
        raise UsageError(
            "--threads does not apply to a model over several devices",
            why="its machine says how many threads each device has",
            hint="leave it out, or plan again with other threads in the machine file",
        )
    if len(contenders) == 1 and not isinstance(contenders[0], InSession):
        contenders = contenders[0].beside()
    return bench(contenders, feeds, seconds=seconds, stop=stop)


def _of_files(
    paths: Sequence[Path],
    settings: Settings,
    of_devices: Callable[[str, Deployment], Contender],
) -> tuple[list[Contender], Feeds]:
    read = [read_source(path) for path in paths]
    kept: Mapping[str, Any] = {}
    for model, _, _ in read:
        facts = metadata(model)
        if "plan" in facts:
            kept = unpack(facts["plan"]).provenance.settings
    contenders: list[Contender] = []
    feeds: Feeds | None = None
    first: Graph | None = None
    for path, (model, folder, _) in zip(paths, read, strict=True):
        facts = metadata(model)
        planned = "plan" in facts
        shapes = {} if planned else settings.shapes or kept.get("shapes", {})
        dims = {} if planned else settings.dims or kept.get("dims", {})
        bound, _ = without_first_values(bind(model, shapes, dims))  # which planned ones lack
        graph = build_graph(bound, folder)
        if feeds is None or first is None:
            made = load_feeds(settings.data, graph) if settings.data else None
            feeds, first = made or seeded_feeds(graph, settings.seed), graph
        elif why := _unlike(graph, first):
            raise UsageError(f"{path} has other inputs than {paths[0]}", why=why)
        if "devices" in facts:
            contenders.append(of_devices(str(path), read_deployment(path)))
            continue
        options = replace(options_of(model) if planned else DEFAULT, threads=settings.threads)
        contenders.append(InSession(str(path), to_model(graph), options, folder))
    assert feeds is not None
    return contenders, feeds


def _unlike(graph: Graph, first: Graph) -> str:
    """Why a graph does not take what another is fed, "" where it does."""
    if set(graph.inputs) != set(first.inputs):
        return f"{', '.join(graph.inputs)} against {', '.join(first.inputs)}"
    for name in graph.inputs:
        own, other = graph.tensors[name], first.tensors[name]
        known = own.shape is not None and other.shape is not None
        if own.dtype != other.dtype or (known and own.shape != other.shape):
            return f"'{name}' is {_kind(own)} against {_kind(other)}"
    return ""


def _kind(tensor: Tensor) -> str:
    """Element type and shape of an input, for people."""
    kind = onnx.TensorProto.DataType.Name(tensor.dtype).lower() if tensor.dtype else "no tensor"
    return f"{kind} {'?' if tensor.shape is None else ' x '.join(map(str, tensor.shape))}".rstrip()
