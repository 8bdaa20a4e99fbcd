"""A region of a graph that is computed part by part, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

from onnxremat.errors import UsageError
from onnxremat.graph.spans import Span


@dataclass(frozen=True)
class Region:
    """Ops that are computed part by part, each part to its end before the next begins.

    Attributes:
        ops: names, a convex set: no path leaves it and comes back.
        results: what is read elsewhere, and the axis along which each is made in parts.
        parts: the size of each part in proportion to the others.
        grain: bounds of parts are multiples of it, per result.
        kept: values whose last rows are kept for the next part where that needs them again; other
            rows that two parts need are computed in both.
        sums: what is read elsewhere and put together from what every part gives (a sum, a mean, a
            largest value), and the axis of the op's first input along which that is in parts.
        again: values that stand for either, what is held or what is made again, and the row from
            which on it is made again; others are held (:mod:`onnxremat.fission.twice`).
        until: of results that are made again, how many of the first rows are read elsewhere.
    """

    ops: tuple[str, ...]
    results: Mapping[str, int]
    parts: tuple[int, ...]
    grain: Mapping[str, int]
    kept: frozenset[str] = frozenset()
    sums: Mapping[str, int] = field(default_factory=dict)
    again: Mapping[str, int] = field(default_factory=dict)
    until: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def key(self) -> tuple[object, ...]:
        """Equal for equal regions."""
        axes, grain = tuple(sorted(self.axes.items())), tuple(sorted(self.grain.items()))
        again, until = tuple(sorted(self.again.items())), tuple(sorted(self.until.items()))
        sums, parts = frozenset(self.sums), self.parts
        return self.ops, axes, sums, grain, parts, self.kept, again, until

    @property
    def pieces(self) -> int:
        """Ops of all parts together, at most."""
        return len(self.ops) * len(self.parts)

    @cached_property
    def axes(self) -> dict[str, int]:
        """Of every value that is handed out, the axis that is in parts: its own, or for a sum that
        of what is summed."""
        return {**self.results, **self.sums}

    def spans(self, result: str, length: int) -> list[Span]:
        """The stretch of a result, or of what is summed, that each part makes; empty ones where it
        is too short.

        Args:
            length: of the axis that is in parts.
        """
        grain, total = self.grain.get(result, 1), sum(self.parts)
        ends = [length * done // (total * grain) * grain for done in accumulate(self.parts)]
        ends[-1] = length
        return [
            Span(self.axes[result], first, end)
            for first, end in zip([0, *ends[:-1]], ends, strict=True)
        ]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "ops": list(self.ops),
            "results": dict(self.results),
            "parts": list(self.parts),
            "grain": dict(self.grain),
            "kept": sorted(self.kept),
            "sums": dict(self.sums),
            "again": dict(self.again),
            "until": dict(self.until),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Region:
        """From plain data.

        Raises:
            UsageError: it is not that of a region.
        """
        try:
            made = cls(
                tuple(map(str, data["ops"])),
                {str(name): int(axis) for name, axis in data["results"].items()},
                tuple(int(size) for size in data["parts"]),
                {str(name): int(grain) for name, grain in data["grain"].items()},
                frozenset(map(str, data["kept"])),
                {str(name): int(axis) for name, axis in data.get("sums", {}).items()},
                {str(name): int(row) for name, row in data.get("again", {}).items()},
                {str(name): int(row) for name, row in data.get("until", {}).items()},
            )
            made._check()
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UsageError(
                "a plan with a region that cannot be read", why=str(error), hint="plan again"
            ) from error
        return made

    def _check(self) -> None:
        """Raises:
        ValueError: it is one that nobody chooses.
        """
        sizes = (*self.parts, *self.grain.values())
        rows = (*self.again.values(), *self.until.values())
        if not self.parts or min(sizes) < 1 or min(rows, default=0) < 0:
            raise ValueError(f"parts and grains are {sizes}, rows {rows}")
        if len({*self.ops}) < len(self.ops):
            raise ValueError("an op is there twice")
