"""R and S of a plan against what its runs read, one by one."""

from __future__ import annotations

from random import Random

import pytest

from onnxremat.ort.infer import build_graph
from onnxremat.schedule.expand import resolve
from onnxremat.schedule.plan import Compute, Free, Plan, Transfer
from onnxremat.schedule.timesteps import timesteps
from tests.toolbox import graph_of, random_dag, random_sequence


@pytest.mark.parametrize("seed", range(25))
def test_one_device_against_the_reads(seed: int) -> None:
    graph = build_graph(random_dag(seed, 12))
    sequence = random_sequence(graph, Random(seed), 0.8)
    plan = Plan.of(graph, sequence)
    found = timesteps(graph, plan, ("cpu",))
    runs = resolve(graph, sequence)
    ends = [step for step, run in enumerate(runs) if run.copy == 0]
    assert found.ops == tuple(runs[step].op.name for step in ends)
    assert sum(found.computed.values()) == len(runs)
    for t in range(1, len(ends)):
        made = [pair for run in runs[: ends[t - 1] + 1] for pair in run.writes]
        read = {pair for run in runs[ends[t - 1] + 1 :] for pair in run.reads}
        held = {n for n, c in made if (n, c) in read or (n in graph.outputs and c == 0)}
        assert {value for _, at, value in found.stored if at == t} == held
        counts = [run.op.name for run in runs[ends[t - 1] + 1 : ends[t] + 1]]
        assert {op: n for (_, at, op), n in found.computed.items() if at == t} == {
            op: counts.count(op) for op in counts
        }


def test_two_devices_by_hand() -> None:
    """a on one, copied, b and c on two, a again on one for d, whose result is copied last."""
    graph = graph_of("""g (float[4] x) => (float[4] c, float[4] d) {
        a = Sin(x)
        b = Cos(a)
        c = Exp(b)
        d = Tanh(a)
    }""")
    a, b, c, d = (op.name for op in graph.ops)
    plan = Plan(
        (
            Compute(a, 0, "one"),
            Transfer("a", "one", "two"),
            Free("a", 0, "one"),
            Compute(b, 0, "two"),
            Free("a", 0, "two"),
            Compute(c, 0, "two"),
            Free("b", 0, "two"),
            Compute(a, 1, "one"),
            Compute(d, 0, "one"),
            Free("a", 1, "one"),
            Transfer("d", "one", "two"),
        )
    )
    found = timesteps(graph, plan)
    assert found.devices == ("one", "two")
    assert found.home == ("one", "two", "two", "one")
    assert found.computed == {
        ("one", 0, a): 1, ("two", 1, b): 1, ("two", 2, c): 1, ("one", 3, a): 1, ("one", 3, d): 1,
    }  # fmt: skip
    assert found.stored == {("one", 1, "a"), ("two", 2, "b"), ("two", 3, "c")}
    assert found.copies == ((1, "a", "one", "two"), (3, "d", "one", "two"))
