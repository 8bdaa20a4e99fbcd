"""Split files: which nodes each device holds, read and written as the released programs do."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnxremat import plain_json
from onnxremat.errors import ModelError
from onnxremat.graph.atomic import atomic
from onnxremat.limits import regular
from onnxremat.placement.graph import PlacementGraph

Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Split:
    """Nodes (by number) of each accelerator and of each CPU, as a file lists them.

    Nothing is checked here: a node may be missing or be in two groups, and there may be more groups
    than devices. See :mod:`onnxremat.placement.judge`.

    Attributes:
        order: devices as stages of a pipeline, ``("fpga", i)`` or ``("cpu", i)``; empty where no
            order is known.
    """

    accelerators: Groups
    cpus: Groups
    order: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, graph: PlacementGraph, where: Sequence[int], order: Sequence[int] = ()) -> Split:
        """The split of a placement (a device number per node), with its stages if any."""
        groups: list[list[int]] = [[] for _ in range(graph.devices)]
        for node, device in enumerate(where):
            groups[int(device)].append(node)
        rows = tuple(tuple(group) for group in groups)
        k = graph.accelerators
        named = [("fpga", d) if d < k else ("cpu", d - k) for d in order]
        return cls(rows[:k], rows[k:], tuple(named))

    def filled(self, graph: PlacementGraph) -> tuple[Split, list[int]]:
        """Nodes without a place put where the others of their colour are; and which these are.

        So inference splits serve for the training graph of the same network.
        """
        homes: dict[int, set[tuple[int, int]]] = {}
        for kind, groups in enumerate((self.accelerators, self.cpus)):
            for i, group in enumerate(groups):
                for node in group:
                    homes.setdefault(int(graph.colour[node]), set()).add((kind, i))
        placed = {v for groups in (self.accelerators, self.cpus) for group in groups for v in group}
        rows = [[list(group) for group in groups] for groups in (self.accelerators, self.cpus)]
        moved = []
        for node in range(graph.count):
            home = homes.get(int(graph.colour[node]), set())
            if node not in placed and len(home) == 1:
                kind, i = next(iter(home))
                rows[kind][i].append(node)
                moved.append(node)
        first, second = (tuple(tuple(group) for group in groups) for groups in rows)
        return Split(first, second, self.order), moved

    def by_accelerator(self, calls: int) -> Split:
        """The split of whole accelerators where ``calls`` entries in a row are pieces of one."""
        rows = [
            tuple(v for group in self.accelerators[i : i + calls] for v in group)
            for i in range(0, len(self.accelerators), calls)
        ]
        return Split(tuple(rows), self.cpus, self.order)


def read_split(path: Path, graph: PlacementGraph) -> Split:
    """Read a split file.

    Raises:
        ModelError: not such a file, or a node that the graph does not have.
    """
    try:
        data = plain_json.loads(regular(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(
            "the split cannot be read", where=str(path), why=str(error),
            hint='a JSON file with "fpgas" and "cpus", as place -o writes it',
        ) from error  # fmt: skip
    index = {name: node for node, name in enumerate(graph.ids.tolist())}
    try:
        if not isinstance(data, dict) or "fpgas" not in data:
            raise ValueError("no JSON object with the key fpgas")
        return Split(
            _groups(data["fpgas"], index, "fpgas"),
            _groups(data.get("cpus", []), index, "cpus"),
            tuple((str(kind), int(i)) for kind, i in data.get("order", [])),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(
            f"not a split of this graph: {error}", where=str(path),
            hint="ids in a split are those of its graph file",
        ) from error  # fmt: skip


def _groups(rows: Any, index: Mapping[int, int], key: str) -> Groups:
    if not isinstance(rows, list):
        raise ValueError(f"{key} is no list")
    found = []
    for row in rows:
        nodes = row.get("nodes") if isinstance(row, dict) else None
        if not isinstance(nodes, list):
            raise ValueError(f"an entry of {key} has no list of nodes")
        for node in nodes:
            if node not in index:
                raise ValueError(f"{key} holds node {node!r}, which the graph does not have")
        twice = [node for node, times in Counter(nodes).items() if times > 1]
        if twice:
            raise ValueError(f"an entry of {key} lists node {twice[0]} twice")
        found.append(tuple(index[node] for node in nodes))
    return tuple(found)


def write_split(
    path: Path,
    graph: PlacementGraph,
    split: Split,
    loads: Sequence[float],
    facts: Mapping[str, Any],
) -> None:
    """Write a split that the released programs read too.

    Args:
        loads: of the accelerators, then of the CPUs.
        facts: further keys: ``maxLoad`` or ``totalLatency``, bound, status.

    Raises:
        OSError: the file cannot be written.
    """

    def entries(groups: Groups, first: int) -> list[dict[str, Any]]:
        return [
            {"load": loads[first + i], "nodes": [int(graph.ids[v]) for v in group]}
            for i, group in enumerate(groups)
        ]

    data = {
        **facts,
        "fpgas": entries(split.accelerators, 0),
        "cpus": entries(split.cpus, len(split.accelerators)),
        "order": [list(entry) for entry in split.order],
    }
    with atomic(path) as temporary:
        temporary.write_text(json.dumps(data, indent=1), encoding="utf-8")
