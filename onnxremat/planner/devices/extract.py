"""Schedules from solutions of the cut relaxation: make and copy as late as possible."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from onnxremat.planner.devices.cuts import DeviceCuts
from onnxremat.planner.devices.layout import Layout
from onnxremat.planner.devices.problem import RUN, Schedule, Step, default_hold
from onnxremat.planner.problem import Floats

Place = tuple[int, int]  # value, device


def late_schedule(made: DeviceCuts, point: Floats) -> Schedule | None:
    """Schedule that carries what the point carries and makes the rest when it is read.

    Returns:
        The schedule (its memory may be over budget), or None when the point does not say how to
        make some value and no way is at hand.
    """
    return _Reader(made, point).schedule()


class _Reader:
    def __init__(self, made: DeviceCuts, point: Floats) -> None:
        self.made, self.point, self.layout = made, point, made.layout
        self.steps: list[Step] = []
        self.have: list[set[int]] = [set() for _ in self.layout.devices]
        self.ran: set[int] = set()
        self.home: dict[int, int] = {}  # device of each colocation group
        self.interval = 0

    def schedule(self) -> Schedule | None:
        made = self.made
        for interval, ops in enumerate(self._first_runs()):
            self.interval = interval
            if interval:
                self._drop()
            if not all(self._first(op) for op in ops):
                return None
            if interval + 1 < made.intervals and not self._carry_out():
                return None
        hold = self._hold() if self._arrive() else None
        if hold is None:
            return None
        return without_unread(self.layout, Schedule(tuple(self.steps), hold))

    def _first_runs(self) -> list[list[int]]:
        """Ops that run first in each interval, in base order but the cut op last."""
        made, spans = self.made, self.made.spans
        rows: list[list[int]] = [[] for _ in range(made.intervals)]
        for op, early in enumerate(spans.earliest):
            late = spans.latest[op]
            chosen = (b for b in range(early, late) if any(self._runs(b, op)))
            rows[next(chosen, late)].append(op)
        for interval, cut in enumerate(spans.cuts):
            rows[interval].remove(cut)
            rows[interval].append(cut)
        return rows

    def _runs(self, interval: int, op: int) -> list[bool]:
        made = self.made
        return [made.is_on(self.point, made.run[interval][d][op]) for d in self.layout.devices]

    def _drop(self) -> None:
        """Forget what the point does not carry into the interval."""
        made, carry = self.made, self.made.carry[self.interval]
        for d in self.layout.devices:
            self.have[d] = {u for u in self.have[d] if made.is_on(self.point, carry[d][u])}

    def _first(self, op: int) -> bool:
        chosen = [d for d, on in enumerate(self._runs(self.interval, op)) if on]
        if not chosen:
            chosen = self.layout.able[op][:1]
        reads = self.layout.wiring.reads[op]
        best = max(chosen, key=lambda d: sum(u in self.have[d] for u in reads))
        return self._run(op, best)

    def _run(self, op: int, device: int) -> bool:
        reads = self.layout.wiring.reads[op]
        return self._ensure([(u, device) for u in reads]) and self._do_run(op, device)

    def _do_run(self, op: int, device: int) -> bool:
        again, group = op in self.ran, self.layout.group[op]
        if again and not self.layout.recomputable[op]:
            return False
        if group >= 0 and self.home.setdefault(group, device) != device:
            return False
        keep = self.layout.keep
        self.steps.append(Step(op, device))
        self.ran.add(op)
        made = self.layout.wiring.writes[op]
        self.have[device].update(u for u in made if not (again and keep[u]))
        return True

    def _ensure(self, wanted: Sequence[Place]) -> bool:
        """Bring values to devices the way the point says, or any way there is."""
        tasks: list[tuple[str, Place, int]] = [("need", place, RUN) for place in wanted[::-1]]
        opened: set[Place] = set()
        while tasks:
            kind, (value, device), source = tasks.pop()
            if value in self.have[device]:
                continue
            maker = self.layout.wiring.producer[value]
            if kind == "do" and source == RUN:
                if not self._do_run(maker, device):
                    return False
            elif kind == "do":
                self.steps.append(Step(value, device, source))
                self.have[device].add(value)
            else:
                way = self._way(value, device, opened)
                if way is None:
                    return False
                opened.add((value, device))
                tasks.append(("do", (value, device), way))
                if way == RUN:
                    reads = self.layout.wiring.reads[maker]
                    tasks += [("need", (u, device), RUN) for u in reads[::-1]]
                else:
                    tasks.append(("need", (value, way), RUN))
        return True

    def _way(self, value: int, device: int, opened: set[Place]) -> int | None:
        """Device to copy a value from, ``RUN`` to make it, or None."""
        made, b, layout = self.made, self.interval, self.layout
        maker = layout.wiring.producer[value]
        fresh = maker not in self.ran or not layout.keep[value]
        if made.is_on(self.point, made.run[b][device][maker]) and fresh and maker in self.ran:
            return RUN
        for (e, d), row in made.copied[b].items():
            if d == device and (value, e) not in opened and made.is_on(self.point, row[value]):
                return e
        sources = [e for e in layout.devices if value in self.have[e]]
        seconds = {e: layout.copy[e][device][value] for e in sources}
        nearest = min(sources, key=seconds.__getitem__, default=RUN)
        if nearest != RUN and isfinite(seconds[nearest]):
            return nearest
        return RUN if fresh and device in layout.able[maker] else None

    def _carry_out(self) -> bool:
        made, carry = self.made, self.made.carry[self.interval + 1]
        for d in self.layout.devices:
            for value, column in enumerate(carry[d]):
                on = made.is_on(self.point, column) and value not in self.have[d]
                made_already = self.layout.wiring.producer[value] in self.ran
                if on and made_already and not self._ensure([(value, d)]):
                    return False
        return True

    def _arrive(self) -> bool:
        """Bring results to where they must end."""
        return all(
            goal < 0 or self._ensure([(value, goal)]) for value, goal in enumerate(self.layout.goal)
        )

    def _hold(self) -> tuple[int, ...] | None:
        """Hold devices as the point has them, None when it leaves a kept value nowhere."""
        hold = list(default_hold(self.layout.problem, self.steps))
        for value, kept in enumerate(self.layout.keep):
            homes = [d for d in self.layout.devices if kept and value in self.have[d]]
            if kept and not homes:
                return None
            if kept and hold[value] not in homes:
                hold[value] = homes[0]
        return tuple(hold)


def without_unread(layout: Layout, schedule: Schedule) -> Schedule:
    """Drop second runs and copies of which nothing is read, until none is left."""
    steps = list(schedule.steps)
    while True:
        used = _used(layout, steps, schedule.hold)
        kept = [move for move, flag in zip(steps, used, strict=True) if flag]
        if len(kept) == len(steps):
            return Schedule(tuple(kept), schedule.hold)
        steps = kept


def _used(layout: Layout, steps: Sequence[Step], hold: Sequence[int]) -> list[bool]:
    """Steps that run an op first or make an instance that is read or held."""
    used = [False] * len(steps)
    born: dict[tuple[int, int], int] = {}
    seen: set[int] = set()
    wiring, keep = layout.wiring, layout.keep
    for step, (item, device, source) in enumerate(steps):
        for value in wiring.reads[item] if source == RUN else (item,):
            used[born[device if source == RUN else source, value]] = True
        first = source == RUN and item not in seen
        for value in wiring.writes[item] if source == RUN else (item,):
            if source == RUN and keep[value] and not first:
                continue
            held = keep[value] and hold[value] == device
            if held and (device, value) in born:
                continue
            born[device, value] = step
            used[step] = used[step] or held
        if first:
            seen.add(item)
            used[step] = True
    return used
