"""A pipeline over devices as an artifact: made for throughput, run with several samples inside."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import repeat
from math import lcm
from typing import Any

import numpy as np

from onnxremat.execute.deployment import Deployment
from onnxremat.execute.in_flight import Places, places
from onnxremat.execute.pipelined import Event, PipelineStage, pipeline_stages
from onnxremat.ort.feeds import seeded_feeds
from onnxremat.ort.profile import Feeds
from onnxremat.pipeline.artifact import Arrays, Check, Kind
from onnxremat.pipeline.bench import Contender
from onnxremat.pipeline.devices.over_devices import DevicesRun, OverDevices, output_check, run_whole
from onnxremat.pipeline.devices.rates import beside_pipeline
from onnxremat.pipeline.prepared import Prepared
from onnxremat.session.compare import Difference, compare
from onnxremat.units import format_bytes

SECONDS = 2.0  # of a trial
FEWEST, MOST = 8, 400  # samples of a trial


@dataclass(frozen=True)
class Trial:
    """What a full pipeline took.

    Attributes:
        stages: median seconds that each stage was at work on a sample, in their order.
        seconds: from output to output.
    """

    stages: tuple[float, ...]
    seconds: float


@dataclass(frozen=True)
class Pipelined(OverDevices):
    """Stages, each on a device or on several in turn, of which a device may have more than one: an
    :class:`~onnxremat.pipeline.artifact.Artifact`.

    Attributes:
        placed: figures of the placement, as plain data; empty where it was read from a file.
        trial: what a run of it took, None for none.
    """

    placed: Mapping[str, Any] | None = None
    trial: Trial | None = None

    @property
    def seconds(self) -> float:
        """From sample to sample, of a full pipeline: the largest load; of devices with several
        stages, as much more as their rounds take with so many samples inside."""
        largest = max(self.loads.values())
        if not self.comes_back:
            return largest
        told = max(self.loads_of_costs.values())
        return largest * self.made.rounds(self.made.in_flight).period / told if told else largest

    @property
    def comes_back(self) -> bool:
        """A device has several stages."""
        names = [stage.name for stage in self.stages]
        return len(set(names)) < len(names)

    @property
    def stages(self) -> tuple[PipelineStage, ...]:
        """In the order in which a sample passes them."""
        return pipeline_stages(self.made.parts, self.made.machine, self.made.replicas)

    @property
    def loads(self) -> dict[str, float]:
        """Seconds per sample that each device and link is at work: as tried, else of its costs."""
        return self.loads_of_costs if self.trial is None else self._shared(self.trial.stages)

    @property
    def loads_of_costs(self) -> dict[str, float]:
        """The same of the costs of ops alone."""
        return self._shared(self.stages_of_costs)

    @property
    def stages_of_costs(self) -> tuple[float, ...]:
        """Seconds of each stage on a sample, of the costs of ops alone."""
        seconds = self.made.seconds
        return tuple(sum(seconds.get(i, 0.0) for i in stage.actions) for stage in self.stages)

    def _shared(self, seconds: Sequence[float]) -> dict[str, float]:
        """Seconds of each device's stages on a sample, over the samples that each of them takes."""
        found: dict[str, float] = {}
        for stage, took in zip(self.stages, seconds, strict=True):
            for device in stage.devices:
                found[device] = found.get(device, 0.0) + took / len(stage.devices)
        return found

    @property
    def devices(self) -> tuple[str, ...]:
        """Those that run ops, in turn with others too."""
        used = {name for stage in self.stages for name in stage.devices}
        return tuple(name for name in self.made.machine.names if name in used)

    def predict(self) -> Mapping[str, int]:
        """With as many samples inside as there may be."""
        return self.made.worst

    def measure(self, feeds: Feeds) -> PipelinedRun:
        return PipelinedRun(self.made, feeds)

    def _rounds(self) -> dict[str, Any]:
        """Per device its stages as they come in a round, how many samples each is behind the first,
        and the seconds of a round."""
        rounds = self.made.rounds(self.made.in_flight)
        rows = {
            name: rounds.of([n for n, stage in enumerate(self.stages) if stage.name == name])
            for name in dict.fromkeys(stage.name for stage in self.stages)
        }
        return {"period_seconds": rounds.period, "stages_and_lags": rows}

    def contenders(self, prepared: Prepared) -> list[Contender]:
        return beside_pipeline(self.made, prepared.whole or prepared.graph)

    def planned(self) -> dict[str, Any]:
        """See :class:`OverDevices`."""
        worst = max(self.loads, key=self.loads.__getitem__)
        return {
            "objective": "throughput",
            "in_flight": self.made.in_flight,
            "stages": [list(stage.devices) for stage in self.stages],
            "rounds": self._rounds() if self.comes_back else None,
            "loads_seconds": self.loads,
            "loads_of_costs_seconds": self.loads_of_costs,
            "bottleneck": worst,
            "samples_per_second_predicted": 1 / self.seconds,
            "samples_per_second_trial": 1 / self.trial.seconds if self.trial else None,
            "tried": self.trial is not None,
            **(self.placed or {}),
        }


