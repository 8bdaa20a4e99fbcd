"""Random plans over devices: same results as one session, planned order, bytes as predicted."""

from __future__ import annotations

import gc
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import onnx
import pytest

import onnxremat.execute.executor as executor_module
from onnxremat.cost.table import CostTable
from onnxremat.device.machine import Machine
from onnxremat.errors import ModelError, OverBudgetError, UsageError
from onnxremat.execute.action_times import action_seconds
from onnxremat.execute.deployment import Deployment, deploy, read_deployment
from onnxremat.execute.device_memory import device_bytes
from onnxremat.execute.executor import Executor, Kept
from onnxremat.execute.inside import insides
from onnxremat.execute.metered import record
from onnxremat.execute.partition_cuts import Terms
from onnxremat.execute.streams import before, finish_times, stream_names
from onnxremat.execute.waits import waits_within, worst_case
from onnxremat.graph.ir import Graph
from onnxremat.ort.feeds import seeded_feeds
from onnxremat.ort.infer import build_graph
from onnxremat.pipeline.verify import verify_deployment
from onnxremat.rewrite.partition import Copy, Partition, Partitioned, partition
from onnxremat.schedule.assign import assigned, by_pattern, earliest_finish, round_robin, split
from onnxremat.schedule.devices import follow
from onnxremat.schedule.plan import Compute, Free, Plan, Transfer
from tests.devices.plans import processors, random_plan
from tests.limits import LONG
from tests.toolbox import graph_of, random_dag, run, training_chain

MACHINE = processors(3)


def parts_of(graph: Graph, plan: Plan) -> Partitioned:
    return partition(follow(graph, plan))


def costs(graph: Graph, machine: Machine, seconds: float = 1e-4) -> dict[str, CostTable]:
    table = CostTable({op.name: seconds for op in graph.ops}, {}, "given")
    return dict.fromkeys(machine.names, table)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("shared", [True, False])
def test_random_plans_give_the_same_bits(seed: int, shared: bool) -> None:
    graph = build_graph(random_dag(seed))
    machine = processors(3, shared=shared)
    plan = random_plan(graph, Random(seed), machine)
    parts = parts_of(graph, plan)
    feeds, wanted = seeded_feeds(graph), run(graph).outputs
    for overlap in (False, True):
        with Executor(parts, machine, overlap=overlap) as executor:
            for _ in range(2):
                found = executor.run(feeds)
                assert set(found) == set(wanted)
                for name, value in wanted.items():
                    assert np.array_equal(found[name], value, equal_nan=True), name
                assert not executor._held.store  # everything was given back


@pytest.mark.parametrize("seed", range(12))
def test_predicted_bytes_are_counted_bytes(seed: int) -> None:
    graph = build_graph(random_dag(seed))
    parts = parts_of(graph, random_plan(graph, Random(seed), MACHINE))
    predicted = device_bytes(parts, MACHINE, insides(parts, MACHINE, {}))
    found = record(parts, MACHINE, seeded_feeds(graph))
    for name in MACHINE.names:
        scratch = max((k.scratch for p in found.profiles.values() for k in p.kernels), default=0)
        assert predicted[name].peak <= found.bytes[name].peak <= predicted[name].peak + scratch


@pytest.mark.parametrize("seed", range(20))
def test_partitions_never_wait_in_a_circle(seed: int) -> None:
    graph = build_graph(random_dag(seed, 30))
    parts = parts_of(graph, random_plan(graph, Random(seed), MACHINE))
    for index, row in enumerate(parts.after):
        assert all(earlier < index for earlier in row)
    # What an action reads is made before it, by its own stream or by one it waits for.
    names = stream_names(parts, MACHINE)
    done = before(names, parts.after)
    maker = {key: index for index, (_, writes) in enumerate(parts.uses) for key in writes}
    for index, (reads, _) in enumerate(parts.uses):
        assert all(done[index] >> maker[key] & 1 for key in reads)


