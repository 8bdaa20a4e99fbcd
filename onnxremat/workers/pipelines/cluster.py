"""Cluster files: devices of one kind, so many to a node, and the two kinds of links.

name = "mine"
devices_per_node = 8
flops = 312e12        # of a device; without it a step's parts are measured on this machine
efficiency = 0.45     # share of the flops that is reached
bandwidth = "2039GB"  # of a device's memory, per second
memory = "80GB"       # of a device; without it no limit is known
dispatch = 5e-6       # seconds per op
source = "where the numbers are from"
[within]              # between devices of a node, per device and direction
bandwidth = "300GB"
latency = 5e-6
[between]             # between nodes
bandwidth = "25GB"
latency = 1e-5
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from onnxremat.errors import UsageError
from onnxremat.units import parse_bytes

_KEYS = {
    "name", "devices_per_node", "flops", "efficiency", "bandwidth", "memory", "dispatch", "source",
    "within", "between",
}  # fmt: skip


@dataclass(frozen=True)
class Wire:
    """A link: bytes per second, and seconds before the first."""

    bandwidth: float
    latency: float

    def seconds(self, size: float) -> float:
        """Of a message of so many bytes."""
        return self.latency + size / self.bandwidth if size else 0.0

    def sum_seconds(self, size: float, ranks: int) -> float:
        """Of a sum over ranks that all then have, by a ring (Patarasuk and Yuan, 2009)."""
        if ranks == 1 or not size:
            return 0.0
        return 2 * (ranks - 1) * (self.latency + size / ranks / self.bandwidth)


@dataclass(frozen=True)
class Cluster:
    """Devices of one kind.

    Attributes:
        node: devices of a node.
        flops: per second that a device reaches, 0 where parts are to be measured here.
        bandwidth: bytes per second of a device's memory.
        memory: bytes of a device, 0 where not known.
        dispatch: seconds per op.
        within, between: links in a node, and from node to node.
        source: where the numbers are from.
    """

    name: str
    node: int
    flops: float
    bandwidth: float
    memory: int
    dispatch: float
    within: Wire
    between: Wire
    source: str

    def wire(self, span: int) -> Wire:
        """The slowest link among so many neighbouring ranks."""
        return self.within if span <= self.node else self.between


def shipped() -> list[str]:
    """Names of the cluster files that come with onnxremat."""
    folder = resources.files("onnxremat.workers") / "clusters"
    return sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if f.name[-5:] == ".toml")


def read_cluster(name: str | Path) -> Cluster:
    """A cluster from a file, or one that comes with onnxremat by its name.

    Raises:
        UsageError: no such file or name, or no cluster file; the message names the key.
    """
    path, label = Path(name), str(name).removesuffix(".toml")
    if path.is_file():
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read {path}", why=str(error)) from error
    elif label in shipped():
        file = resources.files("onnxremat.workers") / "clusters" / f"{label}.toml"
        text = file.read_text(encoding="utf-8")
    else:
        raise UsageError(
            f"no cluster file {path}",
            why="it is neither a file nor the name of a shipped one",
            hint="shipped are " + ", ".join(shipped()),
        )
    return parse_cluster(text, str(path))


def parse_cluster(text: str, where: str = "") -> Cluster:
    """A cluster from the text of a file.

    Raises:
        UsageError: the text is no cluster file.
    """
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(
            "the cluster file is not valid TOML", where=where, why=str(error)[:200]
        ) from error
    unknown = sorted(set(data) - _KEYS)
    if unknown:
        raise UsageError(
            f"the cluster file has unknown keys {', '.join(unknown)}",
            where=where,
            hint="known are " + ", ".join(sorted(_KEYS)),
        )
    at = _Reader(data, where)
    flops = at.number("flops", 0.0)
    return Cluster(
        at.text("name", Path(where).stem or "cluster"),
        at.count("devices_per_node", 1),
        flops * at.number("efficiency", 1.0, most=1.0),
        at.size("bandwidth"),
        int(at.size("memory", 0.0)),
        at.number("dispatch", 0.0),
        at.wire("within"),
        at.wire("between"),
        at.text("source", ""),
    )


class _Reader:
    """Values of a table, checked."""

    def __init__(self, data: Mapping[str, Any], where: str) -> None:
        self._data, self._where = data, where

    def number(self, key: str, default: float, most: float = 1e24) -> float:
        """A number that is not negative."""
        value = self._data.get(key, default)
        fine = isinstance(value, int | float) and not isinstance(value, bool)
        if not fine or not 0 <= value <= most:
            raise self._odd(key, value, "a share, 0 to 1" if most == 1 else "a number, 0 or more")
        return float(value)

    def count(self, key: str, default: int) -> int:
        """A whole number."""
        value = self._data.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 1 << 32:
            raise self._odd(key, value, "a whole number of at least 1")
        return value

    def text(self, key: str, default: str) -> str:
        value = self._data.get(key, default)
        if not isinstance(value, str):
            raise self._odd(key, value, "a text")
        return value

    def size(self, key: str, default: float | None = None) -> float:
        """Bytes, as a number or a text like ``25GB``; they may be a fraction of a unit."""
        value = self._data.get(key, default)
        if isinstance(value, str):
            try:
                return float(parse_bytes(value))
            except UsageError as error:
                raise self._odd(key, value, "bytes, such as 25GB") from error
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not (value > 0 or value == default) or not math.isfinite(value):
            raise self._odd(key, value, "bytes, such as 25GB")
        return float(value)

    def wire(self, key: str) -> Wire:
        """A link's table."""
        table = self._data.get(key)
        if not isinstance(table, dict) or set(table) != {"bandwidth", "latency"}:
            raise self._odd(key, table, "a table with bandwidth and latency, and nothing else")
        at = _Reader(table, f"{self._where} [{key}]")
        return Wire(at.size("bandwidth"), at.number("latency", 0.0))

    def _odd(self, key: str, value: object, wanted: str) -> UsageError:
        return UsageError(
            f"'{key}' of the cluster file has to be {wanted}",
            where=self._where,
            why="it is not there" if value is None else f"it is {value!r}"[:200],
        )
