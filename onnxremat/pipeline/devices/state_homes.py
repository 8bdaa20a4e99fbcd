"""On which device parameters and optimizer state live, where devices hold them themselves.

What is updated together lives together: a parameter and its moments. The variables are taken in
the order in which the step first reads them and dealt out in consecutive stretches, each device
getting a share of the bytes like its share of the budgets, so that neighbouring layers stay
neighbours. Those whose updates not every device may run (pins) go where they may. The planner takes
the answer as given: what it proves holds for these homes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from onnxremat.device.machine import Machine
from onnxremat.errors import UsageError
from onnxremat.graph.ir import Graph

Pairs = Sequence[tuple[str, str]]


def state_homes(
    graph: Graph,
    machine: Machine,
    pairs: Pairs,
    limits: Mapping[str, int],
    able: Mapping[str, Collection[str]] | None = None,
) -> dict[str, str]:
    """State input to the device it lives on; empty where no device holds state.

    Args:
        pairs: (input, output) tensors that share a buffer.
        limits: bytes per device; devices that hold state and have no limit share alike.
        able: the devices that may update a state input; all for those that are not in it.

    Raises:
        UsageError: what is updated together may be so on no device that holds state.
    """
    holders = [device.name for device in machine.devices if device.holds_state]
    if not holders:
        return {}
    groups = _groups(graph, pairs)
    first = {old: min(graph.readers.get(old, (0,))) for old, _ in pairs}
    groups.sort(key=lambda group: min(first[old] for old in group))
    homes = dict[str, str]()
    anywhere = list[list[str]]()
    for group in groups:
        may = [name for name in holders if all(name in (able or {}).get(n, holders) for n in group)]
        if not may:
            raise UsageError(
                f"no device that holds state may update all of {', '.join(sorted(group))}",
                why="what is updated together lives together, and is updated where it lives",
                hint="change --pin, or the devices with holds_state in the machine file",
            )
        if len(may) < len(holders):
            homes.update(dict.fromkeys(group, may[0]))
        else:
            anywhere.append(group)
    return homes | _dealt_out(graph, anywhere, holders, [limits.get(name, 0) for name in holders])


def _dealt_out(
    graph: Graph, groups: Sequence[Sequence[str]], holders: Sequence[str], shares: list[int]
) -> dict[str, str]:
    """Groups in consecutive stretches, one for each device.

    Args:
        shares: bytes of each device, 0 for one without a limit.
    """
    total = sum(graph.tensors[old].bytes for group in groups for old in group) or 1
    if not all(shares):
        shares = [1] * len(holders)
    homes = dict[str, str]()
    passed, at, end = 0, 0, total * shares[0] / sum(shares)
    for group in groups:
        size = sum(graph.tensors[old].bytes for old in group)
        if at + 1 < len(holders) and passed + size / 2 > end:
            at += 1
            end += total * shares[at] / sum(shares)
        homes.update(dict.fromkeys(group, holders[at]))
        passed += size
    return homes


def _groups(graph: Graph, pairs: Pairs) -> list[list[str]]:
    """Variables that are updated together: one whose new value enters the new value of exactly one
    other belongs to that one (moments); one that enters many (a counter of steps) to none."""
    old_of = {new: old for old, new in pairs}
    owner: dict[str, str] = {}
    for new, old in old_of.items():
        reached = _reached(graph, new, old_of) - {old}
        owner[old] = reached.pop() if len(reached) == 1 else old
    found: dict[str, list[str]] = {}
    for old in owner:
        root = old
        while owner[root] != root:
            root = owner[root]
        found.setdefault(root, []).append(old)
    return list(found.values())


def _reached(graph: Graph, value: str, old_of: Mapping[str, str]) -> set[str]:
    """State whose new value is computed from a value."""
    found, seen, todo = set(), {value}, [value]
    while todo:
        for index in graph.readers.get(todo.pop(), ()):
            for name in graph.ops[index].writes:
                if name not in seen:
                    seen.add(name)
                    todo.append(name)
                    if name in old_of:
                        found.add(old_of[name])
    return found
