"""A plan over several devices on paper: when each action runs, and what each device holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from onnxremat.execute.deployment import Deployment, read_deployment
from onnxremat.execute.device_memory import DeviceBytes, device_bytes
from onnxremat.execute.inside import insides
from onnxremat.execute.streams import finish_times, stream_names
from onnxremat.pipeline.planned import read_written
from onnxremat.report.pages.device_values import Held, values
from onnxremat.rewrite.partition import Copy
from onnxremat.units import format_bytes


@dataclass(frozen=True)
class Spread:
    """A plan over several devices.

    Attributes:
        source: file name, for people.
        facts: figures written with the plan.
    """

    source: str
    facts: Mapping[str, Any]
    made: Deployment

    @classmethod
    def read(cls, path: Path) -> Spread:
        """Of a model that onnxremat wrote for several devices.

        Raises:
            UsageError: it carries no such plan.
            ModelError: it was changed after it was planned.
        """
        return cls(path.name, read_written(path).facts, read_deployment(path))

    @cached_property
    def times(self) -> list[tuple[float, float]]:
        """(start, end) of every action in seconds, devices side by side where they can be; where
        no time is known every op takes the same."""
        made = self.made
        return finish_times(
            made.parts, made.machine, self.seconds, made.waits, overlap=made.side_by_side
        )

    @property
    def known(self) -> bool:
        """Whether times are known."""
        return any(self.made.expected.values())

    @property
    def seconds(self) -> Mapping[int, float]:
        """Of every action."""
        if self.known:
            return self.made.expected
        actions = enumerate(self.made.parts.actions)
        return {i: 0.0 if isinstance(a, Copy) else 1e-6 * len(a.graph.ops) for i, a in actions}

    @property
    def end(self) -> float:
        """Seconds until the last action is done."""
        return max((end for _, end in self.times), default=0.0)

    @cached_property
    def streams(self) -> list[str]:
        """Of every action: the device, or the link."""
        return stream_names(self.made.parts, self.made.machine)

    @property
    def names(self) -> list[str]:
        """What every action is called."""
        return [
            f"copy {a.value}" if isinstance(a, Copy) else a.name for a in self.made.parts.actions
        ]

    @property
    def words(self) -> list[str]:
        """What every action does."""
        sizes = self.made.parts.graph.tensors
        return [
            f"{a.value}, {format_bytes(sizes[a.value].bytes)}, {a.source} to {a.target}"
            if isinstance(a, Copy)
            else f"{len(a.graph.ops)} ops, {a.graph.ops[0].name} to {a.graph.ops[-1].name}"
            for a in self.made.parts.actions
        ]

    @cached_property
    def held(self) -> Mapping[str, DeviceBytes]:
        """Bytes of every device, one action after the other."""
        made = self.made
        inside = insides(made.parts, made.machine, made.scratch, measure=False)
        return device_bytes(made.parts, made.machine, inside)

    def line(self, device: str) -> list[tuple[float, int, str]]:
        """(second, bytes from then on, what runs) of a device: within an action its ops follow
        each other evenly, between two of its actions it holds what is left."""
        found = self.held[device]
        entries: dict[int, list[tuple[str, int]]] = {}
        for (action, op), total in zip(found.steps, found.held, strict=True):
            entries.setdefault(action, []).append((op, total))
        made = [(0.0, found.resident, "")]
        for action, (start, end) in enumerate(self.times):
            rows = entries.get(action, [])
            for k, (op, total) in enumerate(rows):
                made.append((start + (end - start) * k / len(rows), total, op or "copy"))
            if rows:
                made.append((end, found.between[action], ""))
        return sorted(made, key=lambda row: row[0])

    def peak(self, device: str) -> tuple[float, int, str]:
        """(second, bytes, what runs) where a device holds most."""
        return max(self.line(device), key=lambda row: row[1])

    @cached_property
    def values(self) -> list[Held]:
        """Every value that a device holds, and when."""
        return values(self.made, self.times, self.held, self.end)

    def alive(self, at: float, device: str = "") -> list[Held]:
        """What is held at a moment, on one device or all, largest first."""
        found = [
            value for value in self.values
            if value.begin <= at < value.end and device in ("", value.device)
        ]  # fmt: skip
        return sorted(found, key=lambda value: -value.bytes)
