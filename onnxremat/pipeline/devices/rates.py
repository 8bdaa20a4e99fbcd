"""Seconds per sample of full pipelines, in turn with models that run a sample at a time."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import repeat
from math import lcm
from pathlib import Path

from onnxremat.errors import UsageError
from onnxremat.execute.deployment import Deployment
from onnxremat.graph.ir import Graph
from onnxremat.graph.light import read_light
from onnxremat.ort.profile import Feeds
from onnxremat.pipeline.bench import Alone, Contender, Runner
from onnxremat.rewrite.emit import metadata

TURN = 0.5  # seconds of a turn, about
FEWEST = 4  # samples of a turn


def _a_turn(each: float) -> int:
    """Samples of a turn, where one takes so many seconds."""
    return max(FEWEST, int(TURN / max(each, 1e-6)))


@dataclass(frozen=True)
class OneByOne(Alone):
    """The same for as long as a turn of a pipeline: seconds are means of both."""

    near: bool = False

    def open(self, stack: ExitStack, feeds: Feeds) -> Runner | None:
        """Its runner gives the seconds from run to run."""
        run = super().open(stack, feeds)
        if run is None:
            return None

        def full(count: int) -> float:
            run()
            begin = time.perf_counter()
            for _ in range(count):
                run()
            return (time.perf_counter() - begin) / count

        count = _a_turn(full(FEWEST))
        return lambda: full(count)


@dataclass(frozen=True)
class InPipeline:
    """A model whose devices work on different samples; see :class:`Contender`.

    A turn fills the pipeline, and times outputs while it stays full: those of the first samples and
    of the last, when stages have nothing left to do, do not count. Where devices share a stage,
    their outputs come together: a turn has the same number of each.
    """

    name: str
    made: Deployment
    near: bool = False
    weights: int = 0

    def beside(self) -> list[Contender]:
        """See :class:`Contender`."""
        return beside_pipeline(self.made, self.made.graph, self.name)

    def open(self, stack: ExitStack, feeds: Feeds) -> Runner:
        """Its runner gives the seconds from output to output."""
        pipeline = stack.enter_context(self.made.pipeline())
        warm = self.made.in_flight

        def full(count: int) -> float:
            times = []
            for _ in pipeline.map(repeat(feeds, count + 2 * warm)):
                times.append(time.perf_counter())
            return (times[warm + count - 1] - times[warm - 1]) / count

        together = lcm(*(len(stage.devices) for stage in pipeline.stages))
        count = _a_turn(full(FEWEST * together)) // together * together or together
        return lambda: full(count)


def in_pipeline(name: str, made: Deployment) -> InPipeline:
    """A model that was planned for throughput.

    Raises:
        UsageError: it was not.
    """
    if not made.in_flight:
        raise UsageError(
            f"{name} was not planned for samples in flight",
            hint="optimize IN OUT --devices M --objective throughput; or leave out --throughput",
        )
    return InPipeline(name, made)


def beside_pipeline(made: Deployment, whole: Graph, name: str = "pipelined") -> list[Contender]:
    """A pipeline (the reference), and the whole graph on each device alone, a sample at a time."""
    devices = [device for device in made.machine.devices if device.computes]
    return [InPipeline(name, made), *(OneByOne(device, whole, made) for device in devices)]


def predicted(path: Path) -> float | None:
    """Samples per second that were predicted when a file was planned for throughput."""
    facts = metadata(read_light(path)[0]).get("facts", "{}")
    found: float | None = json.loads(facts).get("samples_per_second_predicted")
    return found