@pytest.mark.parametrize("seed", range(10))
def test_waits_keep_budgets_side_by_side(seed: int) -> None:
    graph = build_graph(random_dag(seed, 24))
    parts = parts_of(graph, random_plan(graph, Random(seed), MACHINE))
    inside = insides(parts, MACHINE, {})
    alone = {name: found.peak for name, found in device_bytes(parts, MACHINE, inside).items()}
    waits = waits_within(parts, MACHINE, inside, alone)
    worst = worst_case(parts, MACHINE, inside, waits)
    assert all(worst[name] <= alone[name] for name in MACHINE.names)
    assert all(first < second for first, second in waits)
    with Executor(parts, MACHINE, kept=Kept(waits), overlap=True) as executor:
        found = executor.run(seeded_feeds(graph))
    for name, value in run(graph).outputs.items():
        assert np.array_equal(found[name], value, equal_nan=True)


def test_cuts_only_where_another_device_needs_something() -> None:
    graph = graph_of("""g (float[8, 8] x) => (float[8, 8] y) {
        a = Sin(x)  b = Cos(a)  c = Sin(b)  d = Cos(c)  e = Sin(d)  y = Add(e, b)
    }""")
    a, b, c, d, e, y = (op.name for op in graph.ops)
    machine = processors(2)
    device_of = dict.fromkeys((a, b, e, y), "cpu:0") | dict.fromkeys((c, d), "cpu:1")
    parts = parts_of(graph, assigned(graph, device_of, machine))
    rows = [(p.device, [op.name for op in p.graph.ops]) for p in parts.partitions]
    assert rows == [("cpu:0", [a, b]), ("cpu:1", [c, d]), ("cpu:0", [e, y])]
    assert [(k.value, k.source, k.target) for k in parts.copies] == [
        ("b", "cpu:0", "cpu:1"), ("d", "cpu:1", "cpu:0")
    ]  # fmt: skip
    first, second, third = parts.partitions
    assert (first.graph.inputs, first.graph.outputs) == (("x",), ("b",))
    assert (second.graph.inputs, second.graph.outputs) == (("b",), ("d",))
    assert set(third.graph.inputs) == {"d", "b"}


def test_ops_that_need_not_wait_run_before_the_value_arrives() -> None:
    graph = graph_of("""g (float[8, 8] x) => (float[8, 8] y) {
        a = Sin(x)  b = Cos(x)  c = Sin(b)  y = Add(a, c)
    }""")
    names = [op.name for op in graph.ops]
    device_of = dict.fromkeys(names, "cpu:0") | {names[0]: "cpu:1"}
    parts = parts_of(graph, assigned(graph, device_of, processors(2)))
    mine = [[op.name for op in p.graph.ops] for p in parts.partitions if p.device == "cpu:0"]
    assert mine == [names[1:3], names[3:]]


def test_cutting_early_is_taken_where_it_lets_a_device_wait_less() -> None:
    """The second device reads ``a`` late, in a stretch that begins early: as one partition of the
    first device, that stretch waits for ``d``; cut behind ``a``, both are busy."""
    graph = graph_of("""g (float[8, 8] x) => (float[8, 8] y, float[8, 8] z) {
        a = Sin(x)  p = Cos(x)  b = Cos(a)  c = Sin(b)  d = Cos(c)  q = Sin(p)  r = Add(q, a)
        y = Cos(d)  z = Sin(r)
    }""")
    a, p, b, c, d, q, r, y, z = (op.name for op in graph.ops)
    mine, theirs = "cpu:0", "cpu:1"
    plan = Plan((
        Compute(a, 0, mine), Transfer("a", mine, theirs), Compute(b, 0, mine),
        Compute(c, 0, mine), Compute(p, 0, theirs), Compute(d, 0, mine), Compute(y, 0, mine),
        Compute(q, 0, theirs), Compute(r, 0, theirs), Compute(z, 0, theirs),
    ))  # fmt: skip
    machine = processors(2)
    table = CostTable({op.name: 1e-3 for op in graph.ops}, {}, "given")
    made = deploy(graph, plan, machine, dict.fromkeys(machine.names, table))
    rows = [[op.name for op in part.graph.ops] for part in made.parts.partitions]
    assert rows[0] == [a]
    assert made.makespan < 6.5e-3
    plain = replace(made, parts=parts_of(graph, plan), seconds={})
    seconds = action_seconds(plain.parts, machine, dict.fromkeys(machine.names, table))
    assert replace(plain, seconds=seconds).makespan > made.makespan + 1e-3
    assert read_back(made).parts.actions == made.parts.actions


def read_back(made: Deployment) -> Deployment:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "out.onnx"
        onnx.save(made.model(), path)
        return read_deployment(path)


