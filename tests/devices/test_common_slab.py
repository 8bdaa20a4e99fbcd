"""One slab for all sessions of an executor: the same bits, no byte of two live blocks, no page that
comes anew."""

from __future__ import annotations

import gc
import resource
import time
from random import Random
from typing import Any

import numpy as np
import pytest

from onnxremat.execute.common_slab import SharedSlab
from onnxremat.execute.executor import Executor, Kept
from onnxremat.execute.streams import stream_names
from onnxremat.graph.ir import Graph
from onnxremat.memory.native import HANDED_ON, missing
from onnxremat.memory.session import SlabSession
from onnxremat.ort.feeds import seeded_feeds
from onnxremat.ort.infer import build_graph
from onnxremat.rewrite.partition import Copy, Partitioned, partition
from onnxremat.schedule.assign import assigned, round_robin
from onnxremat.schedule.devices import follow
from tests.devices.plans import processors, random_plan
from tests.toolbox import graph_of, random_dag, run, training_chain

MACHINE = processors(3)
pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


def random_parts(seed: int, ops: int = 16) -> tuple[Graph, Partitioned]:
    graph = build_graph(random_dag(seed, ops))
    return graph, partition(follow(graph, random_plan(graph, Random(seed), MACHINE)))


def slabs(executor: Executor) -> list[SlabSession]:
    sessions = [stage.session for stage in executor.stages.values()]
    return [session for session in sessions if isinstance(session, SlabSession)]


def shared(executor: Executor) -> SharedSlab:
    assert executor._shared is not None
    return executor._shared


def dawdling(executor: Executor, seed: int) -> None:
    """Partitions begin late, each by another time: streams meet in other places."""
    for index, stage in executor.stages.items():
        chance, original = Random(seed * 1000 + index), stage.run

        def later(fresh: Any, chance: Random = chance, original: Any = original) -> Any:
            time.sleep(chance.random() * 2e-3)
            return original(fresh)

        stage.run = later  # type: ignore[method-assign]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_every_run_gives_the_same_bits_in_one_slab(seed: int, overlap: bool) -> None:
    graph, parts = random_parts(seed)
    feeds = [seeded_feeds(graph, seed) for seed in range(4)]
    with Executor(parts, MACHINE, overlap=overlap) as executor:
        dawdling(executor, seed)
        found = [executor.run(each) for each in feeds]
        assert shared(executor).bytes
        assert shared(executor).settled
        assert sum(session._slab.counts()["differed"] for session in slabs(executor)) == 0
        assert {session._slab.counts()["slab"] for session in slabs(executor)} == {0}
    # All of them are looked at last: results that a caller holds are not written over.
    for number, results in enumerate(found):
        for name, value in run(graph, seed=number).outputs.items():
            assert np.array_equal(results[name], value, equal_nan=True), (number, name)


