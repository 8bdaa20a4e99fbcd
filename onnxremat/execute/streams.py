"""Actions side by side: which stream each belongs to, and where streams wait for each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from onnxremat.device.host import processors
from onnxremat.device.machine import Machine
from onnxremat.execute.tokens import Token
from onnxremat.rewrite.partition import Copy, Partitioned


@dataclass
class Stream:
    """What one thread does in a run, in order.

    Attributes:
        name: a device, or a link.
        actions: indices into ``Partitioned.actions``.
        waits, signals: per action the tokens to take before it, and to leave after it.
    """

    name: str
    actions: list[int] = field(default_factory=list)
    waits: dict[int, list[Token]] = field(default_factory=dict)
    signals: dict[int, list[Token]] = field(default_factory=dict)

    def run(self, act: Callable[[int], None]) -> Exception | None:
        """Carry out all actions; after an error the rest is skipped, but nobody waits in vain.

        Returns:
            the error, which the caller raises in its own thread.
        """
        failed: Exception | None = None
        going = True
        left: Token | None = None  # not shown yet
        for index in self.actions:
            for token in self.waits.get(index, ()):
                going &= token.get(left)
                left = None
            if left:
                left.show()
                left = None
            if going:
                try:
                    act(index)
                except Exception as error:
                    failed, going = error, False
            for token in self.signals.get(index, ()):
                token.put(going)
                if left:
                    left.show()
                left = token
        if left:
            left.show()
        return failed

    def release(self) -> None:
        """Whoever waits in it goes on, and carries nothing out; it is of no more use."""
        for token in (each for row in self.waits.values() for each in row):
            token.put(False)
            token.show()


def stream_names(parts: Partitioned, machine: Machine) -> list[str]:
    """The stream of each action: its device, or the link where bytes are copied. A value that is
    handed over within one memory is passed on by the stream that made it."""
    names = []
    for action in parts.actions:
        if not isinstance(action, Copy):
            names.append(action.device)
        elif machine.link(action.source, action.target).shared:
            names.append(action.source)
        else:
            names.append(f"{action.source}>{action.target}")
    return names


def after_with(parts: Partitioned, waits: Sequence[tuple[int, int]] = ()) -> list[list[int]]:
    """Actions that must be done before each action may start, its own stream aside.

    Args:
        waits: further (before, after) pairs of actions.
    """
    after = [list(row) for row in parts.after]
    for first, second in waits:
        after[second].append(first)
    return after


def before(names: Sequence[str], after: Sequence[Sequence[int]]) -> list[int]:
    """For each action the set of those done before it starts, as bits: by its own stream and by
    waiting."""
    found: list[int] = []
    last: dict[str, int] = {}
    for index, name in enumerate(names):
        bits = 0
        for earlier in (*after[index], *([last[name]] if name in last else ())):
            bits |= found[earlier] | 1 << earlier
        found.append(bits)
        last[name] = index
    return found


def overlaps(parts: Partitioned, machine: Machine) -> bool:
    """Two partitions of different devices can run at the same time."""
    names = stream_names(parts, machine)
    done = before(names, parts.after)
    runs = [i for i, action in enumerate(parts.actions) if not isinstance(action, Copy)]
    return any(
        names[a] != names[b] and not done[b] >> a & 1
        for position, b in enumerate(runs)
        for a in runs[:position]
    )


def streams(
    parts: Partitioned, machine: Machine, waits: Sequence[tuple[int, int]] = ()
) -> list[Stream]:
    """Streams with the fewest waits that keep every dependency; the one with most actions first.

    Args:
        waits: further (before, after) pairs of actions.
    """
    names, after = stream_names(parts, machine), after_with(parts, waits)
    done = before(names, after)
    look = len(set(names)) <= processors()
    found: dict[str, Stream] = {}
    last: dict[str, int] = {}
    for index, name in enumerate(names):
        stream = found.setdefault(name, Stream(name))
        stream.actions.append(index)
        known = done[last[name]] | 1 << last[name] if name in last else 0
        for earlier in sorted(after[index], reverse=True):
            if known >> earlier & 1 or names[earlier] == name:
                continue
            known |= done[earlier] | 1 << earlier
            token = Token(look)
            stream.waits.setdefault(index, []).append(token)
            found[names[earlier]].signals.setdefault(earlier, []).append(token)
        last[name] = index
    return sorted(found.values(), key=lambda stream: -len(stream.actions))


def finish_times(
    parts: Partitioned,
    machine: Machine,
    seconds: Mapping[int, float],
    waits: Sequence[tuple[int, int]] = (),
    *,
    overlap: bool = True,
) -> list[tuple[float, float]]:
    """(start, end) of each action when every stream goes as fast as it can. A stream that has to
    wait for another is woken by it, which takes the latency of the link between them.

    Args:
        seconds: of each action.
        overlap: False for one action after the other.
    """
    names = stream_names(parts, machine) if overlap else [""] * len(parts.actions)
    after = after_with(parts, waits)
    free: dict[str, float] = {}
    times: list[tuple[float, float]] = []
    for index, name in enumerate(names):
        ready = (times[i][1] + _waking(machine, names[i], name) for i in after[index])
        start = max(free.get(name, 0.0), *ready, 0.0)
        end = start + seconds.get(index, 0.0)
        free[name] = end
        times.append((start, end))
    return times


def _waking(machine: Machine, source: str, target: str) -> float:
    """Seconds from the end of an action of one stream to the start of one of another."""
    if source == target or not {source, target} <= set(machine.names):
        return 0.0
    if not machine.linked(source, target):
        return 0.0
    link = machine.link(source, target)
    return link.latency if link.shared else 0.0
