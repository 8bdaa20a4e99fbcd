"""Bytes per device while several samples are inside a pipeline.

A sample is somewhere: it waits to enter, is in a stage, in the queue behind it, or its outputs
wait for the caller. At each such place it holds known bytes of every device, and each place takes a
known number of samples. So the most that N samples can hold of a device, however the threads run,
are the N largest of these bytes, beside what is there all the time (weights).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from onnxremat.device.machine import Machine
from onnxremat.execute.device_memory import DeviceBytes, device_bytes
from onnxremat.execute.inside import Inside
from onnxremat.execute.pipelined import ENTERED, QUEUE, Event, PipelineStage, pipeline_stages
from onnxremat.rewrite.partition import Partition, Partitioned


@dataclass(frozen=True)
class Places:
    """What one sample holds, by where it is.

    Attributes:
        resident: bytes per device that are there without any sample.
        entering: per device, before the first stage: copies of its inputs.
        inside: per stage and device, while the stage works on it or waits to hand it on.
        behind: per stage and device, in the queue behind it; outputs, behind the last.
    """

    resident: Mapping[str, int]
    entering: Mapping[str, int]
    inside: tuple[Mapping[str, int], ...]
    behind: tuple[Mapping[str, int], ...]

    def most(self, in_flight: int) -> dict[str, int]:
        """Bytes per device that so many samples can hold at worst."""
        return {name: self._most(name, in_flight) for name in self.resident}

    def _most(self, name: str, count: int) -> int:
        rows = [self.entering[name]] * count + [self.behind[-1][name]] * count
        rows += [stage[name] for stage in self.inside]
        rows += [stage[name] for stage in self.behind[:-1] for _ in range(QUEUE)]
        return self.resident[name] + sum(sorted(rows, reverse=True)[:count])

    def seen(self, log: Iterable[Event]) -> dict[str, int]:
        """The most that was held of each device at any time of a run of a pipeline."""
        changes: list[tuple[float, int, int, Mapping[str, int]]] = []  # (time, sample, rank, held)
        none = dict.fromkeys(self.resident, 0)
        for event in log:
            if event.stage == ENTERED:
                changes.append((event.begin, event.sample, 0, self.entering))
            elif event.stage == len(self.inside):
                changes.append((event.begin, event.sample, 0, none))
            else:
                changes.append((event.begin, event.sample, 0, self.inside[event.stage]))
                changes.append((event.end, event.sample, 1, self.behind[event.stage]))
        held: dict[int, Mapping[str, int]] = {}
        found = dict(self.resident)
        now = dict(self.resident)
        for _, sample, _, holds in sorted(changes, key=lambda row: row[:3]):
            before = held.get(sample, none)
            held[sample] = holds
            for name in now:
                now[name] += holds[name] - before[name]
                found[name] = max(found[name], now[name])
        return found


def places(parts: Partitioned, machine: Machine, inside: Mapping[int, Inside]) -> Places:
    """Where samples can be, and what they hold there.

    Args:
        inside: what each partition holds, by action.
    """
    stages = pipeline_stages(parts, machine)
    alone = device_bytes(parts, machine, inside)
    copies = [_inputs(parts, stages, number) for number in range(len(stages) + 1)]
    names = machine.names

    def rows(number: int, stage: PipelineStage) -> Mapping[str, int]:
        return {name: _during(alone[name], stage) + copies[number].get(name, 0) for name in names}

    def after(number: int, stage: PipelineStage) -> Mapping[str, int]:
        left = {n: alone[n].between[stage.actions[-1]] - alone[n].resident for n in names}
        return {name: left[name] + copies[number + 1].get(name, 0) for name in names}

    numbered = list(enumerate(stages))
    return Places(
        {name: alone[name].resident for name in names},
        {name: copies[0].get(name, 0) for name in names},
        tuple(rows(number, stage) for number, stage in numbered),
        tuple(after(number, stage) for number, stage in numbered),
    )


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
