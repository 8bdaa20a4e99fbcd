"""Tasks in processes: answers, limits, failures and interrupts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from onnxremat.planner import workers
from onnxremat.planner.workers import Failure, run_tasks
from tests.limits import LONG

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
    return task


def patient(begun: str, stop: Stop) -> str:
    """Says that it has begun by a file, and goes on until it is stopped."""
    Path(begun).touch()
    while not stop():
        time.sleep(0.01)
    return "best so far"


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
    found = dict(run_tasks(misbehave, ["raise", "die", "fine"], jobs=2))
    assert found["fine"] == "fine"
    assert found["raise"] == Failure("no such thing")
    assert found["die"] == Failure("its process ended with code 7")


def test_a_task_that_never_answers_is_ended_at_its_limit_and_the_next_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workers, "GRACE", 0.1)
    found = list(run_tasks(misbehave, ["hang", "hang"], jobs=1, seconds=0.3))
    assert found == [("hang", Failure("no answer in 0.3 s", late=True))] * 2


def test_at_its_limit_a_task_is_asked_for_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the next one has a process that nobody has asked to stop."""
    monkeypatch.setattr(workers, "GRACE", LONG)
    begun = [str(tmp_path / str(k)) for k in range(2)]
    found = list(run_tasks(patient, begun, jobs=1, seconds=0.1))
    assert found == [(file, "best so far") for file in begun]


def test_stop_ends_early_with_what_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "GRACE", LONG)
    begun = [str(tmp_path / str(k)) for k in range(5)]
    both = lambda: all(Path(file).exists() for file in begun[:2])  # noqa: E731
    found = list(run_tasks(patient, begun, jobs=2, stop=both))
    assert sorted(found) == [(file, "best so far") for file in begun[:2]]
    assert sorted(tmp_path.iterdir()) == [Path(file) for file in begun[:2]]


def test_who_does_not_stop_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "GRACE", 0.1)
    assert list(run_tasks(misbehave, ["hang", "fine"], jobs=1, stop=stop_second_time())) == [
        ("hang", Failure("interrupted"))
    ]


def stop_second_time() -> Callable[[], bool]:
    """False when it is asked first, so that one task is begun."""
    asked = iter([False])
    return lambda: next(asked, True)


def test_leaving_early_ends_the_processes() -> None:
    tasks = run_tasks(misbehave, ["fine", "hang"], jobs=1)
    assert next(tasks) == ("fine", "fine")
    process = tasks.gi_frame.f_locals["idle"][0].process
    tasks.close()
    assert process.wait(timeout=LONG) != 0
    until = time.monotonic() + LONG
    while not (process.stdin.closed and process.stdout.closed):  # nor does a thread wait for it
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.parametrize("jobs", [1, 3])
def test_nothing_to_do(jobs: int) -> None:
    assert list(run_tasks(square, [], jobs=jobs)) == []
