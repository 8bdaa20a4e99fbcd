"""Bytes per device while several samples are inside a pipeline.

A sample is somewhere: it waits to enter, is in a stage, in the queue behind it, or its outputs
wait for the caller. At each such place it holds known bytes of every device, and each place takes a
known number of samples. So the most that N samples can hold of a device, however the threads run,
are the N largest of these bytes, beside what is there all the time (weights).

A device whose samples come back has several stages, and works on one of them at a time.

Where r devices share the samples of a stage, each of them holds the same weights, and bytes of its
own samples only: no device is given more than N / r of those that are inside, rounded up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import lcm
from typing import NamedTuple

from onnxremat.device.machine import Machine
from onnxremat.execute.cyclic import Rounds
from onnxremat.execute.device_memory import DeviceBytes, device_bytes
from onnxremat.execute.inside import Inside
from onnxremat.execute.pipelined import ENTERED, Event, PipelineStage, pipeline_stages
from onnxremat.rewrite.partition import Partition, Partitioned


@dataclass(frozen=True)
class Places:
    """What one sample holds, by where it is.

    Attributes:
        resident: bytes per device that are there without any sample.
        entering: per device, before the first stage: copies of its inputs.
        inside: per stage and device, while the stage works on it or waits to hand it on.
        behind: per stage and device, in the queue behind it; outputs, behind the last.
        devices: per stage, those that share its samples. The bytes of a sample are given as if it
            were the first one's.
        queues: samples that can wait behind each stage but the last.
    """

    resident: Mapping[str, int]
    entering: Mapping[str, int]
    inside: tuple[Mapping[str, int], ...]
    behind: tuple[Mapping[str, int], ...]
    devices: tuple[tuple[str, ...], ...]
    queues: tuple[int, ...]

    def alike(self, name: str) -> tuple[str, ...]:
        """The devices of the stage of a device."""
        return next((row for row in self.devices if name in row), (name,))

    def most(self, in_flight: int) -> dict[str, int]:
        """Bytes per device that so many samples can hold at worst."""
        return {name: self._most(name, in_flight) for name in self.resident}

    def _most(self, name: str, in_flight: int) -> int:
        alike = self.alike(name)
        count, first = -(-in_flight // len(alike)), alike[0]
        rows = [self.entering[first]] * count + [self.behind[-1][first]] * count
        at_work: dict[
            tuple[str, ...], int
        ] = {}  # of the stages of a thread, the one that holds most
        for stage, devices in zip(self.inside, self.devices, strict=True):
            at_work[devices] = max(at_work.get(devices, 0), stage[first])
        for devices, size in at_work.items():
            rows += [size] * (1 if devices == alike else len(devices))
        between = zip(self.behind, self.queues, pairwise(self.devices), strict=False)
        for stage, room, (one, next_) in between:
            rows += [stage[first]] * room * lcm(len(one), len(next_))
        return self.resident[name] + sum(sorted(rows, reverse=True)[:count])

    def seen(self, log: Sequence[Event]) -> dict[str, int]:
        """The most that was held of each device at any time of a run of a pipeline."""
        changes: list[tuple[float, int, int, _Held]] = []  # (time, sample, rank, held)
        for event in log:
            sample = event.sample
            if event.stage == ENTERED:
                changes.append((event.begin, sample, 0, _Held(self.entering)))
            elif event.stage == len(self.inside):
                changes.append((event.begin, sample, 0, _Held({})))
            else:
                taker = self.devices[event.stage], event.replica
                inside, behind = self.inside[event.stage], self.behind[event.stage]
                changes.append((event.begin, sample, 0, _Held(inside, taker)))
                changes.append((event.end, sample, 1, _Held(behind, taker)))
        held: dict[int, _Held] = {}
        takers: dict[int, dict[tuple[str, ...], int]] = {}
        found = dict(self.resident)
        for _, sample, _, holds in sorted(changes, key=lambda row: row[:3]):
            held[sample] = holds
            takers.setdefault(sample, {}).update([holds.taker] if holds.taker else [])
            if not holds.bytes:
                del held[sample]
            now = self._now({number: (one.bytes, takers[number]) for number, one in held.items()})
            found = {name: max(found[name], now[name]) for name in found}
        return found

    def _now(
        self, held: Mapping[int, tuple[Mapping[str, int], Mapping[tuple[str, ...], int]]]
    ) -> dict[str, int]:
        """Bytes per device of samples: what each holds, and which devices have taken it. One that
        none of a stage's devices has taken yet counts with the one that has fewest."""
        found = dict(self.resident)
        for alike in {self.alike(name) for name in self.resident}:
            count = [0] * len(alike)
            for size, taker in sorted(held.values(), key=lambda one: alike not in one[1]):
                place = taker.get(alike, count.index(min(count)))
                count[place] += 1
                found[alike[place]] += size[alike[0]]
        return found


