"""What a file says of partitions, looked at before it is used: others may have written it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from onnxremat.rewrite.partition import Copy, Counted, Partitioned

MOST = 1 << 62  # of any number


def whole(value: object) -> int:
    """A count or a number of bytes.

    Raises:
        ValueError: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MOST:
        raise ValueError(f"{value!r} is no count")
    return int(value)


def read_sizes(row: Mapping[str, Any]) -> dict[str, int]:
    """Bytes by name.

    Raises:
        ValueError, TypeError, AttributeError: it is damaged.
    """
    return {str(name): whole(size) for name, size in row.items()}


def read_counted(about: Mapping[str, Any]) -> Counted:
    """What was written of a :class:`Counted`.

    Raises:
        ValueError, TypeError, AttributeError: it is damaged.
    """
    return Counted(read_sizes(about.get("given", {})), bool(about.get("sessions", False)))


def read_waits(rows: Sequence[Any], actions: int) -> tuple[tuple[int, int], ...]:
    """(before, after) pairs of so many actions.

    Raises:
        ValueError, TypeError: one waits for a later action, or is none.
    """
    waits = tuple((whole(first), whole(second)) for first, second in rows)
    wrong = [pair for pair in waits if not pair[0] < pair[1] < actions]
    if wrong:
        raise ValueError(f"of {actions} actions, {wrong[0][1]} cannot wait for {wrong[0][0]}")
    return waits


def read_seconds(row: Mapping[str, Any], actions: int) -> dict[int, float]:
    """Seconds of some of so many actions.

    Raises:
        ValueError, TypeError, AttributeError: it is damaged.
    """
    found = {int(index): float(took) for index, took in row.items()}
    for index, took in found.items():
        if not (0 <= index < actions and isfinite(took) and took >= 0):
            raise ValueError(f"action {index} of {actions} takes {took} s")
    return found


def sound(parts: Partitioned) -> Partitioned:
    """The same, where everything that is read is there by then, and every result is made.

    Raises:
        ValueError: it is not.
    """
    graph, there = parts.graph, set[tuple[str, str]]()
    given = set(graph.inputs)
    for index, action in enumerate(parts.actions):
        if isinstance(action, Copy):
            asked, came = [(action.value, action.source)], [(action.value, action.target)]
        else:
            asked = [(name, action.device) for name in action.graph.inputs]
            came = [(name, action.device) for name in action.graph.outputs]
        for name, device in asked:
            if name not in given and (name, device) not in there:
                raise ValueError(f"action {index} reads '{name}', which is not on '{device}' then")
        there.update(came)
    for name in graph.outputs:
        if name not in given and (name, parts.followed.final.get(name, "")) not in there:
            raise ValueError(f"nothing makes output '{name}' where it is to be")
    for old, new in parts.pairs:
        if old not in given or new not in graph.outputs:
            raise ValueError(f"'{old}' is no input that output '{new}' could be written into")
    return parts
