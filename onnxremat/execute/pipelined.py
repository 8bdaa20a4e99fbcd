"""Samples one after another through devices that each have stages of the model: a pipeline.

Each device is a thread with sessions of its own, and works on another sample than its neighbours.
Where samples come back to it, it has several stages, and does them in one fixed order, round after
round, each with another sample (:mod:`onnxremat.execute.cyclic`). A stage on several devices is a
thread for each, and the one that is free takes the next sample. Between two stages a queue holds a
known number of samples; a thread that runs ahead waits. A sample is a set of values that sessions
bind where they lie: nothing goes through numpy, and within one memory nothing is copied.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, pairwise
from math import inf, lcm

import numpy as np

from onnxremat.device.machine import Machine
from onnxremat.errors import OnnxrematError, UnsupportedError, UsageError
from onnxremat.execute.cyclic import Rounds, cyclic
from onnxremat.execute.executor import Executor
from onnxremat.execute.held_values import Held
from onnxremat.execute.streams import stream_names
from onnxremat.ort.denormals import denormals_as_zero
from onnxremat.rewrite.partition import Partitioned

ENTERED = -1  # in a log: a sample came in, before all stages

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Flow:
    """How samples pass a pipeline.

    Attributes:
        in_flight: samples that are inside at most.
        replicas: device of a stage to further devices with the same sessions, which take samples in
            turn with it; they read and write the same memory.
        rounds: of devices with several stages; None for those of stages that all take as long.
    """

    in_flight: int
    replicas: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rounds: Rounds | None = None


@dataclass(frozen=True)
class PipelineStage:
    """What is done with every sample, by one thread or by several in turn; a thread can have
    several stages, of one name.

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
    stages); seconds of ``time.perf_counter``. ``replica``: which device of the stage."""

    stage: int
    sample: int
    begin: float
    end: float
    replica: int = 0


def pipeline_stages(
    parts: Partitioned, machine: Machine, replicas: Mapping[str, tuple[str, ...]] | None = None
) -> tuple[PipelineStage, ...]:
    """The stages of partitions, in the order in which a sample passes them.

    Args:
        replicas: of :class:`Flow`.

    Raises:
        UnsupportedError: a sample would come back to a device that takes them in turn with others.
    """
    found: list[PipelineStage] = []
    for index, name in enumerate(stream_names(parts, machine)):
        if found and found[-1].name == name:
            found[-1] = replace(found[-1], actions=(*found[-1].actions, index))
            continue
        devices = (name, *(replicas or {}).get(name, ()))
        if any({*devices} & {*stage.devices} for stage in found if [*stage.devices, *devices][2:]):
            raise UnsupportedError(
                f"a sample would come back to '{name}' after it has left it",
                why="devices that take samples in turn have one stage of a pipeline",
                hint="onnxremat optimize IN OUT --devices M --objective throughput plans for that",
            )
        found.append(PipelineStage(name, (index,), devices))
    return tuple(found)


def rounds_of(
    parts: Partitioned, machine: Machine, seconds: Mapping[int, float], in_flight: int
) -> Rounds:
    """What each device does in a round.

    Args:
        seconds: of each action.
    """
    stages = pipeline_stages(parts, machine)
    # As a file has them: what is read takes the rounds that were planned.
    took = [sum(float(f"{seconds.get(i, 0.0):.4g}") for i in stage.actions) for stage in stages]
    waking = max((link.latency for link in machine.links if link.shared), default=0.0)
    return cyclic([stage.name for stage in stages], took, in_flight, waking)


class _Sample:
    """A sample on its way; ``turn`` is what it belongs to, ``takers`` which thread of each line has
    taken it."""

    def __init__(self, number: int, turn: _Turn) -> None:
        self.number, self.turn = number, turn
        self.takers: list[int] = []
        self.held: Held | None = None
        self.error: Exception | None = None


class _Turn:
    """One call of :meth:`Pipeline.map`; sent through the pipeline behind its last sample, so that
    no thread waits for another one.

    Attributes:
        ready: samples that came out before those before them.
        stopped: its samples are given up.
        sent: it is on its way.
    """

    def __init__(self) -> None:
        self.ready: dict[int, _Sample] = {}
        self.stopped = self.sent = False


class _Line:
    """Samples between two stages: one that is free takes the next sample, so that a slower device
    of a stage holds up no other.

    Args:
        sources: threads of the stage before.
        takers: threads of the one behind. None of them has more than its share of the samples that
            are inside, those included that are done with and wait for others.
        room: samples that may wait.
        in_flight: samples inside at most.
    """

    def __init__(self, sources: int, takers: int, room: float, in_flight: int) -> None:
        self._changed = threading.Condition()  # of a lock that finalizers may take again
        self._waiting: deque[_Sample] = deque()
        self._room, self._sources = room, sources
        self._most, self._inside = -(-in_flight // takers), [0] * takers
        self._passed: Counter[_Turn | None] = Counter()
        self._behind: list[deque[_Turn | None]] = [deque() for _ in range(takers)]

    def put(self, item: _Sample | _Turn | None) -> None:
        """A sample, when there is room. Anything else goes to all threads behind once all before
        have passed it on."""
        with self._changed:
            if isinstance(item, _Sample):
                self._changed.wait_for(lambda: len(self._waiting) < self._room)
                self._waiting.append(item)
            else:
                self._passed[item] += 1
                if self._passed[item] == self._sources:
                    del self._passed[item]
                    for row in self._behind:
                        row.append(item)
            self._changed.notify_all()

    def get(self, taker: int) -> _Sample | _Turn | None:
        """The next sample; where there is none, what came behind the last one."""
        with self._changed:
            self._changed.wait_for(lambda: self._something(taker))
            if not self._waiting:
                return self._behind[taker].popleft()
            sample = self._waiting.popleft()
            sample.takers.append(taker)
            self._inside[taker] += 1
            self._changed.notify_all()
            return sample

    def _something(self, taker: int) -> bool:
        """For a thread to take. The last samples are for all of them that have room."""
        if self._waiting:
            return self._inside[taker] < self._most
        return bool(self._behind[taker])

    def left(self, taker: int) -> None:
        """A sample that a thread had taken is no longer inside."""
        with self._changed:
            self._inside[taker] -= 1
            self._changed.notify_all()

    def clear(self) -> None:
        """No sample is inside."""
        with self._changed:
            self._inside = [0] * len(self._inside)

    def end(self) -> None:
        """Tell the threads behind to end."""
        self.put(None)


def _lines(stages: Sequence[PipelineStage], rounds: Rounds, in_flight: int) -> list[_Line]:
    """To the first stage, between each two, and from the last one."""
    counts = [1, *(len(stage.devices) for stage in stages), 1]
    between = zip(rounds.queues, pairwise(counts[1:-1]), strict=True)
    rooms = [inf, *(size * lcm(*row) for size, row in between), inf]
    return [_Line(*row, room, in_flight) for row, room in zip(pairwise(counts), rooms, strict=True)]


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
        UnsupportedError: samples come back to devices that take them in turn.
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
        names = [stage.name for stage in self.stages]
        rounds = flow.rounds or cyclic(names, [1.0] * len(names), flow.in_flight)
        lines = self._lines = _lines(self.stages, rounds, flow.in_flight)
        self._enter, self._leave = lines[0], lines[-1]
        self._threads = []
        for name in dict.fromkeys(names):
            own = [number for number, stage in enumerate(self.stages) if stage.name == name]
            for replica, device in enumerate(self.stages[own[0]].devices):
                worker = executor
                if replica:
                    assert another is not None
                    worker = another(self.stages[own[0]].actions)
                    self._others.append(worker)
                pieces = [
                    _Piece(
                        number, self.stages[number].actions, lag, lines[number], lines[number + 1]
                    )
                    for number, lag in rounds.of(own)
                ]
                work = _Work(worker, replica, pieces, log)
                self._threads.append(
                    threading.Thread(target=work.run, daemon=True, name=f"onnxremat-{device}")
                )
        for thread in self._threads:
            thread.start()
        self._end = weakref.finalize(self, self._enter.end)
        self._turn: _Turn | None = None
        self._beginning = threading.Lock()  # of a map, by whatever thread

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
                missing, of another shape or type, or not the model's.
            ModelError: a session fails.
        """
        if not self._end.alive:
            raise UsageError("the pipeline is closed", hint="load it again")
        with self._beginning:
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
                self._over(turn)
                while self._leave.get(0) is not turn:
                    pass
                for line in self._lines:
                    line.clear()
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
            if not more:
                self._over(turn)
            if taken == given:
                break
            yield self._next(turn, given)
            given += 1
        if wrong is not None:
            raise wrong

    def _over(self, turn: _Turn) -> None:
        """Tell the threads that there are no more samples."""
        if not turn.sent:
            self._enter.put(turn)
            turn.sent = True

    def _sample(self, number: int, turn: _Turn, feeds: Arrays) -> _Sample:
        sample = _Sample(number, turn)
        try:
            sample.held = self._executor.begun(feeds)
        except Exception as error:  # raised in its turn
            sample.error = _of_sample(error, number)
        self._tell(ENTERED, number)
        return sample

    def _next(self, turn: _Turn, number: int) -> dict[str, np.ndarray]:
        """The outputs of a sample."""
        while turn.stopped or number not in turn.ready:
            item = None if turn.stopped else self._leave.get(0)
            if not isinstance(item, _Sample) or turn.stopped:
                raise UsageError("the pipeline was closed", hint="load it again")
            turn.ready[item.number] = item
        sample = turn.ready.pop(number)
        for line, taker in zip(self._lines, sample.takers, strict=True):
            line.left(taker)
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
class _Piece:
    """A stage of a thread: where its samples come from and go to, and the round of the first."""

    stage: int
    actions: tuple[int, ...]
    lag: int
    before: _Line
    behind: _Line


