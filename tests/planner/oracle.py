"""Random small problems, and their exact optimum by shortest path over states."""

from __future__ import annotations

import heapq
from math import inf
from random import Random

import numpy as np

from onnxremat.planner.problem import OneDevice, Problem, Rows
from onnxremat.planner.problem_lists import ProblemLists


def random_problem(
    seed: int, ops: int, *, plain: bool = False, kept: float = 0.15, frozen: float = 0.2
) -> Problem:
    """A random problem; unless ``plain`` with workspace, in-place, several outputs, kept values,
    ops that run once, and fixed bytes."""
    draw = Random(seed)
    reads: list[list[int]] = []
    writes: list[list[int]] = []
    inplace: list[list[int]] = []
    size: list[int] = []
    keep: list[bool] = []
    for op in range(ops):
        count = min(len(size), draw.choice([0, 1, 1, 2, 2, 3])) if op else 0
        inputs = sorted(draw.sample(range(len(size)), count))
        outputs = 1 if plain or draw.random() < 0.7 else 2
        mine = list(range(len(size), len(size) + outputs))
        size += [draw.randint(1, 12) for _ in mine]
        keep += [not plain and draw.random() < kept for _ in mine]
        takes: list[int] = []
        if inputs and not plain and draw.random() < 0.5:
            size[mine[0]] = size[draw.choice(inputs)]
            keep[mine[0]] = False
            takes = [value for value in inputs if size[value] == size[mine[0]]]
            draw.shuffle(takes)
        reads.append(inputs)
        writes.append(mine)
        inplace.append(takes)
    work = [0 if plain or draw.random() < 0.6 else draw.randint(1, 8) for _ in range(ops)]
    again = [plain or draw.random() > frozen for _ in range(ops)]
    return OneDevice(
        cost=np.asarray([draw.choice([0.0, 1.0, 2.0, 3.5, 7.0]) for _ in range(ops)]),
        work=np.asarray(work, np.int64),
        reads=Rows.of(reads),
        writes=Rows.of(writes),
        size=np.asarray(size, np.int64),
        keep=np.asarray(keep, np.bool_),
        inplace=Rows.of(inplace),
        recompute=np.asarray(again, np.bool_),
        fixed=0 if plain else draw.choice([0, 0, 5]),
    ).problem()


def random_sequence(problem: Problem, seed: int, *, fixed_order: bool = True) -> list[int]:
    """A valid sequence with random second runs."""
    draw = Random(seed)
    reads, again = problem.reads.lists(), ProblemLists(problem).recomputable
    producer = problem.producer.tolist()
    sequence: list[int] = []
    ran: set[int] = set()
    while len(ran) < problem.ops:
        ready = [
            op
            for op in range(problem.ops)
            if op not in ran and all(producer[value] in ran for value in reads[op])
        ]
        first = min(ready) if fixed_order else draw.choice(ready)
        repeats = [op for op in sorted(ran) if again[op]]
        for _ in range(draw.choice([0, 0, 1, 2])):
            if repeats:
                sequence.append(draw.choice(repeats))
        sequence.append(first)
        ran.add(first)
    return sequence


def optimum(problem: Problem, budget: int, *, fixed_order: bool) -> float:
    """Least seconds of any sequence within ``budget`` bytes, ``inf`` when there is none.

    States are (ops that ran, values in memory). A step runs one op, with or without its output
    taking over the buffer of an input that is not read again; dropping a value costs nothing.
    """
    reads = [sum(1 << v for v in row) for row in problem.reads.lists()]
    writes, inplace = problem.writes.lists(), problem.inplace.lists()
    size, work = problem.size[0].tolist(), problem.work[0].tolist()
    keep = sum(1 << v for v, flag in enumerate(problem.keep.tolist()) if flag)
    bytes_of = [0] * (1 << problem.values)
    for held in range(1, 1 << problem.values):
        low = held & -held
        bytes_of[held] = bytes_of[held ^ low] + size[low.bit_length() - 1]
    everything = (1 << problem.ops) - 1
    best: dict[tuple[int, int], float] = {(0, 0): 0.0}
    queue: list[tuple[float, int, int]] = [(0.0, 0, 0)]
    while queue:
        spent, ran, held = heapq.heappop(queue)
        if ran == everything:
            return spent
        if spent > best[ran, held]:
            continue
        moves: list[tuple[float, int, int]] = []
        free = held & ~keep
        while free:
            low = free & -free
            free ^= low
            moves.append((spent, ran, held ^ low))
        for op in range(problem.ops):
            if reads[op] & ~held:
                continue
            if ran >> op & 1:
                if not problem.recompute[op]:
                    continue
            elif fixed_order and ran != (1 << op) - 1:
                continue
            new = sum(1 << v for v in writes[op])
            if new & held & ~keep:
                continue  # drop the old copy first
            made = new & ~held
            use = int(problem.fixed[0]) + work[op] + bytes_of[held | made]
            after = spent + float(problem.cost[0, op])
            if use <= budget:
                moves.append((after, ran | 1 << op, held | made))
            for value in inplace[op]:
                bit = 1 << value
                if bit & reads[op] & ~keep and use - size[value] <= budget:
                    moves.append((after, ran | 1 << op, (held | made) ^ bit))
        for cost, ran_then, held_then in moves:
            if cost < best.get((ran_then, held_then), inf):
                best[ran_then, held_then] = cost
                heapq.heappush(queue, (cost, ran_then, held_then))
    return inf


def staged_optimum(problem: Problem, budget: int) -> float:
    """As :func:`optimum` in base order, but each op runs at most once per stage, in base order."""
    reads = [sum(1 << v for v in row) for row in problem.reads.lists()]
    writes, inplace = problem.writes.lists(), problem.inplace.lists()
    size, work = problem.size[0].tolist(), problem.work[0].tolist()
    keep = sum(1 << v for v, flag in enumerate(problem.keep.tolist()) if flag)
    again = ProblemLists(problem).recomputable

    def bytes_of(held: int) -> int:
        return sum(size[v] for v in range(problem.values) if held >> v & 1)

    best: dict[tuple[int, int, int], float] = {(0, -1, 0): 0.0}
    queue: list[tuple[float, int, int, int]] = [(0.0, 0, -1, 0)]  # spent, stage, last op, held
    while queue:
        spent, stage, last, held = heapq.heappop(queue)
        if stage == problem.ops:
            return spent
        if spent > best[stage, last, held]:
            continue
        moves: list[tuple[float, int, int, int]] = []
        for v in range(problem.values):
            if held >> v & 1 and not keep >> v & 1:
                moves.append((spent, stage, last, held ^ 1 << v))
        for op in range(last + 1, stage + 1):
            new = sum(1 << v for v in writes[op])
            if reads[op] & ~held or new & held & ~keep or not (op == stage or again[op]):
                continue
            use = int(problem.fixed[0]) + work[op] + bytes_of(held | new)
            then = (stage + 1, -1) if op == stage else (stage, op)
            after = spent + float(problem.cost[0, op])
            if use <= budget:
                moves.append((after, *then, held | new))
            for v in inplace[op]:
                bit = 1 << v
                if bit & reads[op] & ~keep and use - size[v] <= budget:
                    moves.append((after, *then, (held | new) ^ bit))
        for cost, *state in moves:
            key = (state[0], state[1], state[2])
            if cost < best.get(key, inf):
                best[key] = cost
                heapq.heappush(queue, (cost, *key))
    return inf
