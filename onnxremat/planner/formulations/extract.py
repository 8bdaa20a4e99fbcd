"""Schedules from solutions of the cut relaxation: make and copy as late as possible."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import numpy as np

from onnxremat.planner.formulations.cut_model import CutModel, is_on
from onnxremat.planner.problem import Floats
from onnxremat.planner.problem_lists import ProblemLists
from onnxremat.planner.schedule import RUN, Schedule, Step, default_placement

Place = tuple[int, int]  # value, device
Planned = tuple[int, int, int, int, int]  # maker, hops from it, item, device, source


def late_schedule(
    made: CutModel, point: Floats, *, within: bool = False, in_order: bool = False,
    soon: bool = False,
) -> Schedule | None:  # fmt: skip
    """Schedule that carries what the point carries and makes the rest when it is read.

    Args:
        within: remake values to carry on before the op that ends their interval, as the model has
            it, and not right after it, where they usually take less room.
        in_order: first runs keep the base order (the cuts have to).
        soon: those that may fall in several intervals are made as soon as they can be in theirs.

    Returns:
        The schedule (its memory may be over budget), or None when the point does not say how to
        make some value and no way is at hand.
    """
    carried = [made.carried(point, interval) for interval in range(made.intervals)]
    rows = made.first_runs(point, in_order=in_order, soon=soon)
    reader = _Reader(made.lists, rows, carried, _Point(made, point), within)
    return reader.schedule()


def late_remakes(
    lists: ProblemLists, intervals: Sequence[Sequence[int]], carried: Sequence[set[int]]
) -> list[int] | None:
    """The same on one device, from what is carried: ops in execution order.

    Args:
        intervals: ops that run first in each interval, in the order of their first runs.
        carried: for each interval the values available at its start (entry 0 is ignored).
    """
    found = _Reader(lists, intervals, [[held] for held in carried], None, False).schedule()
    return None if found is None else list(found.sequence)


class _Point:
    """What a point of the model says about an interval."""

    def __init__(self, made: CutModel, point: Floats) -> None:
        self.made, self.point = made, point

    def devices(self, interval: int, op: int) -> list[int]:
        """Where an op runs."""
        return [d for d, on in enumerate(self.made.chosen(self.point, interval, op)) if on]

    def sources(self, interval: int, value: int, device: int) -> list[int]:
        """Where a value is copied from."""
        copied = self.made.copied[interval].items()
        return [e for (e, d), row in copied if d == device and is_on(self.point, row[value])]


class _Reader:
    def __init__(
        self,
        lists: ProblemLists,
        intervals: Sequence[Sequence[int]],
        carried: Sequence[Sequence[set[int]]],
        hints: _Point | None,
        within: bool,
    ) -> None:
        self.lists, self.intervals, self.carried = lists, intervals, carried
        self.hints, self.within = hints, within
        self.steps: list[Step] = []
        self.have: list[set[int]] = [set() for _ in lists.devices]
        self.ran: set[int] = set()
        self.home: dict[int, int] = {}  # device of each colocation group
        self.kept = [u for u, kept in enumerate(lists.keep) if kept and lists.lone[u] >= 0]
        self.interval = 0

    def schedule(self) -> Schedule | None:
        for interval, ops in enumerate(self.intervals):
            self.interval = interval
            if interval:
                self._drop()
            last = interval + 1 == len(self.intervals)
            for op in ops:
                if self.within and op == ops[-1] and not last and not self._carry_on():
                    return None
                if not self._first(op):
                    return None
            if not last and not self._carry_on():
                return None
        placement = self._placement() if self._arrive() else None
        if placement is None:
            return None
        return without_unread(self.lists, Schedule(tuple(self.steps), placement))

    def _drop(self) -> None:
        """Forget what is not carried into the interval."""
        stays = [u for u in self.kept if u in self.have[self.lists.lone[u]]]
        for d, carried in enumerate(self.carried[self.interval]):
            self.have[d] &= carried
        for value in stays:
            self.have[self.lists.lone[value]].add(value)

    def _first(self, op: int) -> bool:
        """Run an op, on the device that the point says and that has most of what it reads."""
        able, reads = self.lists.able[op], self.lists.reads[op]
        chosen = able[:1] if len(able) == 1 or self.hints is None else []
        if self.hints is not None and not chosen:
            chosen = self.hints.devices(self.interval, op) or able[:1]
        best = chosen[0]
        if len(chosen) > 1:
            best = max(chosen, key=lambda d: sum(u in self.have[d] for u in reads))
        have = self.have[best]
        missing = [(u, best) for u in reads if u not in have]
        return (not missing or self._ensure(missing)) and self._run(op, best)

    def _run(self, op: int, device: int) -> bool:
        group = self.lists.group[op]
        if op in self.ran and not self.lists.recomputable[op]:
            return False
        if group >= 0 and self.home.setdefault(group, device) != device:
            return False
        if not self.have[device].issuperset(self.lists.reads[op]):
            return False
        self.steps.append(Step(op, device))
        self.have[device].update(self._made(op))
        self.ran.add(op)
        return True

    def _made(self, op: int) -> list[int]:
        """What a run of an op makes now: kept values by its first one alone."""
        again, keep = op in self.ran, self.lists.keep
        return [u for u in self.lists.writes[op] if not (again and keep[u])]

    def _ensure(self, wanted: Sequence[Place]) -> bool:
        """Bring values to devices the way the point says, or any way there is; what is needed for
        that runs in base order, each value's copies right after it is made."""
        if not self.lists.links and len(self.have) == 1:  # the same in a fourth of the time
            return self._remake([value for value, _ in wanted])
        todo: set[Planned] = set()
        coming: dict[Place, int] = {}  # hops of the values that will be there
        open_: list[Place] = [(u, d) for u, d in wanted if u not in self.have[d]]
        while open_:
            value, device = open_.pop()
            if value not in self.have[device] and (value, device) not in coming:
                found = self._way_to(value, device, coming)
                if found is None:
                    return False
                todo.update(found)
                maker, hops, _, start, source = found[-1]
                if source == RUN and not hops:
                    coming.update(((u, start), 0) for u in self._made(maker))
                    open_ += [(u, start) for u in self.lists.reads[maker]]
                for _, far, _, target, source in found:
                    if source != RUN:
                        coming[value, target] = far
        return all(self._do(*planned) for planned in sorted(todo))

    def _remake(self, wanted: Sequence[int]) -> bool:
        """:meth:`_ensure` on an only device, where all that is missing is made."""
        lists, have, todo = self.lists, self.have[0], set[int]()
        stack = [lists.producer[value] for value in wanted if value not in have]
        while stack:
            op = stack.pop()
            if op not in todo:
                todo.add(op)
                stack += [lists.producer[value] for value in lists.reads[op] if value not in have]
        return all(self._run(op, 0) for op in sorted(todo))

    def _do(self, maker: int, hops: int, item: int, device: int, source: int) -> bool:
        if source == RUN:
            return self._run(item, device)
        if item not in self.have[source]:
            return False
        self.steps.append(Step(item, device, source))
        self.have[device].add(item)
        return True

    def _way_to(self, value: int, device: int, coming: dict[Place, int]) -> list[Planned] | None:
        """Copies from where a value is, or from a run of its op, which comes last."""
        maker, route, opened = self.lists.producer[value], list[Step](), {device}
        at = device
        while True:
            source = self._source(value, at, opened)
            if source is None:
                return None
            if source == RUN:
                first, made = 0, [(maker, 0, maker, at, RUN)]
                break
            route.append(Step(value, at, source))
            if value in self.have[source] or (value, source) in coming:
                first, made = coming.get((value, source), 0), []
                break
            opened.add(source)
            at = source
        copies = [(maker, first + k + 1, *step) for k, step in enumerate(reversed(route))]
        return [*copies, *made]

    def _source(self, value: int, device: int, opened: set[int]) -> int | None:
        """Device to copy a value from, ``RUN`` to make it, or None."""
        lists, b, maker = self.lists, self.interval, self.lists.producer[value]
        fresh = maker not in self.ran or not lists.keep[value]
        if lists.links and self.hints is not None:
            if fresh and maker in self.ran and device in self.hints.devices(b, maker):
                return RUN
            for e in self.hints.sources(b, value, device):
                if e not in opened:
                    return e
        there = [e for e in lists.devices if value in self.have[e]]
        seconds = {e: lists.copy[e][device][value] for e in there}
        nearest = min(there, key=seconds.__getitem__, default=RUN)
        if nearest != RUN and isfinite(seconds[nearest]):
            return nearest
        return RUN if fresh and device in lists.able[maker] else None

    def _carry_on(self) -> bool:
        """Have what the next interval starts with."""
        producer = self.lists.producer
        return self._ensure(
            [
                (value, d)
                for d, carried in enumerate(self.carried[self.interval + 1])
                for value in sorted(carried - self.have[d])
                if producer[value] in self.ran
            ]
        )

    def _arrive(self) -> bool:
        """Bring results to where they must end."""
        required = enumerate(self.lists.required)
        return all(device < 0 or self._ensure([(value, device)]) for value, device in required)

    def _placement(self) -> tuple[int, ...] | None:
        """Devices of kept values as the point has them, None when one is left nowhere."""
        placed = list(default_placement(self.lists.problem, self.steps))
        for value, kept in enumerate(self.lists.keep):
            homes = [d for d in self.lists.devices if kept and value in self.have[d]]
            if kept and not homes:
                return None
            if kept and placed[value] not in homes:
                placed[value] = homes[0]
        return tuple(placed)