def test_a_swapped_value_takes_no_room_while_it_is_away() -> None:
    graph = graph_of("""g (float[64, 64] x) => (float[64, 64] y) {
        a = Sin(x)  b = Cos(x)  c = Sin(b)  d = Add(b, c)  y = Add(a, d)
    }""")
    a, b, c, d, y = (op.name for op in graph.ops)
    one = 64 * 64 * 4
    swapped = Plan((
        Compute(a, 0, "cpu:0"), Transfer("a", "cpu:0", "cpu:1"), Free("a", 0, "cpu:0"),
        Compute(b, 0, "cpu:0"), Compute(c, 0, "cpu:0"), Compute(d, 0, "cpu:0"),
        Free("b", 0, "cpu:0"), Free("c", 0, "cpu:0"),
        Transfer("a", "cpu:1", "cpu:0"), Compute(y, 0, "cpu:0"),
    ))  # fmt: skip
    machine = processors(2, shared=False)
    table = costs(graph, machine)
    pins = 64  # bytes of the ops that fix the order
    made = deploy(graph, swapped, machine, table, Terms({"cpu:0": 3 * one + pins}))
    found = record(made.parts, machine, seeded_feeds(graph))
    assert np.array_equal(found.outputs["y"], run(graph).outputs["y"])
    assert 3 * one <= found.bytes["cpu:0"].peak <= 3 * one + pins
    assert found.bytes["cpu:1"].peak == one
    on_one = Plan(tuple(Compute(name, 0, "cpu:0") for name in (a, b, c, d, y)))
    with pytest.raises(OverBudgetError):
        deploy(graph, on_one, machine, table, Terms({"cpu:0": 3 * one + pins}))


def test_plans_that_do_not_fit_are_refused() -> None:
    graph = graph_of("g (float[2] x) => (float[2] y) { a = Sin(x) y = Cos(a) }")
    a, y = (op.name for op in graph.ops)
    with pytest.raises(UsageError, match="reads 'a', which is not on 'cpu:1'"):
        follow(graph, Plan((Compute(a, 0, "cpu:0"), Compute(y, 0, "cpu:1"))))
    with pytest.raises(UsageError, match="does not have"):
        follow(graph, Plan((Compute("other", 0, "cpu:0"),)))
    with pytest.raises(UsageError, match="never runs"):
        follow(graph, Plan((Compute(a, 0, "cpu:0"),)))
    with pytest.raises(UsageError, match="where it is not"):
        follow(graph, Plan((Transfer("a", "cpu:0", "cpu:1"),)))
    with pytest.raises(UsageError, match="frees output 'y'"):
        follow(graph, Plan((Compute(a), Compute(y), Free("y"))))
    unlinked = Machine(processors(2).devices)
    with pytest.raises(UsageError, match="no link"):
        assigned(graph, {a: "cpu:0", y: "cpu:1"}, unlinked)
    with pytest.raises(UsageError, match="no device 'tpu'"):
        deploy(graph, Plan((Compute(a, 0, "tpu"), Compute(y, 0, "tpu"))), unlinked, {})


def test_assignments() -> None:
    graph = training_chain(3, 8, 16)
    names = [op.name for op in graph.ops]
    two = ["cpu:0", "cpu:1"]
    halves = split(graph, two, dict.fromkeys(names, 1.0))
    assert [halves[n] for n in names] == sorted(halves[n] for n in names)
    assert set(round_robin(graph, two, 2).values()) == set(two)
    pinned = by_pattern(graph, [("Tanh*", "cpu:1")], "cpu:0")
    assert {op.op_type for op in graph.ops if pinned[op.name] == "cpu:1"} == {"Tanh"}
    with pytest.raises(UsageError, match="matches no op"):
        by_pattern(graph, [("Conv*", "cpu:1")], "cpu:0")


