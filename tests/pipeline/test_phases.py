"""Every moment counts for one phase."""

from __future__ import annotations

from contextlib import suppress
from math import inf

from onnxremat.pipeline.phases import LOAD, Phases


def test_a_phase_inside_another_counts_for_itself_alone() -> None:
    now, worked = [0.0], [0.0]
    told: list[str] = []
    ended: list[tuple[str, float]] = []
    log = Phases(told.append, lambda: now[0], lambda *phase: ended.append(phase), lambda: worked[0])

    def wait(seconds: float) -> None:
        now[0] += seconds

    wait(100)  # before any phase
    with log.phase("read", "reading"):
        wait(1)
        with log.phase("measure"):
            wait(2)
        wait(3)
    wait(100)
    with suppress(ValueError), log.phase("plan"):
        wait(4)
        raise ValueError
    with log.phase("read"):
        wait(5)
    log("done")
    assert log.seconds == {"read": 9, "measure": 2, "plan": 4}
    assert told == ["reading", "done"]
    assert ended == [("measure", 2), ("read", 4), ("plan", 4), ("read", 9)]
    log.end_within(7)
    wait(8)
    assert log.left == -1
    with log.phase(LOAD):
        wait(20)  # the search is compiled, for which no limit is
        worked[0] += 10
    assert log.left == -1
    assert log.unhindered == 7
    worked[0] += 4
    assert log.unhindered == 3
    worked[0] += 9
    assert log.unhindered == -1  # more than one thread has worked
    assert Phases().left == inf
    assert Phases.of(log) is log
    assert Phases.of(None).seconds == {}