@dataclass(frozen=True)
class PipelinedRun(DevicesRun):
    """A pipeline run: a sample alone under the meter, and several on their way at once."""

    @cached_property
    def places(self) -> Places:
        """Bytes of a sample by where it is, inside partitions as the allocator counted."""
        made = self.made
        rounds = made.rounds(made.in_flight)
        return places(made.parts, made.machine, self.recorded.inside, rounds, made.replicas)

    @property
    def peaks(self) -> Mapping[str, int]:
        """With as many samples inside as there may be, wherever they are."""
        return self.places.most(self.made.in_flight)

    @cached_property
    def pipelined(self) -> tuple[list[Arrays], list[Mapping[str, np.ndarray]], list[Event]]:
        """Outputs of samples that were on their way together, what they were given, and the log.
        Every second one is another sample, so that one that comes out of turn is seen."""
        other = seeded_feeds(self.made.graph, seed=1)
        given = [self.feeds, other] * (self.made.in_flight // 2 + 1)
        log: list[Event] = []
        with self.made.pipeline(log=log) as pipeline:
            return list(pipeline.map(given)), given, log

    @cached_property
    def outputs(self) -> Mapping[str, Arrays]:
        with self.made.executor(overlap=False) as executor:
            alone = executor.run(self.feeds)
        return {"one by one": alone, "pipelined": self.pipelined[0][0]}

    @property
    def checks(self) -> tuple[Check, ...]:
        found = super().checks
        outputs, given, _ = self.pipelined
        wanted = [run_whole(self.made.graph, feeds, self.made) for feeds in given[:2]]
        rows = [compare(row, wanted[i % 2]) for i, row in enumerate(outputs)]
        worst: Difference = max(rows, key=lambda one: one.rank)
        check = output_check(self.made, worst, f"{self.made.in_flight} in flight, in order")
        if len(outputs) != len(given):
            text = f"{len(outputs)} outputs of {len(given)} samples"
            check = Check(Kind.OUTPUTS, check.name, False, text)
        return (*found, check)

    @property
    def words(self) -> tuple[str, ...]:
        """Bytes per device with samples in flight: at worst, and as they happened to be."""
        places = self.places
        seen = places.seen(self.pipelined[2])
        rows = {name: self.recorded.bytes[places.alike(name)[0]] for name in seen}
        return tuple(
            f"{name}: peak {format_bytes(peak)} with {self.made.in_flight} in flight wherever they "
            f"are, {format_bytes(seen[name])} as they were, {format_bytes(rows[name].peak)} with "
            f"one, {rows[name].how}"
            for name, peak in self.peaks.items()
        )

    def figures(self) -> dict[str, Any]:
        """Bytes per device."""
        return {
            **super().figures(),
            "in_flight": self.made.in_flight,
            "peak_seen_bytes": self.places.seen(self.pipelined[2]),
        }


def tried(artifact: Pipelined, feeds: Feeds, stop: Callable[[], bool] | None = None) -> Pipelined:
    """The same with what a run of some seconds took.

    Args:
        stop: polled; True ends the trial.
    """
    log: list[Event] = []
    with artifact.made.pipeline(log=log) as pipeline:
        begin, times = time.perf_counter(), []
        warm = artifact.made.in_flight
        together = lcm(*(len(stage.devices) for stage in pipeline.stages))
        fewest = warm + max(FEWEST, together)
        for _ in pipeline.map(repeat(feeds, max(MOST, fewest))):
            times.append(time.perf_counter())
            late = times[-1] - begin > SECONDS or (stop is not None and stop())
            if late and len(times) >= fewest:
                break
        count = len(pipeline.stages)
    # Outputs of devices that share a stage come together: as many of each.
    full = range(warm, len(times) - (len(times) - warm) % together)
    stages = tuple(
        statistics.median(e.end - e.begin for e in log if e.stage == stage and e.sample in full)
        for stage in range(count)
    )
    seconds = (times[full[-1]] - times[warm - 1]) / len(full)
    return replace(artifact, trial=Trial(stages, seconds))


def as_artifact(made: Deployment) -> OverDevices:
    """What a file holds: a pipeline where it was planned for throughput."""
    return Pipelined(made) if made.in_flight else OverDevices(made)
