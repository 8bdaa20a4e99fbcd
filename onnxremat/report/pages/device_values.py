"""What devices hold over a run, value by value: between actions, inside partitions, and all the
time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnxremat.execute.deployment import Deployment
from onnxremat.execute.device_memory import DeviceBytes
from onnxremat.execute.inside import simulated
from onnxremat.execute.pools import pooled, ready_made
from onnxremat.report.pages.holders import Buffer, Holders
from onnxremat.rewrite.partition import Copy, Partition

Reader = tuple[float, str]  # when it has read, and its name
Span = tuple[float, float]


@dataclass(frozen=True)
class Held:
    """A value that a device holds.

    Attributes:
        begin, end: seconds.
        producer: the op or copy that made it, by name.
        readers: (end in seconds, name) of the ops and copies that use it.
        stays: it is there all the time.
    """

    device: str
    value: str
    bytes: int
    begin: float
    end: float
    producer: str
    readers: tuple[Reader, ...]
    stays: bool = False


@dataclass(frozen=True)
class _Result:
    """How a partition comes by a result: when, by which op, and which of its ops read it."""

    begin: float
    producer: str
    readers: tuple[Reader, ...]


def values(
    made: Deployment, times: Sequence[Span], held: Mapping[str, DeviceBytes], end: float
) -> list[Held]:
    """Every value of a run, one action after the other; at any moment those of a device add up to
    what it holds.

    Args:
        times: (start, end) of every action in seconds.
        held: bytes of every device.
        end: seconds of the run.
    """
    found: list[Held] = []
    results: dict[int, dict[str, _Result]] = {}
    for index, action in enumerate(made.parts.actions):
        if isinstance(action, Partition):
            inside = _Inside.of(made, action, times[index])
            results[index] = inside.results()
            found += inside.own()
    return found + list(_between(made, times, results, end)) + list(_all_the_time(held, end))


@dataclass(frozen=True)
class _Inside:
    """A run of one partition.

    Attributes:
        early: results that have their buffer before it starts.
    """

    part: Partition
    holders: Holders
    span: Span
    early: frozenset[str]

    @classmethod
    def of(cls, made: Deployment, part: Partition, span: Span) -> _Inside:
        device, updated = made.machine.device(part.device), {new for _, new in made.parts.pairs}
        early = frozenset(ready_made(part, pooled(made.parts, made.machine), updated))
        scratch = made.scratch.get(part.device, {})
        graph, line = simulated(part, device, scratch, updated | early)
        return cls(part, Holders.of(graph, line), span, early)

    def at(self, step: int) -> float:
        """When a step begins: ops follow each other evenly, as they are drawn."""
        start, end = self.span
        return start + (end - start) * step / len(self.holders.timeline.ops)

    def own(self) -> Iterator[Held]:
        """What is held inside and is no result, and workspaces of ops."""
        line, device = self.holders.timeline, self.part.device
        outputs = {*self.part.graph.outputs}
        for buffer in self.holders.buffers:
            rows = buffer.written if buffer.bytes else ()
            for place, (step, name) in enumerate(rows):
                begin = self.at(step if place else buffer.first)
                until = rows[place + 1][0] if place + 1 < len(rows) else buffer.last + 1
                if name not in outputs and self.at(until) > begin:
                    yield Held(
                        device, name, buffer.bytes, begin, self.at(until), self._maker(step),
                        self._readers(buffer, step),
                    )  # fmt: skip
        for step, size in enumerate(line.scratch):
            if size:
                yield Held(
                    device, "workspace", size, self.at(step), self.at(step + 1), line.ops[step],
                    ((self.at(step + 1), line.ops[step]),),
                )  # fmt: skip

    def results(self) -> dict[str, _Result]:
        """Every result: the last one of the values that share its buffer."""
        outputs = self.part.graph.outputs
        found = {
            name: _Result(self.at(step if place else buffer.first), self._maker(step),
                          self._readers(buffer, step))
            for buffer in self.holders.buffers
            for place, (step, name) in enumerate(buffer.written)
            if name in outputs
        }  # fmt: skip
        for name in outputs:
            old = found.get(name)
            if old is None or name in self.early:
                begin = self.span[0] if name in self.early else self.span[1]
                maker, readers = (old.producer, old.readers) if old else (self.part.name, ())
                found[name] = _Result(begin, maker, readers)
        return found

    def _maker(self, step: int) -> str:
        return self.holders.timeline.ops[step]

    def _readers(self, buffer: Buffer, made: int) -> tuple[Reader, ...]:
        """Who reads what is in a buffer from a step on."""
        ops = self.holders.timeline.ops
        return tuple((self.at(step + 1), ops[step]) for step, _ in buffer.read if step > made)


def _between(
    made: Deployment, times: Sequence[Span], results: Mapping[int, Mapping[str, _Result]],
    end: float,
) -> Iterator[Held]:  # fmt: skip
    """Values that actions leave for others, from when they are made or arrive."""
    parts = made.parts
    dies = {key: index for index, keys in enumerate(parts.dies) for key in keys}
    readers: dict[Any, list[int]] = {}
    for index, (reads, _) in enumerate(parts.uses):
        for key in reads:
            readers.setdefault(key, []).append(index)
    for index, action in enumerate(parts.actions):
        for key in parts.uses[index][1]:
            if key in parts.in_place:
                continue
            name, device = key[0], key[1]
            if isinstance(action, Copy):
                way = _Result(times[index][0], f"copy from {action.source}", ())
            else:
                way = results[index][name]
            later = ((times[i][1], _reader(parts.actions[i], name)) for i in readers.get(key, ()))
            until = times[dies[key]][1] if key in dies else end
            yield Held(
                device, name, parts.graph.tensors[name].bytes, way.begin, until, way.producer,
                (*way.readers, *later),
            )  # fmt: skip


def _reader(action: Partition | Copy, value: str) -> str:
    """What reads a value first in an action, by name."""
    if isinstance(action, Copy):
        return f"copy to {action.target}"
    return next((op.name for op in action.graph.ops if value in op.reads), action.name)


def _all_the_time(held: Mapping[str, DeviceBytes], end: float) -> Iterator[Held]:
    for device, found in held.items():
        for what, size, maker in (
            ("weights", found.stays.weights, "the file"),
            ("inputs, parameters and state", found.stays.inputs + found.stays.given, "the caller"),
            ("the sessions' structures", found.stays.session, "onnxruntime"),
        ):
            if size:
                yield Held(device, what, size, 0.0, end, maker, (), stays=True)