def test_earliest_finish_uses_both_devices_where_branches_allow() -> None:
    graph = graph_of("""g (float[8, 8] x) => (float[8, 8] y) {
        a = Sin(x) b = Cos(a) c = Cos(x) d = Sin(c) y = Add(b, d)
    }""")
    machine = processors(2)
    seconds = {op.name: 1.0 for op in graph.ops}
    plan = earliest_finish(graph, machine, dict.fromkeys(machine.names, seconds))
    assert plan.provenance.seconds == pytest.approx(3.0, abs=1e-4)  # 2 and 2 side by side, then 1
    parts = parts_of(graph, plan)
    took = {
        i: float(len(action.graph.ops))
        for i, action in enumerate(parts.actions)
        if isinstance(action, Partition)
    }
    assert max(end for _, end in finish_times(parts, machine, took)) == pytest.approx(3.0)
    with pytest.raises(UsageError, match="no device of the machine runs"):
        earliest_finish(graph, machine, {"cpu:0": {}})


def branches() -> tuple[Graph, Deployment]:
    graph = graph_of("""g (float[64, 64] x) => (float[64, 64] y) {
        a = Sin(x) b = Cos(a) c = Cos(x) d = Sin(c) y = Add(b, d)
    }""")
    machine = processors(2)
    table = costs(graph, machine)
    plan = earliest_finish(graph, machine, {n: t.seconds for n, t in table.items()})
    return graph, deploy(graph, plan, machine, table)


def test_verification_sees_it_all() -> None:
    graph, made = branches()
    found = verify_deployment(made, seeded_feeds(graph))
    assert found.ok, found.checks
    assert {check.name for check in found.checks} >= {
        "same outputs, one by one", "same outputs, side by side", "executed order", "placement",
        "predicted peak of cpu:0", "predicted peak of cpu:1",
    }  # fmt: skip


def test_a_budget_that_is_too_small_is_refused_with_what_is_needed() -> None:
    graph, made = branches()
    plan, machine, table = made.plan, made.machine, costs(graph, made.machine)
    with pytest.raises(OverBudgetError, match=r"device 'cpu:1' needs 32\.0 KiB") as refused:
        deploy(graph, plan, machine, table, Terms({"cpu:1": 20000}))
    assert refused.value.excess == 2 * 64 * 64 * 4 - 20000


def test_partitions_really_run_at_the_same_time() -> None:
    """Both devices are inside a session at once: each waits for the other there."""
    graph, made = branches()
    meet = threading.Barrier(2, timeout=LONG)
    firsts = {i for i, a in enumerate(made.parts.actions)
              if isinstance(a, Partition) and a.graph.inputs == ("x",)}  # fmt: skip
    assert len(firsts) == 2
    with made.executor(overlap=True) as executor:
        for index in firsts:
            stage = executor.stages[index]
            original = stage.run

            def run_together(fresh, original=original):
                meet.wait()
                return original(fresh)

            stage.run = run_together
        executor.run(seeded_feeds(graph))


def test_results_outlive_their_executor() -> None:
    graph, made = branches()
    first, second = seeded_feeds(graph), seeded_feeds(graph, seed=1)
    with made.executor() as executor:
        kept = [executor.run(feeds) for feeds in (first, second, first)]
    del executor
    gc.collect()
    again = [run(graph, seed=seed).outputs for seed in (0, 1, 0)]
    for found, wanted in zip(kept, again, strict=True):
        assert all(np.array_equal(found[name], value) for name, value in wanted.items())
        assert all(value.flags.writeable for value in found.values())


def test_no_value_goes_through_numpy_or_is_copied() -> None:
    graph, made = branches()
    feeds = seeded_feeds(graph)
    with made.executor() as executor:
        for _ in range(3):
            executor.run(feeds)
        assert executor.copies.between == 0
        assert executor.copies.numpy == 3  # the one result of each run
    apart = processors(2, shared=False)
    with Executor(made.parts, apart) as executor:
        executor.run(feeds)
        moves = sum(isinstance(action, Copy) for action in made.parts.actions)
        assert executor.copies.between == moves == 1


def test_a_failing_partition_ends_the_run_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, made = branches()
    feeds = seeded_feeds(graph)
    with made.executor(overlap=True) as executor:
        index = next(iter(executor.stages))
        name = made.parts.actions[index].name
        original = executor.stages[index].run
        executor.stages[index].run = lambda fresh: 1 / 0
        with pytest.raises(ModelError, match=name):
            executor.run(feeds)
        executor.stages[index].run = original
        assert np.array_equal(executor.run(feeds)["y"], run(graph).outputs["y"])