class Placed:
    """What sessions were told of their places, by action."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: list[tuple[Any, Any]] = []
        place = SlabSession.place

        def noted(session: SlabSession, events: Any, offset: Any, fate: Any, common: Any) -> None:
            self.rows.append((offset, fate))
            place(session, events, offset, fate, common)

        monkeypatch.setattr(SlabSession, "place", noted)


def readers(parts: Partitioned, executor: Executor, index: int, name: str) -> set[int]:
    """Actions that hold a result, followed by hand: through every copy within one memory."""
    found, known = {index}, {(name, parts.actions[index].device)}
    for later in range(index + 1, len(parts.actions)):
        action = parts.actions[later]
        if isinstance(action, Copy):
            if (action.value, action.source) in known:
                found.add(later)
                known.add((action.value, action.target))
        elif any((each, action.device) in known for each in action.graph.inputs):
            found.add(later)
    return found


@pytest.mark.parametrize("seed", range(30))
def test_no_two_live_blocks_meet_however_streams_run(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed = Placed(monkeypatch)
    graph, parts = random_parts(seed, 24)
    noted: dict[int, dict[int, set[str]]] = {}
    asked: dict[int, Any] = {}
    original = SharedSlab._lay_out

    def watched(slab: SharedSlab) -> None:
        asked.update(slab._events)
        for index in slab._events:
            for name, slot in slab._slots[index].items():
                noted.setdefault(index, {}).setdefault(slot, set()).add(name)
        original(slab)

    monkeypatch.setattr(SharedSlab, "_lay_out", watched)
    with Executor(parts, MACHINE, overlap=True) as executor:
        executor.run(seeded_feeds(graph))
    pairs = zip(sorted(noted), placed.rows, strict=True)
    rows = {index: (asked[index], *row) for index, row in pairs}
    holders = {
        (index, slot): set().union(*(readers(parts, executor, index, name) for name in names))
        for index, slots in noted.items()
        for slot, names in slots.items()
        if rows[index][2][slot] == HANDED_ON
    }
    for draw in range(8):
        _one_interleaving(parts, rows, holders, Random(draw))


def _one_interleaving(
    parts: Partitioned, rows: dict[int, Any], holders: dict[Any, set[int]], chance: Random
) -> None:
    """Streams take turns, event by event, as chance will have it."""
    names = stream_names(parts, MACHINE)
    streams = {n: [i for i, name in enumerate(names) if name == n] for n in dict.fromkeys(names)}
    inside: dict[str, list[tuple[int, int]]] = {name: [] for name in streams}
    begun: dict[str, int] = {}
    done: set[int] = set()
    live: dict[tuple[int, int], tuple[int, int]] = {}  # begin and end
    while any(streams.values()) or begun:
        ready = [n for n, row in streams.items() if n in begun
                 or (row and set(parts.after[row[0]]) <= done)]  # fmt: skip
        name = chance.choice(ready)
        if name not in begun:
            begun[name] = index = streams[name].pop(0)
            inside[name] = (
                [tuple(event) for event in rows[index][0].tolist()] if index in rows else []
            )
        index = begun[name]
        if inside[name]:
            size, slot = inside[name].pop(0)
            if not size:
                live.pop((index, slot), None)
            elif rows[index][2][slot] in (0, HANDED_ON):
                begin = int(rows[index][1][slot])
                for other, (first, last) in live.items():
                    assert begin >= last or begin + size <= first, (index, slot, other)
                live[index, slot] = (begin, begin + size)
            continue
        del begun[name]
        done.add(index)
        for block, held in holders.items():
            if held <= done:
                live.pop(block, None)
    assert not live


def test_a_run_that_asks_for_other_bytes_ends_it() -> None:
    """How many elements are found is known in a run alone."""
    graph = graph_of("""g (float[4096] x) => (float[4096] y) {
        two = Constant <value = float {2}> ()
        big = Greater(x, two)
        at = NonZero(big)
        n = Size(at)
        c = Cast <to = 1> (n)
        s = Sin(x)
        y = Add(s, c)
    }""")
    machine = processors(2)
    kinds = {op.name: op.op_type for op in graph.ops}
    device_of = {n: f"cpu:{int(kind in ('Sin', 'Add'))}" for n, kind in kinds.items()}
    parts = partition(follow(graph, assigned(graph, device_of, machine)))
    few, many = np.zeros(4096, np.float32), np.full(4096, 3, np.float32)
    with Executor(parts, machine) as executor:
        executor.run({"x": few})
        assert shared(executor).bytes
        for x in (few, many, few, many):
            assert np.allclose(executor.run({"x": x})["y"], np.sin(x) + (x > 2).sum())
        assert not shared(executor).bytes


def test_after_a_run_that_failed_the_next_one_is_right() -> None:
    graph, parts = random_parts(5)
    wanted, feeds = run(graph).outputs, seeded_feeds(graph)
    with Executor(parts, MACHINE, overlap=True) as executor:
        executor.run(feeds)
        last = executor.stages[max(executor.stages)]
        original = last.run
        last.run = lambda fresh: 1 / 0  # type: ignore[method-assign]
        with pytest.raises(Exception, match="does not run") as held:
            executor.run(feeds)
        last.run = original  # type: ignore[method-assign]
        gc.collect()
        common = shared(executor)._common
        assert common is not None
        assert common.live == 0  # the error that is kept holds no values
        for _ in range(2):
            found = executor.run(feeds)
            for name, value in wanted.items():
                assert np.array_equal(found[name], value, equal_nan=True)
        assert "does not run" in str(held.value)
        assert shared(executor)._common is common
        assert common.live == 0


def test_pages_stay_and_take_no_more_than_slabs_given_back() -> None:
    graph = training_chain(4, width=256, batch=512)
    machine = processors(2)
    parts = partition(follow(graph, assigned(graph, round_robin(graph, machine.names), machine)))
    feeds, limits = seeded_feeds(graph), dict.fromkeys(machine.names, 1 << 40)
    with Executor(parts, machine, kept=Kept(limits=limits)) as executor:
        for _ in range(3):
            executor.run(feeds)
        slab = shared(executor)
        held = {i: stage.session.slab_bytes for i, stage in executor.stages.items()}
        assert 0 < slab.bytes <= slab._order.worst(held) < sum(held.values())
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(4):
            executor.run(feeds)
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
        # Slabs that are given back come anew at every run; results do here too.
        assert faults < 4 * sum(held.values()) / 4096 / 3


def test_partitions_carried_out_one_by_one_have_slabs_of_their_own() -> None:
    graph, parts = random_parts(7)
    feeds, wanted = seeded_feeds(graph), run(graph).outputs
    with Executor(parts, MACHINE, overlap=False) as executor:
        for _ in range(2):
            executor.run(feeds)
        first, second = executor.begun(feeds), executor.begun(feeds)
        for index in range(len(parts.actions)):  # two runs are on at once
            executor.carry(index, first)
            executor.carry(index, second)
        for held in (first, second):
            found = executor.results(held)
            assert all(np.array_equal(found[name], value) for name, value in wanted.items())
        assert not shared(executor).settled  # which is for one run at a time


def test_what_has_one_place_in_all_runs_is_bound_once(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = training_chain(4, width=64, batch=32)
    machine = processors(2)
    parts = partition(follow(graph, assigned(graph, round_robin(graph, machine.names), machine)))
    bound: list[str] = []
    with Executor(parts, machine) as executor:
        for stage in executor.stages.values():
            original = stage.run

            def counted(fresh: Any, original: Any = original) -> Any:
                bound.extend(name for name, _ in fresh)
                made = original(fresh)
                bound.extend("made" for _ in made)
                return made

            monkeypatch.setattr(stage, "run", counted)
        first = executor.run(seeded_feeds(graph))
        handed, results = len(bound), len(first)
        bound.clear()
        again = executor.run(seeded_feeds(graph))
        assert len(bound) == results < handed  # the model's results alone
        assert all(np.array_equal(again[name], value) for name, value in first.items())


def test_a_slab_over_the_limits_is_left_out_and_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, parts = random_parts(3)
    feeds, wanted = seeded_feeds(graph), run(graph).outputs
    kept = Kept(limits=dict.fromkeys(MACHINE.names, 1 << 40))
    with Executor(parts, MACHINE, kept=kept) as executor:
        executor.run(feeds)
        size = shared(executor).bytes
        assert size > 0
        assert shared(executor).crowded == 0
    monkeypatch.setattr("onnxremat.execute.common_slab.Order.worst", lambda *_: size - 64)
    with Executor(parts, MACHINE, kept=kept) as executor:
        for _ in range(2):
            found = executor.run(feeds)
            assert all(np.array_equal(found[name], value) for name, value in wanted.items())
        assert shared(executor).bytes == 0
        assert shared(executor).crowded >= 64  # and blocks of their own