@dataclass(frozen=True)
class _Work:
    """What one thread does: its stages, as they come in a round, on every sample it takes."""

    executor: Executor
    replica: int
    pieces: Sequence[_Piece]
    log: list[Event] | None

    def run(self) -> None:
        """Until it is told to end by None, which it passes on."""
        with denormals_as_zero():
            while self._turn() is not None:
                pass

    def _turn(self) -> _Turn | None:
        """All samples of one call of ``map``; what came behind them."""
        last: dict[int, _Turn | None] = {}
        for number in count():
            for piece in self.pieces:
                if piece.stage in last or number < piece.lag:
                    continue
                item = piece.before.get(self.replica)
                if isinstance(item, _Sample):
                    self._carry(piece, item)
                else:
                    last[piece.stage] = item
                piece.behind.put(item)
                del item  # its values may go while this thread waits
            if len(last) == len(self.pieces):
                break
        return last[self.pieces[-1].stage]

    def _carry(self, piece: _Piece, sample: _Sample) -> None:
        """The actions on one sample; what goes wrong stays with it."""
        if sample.turn.stopped or sample.error is not None:
            sample.held = None
            return
        assert sample.held is not None
        begin = time.perf_counter()
        try:
            for index in piece.actions:
                self.executor.carry(index, sample.held)
        except Exception as error:
            sample.error, sample.held = _of_sample(error, sample.number), None
        if self.log is not None:
            end = time.perf_counter()
            self.log.append(Event(piece.stage, sample.number, begin, end, self.replica))