def test_wrong_feeds_are_refused() -> None:
    _, made = branches()
    with made.executor() as executor:
        with pytest.raises(UsageError, match="no value for input 'x'"):
            executor.run({})
        with pytest.raises(UsageError, match="the model wants"):
            executor.run({"x": np.zeros((2, 2), np.float32)})
        with pytest.raises(UsageError, match="the model wants"):
            executor.run({"x": np.zeros((64, 64))})
        strided = np.zeros((64, 128), np.float32)[:, ::2]
        assert executor.run({"x": strided})["y"].shape == (64, 64)
        with pytest.raises(UsageError, match="no value for input 'x'"):
            executor.run({"X": strided})  # not with what it was given before
        with pytest.raises(UsageError, match="takes no value for 'X'") as caught:
            executor.run({"X": strided, "x": strided})
        assert "'x'" in caught.value.hint


@pytest.mark.parametrize("wrong", [{}, {"b": np.zeros((2, 2), np.float32)}, {"b": None, "c": None}])
def test_a_refused_run_leaves_nothing_behind(wrong: dict[str, np.ndarray | None]) -> None:
    graph = graph_of("""g (float[64, 64] a, float[64, 64] b) => (float[64, 64] y) {
        r = Sin(a) n = Cos(b) y = Add(r, n)
    }""")
    machine = processors(2)
    table = costs(graph, machine)
    plan = earliest_finish(graph, machine, {n: t.seconds for n, t in table.items()})
    first, second = (seeded_feeds(graph, seed) for seed in (1, 2))
    with deploy(graph, plan, machine, table).executor() as executor:
        executor.run(first)
        given = {n: second["b"] if v is None else v for n, v in wrong.items()}
        with pytest.raises(UsageError):
            executor.run({"a": second["a"], **given})
        assert np.array_equal(executor.run(second)["y"], run(graph, seed=2).outputs["y"])


def test_a_run_of_another_thread_waits_for_the_one_that_is_on() -> None:
    graph = build_graph(random_dag(3))
    parts = parts_of(graph, random_plan(graph, Random(3), MACHINE))
    feeds = [seeded_feeds(graph, seed) for seed in (1, 2)]
    with Executor(parts, MACHINE, overlap=False) as executor:
        wanted, found = [executor.run(each) for each in feeds], {}
        other = threading.Thread(target=lambda: found.update(executor.run(feeds[1])))
        last = executor.stages[max(executor.stages)]
        run_last = last.run

        def run_beside(fresh):
            last.run = run_last
            other.start()
            other.join(0.2)  # it would be through by now
            return run_last(fresh)

        last.run = run_beside
        own = executor.run(feeds[0])
        other.join()
    for name in wanted[0]:
        np.testing.assert_array_equal(own[name], wanted[0][name])
        np.testing.assert_array_equal(found[name], wanted[1][name])


def test_an_array_written_in_place_is_seen() -> None:
    graph, made = branches()
    x = seeded_feeds(graph)["x"]
    with made.executor() as executor:
        executor.run({"x": x})
        x += 1
        found = executor.run({"x": x})["y"]
    assert np.allclose(found, np.cos(np.sin(x)) + np.sin(np.cos(x)), atol=1e-6)


def test_a_device_with_a_memory_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor that plays a GPU: inputs are brought there, results fetched, state kept there."""
    from onnxremat.device.machine import Device

    graph, made = branches()
    apart = processors(2, shared=False)
    monkeypatch.setattr(Device, "in_host_memory", property(lambda device: device.name != "cpu:1"))
    monkeypatch.setattr("onnxremat.ort.values.place", lambda device: ("cpu", 0))
    feeds = seeded_feeds(graph)
    with Executor(made.parts, apart) as executor:
        found = executor.run(feeds)
        before_second = executor.copies.between
        feeds["x"] += 1  # in place: the copy on the device has to follow
        again = executor.run(feeds)
        assert executor.copies.between > before_second
    assert not np.array_equal(found["y"], again["y"])
    with Executor(made.parts, processors(2)) as executor:
        assert np.array_equal(executor.run(feeds)["y"], again["y"])
    predicted = device_bytes(made.parts, apart, insides(made.parts, apart, {}))
    assert predicted["cpu:1"].resident == 64 * 64 * 4  # the input's copy


def test_module_has_no_numpy_round_trip() -> None:
    """The path of a value inside a run does not touch ``numpy()``."""
    import inspect

    assert ".numpy(" not in inspect.getsource(executor_module)
