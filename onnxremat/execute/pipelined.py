"""Samples one after another through devices that each have a stage of the model: a pipeline.

Each stage is a thread with sessions of its own, and works on another sample than its neighbours.
Between two stages a queue holds :data:`QUEUE` samples; a stage that runs ahead waits. A sample is a
set of values that sessions bind where they lie: nothing goes through numpy, and within one memory
nothing is copied.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from queue import Queue, SimpleQueue
from typing import Any

import numpy as np

from onnxremat.errors import OnnxrematError, UnsupportedError, UsageError
from onnxremat.execute.executor import Executor, Held
from onnxremat.execute.streams import stream_names
from onnxremat.ort.denormals import denormals_as_zero
from onnxremat.rewrite.partition import Partitioned

QUEUE = 1  # samples between two stages
ENTERED = -1  # in a log: a sample came in, before all stages

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class PipelineStage:
    """What one thread does with every sample.

    Attributes:
        name: its device, or the link where bytes are copied.
        actions: indices into ``Partitioned.actions``.
    """

    name: str
    actions: tuple[int, ...]


@dataclass(frozen=True)
class Event:
    """What a stage did with a sample, or that it came in (``ENTERED``) or left (the number of
    stages); seconds of ``time.perf_counter``."""

    stage: int
    sample: int
    begin: float
    end: float


def pipeline_stages(parts: Partitioned, machine: Any) -> tuple[PipelineStage, ...]:
    """The stages of partitions, in the order in which a sample passes them.

    Raises:
        UnsupportedError: a sample would come back to a device that it has left.
    """
    found: list[PipelineStage] = []
    for index, name in enumerate(stream_names(parts, machine)):
        if found and found[-1].name == name:
            found[-1] = PipelineStage(name, (*found[-1].actions, index))
            continue
        if any(stage.name == name for stage in found):
            raise UnsupportedError(
                f"a sample would come back to '{name}' after it has left it",
                why="each device is one stage of a pipeline",
                hint="onnxremat optimize IN OUT --devices M --objective throughput plans for that",
            )
        found.append(PipelineStage(name, (index,)))
    return tuple(found)


class _Sample:
    """A sample on its way; ``turn`` is what it belongs to."""

    def __init__(self, number: int, turn: _Turn) -> None:
        self.number, self.turn = number, turn
        self.held: Held | None = None
        self.error: Exception | None = None


class _Turn:
    """One call of :meth:`Pipeline.map`; sent through the pipeline when it is over, to come out
    behind its samples."""

    stopped = False


class Pipeline:
    """A model whose devices work on different samples at the same time.

    Use it in a ``with`` statement, or call :meth:`close`.

    Args:
        executor: of a model without state.
        in_flight: samples that are inside at most.
        log: told what every stage does, for who wants to know.

    Raises:
        UsageError: no sample may be inside, or the model updates state.
        UnsupportedError: the partitions are no chain of devices.
    """

    def __init__(self, executor: Executor, in_flight: int, log: list[Event] | None = None) -> None:
        if in_flight < 1:
            raise UsageError(f"{in_flight} samples in flight: at least one is needed")
        if executor.parts.pairs:
            raise UsageError(
                "a training step cannot be pipelined",
                why="a step reads what the step before it wrote",
                hint="load it with onnxremat.load_devices",
            )
        self.in_flight = in_flight
        self.stages = pipeline_stages(executor.parts, executor.machine)
        self._executor, self._log = executor, log
        self._enter: SimpleQueue[_Sample | _Turn | None] = SimpleQueue()
        self._leave: SimpleQueue[_Sample | _Turn | None] = SimpleQueue()
        between = [Queue[Any](QUEUE) for _ in self.stages[1:]]
        ways = [self._enter, *between, self._leave]
        self._threads = [
            threading.Thread(
                target=_work,
                args=(executor, number, stage.actions, ways[number], ways[number + 1], log),
                daemon=True,
                name=f"onnxremat-{stage.name}",
            )
            for number, stage in enumerate(self.stages)
        ]
        for thread in self._threads:
            thread.start()
        self._end = weakref.finalize(self, self._enter.put, None)
        self._turn: _Turn | None = None

    def map(self, samples: Iterable[Arrays]) -> Iterator[dict[str, np.ndarray]]:
        """Outputs of every sample, in their order, as arrays of their own.

        Samples are taken when there is room for them: at most ``in_flight`` are inside, those
        included whose outputs nobody has asked for yet. Inputs are copied when a sample is taken.
        What goes wrong is raised in its turn, after the outputs of all samples before it; an
        error of a sample has its number (from 0). The pipeline can be used again afterwards, as
        when the iterator is closed before its end: what is inside is given up.

        Args:
            samples: input name to array.

        Raises:
            UsageError: closed, another ``map`` is not at its end, or an input of a sample is
                missing, or of another shape or type.
            ModelError: a session fails.
        """
        if not self._end.alive:
            raise UsageError("the pipeline is closed", hint="load it again")
        if self._turn is not None:
            raise UsageError(
                "another map of this pipeline is not at its end",
                hint="take all of its outputs, or close() that iterator",
            )
        turn = self._turn = _Turn()
        try:
            yield from self._outputs(turn, iter(samples))
        finally:
            turn.stopped = True
            if self._end.alive:
                self._enter.put(turn)
                while self._leave.get() is not turn:
                    pass
            self._turn = None

    def _outputs(self, turn: _Turn, samples: Iterator[Arrays]) -> Iterator[dict[str, np.ndarray]]:
        taken = given = 0
        more, wrong = True, None
        while True:
            while more and taken - given < self.in_flight:
                try:
                    feeds = next(samples)
                except StopIteration:
                    more = False
                except Exception as error:  # the caller's: raised in its turn
                    more, wrong = False, error
                else:
                    self._enter.put(self._sample(taken, turn, feeds))
                    taken += 1
            if taken == given:
                break
            yield self._next(turn)
            given += 1
        if wrong is not None:
            raise wrong

    def _sample(self, number: int, turn: _Turn, feeds: Arrays) -> _Sample:
        sample = _Sample(number, turn)
        try:
            sample.held = self._executor.begun(feeds)
        except Exception as error:  # raised in its turn
            sample.error = _of_sample(error, number)
        self._tell(ENTERED, number)
        return sample

    def _next(self, turn: _Turn) -> dict[str, np.ndarray]:
        """The outputs of the sample that comes out next."""
        sample = None if turn.stopped else self._leave.get()
        while sample is not None and not (isinstance(sample, _Sample) and sample.turn is turn):
            sample = self._leave.get()
        if sample is None or turn.stopped:
            raise UsageError("the pipeline was closed", hint="load it again")
        if sample.error is not None:
            raise sample.error
        assert sample.held is not None
        found = self._executor.results(sample.held)
        self._tell(len(self.stages), sample.number)
        return found

    def _tell(self, stage: int, sample: int) -> None:
        if self._log is not None:
            now = time.perf_counter()
            self._log.append(Event(stage, sample, now, now))

    def close(self) -> None:
        """Give up what is inside and end the threads."""
        if not self._end.alive:
            return
        if self._turn is not None:
            self._turn.stopped = True
        self._end()
        for thread in self._threads:
            thread.join()
        self._executor.close()

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _of_sample(error: Exception, number: int) -> Exception:
    """The error with the number of its sample."""
    if isinstance(error, OnnxrematError):
        error.where = ", ".join(filter(None, (f"sample {number}", error.where)))
    else:
        error.add_note(f"in sample {number}")
    return error


def _work(
    executor: Executor,
    number: int,
    actions: tuple[int, ...],
    before: Any,
    behind: Any,
    log: list[Event] | None,
) -> None:
    """What the thread of a stage does until it is told to end by None, which it passes on."""
    with denormals_as_zero():
        while True:
            sample = before.get()
            if isinstance(sample, _Sample):
                _carry(executor, number, actions, sample, log)
            behind.put(sample)
            if sample is None:
                return
            del sample  # its values may go while this thread waits


def _carry(
    executor: Executor,
    number: int,
    actions: tuple[int, ...],
    sample: _Sample,
    log: list[Event] | None,
) -> None:
    if sample.turn.stopped or sample.error is not None:
        sample.held = None
        return
    assert sample.held is not None
    begin = time.perf_counter()
    try:
        for index in actions:
            executor.carry(index, sample.held)
    except Exception as error:
        sample.error, sample.held = _of_sample(error, sample.number), None
    if log is not None:
        log.append(Event(number, sample.number, begin, time.perf_counter()))
