"""Tasks in processes: answers, limits, failures and interrupts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from onnxremat.plan.workers import Failure, run_tasks

Stop = Callable[[], bool]


def square(task: int, stop: Stop) -> int:
    print("noise on stdout must not reach the caller's pipe")
    return task * task


def misbehave(task: str, stop: Stop) -> Any:
    if task == "raise":
        raise ValueError("no such thing")
    if task == "die":
        os._exit(7)
    while task == "hang":
        time.sleep(0.05)
    if task == "patient":
        until = time.monotonic() + 60
        while not stop() and time.monotonic() < until:
            time.sleep(0.01)
        return "best so far"
    return task


def test_answers_come_with_their_tasks() -> None:
    assert dict(run_tasks(square, range(6), jobs=2)) == {k: k * k for k in range(6)}


def test_tasks_may_depend_on_earlier_answers() -> None:
    seen: list[int] = []

    def tasks() -> Iterator[int]:
        yield 2
        yield seen[-1]
        yield seen[-1]

    for _, answer in run_tasks(square, tasks(), jobs=1):
        seen.append(answer)
    assert seen == [4, 16, 256]


def test_failures_are_answers_and_others_go_on() -> None:
    tasks = ["raise", "die", "hang", "fine"]
    found = dict(run_tasks(misbehave, tasks, jobs=2, seconds=2.5))
    assert found["fine"] == "fine"
    assert found["raise"] == Failure("no such thing")
    assert found["die"] == Failure("its process ended with code 7")
    assert found["hang"] == Failure("no answer in 2.5 s")


def test_stop_ends_early_with_what_was_found() -> None:
    begin = time.monotonic()
    stop = lambda: time.monotonic() > begin + 1.5  # noqa: E731
    found = list(run_tasks(misbehave, ["patient"] * 5, jobs=2, stop=stop))
    assert found == [("patient", "best so far")] * 2
    assert time.monotonic() - begin < 6


def test_leaving_early_ends_the_processes() -> None:
    tasks = run_tasks(misbehave, ["fine", "hang"], jobs=1)
    assert next(tasks) == ("fine", "fine")
    workers = tasks.gi_frame.f_locals["idle"]
    process = workers[0].process
    tasks.close()
    assert process.wait(timeout=5) != 0


@pytest.mark.parametrize("jobs", [1, 3])
def test_nothing_to_do(jobs: int) -> None:
    assert list(run_tasks(square, [], jobs=jobs)) == []
