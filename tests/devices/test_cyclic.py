"""Samples that come back to a device: rounds, against a simulation of the threads; and run."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxremat.cost.analytic import analytic_costs
from onnxremat.errors import UsageError
from onnxremat.execute.cyclic import Rounds, cyclic
from onnxremat.execute.deployment import Deployment, deploy_pipeline
from onnxremat.execute.in_flight import places
from onnxremat.execute.metered import record
from onnxremat.execute.partition_cuts import Terms
from onnxremat.execute.pipelined import Event, Flow, pipeline_stages
from onnxremat.ort.feeds import seeded_feeds
from onnxremat.pipeline.devices.over_devices import run_whole
from onnxremat.pipeline.devices.pieces import Pieces, in_pieces
from onnxremat.placement.graph import PlacementGraph
from onnxremat.schedule.assign import assigned
from tests.devices.plans import processors
from tests.toolbox import graph_of

Piece = tuple[str, int]  # device, seconds
Arrays = dict[str, np.ndarray]


@dataclass
class Threads:
    """What the threads of a pipeline do, by the clock: each waits for the sample, then for room
    behind; a sample enters when there is room for one more."""

    way: list[Piece]
    rounds: Rounds
    in_flight: int
    samples: int
    begins: dict[tuple[int, int], float] = field(default_factory=dict)
    ends: dict[tuple[int, int], float] = field(default_factory=dict)

    def rate(self) -> float:
        """Seconds per sample of a full pipeline; fails where the threads stand still."""
        doing = {device: self._work(device) for device in dict.fromkeys(d for d, _ in self.way)}
        free = dict.fromkeys(doing, 0.0)
        going = True
        while going:
            going = False
            for device, work in doing.items():
                while work and self._can(*work[0], free[device]):
                    going = True
                    room = self._room(*work[0])
                    if room is None:
                        break
                    free[device] = max(self.ends[work.pop(0)], room)
        assert not any(doing.values())
        last, half = len(self.way) - 1, self.samples // 2
        before = self.ends.get((last, half - 1), 0.0)
        return (self.ends[last, self.samples - 1] - before) / (self.samples - half)

    def _work(self, device: str) -> list[tuple[int, int]]:
        own = [stage for stage, (name, _) in enumerate(self.way) if name == device]
        found = [
            (stage, number - lag)
            for number in range(self.samples + max(self.rounds.lags))
            for stage, lag in self.rounds.of(own)
        ]
        return [item for item in found if 0 <= item[1] < self.samples]

    def _can(self, stage: int, sample: int, free: float) -> bool:
        """Whether it has begun, or begins now."""
        if (stage, sample) in self.begins:
            return self._room(stage, sample) is not None
        before = (stage - 1, sample) if stage else (len(self.way) - 1, sample - self.in_flight)
        if before[1] >= 0 and before not in self.ends:
            return False
        self.begins[stage, sample] = max(free, self.ends.get(before, 0.0))
        self.ends[stage, sample] = self.begins[stage, sample] + self.way[stage][1]
        return True

    def _room(self, stage: int, sample: int) -> float | None:
        """When there is room behind; None as long as that is not known."""
        if stage == len(self.way) - 1 or sample < self.rounds.queues[stage]:
            return 0.0
        return self.begins.get((stage + 1, sample - self.rounds.queues[stage]))


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 6)), min_size=2, max_size=8),
    st.integers(1, 8),
)
def test_rounds_pass_a_sample_per_period_and_never_stand_still(
    drawn: list[Piece], in_flight: int
) -> None:
    way = [next(row) for _, row in itertools.groupby(drawn, lambda one: one[0])]
    devices, seconds = zip(*way, strict=True)
    rounds = cyclic(devices, seconds, in_flight)
    loads = [sum(took for name, took in way if name == device) for device in set(devices)]
    assert rounds.period >= max(*loads, sum(seconds) / in_flight) * (1 - 1e-9)
    assert Threads(way, rounds, in_flight, 40).rate() <= rounds.period * (1 + 1e-6)
    for few in (1, 2, 3):
        Threads(way, rounds, in_flight, few).rate()
    # With a sample for every stage the largest load is always reached.
    enough = cyclic(devices, seconds, 2 * len(way))
    assert enough.period == pytest.approx(max(loads), rel=1e-4, abs=1e-4)


def test_a_round_by_hand() -> None:
    """The second device is at work for the whole period: the first does its last piece for the
    sample before, while that one works."""
    rounds = cyclic("aba", (3, 6, 3), 2)
    assert rounds == Rounds((0, 0, 1), (0, 1, 2), (1, 1), 6.0)
    one = cyclic("aba", (3, 6, 3), 1)  # one sample at a time
    assert one.lags == (0, 0, 0)
    assert one.period == pytest.approx(12, rel=1e-4)


def test_pieces_are_as_few_as_can_be() -> None:
    """Two branches that start on one device and end on another are two pieces, and a third."""

    class Branches:
        count = 5
        inputs = ([], [0], [], [2], [1, 3])
        readers = ([1], [4], [3], [4], [])

    made = cast(PlacementGraph, Branches)
    assert in_pieces(made, [0, 1, 0, 1, 0]) == Pieces((0, 1, 0, 1, 2), (0, 1, 0))
    assert in_pieces(made, [1, 1, 0, 0, 2]).devices in ((0, 1, 2), (1, 0, 2))


OPS = ("Abs", "Neg", "Exp", "Sqrt", "Sigmoid", "Tanh", "Sin", "Cos")


@pytest.fixture(scope="module")
def back() -> Deployment:
    """A chain of ops whose samples come back twice to both of two devices."""
    return placed("aabbbaba")


def placed(homes: str, in_flight: int = 5, *, shared: bool = True) -> Deployment:
    names = ["x", *(f"v{number}" for number in range(len(OPS) - 1)), "y"]
    lines = " ".join(f"{names[i + 1]} = {kind}({names[i]})" for i, kind in enumerate(OPS))
    graph = graph_of(f"g (float[64] x) => (float[64] y, float[64] v2) {{ {lines} }}")
    machine = processors(len(set(homes)), shared=shared)
    home = {
        op.name: f"cpu:{'abc'.index(device)}" for op, device in zip(graph.ops, homes, strict=True)
    }
    tables = dict.fromkeys(machine.names, analytic_costs(graph))
    plan = assigned(graph, home, machine)
    return deploy_pipeline(graph, plan, machine, tables, Terms(), Flow(in_flight))


def samples_of(made: Deployment, count: int) -> tuple[list[Arrays], list[Arrays]]:
    given = [seeded_feeds(made.graph, seed) for seed in range(count)]
    return given, [run_whole(made.graph, sample, made) for sample in given]


def assert_same(found: list[Arrays], expected: list[Arrays]) -> None:
    for one, other in zip(found, expected, strict=True):
        for name in other:
            np.testing.assert_array_equal(one[name], other[name])


def interrupted(samples: list[Arrays]) -> Iterator[Arrays]:
    yield from samples
    raise KeyboardInterrupt


@pytest.mark.parametrize("in_flight", [1, 2, 3, 8])
def test_outputs_are_one_sessions_and_in_order(back: Deployment, in_flight: int) -> None:
    """Also of fewer samples than a round has, after one that was left early or went wrong."""
    given, expected = samples_of(back, 9)
    before = set(threading.enumerate())
    with back.pipeline(in_flight) as pipeline:
        assert len(set(threading.enumerate()) - before) == 2
        assert len(pipeline.stages) == 5
        for count in (9, 1, 0, 2):
            assert_same(list(pipeline.map(given[:count])), expected[:count])
        outputs = pipeline.map(given)
        assert_same(list(itertools.islice(outputs, 2)), expected[:2])
        outputs.close()  # type: ignore[attr-defined]
        outputs = pipeline.map([*given[:3], {}, *given[3:]])
        assert_same(list(itertools.islice(outputs, 3)), expected[:3])
        with pytest.raises(UsageError, match="no value for input") as error:
            next(outputs)
        assert error.value.where == "sample 3"
        with pytest.raises(KeyboardInterrupt):
            list(pipeline.map(interrupted(given[:2])))
        outputs = pipeline.map(given)
        assert_same([next(outputs)], expected[:1])
    with pytest.raises(UsageError, match="closed"):
        next(outputs)
    assert set(threading.enumerate()) == before


@pytest.mark.parametrize(("homes", "shared"), [("abacabca", True), ("abcabcab", True),
                                               ("aabbbaba", False)])  # fmt: skip
def test_three_devices_and_links_that_copy(homes: str, shared: bool) -> None:
    made = placed(homes, shared=shared)
    names = [stage.name for stage in pipeline_stages(made.parts, made.machine)]
    assert len(names) > len(set(names))
    given, expected = samples_of(made, 7)
    with made.pipeline() as pipeline:
        assert_same(list(pipeline.map(given)), expected)


@pytest.mark.parametrize("shared", [True, False])
def test_no_more_is_held_than_was_counted(shared: bool) -> None:
    """A device works on one of its stages at a time: of their bytes the most counts once. A link
    holds nothing."""
    made = placed("aabbbaba", shared=shared)
    given, _ = samples_of(made, 9)
    log: list[Event] = []
    with made.pipeline(log=log) as pipeline:
        list(pipeline.map(given))
    found = record(made.parts, made.machine, given[0], folder=made.folder)
    counted = places(made.parts, made.machine, found.inside, made.rounds(5))
    seen, most = counted.seen(log), counted.most(5)
    assert made.worst == most
    for name in made.machine.names:
        assert counted.resident[name] < seen[name] <= most[name]
        own = {number for number, stage in enumerate(pipeline.stages) if stage.name == name}
        rows = sorted((event.begin, event.end) for event in log if event.stage in own)
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(rows))
