"""A device problem unpacked to Python lists once, for everything that walks it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import isfinite

import numpy as np

from onnxremat.planner.devices.problem import ANY, DeviceProblem
from onnxremat.planner.wiring import Wiring


@dataclass(frozen=True)
class Layout:
    """List views of a :class:`DeviceProblem` (same ids, same meaning)."""

    problem: DeviceProblem

    @cached_property
    def wiring(self) -> Wiring:
        """Edges, producers, readers."""
        return Wiring(self.problem.skeleton)

    @property
    def devices(self) -> range:
        """Device ids."""
        return range(self.problem.devices)

    @cached_property
    def cost(self) -> list[list[float]]:
        """Seconds of each op per device (``inf`` where it cannot run)."""
        costs: list[list[float]] = self.problem.cost.tolist()
        return costs

    @cached_property
    def copy(self) -> list[list[list[float]]]:
        """Seconds per source, target and value (``inf`` without a link)."""
        seconds: list[list[list[float]]] = self.problem.copy.tolist()
        return seconds

    @cached_property
    def size(self) -> list[list[int]]:
        """Bytes of each value per device."""
        sizes: list[list[int]] = self.problem.size.tolist()
        return sizes

    @cached_property
    def work(self) -> list[list[int]]:
        """Workspace bytes of each op per device."""
        sizes: list[list[int]] = self.problem.work.tolist()
        return sizes

    @cached_property
    def able(self) -> list[list[int]]:
        """Devices each op can run on."""
        return [[d for d in self.devices if isfinite(self.cost[d][op])] for op in self._ops]

    @cached_property
    def links(self) -> list[tuple[int, int]]:
        """Ordered pairs of devices between which some value can be copied."""
        usable = np.isfinite(self.problem.copy)
        return [(e, d) for e in self.devices for d in self.devices if e != d and usable[e, d].any()]

    @cached_property
    def keep(self) -> list[bool]:
        """Values that must be there at the end."""
        return self.wiring.keep

    @cached_property
    def goal(self) -> list[int]:
        """Required device of each kept value, -1 for any or not kept."""
        goals: list[int] = np.where(self.problem.keep, self.problem.goal, ANY).tolist()
        return goals

    @cached_property
    def recomputable(self) -> list[bool]:
        """Ops whose second run is allowed and makes something."""
        return self.wiring.recomputable

    @cached_property
    def group(self) -> list[int]:
        """Colocation group of each op, -1 for none."""
        groups: list[int] = self.problem.group.tolist()
        return groups

    @cached_property
    def members(self) -> dict[int, list[int]]:
        """Ops of each colocation group."""
        rows: dict[int, list[int]] = {}
        for op, group in enumerate(self.group):
            if group != ANY:
                rows.setdefault(group, []).append(op)
        return rows

    @cached_property
    def uses(self) -> list[list[int]]:
        """Weights each op reads."""
        return self.problem.uses.lists()

    @property
    def _ops(self) -> range:
        return range(self.problem.ops)