def without_unread(
    lists: ProblemLists, schedule: Schedule, *, first_runs: bool = False
) -> Schedule:
    """Drop second runs and copies of which nothing is read, until none is left.

    Args:
        first_runs: first runs of ops that run again, too: where all have to run first in one order,
            some do so for nobody, and onnxruntime would hold what they make to the end.
    """
    steps = list(schedule.steps)
    while True:
        used = _used(lists, steps, schedule.placement, first_runs)
        kept = [move for move, flag in zip(steps, used, strict=True) if flag]
        if len(kept) == len(steps):
            return Schedule(tuple(kept), schedule.placement)
        steps = kept


def _used(
    lists: ProblemLists, steps: Sequence[Step], placement: Sequence[int], first_runs: bool
) -> list[bool]:
    """Steps that make an instance that is read or held, or run an op first; of these, where first
    runs may go, only what keeps every op."""
    used = [False] * len(steps)
    born: dict[tuple[int, int], int] = {}
    seen: dict[int, int] = {}
    keep = lists.keep
    for step, (item, device, source) in enumerate(steps):
        for value in lists.reads[item] if source == RUN else (item,):
            used[born[device if source == RUN else source, value]] = True
        first = source == RUN and item not in seen
        for value in lists.writes[item] if source == RUN else (item,):
            if source == RUN and keep[value] and not first:
                continue
            held = keep[value] and placement[value] == device
            if held and (device, value) in born:
                continue
            born[device, value] = step
            used[step] = used[step] or held
        if first:
            seen[item] = step
    runs = zip(used, steps, strict=True)
    kept = {move.item for flag, move in runs if flag and move.source == RUN and first_runs}
    for item, step in seen.items():
        used[step] = used[step] or item not in kept
    return used


def stage_excess(ops: int, schedule: Schedule, over: Floats) -> Floats:
    """Largest entry of ``over`` (one per step) per stage, at least 0, shape (ops,).

    The stage of a step is the op whose first run comes next (or is this step); steps after the
    last first run count for that.
    """
    seen: set[int] = set()
    first = []
    for item, _, source in schedule.steps:
        first.append(source == RUN and item not in seen)
        if source == RUN:
            seen.add(item)
    excess = np.zeros(ops)
    stage = schedule.first_runs[-1]
    for step in range(len(first) - 1, -1, -1):
        if first[step]:
            stage = schedule.steps[step].item
        excess[stage] = max(excess[stage], float(over[step]))
    return excess
