"""Where a plan over devices is cut: each stretch of ops on one device becomes a partition.

A device's stretch goes on until a value has to get in or out. It is cut

1. before an op that reads what arrives from another device after the stretch began (the ops before
   it need not wait), or that updates in place what another device reads until then;
2. where a value leaves that another device reads before the stretch would end (it need not wait);
3. where the caller asks: inputs of a partition stay until it is done, so a cut gives memory back.

Rule 1 makes every dependency go from a partition that begins earlier in the plan to one that begins
later: the partitions never wait for each other in a circle, and their order by first step is an
order in which they can run one by one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from onnxremat.schedule.devices import Followed, Moved, Ran

NEVER = 1 << 60  # a step behind all others


def stretches(
    followed: Followed, pairs: Sequence[tuple[str, str]], cuts: Collection[str]
) -> list[tuple[str, list[Ran]]]:
    """(device, its runs) of every stretch, in the order of their first steps.

    Args:
        pairs: (input, output) tensors that a trainer binds to one buffer.
        cuts: names of ops before which to cut as well.
    """
    return _stretches(followed, pairs, cuts, eager=False)


def eager_cuts(followed: Followed, pairs: Sequence[tuple[str, str]]) -> set[str]:
    """Ops before which to cut so that what another device needs leaves as early as it can be used.

    A stretch that reads a value waits for it with its first op, so what counts is the next op that
    begins on the other device, not the one that reads; and the stretch that makes it lasts until
    the next op begins here. More partitions, each with its price: whether they pay is the
    caller's to find out.
    """
    rows = _stretches(followed, pairs, (), eager=True)
    return {row[0].op.name for _, row in rows}


def _stretches(
    followed: Followed, pairs: Sequence[tuple[str, str]], cuts: Collection[str], *, eager: bool
) -> list[tuple[str, list[Ran]]]:
    runs: dict[str, list[Ran]] = {}
    for event in followed.events:
        if isinstance(event, Ran):
            runs.setdefault(event.device, []).append(event)
    moves = [event for event in followed.events if isinstance(event, Moved)]
    uses = _uses(followed)
    begins = {device: [ran.step for ran in row] for device, row in runs.items()}
    found: list[tuple[str, list[Ran]]] = []
    for device, row in runs.items():
        waits = _waits(followed, device, pairs, uses)
        sends = [
            (move.step, _next(begins.get(move.target, ()), move.step) if eager
             else _next(uses.get((move.value, move.target), ()), move.step))
            for move in moves if move.source == device
        ]  # fmt: skip
        arrivals: dict[str, list[int]] = {}
        for move in moves:
            if move.target == device:
                arrivals.setdefault(move.value, []).append(move.step)
        scan = _Scan(row, arrivals, sends, waits, set(cuts), eager)
        found += [(device, group) for group in scan.groups()]
    return sorted(found, key=lambda item: item[1][0].step)


@dataclass(frozen=True)
class _Scan:
    """Where the ops of one device are cut.

    Attributes:
        row: its runs in order.
        arrivals: per value the steps at which it comes to the device.
        sends: (step at which a value leaves, step by which it is needed).
        waits: per op the step that it waits for.
        cuts: ops that begin a stretch.
        eager: a stretch is needed by the next op of the other device, whatever that reads.
    """

    row: list[Ran]
    arrivals: Mapping[str, list[int]]
    sends: list[tuple[int, int]]
    waits: Mapping[str, int]
    cuts: set[str]
    eager: bool

    def groups(self) -> list[list[Ran]]:
        found = []
        start = 0
        while start < len(self.row):
            end = self._end(start)
            found.append(self.row[start:end])
            start = end
        return found

    def _end(self, start: int) -> int:
        """Index after the last op of the stretch that begins at ``start``."""
        begin = self.row[start].step
        sends = [send for send in self.sends if send[0] > begin]
        for index in range(start + 1, len(self.row)):
            ran = self.row[index]
            late = [self._arrived(name, ran.step) for name in ran.op.reads]
            late.append(self.waits.get(ran.op.name, -1))
            if max(late) > begin or ran.op.name in self.cuts:
                return self._sent(start, index, sends)
            if any(leaves < ran.step and needed < ran.step for leaves, needed in sends):
                return self._sent(start, index, sends)
        return self._sent(start, len(self.row), sends)

    def _arrived(self, value: str, step: int) -> int:
        """Step at which a value last came to the device before ``step``, -1 when it never did."""
        steps = self.arrivals.get(value, [])
        index = bisect_right(steps, step)
        return steps[index - 1] if index else -1

    def _sent(self, start: int, end: int, sends: list[tuple[int, int]]) -> int:
        """The stretch ends earlier where a value leaves that is needed before its end."""
        for leaves, needed in sends:
            last = over = self.row[end - 1].step
            if self.eager:
                over = self.row[end].step if end < len(self.row) else NEVER
            if leaves < last and needed < over:
                cut = next(i for i in range(start, end) if self.row[i].step > leaves)
                end = min(end, max(cut, start + 1))
        return end


def _uses(followed: Followed) -> dict[tuple[str, str], list[int]]:
    """(value, device) to the plan steps that use it there, ascending."""
    found: dict[tuple[str, str], list[int]] = {}
    for event in followed.events:
        if isinstance(event, Moved):
            found.setdefault((event.value, event.source), []).append(event.step)
            continue
        for name in event.op.reads:
            found.setdefault((name, event.device), []).append(event.step)
    return found


def _next(steps: Sequence[int], step: int) -> int:
    """The first of some ascending steps behind ``step``; far away when there is none."""
    index = bisect_right(steps, step)
    return steps[index] if index < len(steps) else NEVER


def _waits(
    followed: Followed,
    device: str,
    pairs: Sequence[tuple[str, str]],
    uses: Mapping[tuple[str, str], Sequence[int]],
) -> dict[str, int]:
    """Ops that update in place, with the last step at which the old value is moved or another
    device uses it."""
    olds = {old for old, _ in pairs}
    last: dict[str, int] = {}
    for (value, at), steps in uses.items():
        if value in olds and at != device:
            last[value] = max(last.get(value, -1), steps[-1])
    for event in followed.events:
        if isinstance(event, Moved) and event.value in olds:
            last[event.value] = max(last.get(event.value, -1), event.step)
    graph = followed.graph
    made = graph.producer
    return {graph.ops[made[new]].name: last.get(old, -1) for old, new in pairs if new in made}
