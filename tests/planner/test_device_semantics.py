"""Several devices: the reference semantics, and everything that must agree with it to the byte."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxremat.errors import UsageError
from onnxremat.planner.formulations.extract import without_unread
from onnxremat.planner.makespan import critical_path, makespan, timing
from onnxremat.planner.on_devices import Devices, HostInput, copy_seconds, on_devices
from onnxremat.planner.plan_steps import Names, from_plan, to_plan
from onnxremat.planner.problem import OneDevice, Problem, Rows
from onnxremat.planner.problem_lists import ProblemLists
from onnxremat.planner.schedule import InvalidScheduleError, Schedule, Step
from onnxremat.planner.search.session import Search
from onnxremat.planner.semantics import bytes_of, durations, ledger, occupancy, peaks, seconds
from onnxremat.schedule.plan import Compute, Plan, Transfer
from tests.planner.device_oracle import random_device_problem, random_schedule
from tests.planner.oracle import random_problem, random_sequence

CASES = (st.integers(0, 10**6), st.integers(2, 12), st.integers(2, 3), st.integers(0, 10**6))


def chain(sizes: list[int], *, work: int = 0, keep: int = -1) -> Problem:
    """Ops 0 -> 1 -> .. that each make one value."""
    count = len(sizes)
    return OneDevice(
        cost=np.ones(count),
        work=np.full(count, work, np.int64),
        reads=Rows.of([[op - 1] if op else [] for op in range(count)]),
        writes=Rows.of([[op] for op in range(count)]),
        size=np.asarray(sizes, np.int64),
        keep=np.arange(count) == keep,
        inplace=Rows.of([[] for _ in range(count)]),
        recompute=np.ones(count, np.bool_),
    ).problem()


def two(problem: Problem, link: float = 0.5, **rest: object) -> Problem:
    copy = np.full((2, 2, problem.values), link)
    return on_devices(
        problem, Devices(np.concatenate([problem.cost, problem.cost * 2]), copy, **rest)
    )  # type: ignore[arg-type]


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(0, 10**6))
def test_one_device_is_the_single_device_problem(seed: int, ops: int, which: int) -> None:
    problem = random_problem(seed, ops)
    sequence = random_sequence(problem, which)
    schedule = Schedule.of(problem, sequence)
    assert schedule.sequence == tuple(sequence)
    assert schedule.placement == tuple(0 if keep else -1 for keep in problem.keep)
    use = bytes_of(problem, schedule, ledger(problem, schedule))
    assert use.tolist() == occupancy(problem, sequence).tolist()
    took = float(problem.cost[0, sequence].sum())
    assert sum(durations(problem, schedule.steps)) == pytest.approx(took)
    assert seconds(problem, schedule) == pytest.approx(took)
    assert makespan(problem, schedule, [int(use.max())]) == pytest.approx(took)
    lifted = on_devices(problem, Devices(problem.cost, np.full((1, 1, problem.values), inf)))
    assert occupancy(lifted, schedule).tolist() == use.tolist()


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 12), st.integers(0, 10**6))
def test_what_one_device_cannot_do_is_refused_alike(seed: int, ops: int, which: int) -> None:
    problem = random_problem(seed, ops)
    sequence = random_sequence(problem, which)
    for broken in (sequence[1:], sequence[:-1], sequence[::-1], [*sequence, *range(ops)]):
        schedule = Schedule.of(problem, broken)
        try:
            expected = bytes_of(problem, schedule, ledger(problem, schedule)).tolist()
        except InvalidScheduleError:
            with pytest.raises(InvalidScheduleError):
                occupancy(problem, broken)
        else:
            assert occupancy(problem, broken).tolist() == expected


def test_a_copy_takes_room_on_both_sides_and_counts_as_a_read() -> None:
    problem = two(chain([3, 5, 7]))
    steps = (Step(0, 0), Step(1, 0), Step(1, 1, 0), Step(2, 1))
    use = occupancy(problem, Schedule(steps, (-1, -1, -1)))
    assert use.tolist() == [[3, 8, 5, 0], [0, 0, 5, 12]]


def test_swapping_out_and_in_frees_the_gap() -> None:
    base = chain([10, 4, 4, 1])
    base = replace(base, reads=Rows.of([[], [0], [1], [0, 2]]))
    problem = two(base)
    kept = (Step(0, 0), Step(1, 0), Step(2, 0), Step(3, 0))
    swapped = (
        Step(0, 0), Step(1, 0), Step(0, 1, 0), Step(2, 0), Step(0, 0, 1), Step(3, 0),
    )  # fmt: skip
    none = (-1,) * 4
    assert occupancy(problem, Schedule(kept, none))[0].tolist() == [10, 14, 18, 15]
    assert occupancy(problem, Schedule(swapped, none)).tolist() == [
        [10, 14, 14, 8, 14, 15],
        [0, 0, 10, 10, 10, 0],
    ]


def test_results_are_held_on_their_device_and_weights_where_their_ops_run() -> None:
    base = chain([3, 5, 7], keep=1)
    uses = Rows.of([[0], [0], [1]])
    problem = two(base, uses=uses, weight=[100, 1000], required=[-1, 1, -1])
    steps = (Step(0, 0), Step(1, 0), Step(1, 1, 0), Step(2, 0))
    use = occupancy(problem, Schedule(steps, (-1, 1, -1)))
    assert use.tolist() == [[1103, 1108, 1105, 1112], [0, 0, 5, 5]]
    with pytest.raises(InvalidScheduleError, match="never comes to device 1"):
        occupancy(problem, Schedule((Step(0, 0), Step(1, 0), Step(2, 0)), (-1, 1, -1)))
    with pytest.raises(InvalidScheduleError, match="must end on device 1"):
        occupancy(problem, Schedule(steps, (-1, 0, -1)))


def test_a_given_input_takes_no_room_at_home() -> None:
    item = HostInput(size=9, home=1, readers=(0, 2), copy=np.full((2, 2), 0.25))
    problem = two(chain([3, 5, 7]), host_inputs=[item])
    assert problem.host_inputs == 1
    steps = (Step(0, 1), Step(3, 0, 1), Step(1, 0), Step(2, 0), Step(3, 0))
    use = occupancy(problem, Schedule(steps, (-1,) * 4))
    assert use.tolist() == [[0, 9, 12, 17, 21], [0, 0, 0, 0, 0]]
    assert seconds(problem, Schedule(steps, (-1,) * 4)) == pytest.approx(3.25)


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ((Step(0, 0), Step(1, 1), Step(2, 1)), "value 0 is not on device 1"),
        ((Step(0, 0), Step(1, 0)), "never run"),
        ((Step(0, 0), Step(0, 2), Step(1, 0), Step(2, 0)), "no such device"),
        ((Step(0, 0), Step(0, 0, 0), Step(1, 0), Step(2, 0)), "no such link"),
        ((Step(0, 0), Step(1, 0), Step(2, 1)), "cannot run there"),
        ((Step(0, 0), Step(1, 0), Step(1, 0), Step(2, 0)), "only once"),
        ((Step(0, 0), Step(0, 1, 0), Step(1, 1), Step(1, 0, 1), Step(2, 0)), "group 7 runs on"),
    ],
)
def test_schedules_that_cannot_be_carried_out_are_refused(
    steps: tuple[Step, ...], why: str
) -> None:
    base = chain([1, 1, 1])
    base = replace(base, recompute=np.asarray([True, False, True]))
    allowed = [[True] * 3, [True, True, False]]
    problem = two(base, allowed=allowed, group=[-1, 7, 7])
    with pytest.raises(InvalidScheduleError, match=why):
        occupancy(problem, Schedule(steps, (-1,) * 3))


@settings(max_examples=250, deadline=None)
@given(*CASES, st.booleans())
def test_compiled_evaluator_equals_the_reference(
    seed: int, ops: int, devices: int, which: int, fixed: bool
) -> None:
    problem = random_device_problem(seed, ops, devices=devices)
    schedule = random_schedule(problem, which, fixed_order=fixed)
    if schedule is None:
        return
    use = occupancy(problem, schedule)
    touched = np.zeros(use.shape, np.bool_)
    for step, move in enumerate(schedule.steps):
        touched[move.device, step] = True
        touched[move.source if not move.runs else move.device, step] = True
    for budgets in ([12] * devices, use.max(axis=1).tolist()):
        search = Search(ProblemLists(problem), budgets, free_order=not fixed)
        found = search.replay(schedule)
        assert found is not None
        assert list(found.peaks) == use.max(axis=1).tolist()
        assert found.seconds == pytest.approx(seconds(problem, schedule))
        over = np.maximum(use - np.asarray(budgets)[:, None], 0)
        assert found.area == over[touched].sum()
        assert found.makespan == pytest.approx(makespan(problem, schedule, budgets))


@settings(max_examples=60, deadline=None)
@given(*CASES)
def test_compiled_evaluator_refuses_what_the_reference_refuses(
    seed: int, ops: int, devices: int, which: int
) -> None:
    problem = random_device_problem(seed, ops, devices=devices)
    schedule = random_schedule(problem, which, fixed_order=False)
    if schedule is None:
        return
    search = Search(ProblemLists(problem), [50] * devices, free_order=True)
    for gone in range(len(schedule.steps)):
        rest = Schedule(schedule.steps[:gone] + schedule.steps[gone + 1 :], schedule.placement)
        try:
            ledger(problem, rest)
            valid = True
        except InvalidScheduleError:
            valid = False
        assert (search.replay(rest) is not None) == valid


def test_a_copy_with_a_toll_keeps_both_devices_from_their_next_ops() -> None:
    base = replace(chain([1, 1, 1, 1]), reads=Rows.of([[], [0], [], []]))
    schedule = Schedule((Step(0, 0), Step(2, 1), Step(0, 1, 0), Step(3, 0), Step(1, 1)), (-1,) * 4)
    toll = np.stack([np.full((2, 4), 0.25), np.full((2, 4), 0.5)])
    cost, copy = np.ones((2, 4)), np.full((2, 2, 4), 2.0)
    for given_toll, starts in ((None, [0, 0, 1, 1, 3]), (toll, [0, 0, 1, 1.25, 3])):
        problem = on_devices(base, Devices(cost, copy, copy_busy=given_toll))
        assert timing(problem, schedule, [9, 9]).start.tolist() == starts
        assert seconds(problem, schedule) == 6
    late = Schedule((Step(0, 0), Step(2, 1), Step(0, 1, 0), Step(3, 1), Step(1, 0)), (-1,) * 4)
    other = on_devices(base, Devices(cost, copy, copy_busy=toll))
    assert timing(other, late, [9, 9]).start.tolist() == [
        0, 0, 1, 1.5, 1.25,
    ]  # fmt: skip
    with pytest.raises(ValueError, match="copy_busy has an entry above"):
        on_devices(base, Devices(cost, copy, copy_busy=toll * 5))


@settings(max_examples=150, deadline=None)
@given(*CASES)
def test_streams_respect_inputs_order_and_memory(
    seed: int, ops: int, devices: int, which: int
) -> None:
    problem = random_device_problem(seed, ops, devices=devices)
    schedule = random_schedule(problem, which, fixed_order=False)
    if schedule is None:
        return
    budgets = peaks(problem, schedule).tolist()
    clock, book = timing(problem, schedule, budgets), ledger(problem, schedule)
    start, finish = clock.start, clock.finish
    assert np.allclose(finish - start, durations(problem, schedule.steps))
    assert clock.makespan <= seconds(problem, schedule) + 1e-9
    assert clock.makespan >= critical_path(problem) - 1e-9
    streams: dict[tuple[int, int], float] = {}
    made = np.zeros(len(book.instances))
    events: list[tuple[float, int, int, int]] = []  # time, frees first, device, bytes
    last = np.zeros(len(book.instances))
    for step, (item, device, source) in enumerate(schedule.steps):
        assert start[step] >= streams.get((source, device), 0.0)
        streams[source, device] = finish[step]
        assert all(start[step] >= made[i] for i in book.read[step])
        for instance in book.made[step]:
            made[instance] = finish[step]
            size = int(problem.size[device, book.instances[instance].value])
            events.append((start[step], 1, device, size))
        for instance in (*book.read[step], *book.made[step]):
            last[instance] = max(last[instance], finish[step])
        if source < 0:
            work = int(problem.work[device, item])
            events += [(start[step], 1, device, work), (finish[step], 0, device, -work)]
    taken = {i: step for step, i in enumerate(book.takeover) if i >= 0}
    for number, (value, device, _, death) in enumerate(book.instances):
        size = int(problem.size[device, value])
        if number in taken:  # its buffer is the output's from the start of that step
            events.append((start[taken[number]], 0, device, -size))
            others = [s for s, row in enumerate(book.read) if number in row and s != taken[number]]
            assert all(finish[s] <= start[taken[number]] for s in others)
        elif death < len(schedule.steps):
            events.append((last[number], 0, device, -size))
    live = book.resident.copy()
    for _, _, device, size in sorted(events):
        live[device] += size
        assert live[device] <= budgets[device]


@settings(max_examples=100, deadline=None)
@given(*CASES)
def test_plans_name_everything_and_come_back(seed: int, ops: int, devices: int, which: int) -> None:
    problem = random_device_problem(seed, ops, devices=devices)
    schedule = random_schedule(problem, which, fixed_order=False)
    if schedule is None:
        return
    schedule = without_unread(ProblemLists(problem), schedule)
    names = Names([f"op{i}" for i in range(problem.ops)], [f"v{i}" for i in range(problem.values)])
    plan = Plan.from_json(json.loads(to_plan(problem, schedule, names).dumps()))
    back = from_plan(problem, plan, names)

    def own(moves: Schedule) -> list[Step]:
        return [s for s in moves.steps if not (s.runs and s.item < problem.host_inputs)]

    assert own(back) == own(schedule)
    assert back.placement == schedule.placement
    assert peaks(problem, back).tolist() == peaks(problem, schedule).tolist()


def test_plan_counts_copies_over_devices_and_refuses_strangers() -> None:
    problem = two(chain([1, 1, 1]), names=("gpu", "cpu"))
    steps = (Step(0, 0), Step(1, 0), Step(0, 1), Step(0, 0, 1), Step(1, 0), Step(2, 0))
    names = Names(["a", "b", "c"], ["x", "y", "z"])
    plan = to_plan(problem, Schedule(steps, (-1,) * 3), names)
    assert Compute("a", 1, "cpu") in plan.steps
    assert Transfer("x", "cpu", "gpu", 1) in plan.steps
    with pytest.raises(UsageError, match="op 'a'"):
        from_plan(problem, plan, Names(["A", "b", "c"], ["x", "y", "z"]))


def test_lifting_checks_what_it_is_given() -> None:
    base = chain([1, 2, 3])
    copy = np.ones((2, 2, 3))
    for cost, rest, why in (
        (np.ones((2, 2)), {}, "cost has shape"),
        (-np.ones((2, 3)), {}, "negative"),
        (np.full((2, 3), inf), {}, "on no device"),
        (np.ones((2, 3)), {"required": [0, 0, 5]}, None),
        (np.ones((2, 3)), {"group": [0, 0]}, "group has shape"),
        (np.ones((16, 3)), {}, "16 devices: at most 15"),
    ):
        links = np.ones((len(cost), len(cost), 3)) if len(cost) != 2 else copy
        if why is None:
            on_devices(base, Devices(cost, links, **rest))  # type: ignore[arg-type]
            continue
        with pytest.raises(ValueError, match=why):
            on_devices(base, Devices(cost, links, **rest))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="on a device above"):
        on_devices(chain([1, 2, 3], keep=2), Devices(np.ones((2, 3)), copy, required=[-1, -1, 5]))


def test_copy_seconds_are_latency_and_bytes_over_bandwidth() -> None:
    took = copy_seconds([100, 0], [[0, 1], [2, 0]], [[5, 50], [0, 5]])
    assert took[0, 1].tolist() == [3.0, 1.0]
    assert np.isinf(took[1, 0]).all()
    assert np.isinf(took[0, 0]).all()


def test_first_runs_of_which_nothing_is_read_may_go() -> None:
    """The schedule stays one, takes no more of anything, and runs every op."""
    fewer = 0
    for seed in range(150):
        problem = random_device_problem(seed, 12, devices=1 + seed % 3, kept=0.1)
        schedule = random_schedule(problem, seed)
        if schedule is None:
            continue
        lists = ProblemLists(problem)
        before = without_unread(lists, schedule)
        after = without_unread(lists, schedule, first_runs=True)
        assert (peaks(problem, after) <= peaks(problem, before)).all()
        assert seconds(problem, after) <= seconds(problem, before)
        assert set(after.sequence) == set(range(problem.ops))
        fewer += len(after.steps) < len(before.steps)
    assert fewer > 10
