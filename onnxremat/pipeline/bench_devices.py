"""A model on several devices against each device alone, and against onnxruntime's own fall-back."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

import numpy as np

from onnxremat.device.machine import Device
from onnxremat.errors import MissingComponentError, ModelError
from onnxremat.execute.deployment import Deployment
from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import to_model
from onnxremat.ort.binding import wrap
from onnxremat.ort.providers import open_on
from onnxremat.ort.session import TUNED
from onnxremat.ort.values import Stage
from onnxremat.pipeline.bench import Timing, timing

Runner = Callable[[], object]
TIMED = 3  # runs of a turn


def bench_devices(
    made: Deployment,
    feeds: Mapping[str, np.ndarray],
    *,
    whole: Graph | None = None,
    seconds: float = 10.0,
    rounds: tuple[int, int] = (5, 200),
    stop: Callable[[], bool] | None = None,
) -> list[Timing]:
    """Time the deployment (the reference, first), the same one partition after the other, and the
    whole graph in one session per device; what that device's provider does not take, onnxruntime
    puts on the processor: its own fall-back. Rounds are shuffled; a turn is a run that brings the
    contender's data near, as the run before does in a loop, and some that are timed: their median.

    Args:
        whole: the graph for one session; the deployment's own, which may have its batch in parts,
            when None.
        seconds, rounds: to spend in all; fewest and most rounds.
    """
    # A training step updates its state in place, wherever it runs.
    state, given = made.state_and_rest(feeds)
    with ExitStack() as stack:
        contenders: dict[str, Runner] = {}
        planned = stack.enter_context(made.executor(state))
        contenders["as planned"] = lambda: planned.run(given)
        if made.side_by_side:
            alone = stack.enter_context(made.executor(state, overlap=False))
            contenders["one by one"] = lambda: alone.run(given)
        for device in made.machine.devices:
            if device.computes:
                runner = _whole(made, whole or made.graph, device, feeds)
                if runner is not None:
                    contenders[f"{device.name} alone"] = runner
        times = _rounds(list(contenders.values()), seconds, rounds, stop)
    return [timing(name, row, times[0]) for name, row in zip(contenders, times, strict=True)]


def _whole(
    made: Deployment, graph: Graph, device: Device, feeds: Mapping[str, np.ndarray]
) -> Runner | None:
    """The whole graph in one session on a device; None where it does not run there."""
    try:
        session = open_on(device, to_model(graph), TUNED, made.folder)
    except (MissingComponentError, ModelError):
        return None
    values = {n: wrap(np.array(feeds[n], order="C")) for n in graph.inputs}
    fixed = {} if device.opaque else {new: values[old] for old, new in made.parts.pairs}
    stage = Stage(session, device, graph.outputs, fixed)
    for name, value in values.items():
        stage.bind(name, value)
    return lambda: stage.run([])


def _rounds(
    runners: Sequence[Runner],
    seconds: float,
    rounds: tuple[int, int],
    stop: Callable[[], bool] | None,
) -> list[list[float]]:
    for runner in runners:
        runner()
    times: list[list[float]] = [[] for _ in runners]
    shuffle = random.Random(0)
    start = time.perf_counter()
    while len(times[0]) < rounds[1]:
        late = time.perf_counter() - start > seconds and len(times[0]) >= rounds[0]
        if late or (stop and stop() and times[0]):
            break
        turn = list(range(len(runners)))
        shuffle.shuffle(turn)
        for index in turn:
            runners[index]()
            times[index].append(statistics.median(_seconds(runners[index]) for _ in range(TIMED)))
    return times


def _seconds(runner: Runner) -> float:
    begin = time.perf_counter()
    runner()
    return time.perf_counter() - begin