class _Held(NamedTuple):
    """What a sample holds, and the devices of the stage it is in, with the place of its own."""

    bytes: Mapping[str, int]
    taker: tuple[tuple[str, ...], int] | None = None


def places(
    parts: Partitioned,
    machine: Machine,
    inside: Mapping[int, Inside],
    rounds: Rounds,
    replicas: Mapping[str, tuple[str, ...]] | None = None,
) -> Places:
    """Where samples can be, and what they hold there.

    Args:
        inside: what each partition holds, by action.
        rounds: what each device does in a round.
        replicas: of :class:`~onnxremat.execute.pipelined.Flow`.
    """
    stages = pipeline_stages(parts, machine, replicas)
    alone = device_bytes(parts, machine, inside)
    copies = [_inputs(parts, stages, number) for number in range(len(stages) + 1)]
    names = machine.names

    def rows(number: int, stage: PipelineStage) -> Mapping[str, int]:
        return {name: _during(alone[name], stage) + copies[number].get(name, 0) for name in names}

    def after(number: int, stage: PipelineStage) -> Mapping[str, int]:
        left = {n: alone[n].between[stage.actions[-1]] - alone[n].resident for n in names}
        return {name: left[name] + copies[number + 1].get(name, 0) for name in names}

    numbered = list(enumerate(stages))
    first = {name: stage.name for stage in stages for name in stage.devices}
    return Places(
        {name: _resident(alone, name, first.get(name, name)) for name in names},
        {name: copies[0].get(name, 0) for name in names},
        tuple(rows(number, stage) for number, stage in numbered),
        tuple(after(number, stage) for number, stage in numbered),
        tuple(stage.devices for stage in stages),
        rounds.queues,
    )


def _resident(alone: Mapping[str, DeviceBytes], name: str, first: str) -> int:
    """What is there all the time of a device that shares samples with the first one of its stage:
    the same weights and session, its own share of what the caller holds."""
    return replace(alone[first].stays, given=alone[name].stays.given).total


def _during(device: DeviceBytes, stage: PipelineStage) -> int:
    """The most a sample holds of a device while a stage works on it."""
    actions = set(stage.actions)
    held = [
        n for (action, _), n in zip(device.steps, device.held, strict=True) if action in actions
    ]
    first = stage.actions[0]
    before = device.between[first - 1] if first else device.resident
    return max(*held, before, *(device.between[action] for action in actions)) - device.resident


def _inputs(parts: Partitioned, stages: Sequence[PipelineStage], number: int) -> dict[str, int]:
    """Bytes per device of inputs that stages from ``number`` on read there."""
    found: dict[str, set[str]] = {}
    for stage in stages[number:]:
        for index in stage.actions:
            action = parts.actions[index]
            if isinstance(action, Partition):
                came = {key[0] for key in parts.uses[index][0]}
                names = {n for n in action.graph.inputs if n in parts.graph.inputs} - came
                found.setdefault(action.device, set()).update(names)
            elif action.value in parts.graph.inputs:
                found.setdefault(action.source, set()).add(action.value)
    size = parts.graph.tensors
    return {device: sum(size[n].bytes for n in names) for device, names in found.items()}
