"""Samples one after another through devices that each have a stage of the model: a pipeline.

Each stage is a thread with sessions of its own, and works on another sample than its neighbours.
A stage on several devices is a thread for each, which take samples in turn: sample n is of replica
n modulo their number. Between two threads a queue holds :data:`QUEUE` samples; one that runs ahead
waits. A sample is a set of values that sessions bind where they lie: nothing goes through numpy,
and within one memory nothing is copied.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
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
class Flow:
    """How samples pass a pipeline.

    Attributes:
        in_flight: samples that are inside at most.
        replicas: device of a stage to further devices with the same sessions, which take samples in
            turn with it; they read and write the same memory.
    """

    in_flight: int
    replicas: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class PipelineStage:
    """What is done with every sample, by one thread or by several in turn.

    Attributes:
        name: its device, or the link where bytes are copied.
        actions: indices into ``Partitioned.actions``.
        devices: that do so in turn, ``name`` first.
    """

    name: str
    actions: tuple[int, ...]
    devices: tuple[str, ...]


@dataclass(frozen=True)
class Event:
    """What a stage did with a sample, or that it came in (``ENTERED``) or left (the number of
    stages); seconds of ``time.perf_counter``."""

    stage: int
    sample: int
    begin: float
    end: float


def pipeline_stages(
    parts: Partitioned, machine: Any, replicas: Mapping[str, tuple[str, ...]] | None = None
) -> tuple[PipelineStage, ...]:
    """The stages of partitions, in the order in which a sample passes them.

    Args:
        replicas: of :class:`Flow`.

    Raises:
        UnsupportedError: a sample would come back to a device that it has left.
    """
    found: list[PipelineStage] = []
    for index, name in enumerate(stream_names(parts, machine)):
        if found and found[-1].name == name:
            found[-1] = replace(found[-1], actions=(*found[-1].actions, index))
            continue
        if any(stage.name == name for stage in found):
            raise UnsupportedError(
                f"a sample would come back to '{name}' after it has left it",
                why="each device is one stage of a pipeline",
                hint="onnxremat optimize IN OUT --devices M --objective throughput plans for that",
            )
        devices = (name, *(replicas or {}).get(name, ()))
        found.append(PipelineStage(name, (index,), devices))
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


class _Ways:
    """Queues from each thread of a stage to each of the next.

    Args:
        make: a queue.
    """

    def __init__(self, sources: int, targets: int, make: Callable[[], Any]) -> None:
        self.rows = [[make() for _ in range(targets)] for _ in range(sources)]

    def put(self, source: int, item: _Sample | _Turn | None) -> None:
        """A sample to the thread whose turn it is; anything else to all of them."""
        row = self.rows[source]
        for queue in [row[item.number % len(row)]] if isinstance(item, _Sample) else row:
            queue.put(item)

    def end(self) -> None:
        """Tell the threads behind to end."""
        self.put(0, None)


class _Inbox:
    """Where one of several threads takes its samples, in their order."""

    def __init__(self, ways: _Ways, number: int) -> None:
        self._from = [row[number] for row in ways.rows]
        self._first, self._step = number, len(ways.rows[0])
        self._next = number

    def get(self) -> _Sample | _Turn | None:
        """The next sample; or what every thread before has passed on, once all of them did.

        The sample that is next comes from a known thread. Where that one passes something else on,
        there is no such sample, and so none after it."""
        at = self._next % len(self._from)
        item: _Sample | _Turn | None = self._from[at].get()
        if isinstance(item, _Sample):
            self._next += self._step
            return item
        for other in (queue for number, queue in enumerate(self._from) if number != at):
            while other.get() is not item:
                pass
        self._next = self._first
        return item


class Pipeline:
    """A model whose devices work on different samples at the same time.

    Use it in a ``with`` statement, or call :meth:`close`.

    Args:
        executor: of a model without state.
        flow: samples inside at most, and stages on several devices.
        log: told what every stage does, for who wants to know.
        another: makes an executor of some actions, for a further device of a stage.

    Raises:
        UsageError: no sample may be inside, or the model updates state.
        UnsupportedError: the partitions are no chain of devices.
    """

    def __init__(
        self,
        executor: Executor,
        flow: Flow,
        log: list[Event] | None = None,
        another: Callable[[Sequence[int]], Executor] | None = None,
    ) -> None:
        if flow.in_flight < 1:
            raise UsageError(f"{flow.in_flight} samples in flight: at least one is needed")
        if executor.parts.pairs:
            raise UsageError(
                "a training step cannot be pipelined",
                why="a step reads what the step before it wrote",
                hint="load it with onnxremat.load_devices",
            )
        self.in_flight = flow.in_flight
        self.stages = pipeline_stages(executor.parts, executor.machine, flow.replicas)
        self._executor, self._log = executor, log
        self._others: list[Executor] = []
        counts = [1, *(len(stage.devices) for stage in self.stages), 1]
        self._enter = _Ways(1, counts[1], SimpleQueue)
        between = [_Ways(a, b, lambda: Queue[Any](QUEUE)) for a, b in pairwise(counts[1:-1])]
        leave = _Ways(counts[-2], 1, SimpleQueue)
        self._leave = _Inbox(leave, 0)
        ways = [self._enter, *between, leave]
        self._threads = []
        for number, stage in enumerate(self.stages):
            for replica, device in enumerate(stage.devices):
                worker = executor
                if replica:
                    assert another is not None
                    worker = another(stage.actions)
                    self._others.append(worker)
                work = _Work(worker, number, replica, stage.actions, log)
                self._threads.append(
                    threading.Thread(
                        target=work.run,
                        args=(_Inbox(ways[number], replica), ways[number + 1]),
                        daemon=True,
                        name=f"onnxremat-{device}",
                    )
                )
        for thread in self._threads:
            thread.start()
        self._end = weakref.finalize(self, self._enter.end)
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
                self._enter.put(0, turn)
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
                    self._enter.put(0, self._sample(taken, turn, feeds))
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
        for executor in (self._executor, *self._others):
            executor.close()

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


@dataclass(frozen=True)
class _Work:
    """What one thread does: the actions of a stage, on every sample that is its turn."""

    executor: Executor
    stage: int
    replica: int
    actions: tuple[int, ...]
    log: list[Event] | None

    def run(self, inbox: _Inbox, behind: _Ways) -> None:
        """Until it is told to end by None, which it passes on."""
        with denormals_as_zero():
            while True:
                sample = inbox.get()
                if isinstance(sample, _Sample):
                    self.carry(sample)
                behind.put(self.replica, sample)
                if sample is None:
                    return
                del sample  # its values may go while this thread waits

    def carry(self, sample: _Sample) -> None:
        """The actions on one sample; what goes wrong stays with it."""
        if sample.turn.stopped or sample.error is not None:
            sample.held = None
            return
        assert sample.held is not None
        begin = time.perf_counter()
        try:
            for index in self.actions:
                self.executor.carry(index, sample.held)
        except Exception as error:
            sample.error, sample.held = _of_sample(error, sample.number), None
        if self.log is not None:
            self.log.append(Event(self.stage, sample.number, begin, time.perf_counter()))
