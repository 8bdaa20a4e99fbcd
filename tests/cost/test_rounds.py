"""Costs measured on a machine that does other things, too: by scripted clocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from onnxremat.cost import measure, rounds
from onnxremat.cost.analytic import estimated_at
from onnxremat.cost.measure import Measuring, measure_costs
from onnxremat.cost.rounds import Rounds
from onnxremat.graph.ir import Graph
from onnxremat.ort.profile import Kernel, Profile
from tests.toolbox import graph_of

SLOW, QUICK = 12.5e-3, 0.6e-3
Script = Sequence[dict[str, Sequence[float]]]  # per profile the seconds of the runs of each op type


@pytest.fixture
def graph() -> Graph:
    return graph_of("g (float[8] x) => (float[8] y) { a = Sin(x) b = Sin(a) y = Cos(b) }")


@pytest.fixture(autouse=True)
def _as_delivered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(rounds, "SPREAD", 0.25)
    monkeypatch.setattr(rounds, "UNDISTURBED", 0.9)
    monkeypatch.setenv("ONNXREMAT_CACHE", str(tmp_path))


def _clocked(
    patch: pytest.MonkeyPatch, graph: Graph, script: Script, core: float = 1.0
) -> list[int]:
    """Let ops take what a script says; the list fills with the runs of each profile."""
    asked: list[int] = []

    class Scripted:
        def __init__(self, *_: object) -> None:
            self.left: Iterator[dict[str, Sequence[float]]] = iter(script)

        def runs(self) -> list[tuple[float, float]]:
            return [(2.0, 0.2), (1.0, core)]

        def profiled(self, runs: int) -> Profile:
            asked.append(runs)
            times = next(self.left)
            kernels = tuple(
                Kernel(op.name, op.op_type, 0.0, 0, 0, (), "", tuple(times[op.op_type]))
                for op in graph.ops
            )
            return Profile(kernels, 0, 0, {})

    patch.setattr(measure, "Meter", Scripted)
    return asked


def _seconds(graph: Graph, **given: bool) -> tuple[dict[str, float], str, tuple[str, ...]]:
    table, _ = measure_costs(graph, {}, Measuring(**given), threads=1)
    by_type = {op.op_type: table.seconds[op.name] - table.dispatch for op in graph.ops}
    return by_type, table.source, table.notes


def test_rounds_that_agree_are_kept(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run in each round that was disturbed does no harm."""
    times = {"Sin": (SLOW, QUICK, QUICK, SLOW), "Cos": (QUICK,) * 4}
    asked = _clocked(monkeypatch, graph, [times])
    seconds, source, notes = _seconds(graph)
    assert seconds == pytest.approx({"Sin": QUICK, "Cos": QUICK})
    assert (source, notes, len(asked)) == ("measured", (), 1)
    assert _seconds(graph)[1] == "cached"


def test_what_rounds_do_not_say_alike_is_measured_again(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    disturbed = {"Sin": (SLOW, SLOW, QUICK, QUICK), "Cos": (QUICK,) * 4}
    quiet = {"Sin": (QUICK, QUICK), "Cos": (QUICK, QUICK)}
    asked = _clocked(monkeypatch, graph, [disturbed, quiet])
    seconds, _, notes = _seconds(graph)
    assert seconds == pytest.approx({"Sin": QUICK, "Cos": QUICK})
    assert (notes, len(asked)) == ((), 2)
    assert _seconds(graph)[1] == "cached"


def test_what_never_agrees_is_used_but_not_kept(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = [
        {"Sin": (SLOW, SLOW, 2 * SLOW, 2 * SLOW), "Cos": (QUICK,) * 4},
        {"Sin": (4 * SLOW,), "Cos": (QUICK,)},
        {"Sin": (8 * SLOW,), "Cos": (QUICK,)},
    ]
    _clocked(monkeypatch, graph, busy)
    seconds, _, (note,) = _seconds(graph)
    assert seconds["Sin"] == pytest.approx(SLOW)
    assert "measured again next time" in note
    _clocked(monkeypatch, graph, [{"Sin": (QUICK,) * 4, "Cos": (QUICK,) * 4}])
    seconds, source, notes = _seconds(graph)
    assert (seconds["Sin"], source, notes) == (pytest.approx(QUICK), "measured", ())


def test_nothing_is_kept_of_runs_that_all_waited_for_a_core(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rounds may be wrong alike then."""
    times = {"Sin": (SLOW,) * 4, "Cos": (QUICK,) * 4}
    _clocked(monkeypatch, graph, [times], core=0.6)
    note = _seconds(graph)[2][0]
    assert "the costs of 100% of a run" in note
    _clocked(monkeypatch, graph, [{"Sin": (QUICK,) * 4, "Cos": (QUICK,) * 4}])
    assert _seconds(graph)[1:] == ("measured", ())


def test_costs_keep_a_time_limit(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of a second: few of them in the time there is, no third round; none where all together
    take longer, then costs are what is known and estimates, which is said."""
    busy = {"Sin": (SLOW, 2 * SLOW), "Cos": (QUICK, QUICK)}
    asked = _clocked(monkeypatch, graph, [busy])
    table, run = measure_costs(graph, {}, Measuring(within=2.5), threads=1)
    assert (table.source, asked, run is None) == ("measured", [2], False)
    estimate = estimated_at(graph, 1.0)
    assert estimate.total == pytest.approx(1.0)
    table, run = measure_costs(graph, {}, Measuring(within=5.0), threads=1, estimate=estimate)
    assert (table.source, run) == ("estimated", None)
    by_type = {op.op_type: table.seconds[op.name] for op in graph.ops}
    assert by_type["Cos"] < 0.1  # kept, the rounds agreed
    assert by_type["Sin"] == pytest.approx(1 / 3)
    assert "costs of 67% of a run are estimated" in table.notes[0]
    assert "--time-limit" in table.notes[0]


def test_what_is_kept_is_not_replaced_by_what_is_doubtful(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ops of equal signature cost the same, whichever model they are in."""
    _clocked(monkeypatch, graph, [{"Sin": (QUICK,) * 4, "Cos": (QUICK,) * 4}])
    _seconds(graph)
    other = graph_of("g (float[8] x) => (float[8] y) { a = Sin(x) y = Tan(a) }")
    _clocked(monkeypatch, other, [{"Sin": (SLOW,) * 4, "Tan": (SLOW,) * 4}], core=0.5)
    seconds, source, notes = _seconds(other)
    assert (seconds["Sin"], source) == (pytest.approx(QUICK, rel=0.1), "measured")
    assert notes
    assert _seconds(graph)[1] == "cached"
    _clocked(monkeypatch, graph, [{"Sin": (SLOW,) * 4, "Cos": (QUICK,) * 4}])
    assert _seconds(graph, fresh=True)[0]["Sin"] == pytest.approx(SLOW)  # agreed on: replaced


def test_ops_of_one_signature_cost_the_same() -> None:
    found = Rounds({"a": "conv", "b": "conv", "c": "conv"})
    found.add([("a", (3.0, 9.0)), ("b", (1.0, 7.0)), ("c", (2.0, 2.0)), ("other", (9.0,))])
    assert found.seconds == {"conv": 2.0}
    assert found.disagree == {"conv"}  # one round alone says nothing


def test_little_may_differ() -> None:
    """Two calls of a kernel are no sign of another process."""
    found = Rounds({"a": "a"}, {"a": [1e-6, 1.5e-5]})
    assert not found.disagree
    assert not found.notes()
