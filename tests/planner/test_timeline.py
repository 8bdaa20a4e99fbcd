"""The edited line of time agrees with the reference semantics to the byte after every edit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from onnxremat.planner.problem import Problem
from onnxremat.planner.problem_lists import ProblemLists
from onnxremat.planner.search import timeline
from onnxremat.planner.search.arrays import arrays_of
from onnxremat.planner.search.compiled import generator
from onnxremat.planner.search.timeline import Line, Single, lay_out, line_for, read_out, single_of
from onnxremat.planner.semantics import occupancy, seconds
from tests.planner.oracle import random_problem, random_sequence

APART = 4  # slots per step
EDITS = st.lists(
    st.tuples(
        st.sampled_from(("put", "put", "cut", "shift")), st.integers(0, 999), st.floats(0, 1)
    ),
    min_size=1,
    max_size=25,
)


@njit
def put(p: Single, t: Line, op: int, slot: int) -> bool:
    return timeline.put(p, t, op, slot)


@njit
def cut(p: Single, t: Line, op: int, slot: int) -> bool:
    return timeline.cut(p, t, op, slot)


def laid_out(problem: Problem, sequence: list[int], budget: int) -> tuple[Single, Line]:
    arrays = single_of(arrays_of(ProblemLists(problem), [budget]))
    line = line_for(arrays, APART * (len(sequence) + 1), budget, generator(0))
    assert lay_out(arrays, line, np.asarray(sequence, np.int32), len(sequence))
    return arrays, line


def steps_of(line: Line) -> list[int]:
    sequence = np.zeros(len(line.op), np.int32)
    return sequence[: read_out(line, sequence)].tolist()


def agree(problem: Problem, line: Line) -> None:
    """Fails when bytes, time or excess differ from those of the sequence on the line."""
    sequence, there = steps_of(line), line.op >= 0
    again = np.ones(problem.ops, np.bool_)  # while a run moves it is there twice
    use = occupancy(replace(problem, recompute=again), sequence)[0]
    assert line.use[there].tolist() == use.tolist()
    assert line.use[~there].max(initial=0) <= 0
    assert line.sums[0] == pytest.approx(seconds(problem, sequence))
    assert line.sums[1] == np.maximum(use - line.budget[0], 0).sum()
    assert line.tally[0] == len(sequence)
    assert sorted(line.extra[: line.tally[1]]) == sorted(
        op for op in range(problem.ops) for _ in range(sequence.count(op) - 1)
    )


def edit(problem: Problem, arrays: Single, line: Line, kind: str, pick: int, where: float) -> bool:
    """One random edit; True when something changed."""
    if kind == "cut":
        slots = np.flatnonzero(line.op >= 0)
        slot = int(slots[pick % len(slots)])
        return bool(cut(arrays, line, int(line.op[slot]), slot))
    empty = np.flatnonzero(line.op < 0)
    if len(empty) == 0:
        return False
    op, slot = pick % problem.ops, int(empty[int(where * (len(empty) - 1))])
    if kind == "put":
        return bool(arrays.again[op]) and bool(put(arrays, line, op, slot))
    old = int(np.flatnonzero(line.op == op)[0])  # as annealing moves a first run
    return bool(put(arrays, line, op, slot)) and bool(cut(arrays, line, op, old))


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(0, 10**6), EDITS)
def test_bytes_time_and_excess_are_exact_after_every_edit_and_undone_together(
    seed: int, ops: int, which: int, edits: list[tuple[str, int, float]]
) -> None:
    problem = random_problem(seed, ops)
    sequence = random_sequence(problem, which)
    arrays, line = laid_out(problem, sequence, budget=15)
    agree(problem, line)
    for kind, pick, where in edits:
        known = line.op.tolist()
        changed = edit(problem, arrays, line, kind, pick, where)
        agree(problem, line)
        if kind != "shift":  # two edits, of which the second may be refused
            assert (line.op.tolist() != known) == changed
    timeline.undo(arrays, line)
    assert steps_of(line) == sequence
    agree(problem, line)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(0, 10**6), EDITS)
def test_runs_that_lose_their_readers_go_with_them(
    seed: int, ops: int, which: int, edits: list[tuple[str, int, float]]
) -> None:
    problem = random_problem(seed, ops)
    arrays, line = laid_out(problem, random_sequence(problem, which), budget=15)
    for kind, pick, where in edits:
        taken = np.flatnonzero(line.op >= 0)
        # A first run that another is put before becomes a second one: what moved it cuts it.
        first = taken[np.unique(line.op[taken], return_index=True)[1]]
        known = unread_runs(problem, line) | set(first.tolist())
        line.tally[2] = 0
        edit(problem, arrays, line, kind, pick, where)
        timeline.sweep(arrays, line)
        agree(problem, line)
        new = set(np.flatnonzero(line.op >= 0).tolist()) - set(taken.tolist())
        assert unread_runs(problem, line) <= known | new


def unread_runs(problem: Problem, line: Line) -> set[int]:
    """Slots of second runs that make nothing that is read."""
    reads, writes = problem.reads.lists(), problem.writes.lists()
    latest: dict[int, int] = {}  # value -> slot that made it last
    needed: set[int] = set()
    seen: set[int] = set()
    slots = np.flatnonzero(line.op >= 0).tolist()
    for slot in slots:
        op = int(line.op[slot])
        needed.update(latest[value] for value in reads[op])
        if op not in seen:
            needed.add(slot)
        for value in writes[op]:
            if op not in seen or not problem.keep[value]:
                latest[value] = slot
        seen.add(op)
    return set(slots) - needed
