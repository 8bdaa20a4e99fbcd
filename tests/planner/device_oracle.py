"""Random small problems on several devices, random schedules, and exact optima."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import inf, isfinite
from random import Random

import numpy as np

from onnxremat.planner.on_devices import Devices, HostInput, on_devices
from onnxremat.planner.problem import Problem, Rows
from onnxremat.planner.problem_lists import ProblemLists
from onnxremat.planner.schedule import Schedule, Step, default_placement
from tests.planner.oracle import random_problem


def random_device_problem(
    seed: int, ops: int, *, devices: int = 2, plain: bool = False, kept: float = 0.15
) -> Problem:
    """A random problem; unless ``plain`` with workspace, in-place, several outputs, kept values,
    ops that run once, pins, missing links, weights, colocation, given inputs, storage devices and
    copies that keep devices busy.
    """
    draw = Random(seed)
    base = random_problem(seed, ops, plain=plain, kept=kept)
    cost = np.asarray(
        [[c * draw.choice([0.5, 1.0, 2.0, 3.0]) for c in base.cost[0]] for _ in range(devices)]
    )
    rate = np.asarray(
        [[draw.choice([0.05, 0.2, 0.5]) for _ in range(devices)] for _ in range(devices)]
    )
    copy = rate[:, :, None] * base.size[None] + 0.1
    if plain:
        return on_devices(base, Devices(cost, copy))
    if draw.random() < 0.3:
        copy[draw.randrange(devices), draw.randrange(devices)] = np.inf
    allowed = np.asarray([[draw.random() < 0.8 for _ in range(ops)] for _ in range(devices)])
    if draw.random() < 0.2:
        allowed[-1] = False
    for op in range(ops):
        if not allowed[:, op].any():
            allowed[0, op] = True
    group = [-1] * ops
    if draw.random() < 0.3 and ops > 2:
        for op in draw.sample(range(ops), 2):
            group[op] = 0
            allowed[:, op] = True
    weights = [draw.randint(1, 6) for _ in range(draw.choice([0, 0, 1, 2]))]
    uses = [[w for w in range(len(weights)) if draw.random() < 0.4] for _ in range(ops)]
    own = np.random.default_rng(seed).integers(0, 7, (devices, len(weights)))  # on each device
    given = []
    if draw.random() < 0.3:
        size = draw.randint(1, 6)
        link = np.full((devices, devices), 0.2 * size)
        readers = tuple(op for op in range(ops) if draw.random() < 0.4)
        given = [HostInput(size, draw.randrange(devices), readers, link)]
    return on_devices(base, Devices(
        cost, copy, allowed=allowed, group=group, uses=Rows.of(uses),
        weight=own if seed % 3 else weights,
        required=[draw.choice([-1, draw.randrange(devices)]) for _ in range(base.values)],
        work=np.asarray([[w * draw.choice([0, 1]) for w in base.work[0]] for _ in range(devices)]),
        host_inputs=given,
        copy_busy=np.random.default_rng(seed).uniform(
            0, 0.1 * (seed % 2), (2, devices, base.values)
        )))  # fmt: skip


def single(problem: Problem, device: int) -> Problem:
    """One device of a problem by itself (without weights)."""
    return replace(
        problem.skeleton,
        cost=problem.cost[[device]],
        work=problem.work[[device]],
        size=problem.size[[device]],
        fixed=problem.fixed[[device]],
    )


def random_schedule(problem: Problem, seed: int, *, fixed_order: bool = True) -> Schedule | None:
    """A valid schedule with random devices, second runs and copies; None when it gets stuck."""
    return _RandomWalk(problem, Random(seed), fixed_order).schedule()


@dataclass
class _RandomWalk:
    problem: Problem
    draw: Random
    fixed_order: bool

    def schedule(self) -> Schedule | None:
        problem, draw = self.problem, self.draw
        self.steps: list[Step] = []
        self.there: list[set[int]] = [set() for _ in range(problem.devices)]
        self.ran: set[int] = set()
        self.lists = ProblemLists(problem.skeleton)
        self.group: dict[int, int] = {}
        while len(self.ran) < problem.ops:
            ready = [
                op for op in range(problem.ops)
                if op not in self.ran and all(b in self.ran for b in self.lists.before[op])
            ]  # fmt: skip
            for _ in range(draw.choice([0, 0, 1, 2])):
                self._extra()
            if not self._run(min(ready) if self.fixed_order else draw.choice(ready)):
                return None
        for _ in range(draw.choice([0, 1])):
            self._extra()
        hold = list(default_placement(problem, self.steps))
        for value in np.flatnonzero(problem.keep).tolist():
            homes = [d for d in range(problem.devices) if value in self.there[d]]
            if problem.required[value] < 0:
                hold[value] = draw.choice(homes)
            elif not self._bring(value, hold[value]):
                return None
        return Schedule(tuple(self.steps), tuple(hold))

    def _extra(self) -> None:
        again = [op for op in sorted(self.ran) if self.lists.recomputable[op]]
        if again and self.draw.random() < 0.5:
            self._run(self.draw.choice(again))
            return
        have = [(d, u) for d, row in enumerate(self.there) for u in sorted(row)]
        if have:
            source, value = self.draw.choice(have)
            targets = [
                d for d in range(self.problem.devices)
                if d != source and isfinite(self.problem.copy[source, d, value])
            ]  # fmt: skip
            if targets:
                self._copy(value, source, self.draw.choice(targets))

    def _run(self, op: int) -> bool:
        group = int(self.problem.group[op])
        able = self.problem.runs_on(op)
        if group in self.group:
            able = [d for d in able if d == self.group[group]]
        self.draw.shuffle(able)
        for device in able:
            if all(self._bring(value, device) for value in self.lists.reads[op]):
                self.steps.append(Step(op, device))
                first = op not in self.ran
                made = [u for u in self.lists.writes[op] if first or not self.lists.keep[u]]
                self.there[device].update(made)
                self.ran.add(op)
                if group >= 0:
                    self.group[group] = device
                return True
        return False

    def _bring(self, value: int, device: int) -> bool:
        if value in self.there[device]:
            return True
        sources = [
            e for e in range(self.problem.devices)
            if value in self.there[e] and isfinite(self.problem.copy[e, device, value])
        ]  # fmt: skip
        if not sources:
            return False
        self._copy(value, self.draw.choice(sources), device)
        return True

    def _copy(self, value: int, source: int, device: int) -> None:
        self.steps.append(Step(value, device, source))
        self.there[device].add(value)


def optimum(problem: Problem, budgets: list[int], *, fixed_order: bool) -> float:
    """Least seconds of any schedule within budgets, ``inf`` when there is none.

    For every choice of hold devices, group devices and devices that have each weight: a shortest
    path over (ops that ran, values held on each device). Dropping a value costs nothing.
    """
    return _least(problem, budgets, _States, fixed_order)


def staged_optimum(problem: Problem, budgets: list[int]) -> float:
    """As :func:`optimum`, over what XEngine's model can say on two devices: stage t ends with the
    first run of op t; before it each op runs at most once per device, in base order, and what it
    makes is copied at its place (kept values, which are not made again, before the op runs).
    """
    assert problem.devices <= 2  # with three, copies of copies at one place would be in here
    return _least(problem, budgets, _Staged, True)


def _least(problem: Problem, budgets: list[int], states: type[_States], fixed_order: bool) -> float:
    best = inf
    for hold in _holds(problem):
        for able, resident in _residences(problem):
            if all(r <= b for r, b in zip(resident, budgets, strict=True)):
                room = [b - r for b, r in zip(budgets, resident, strict=True)]
                best = states(problem, hold, able, room, fixed_order).shortest(best)
    return best


def _holds(problem: Problem) -> Iterator[list[int]]:
    choices = [
        [-1] if not keep else list(range(problem.devices)) if goal < 0 else [goal]
        for keep, goal in zip(problem.keep.tolist(), problem.required.tolist(), strict=True)
    ]
    for hold in product(*choices):
        yield list(hold)


def _residences(problem: Problem) -> Iterator[tuple[list[list[bool]], list[int]]]:
    """(may op run on device, bytes resident there) for each choice of weights and groups."""
    devices, weights = range(problem.devices), range(problem.weight.shape[1])
    groups = sorted({int(g) for g in problem.group if g >= 0})
    uses = problem.uses.lists()
    places = list(product([False, True], repeat=problem.devices))
    for chosen in product(places, repeat=len(weights)):
        resident = [
            int(problem.fixed[d]) + sum(int(problem.weight[d, w]) for w in weights if chosen[w][d])
            for d in devices
        ]
        for homes in product(devices, repeat=len(groups)):
            home = dict(zip(groups, homes, strict=True))
            yield (
                [
                    [
                        isfinite(problem.cost[d, op])
                        and all(chosen[w][d] for w in uses[op])
                        and home.get(int(problem.group[op]), d) == d
                        for op in range(problem.ops)
                    ]
                    for d in devices
                ],
                resident,
            )


class _States:
    def __init__(
        self, problem: Problem, hold: list[int], able: list[list[bool]], room: list[int],
        fixed_order: bool,
    ) -> None:  # fmt: skip
        self.problem, self.able, self.room, self.fixed_order = problem, able, room, fixed_order
        self.reads = [sum(1 << v for v in row) for row in problem.reads.lists()]
        self.writes = [sum(1 << v for v in row) for row in problem.writes.lists()]
        self.inplace = problem.inplace.lists()
        self.kept = sum(1 << v for v, flag in enumerate(problem.keep.tolist()) if flag)
        self.held = [
            sum(1 << v for v, h in enumerate(hold) if h == d) for d in range(problem.devices)
        ]
        self.size, self.work = problem.size.tolist(), problem.work.tolist()
        self.bytes = [_sums(row) for row in self.size]
        self.cost, self.copy = problem.cost.tolist(), problem.copy.tolist()
        self.again = ProblemLists(problem.skeleton).recomputable

    def shortest(self, limit: float) -> float:
        devices = self.problem.devices
        everything = (1 << self.problem.ops) - 1
        start = (0, (0,) * devices)
        best: dict[tuple[int, tuple[int, ...]], float] = {start: 0.0}
        queue: list[tuple[float, int, tuple[int, ...]]] = [(0.0, *start)]
        while queue:
            spent, ran, held = heapq.heappop(queue)
            if spent >= limit:
                return limit
            if spent > best[ran, held]:
                continue
            if ran == everything and all(self.held[d] & ~held[d] == 0 for d in range(devices)):
                return spent
            moves, blocked = self._moves(spent, ran, held)
            if blocked:
                moves += self._drops(spent, ran, held)
            for more, ran2, held2 in moves:
                if more < best.get((ran2, held2), inf):
                    best[ran2, held2] = more
                    heapq.heappush(queue, (more, ran2, held2))
        return limit

    def _drops(
        self, spent: float, ran: int, held: tuple[int, ...]
    ) -> list[tuple[float, int, tuple[int, ...]]]:
        moves = []
        for d, values in enumerate(held):
            free = values & ~self.held[d]
            while free:
                low = free & -free
                free ^= low
                moves.append((spent, ran, _with(held, d, values ^ low)))
        return moves

    def _moves(
        self, spent: float, ran: int, held: tuple[int, ...]
    ) -> tuple[list[tuple[float, int, tuple[int, ...]]], bool]:
        """Runs and copies that fit, and whether one does not."""
        moves: list[tuple[float, int, tuple[int, ...]]] = []
        blocked = False
        for op in range(self.problem.ops):
            done = bool(ran >> op & 1)
            if (done and not self.again[op]) or (
                not done and self.fixed_order and ran != (1 << op) - 1
            ):
                continue
            made = self.writes[op] & ~(self.kept if done else 0)
            for d, values in enumerate(held):
                if not self.able[d][op] or self.reads[op] & ~values:
                    continue
                more, ran2 = spent + self.cost[d][op], ran | 1 << op
                use = self.bytes[d][values | made] + self.work[d][op]
                if use <= self.room[d]:
                    moves.append((more, ran2, _with(held, d, values | made)))
                    continue
                blocked = True
                for value in self.inplace[op]:
                    bit = 1 << value
                    free = self.reads[op] & bit and not self.kept & bit
                    if free and use - self.size[d][value] <= self.room[d]:
                        moves.append((more, ran2, _with(held, d, values & ~bit | made)))
        for e, d in product(range(len(held)), repeat=2):
            values = held[e] & ~held[d] if e != d else 0
            while values:
                low = values & -values
                values ^= low
                took = self.copy[e][d][low.bit_length() - 1]
                if isfinite(took):
                    if self.bytes[d][held[d] | low] <= self.room[d]:
                        moves.append((spent + took, ran, _with(held, d, held[d] | low)))
                    else:
                        blocked = True
        return moves, blocked


class _Staged(_States):
    """States (stage, place, turn at that place, ran here already; values held per device).

    Turns are: copies of kept outputs, a run per device, copies of the other outputs.
    """

    def shortest(self, limit: float) -> float:
        ops, devices = self.problem.ops, len(self.room)
        start = ((0, 0, 0, False), (0,) * devices)
        best = {start: 0.0}
        count = 0
        queue: list[tuple[float, int, tuple[int, int, int, bool], tuple[int, ...]]] = []
        heapq.heappush(queue, (0.0, 0, *start))
        while queue:
            spent, _, at, held = heapq.heappop(queue)
            if spent >= limit:
                return limit
            if spent > best[at, held]:
                continue
            if at[0] == ops:
                if all(self.held[d] & ~held[d] == 0 for d in range(devices)):
                    return spent
                continue
            drops = [(more, at, after) for more, _, after in self._drops(spent, 0, held)]
            for more, state, after in [*self._turns(spent, at, held), *drops]:
                if more < best.get((state, after), inf):
                    best[state, after] = more
                    count += 1
                    heapq.heappush(queue, (more, count, state, after))
        return limit

    def _turns(
        self, spent: float, at: tuple[int, int, int, bool], held: tuple[int, ...]
    ) -> Iterator[tuple[float, tuple[int, int, int, bool], tuple[int, ...]]]:
        stage, place, turn, ran = at
        devices = len(held)
        if turn == devices + 1:
            if place < stage:
                yield spent, (stage, place + 1, 0, False), held
            elif ran:
                yield spent, (stage + 1, 0, 0, False), held
        else:
            yield spent, (stage, place, turn + 1, ran), held
        old = self.writes[place] & self.kept if stage > place else 0
        if turn in (0, devices + 1):
            movable = old if turn == 0 else self.writes[place] & ~old
            for more, _, after in self._copies(spent, 0, held, movable):
                yield more, at, after
        elif (self.again[place] and stage > place) or (place == stage and not ran):
            for more, _, after in self._runs(spent, place, turn - 1, held, old):
                yield more, (stage, place, turn + 1, True), after

    def _runs(
        self, spent: float, op: int, d: int, held: tuple[int, ...], old: int
    ) -> Iterator[tuple[float, int, tuple[int, ...]]]:
        values, made = held[d], self.writes[op] & ~old
        if not self.able[d][op] or self.reads[op] & ~values:
            return
        more = spent + self.cost[d][op]
        use = self.bytes[d][values | made] + self.work[d][op]
        if use <= self.room[d]:
            yield more, 0, _with(held, d, values | made)
        for value in self.inplace[op]:
            bit = 1 << value
            if self.reads[op] & bit & ~self.kept and use - self.size[d][value] <= self.room[d]:
                yield more, 0, _with(held, d, values & ~bit | made)

    def _copies(
        self, spent: float, ran: int, held: tuple[int, ...], movable: int
    ) -> Iterator[tuple[float, int, tuple[int, ...]]]:
        for e, d in product(range(len(held)), repeat=2):
            for value in range(self.problem.values):
                bit = 1 << value
                took = self.copy[e][d][value]
                if not bit & movable & held[e] & ~held[d] or not isfinite(took):
                    continue
                if self.bytes[d][held[d] | bit] <= self.room[d]:
                    yield spent + took, ran, _with(held, d, held[d] | bit)


def _sums(sizes: list[int]) -> list[int]:
    """Bytes of every set of values, by its bits."""
    total = [0]
    for size in sizes:
        total += [size + rest for rest in total]
    return total


def _with(held: tuple[int, ...], device: int, values: int) -> tuple[int, ...]:
    return (*held[:device], values, *held[device + 1 :])
