"""Samples through a pipeline of devices: outputs, order, back-pressure, errors, memory."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from models import build
from onnxremat.cost.analytic import analytic_costs
from onnxremat.device.machine import Machine
from onnxremat.errors import ModelError, UnsupportedError, UsageError
from onnxremat.execute import pipelined
from onnxremat.execute.deployment import Deployment, deploy_pipeline
from onnxremat.execute.in_flight import places
from onnxremat.execute.inside import insides
from onnxremat.execute.metered import record
from onnxremat.execute.partition_cuts import Terms
from onnxremat.execute.pipelined import Event, Flow, pipeline_stages
from onnxremat.graph.ir import Graph
from onnxremat.ort.feeds import seeded_feeds
from onnxremat.ort.infer import build_graph
from onnxremat.pipeline.devices.over_devices import run_whole
from onnxremat.schedule.assign import assigned, round_robin, split
from onnxremat.schedule.plan import Compute, Plan, Step, Transfer
from tests.devices.plans import processors
from tests.toolbox import graph_of, parse

Arrays = dict[str, np.ndarray]


def staged(graph: Graph, machine: Machine, in_flight: int = 3, **replicas: Any) -> Deployment:
    """The listed order in stretches of about equal time, one per device that is no replica.

    Args:
        replicas: number of a device (``cpu1``) to those of others that take its samples in turn.
    """
    further = {
        f"cpu:{first[3:]}": tuple(f"cpu:{number}" for number in row)
        for first, row in replicas.items()
    }
    others = {name for row in further.values() for name in row}
    devices = [name for name in machine.names if name not in others]
    table = analytic_costs(graph)
    home = split(graph, devices, table.seconds)
    steps: list[Step] = []
    for at, device in enumerate(devices):
        ops = [op for op in graph.ops if home[op.name] == device]
        steps += [Compute(op.name, 0, device) for op in ops]
        for later in devices[at + 1 :]:
            reads = {n for op in graph.ops if home[op.name] == later for n in op.reads}
            made = [name for op in ops for name in op.writes if name in reads]
            steps += [Transfer(name, device, later) for name in made]
    tables = dict.fromkeys(machine.names, table)
    return deploy_pipeline(
        graph, Plan(tuple(steps)), machine, tables, Terms(), Flow(in_flight, further)
    )


def wanted(made: Deployment, samples: list[Arrays]) -> list[Arrays]:
    return [run_whole(made.graph, sample, made) for sample in samples]


def assert_same(found: list[Arrays], expected: list[Arrays]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


@pytest.fixture(scope="module")
def chain() -> Deployment:
    return staged(build_graph(build("lenet", batch=2)), processors(2))


@pytest.fixture(scope="module")
def samples(chain: Deployment) -> list[Arrays]:
    return [seeded_feeds(chain.graph, seed) for seed in range(7)]


@pytest.fixture(scope="module")
def expected(chain: Deployment, samples: list[Arrays]) -> list[Arrays]:
    return wanted(chain, samples)


@pytest.mark.parametrize("in_flight", [1, 2, 5])
def test_outputs_are_one_sessions_and_in_order(
    chain: Deployment, samples: list[Arrays], expected: list[Arrays], in_flight: int
) -> None:
    with chain.pipeline(in_flight) as pipeline:
        assert_same(list(pipeline.map(samples)), expected)
        assert_same(list(pipeline.map(samples[:1])), expected[:1])
        assert list(pipeline.map([])) == []


SMALL = {
    "mlp": {"batch": 8, "layers": 4},
    "shufflenet": {"batch": 1, "size": 64},
    "bert": {"batch": 2, "sequence": 16, "hidden": 32, "layers": 2, "heads": 2, "vocab": 64},
}


@pytest.mark.parametrize("name", SMALL)
def test_three_stages_of_other_models(name: str) -> None:
    made = staged(build_graph(build(name, **SMALL[name])), processors(3))
    assert len(pipeline_stages(made.parts, made.machine)) == 3
    given = [seeded_feeds(made.graph, seed) for seed in range(4)]
    with made.pipeline() as pipeline:
        assert_same(list(pipeline.map(given)), wanted(made, given))


REPLICAS: list[dict[str, tuple[int, ...]]] = [
    {"cpu0": (1, 2, 3, 4)}, {"cpu1": (3, 4)}, {"cpu0": (2,), "cpu1": (3, 4)}
]  # fmt: skip


@pytest.mark.parametrize("replicas", REPLICAS, ids=str)
def test_stages_on_several_devices(chain: Deployment, replicas: dict[str, Any]) -> None:
    """Outputs are one session's and in order, whatever was inside when a map before was given up;
    what fails is told in its turn; no more bytes are held than was counted."""
    machine = processors(5)
    made = staged(chain.graph, machine, 5, **replicas)
    given = [seeded_feeds(made.graph, seed) for seed in range(12)]
    expected = wanted(made, given)
    log: list[Event] = []
    with made.pipeline() as pipeline:
        for stage in pipeline.stages:
            assert len(stage.devices) == 1 + len(replicas.get(stage.name.replace(":", ""), ()))
        for left in (1, 2, 3):
            outputs = pipeline.map(given)
            assert_same(list(itertools.islice(outputs, left)), expected[:left])
            outputs.close()  # type: ignore[attr-defined]
            assert_same(list(pipeline.map(given[left:])), expected[left:])
        outputs = pipeline.map([*given[:3], {}, *given[3:]])
        assert_same(list(itertools.islice(outputs, 3)), expected[:3])
        with pytest.raises(UsageError, match="no value for input") as error:
            next(outputs)
        assert error.value.where == "sample 3"
    with made.pipeline(log=log) as pipeline:
        assert_same(list(pipeline.map(given)), expected)
    inside = insides(made.parts, machine, made.scratch)
    counted = places(made.parts, machine, inside, made.rounds(5), made.replicas)
    seen = counted.seen(log)
    assert made.worst == counted.most(5)
    for row in counted.devices:
        assert len({made.worst[name] for name in row}) == 1
        assert all(counted.resident[name] < seen[name] <= made.worst[name] for name in row)


def test_a_slow_device_of_a_stage_holds_up_no_other(
    chain: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one is at sample 1 the other does sample 3, too; no device has more than its share of
    those that are inside, and outputs are in order."""
    made = staged(chain.graph, processors(2), 4, cpu0=(1,))
    given = [seeded_feeds(made.graph, seed) for seed in range(9)]
    log: list[Event] = []
    ended, carry = threading.Event(), pipelined._Work._carry

    def slow(work: Any, piece: Any, sample: Any) -> None:
        if sample.number == 1:
            assert ended.wait(60)
        carry(work, piece, sample)
        if sample.number == 3:
            ended.set()

    monkeypatch.setattr(pipelined._Work, "_carry", slow)
    with made.pipeline(log=log) as pipeline:
        assert_same(list(pipeline.map(given)), wanted(made, given))
    takers = {event.sample: event.replica for event in log if event.stage == 0}
    assert takers[3] != takers[1]
    inside = insides(made.parts, made.machine, made.scratch)
    counted = places(made.parts, made.machine, inside, made.rounds(4), made.replicas)
    assert all(size <= made.worst[name] for name, size in counted.seen(log).items())


def test_values_that_skip_a_stage_and_links_that_copy() -> None:
    """An input that only the last stage reads, a value that passes a stage by, an output of the
    first stage; over links that copy, which are stages of their own."""
    text = """g (float[8] x, float[8] z) => (float[8] early, float[8] y) {
        early = Sqrt(x) a = Abs(early) b = Neg(a) c = Exp(b) d = Add(c, early) y = Mul(d, z) }"""
    machine = processors(3, shared=False)
    made = staged(graph_of(text), machine)
    names = [stage.name for stage in pipeline_stages(made.parts, machine)]
    assert len(names) > 3
    assert [names[0], names[-1]] == ["cpu:0", "cpu:2"]
    given = [seeded_feeds(made.graph, seed) for seed in range(5)]
    given = [{name: np.abs(array) for name, array in row.items()} for row in given]
    with made.pipeline() as pipeline:
        assert_same(list(pipeline.map(given)), wanted(made, given))


def test_samples_are_taken_when_there_is_room(chain: Deployment, samples: list[Arrays]) -> None:
    taken: list[int] = []

    def source() -> Iterator[Arrays]:
        for number in itertools.count():
            taken.append(number)
            yield samples[number % len(samples)]

    with chain.pipeline(3) as pipeline:
        outputs = pipeline.map(source())
        assert not taken
        for given in range(10):
            next(outputs)
            assert len(taken) <= given + 3


def test_an_array_may_be_written_again(
    chain: Deployment, samples: list[Arrays], expected: list[Arrays]
) -> None:
    same = {name: np.empty_like(array) for name, array in samples[0].items()}

    def source() -> Iterator[Arrays]:
        for sample in samples:
            for name, array in sample.items():
                same[name][...] = array
            yield same

    with chain.pipeline(4) as pipeline:
        assert_same(list(pipeline.map(source())), expected)


def test_a_wrong_sample_is_named_in_its_turn(
    chain: Deployment, samples: list[Arrays], expected: list[Arrays]
) -> None:
    wrong = {name: array[:1] for name, array in samples[0].items()}
    with chain.pipeline(4) as pipeline:
        outputs = pipeline.map([*samples[:3], wrong, *samples[3:]])
        assert_same([next(outputs) for _ in range(3)], expected[:3])
        with pytest.raises(UsageError, match="the model wants") as error:
            next(outputs)
        assert error.value.where == "sample 3"
        with pytest.raises(UsageError, match="no value for input") as error:
            next(pipeline.map([{}]))
        assert error.value.where == "sample 0"
        assert_same(list(pipeline.map(samples)), expected)  # as if nothing had been


def test_a_session_that_fails_is_told_with_its_sample() -> None:
    text = """g (float[4, 4] x, int64[2] i) => (float[2, 4] y) {
        a = Abs(x) b = Neg(a) c = Exp(b) d = Gather(c, i) y = Sqrt(d) }"""
    made = staged(graph_of(text), processors(2))
    good = {"x": np.ones((4, 4), np.float32), "i": np.array([0, 1])}
    bad = good | {"i": np.array([0, 99])}
    with made.pipeline(3) as pipeline:
        outputs = pipeline.map([good, good, bad, good])
        first = [next(outputs), next(outputs)]
        with pytest.raises(ModelError, match="does not run") as error:
            next(outputs)
        assert error.value.where == "sample 2"
        assert_same(list(pipeline.map([good])), first[:1])


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt])
def test_what_the_caller_raises_passes(
    chain: Deployment, samples: list[Arrays], expected: list[Arrays], kind: type[BaseException]
) -> None:
    def source() -> Iterator[Arrays]:
        yield from samples[:2]
        raise kind("stop")

    with chain.pipeline(2) as pipeline:
        outputs = pipeline.map(source())
        # Ctrl-C does not wait for what is inside.
        assert_same(list(itertools.islice(outputs, 2 if kind is RuntimeError else 1)),
                    expected[: 2 if kind is RuntimeError else 1])  # fmt: skip
        with pytest.raises(kind, match="stop"):
            next(outputs)
        assert_same(list(pipeline.map(samples)), expected)


def test_left_early_and_closed(
    chain: Deployment, samples: list[Arrays], expected: list[Arrays]
) -> None:
    before = set(threading.enumerate())
    pipeline = chain.pipeline(4)
    outputs = pipeline.map(samples)
    next(outputs)
    with pytest.raises(UsageError, match="another map"):
        next(pipeline.map(samples))
    outputs.close()  # type: ignore[attr-defined]
    assert_same(list(pipeline.map(samples)), expected)
    outputs = pipeline.map(samples)
    next(outputs)
    pipeline.close()
    with pytest.raises(UsageError, match="closed"):
        list(outputs)
    with pytest.raises(UsageError, match="closed"):
        next(pipeline.map(samples))
    pipeline.close()
    assert set(threading.enumerate()) == before


def test_one_that_is_forgotten_ends_its_threads(chain: Deployment) -> None:
    before = set(threading.enumerate())
    pipeline = chain.pipeline(2)
    threads = set(threading.enumerate()) - before
    assert len(threads) == 2
    del pipeline
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_what_cannot_be_a_pipeline_is_refused(chain: Deployment) -> None:
    with pytest.raises(UsageError, match="at least one"):
        chain.pipeline(0)
    machine, further = processors(3), {"cpu:0": ("cpu:2",)}
    table = dict.fromkeys(machine.names, analytic_costs(chain.graph))
    plan = assigned(chain.graph, round_robin(chain.graph, machine.names[:2], 3), machine)
    with pytest.raises(UnsupportedError, match="come back"):
        deploy_pipeline(chain.graph, plan, machine, table, Terms(), Flow(2, further))


def test_bytes_in_flight(chain: Deployment, samples: list[Arrays]) -> None:
    """By hand: weights, and the largest places of so many samples; one alone holds what the
    simulator says, its inputs aside."""
    machine, parts = chain.machine, chain.parts
    inside = insides(parts, machine, chain.scratch)
    found = places(parts, machine, inside, chain.rounds(3))
    inputs = sum(array.nbytes for array in samples[0].values())
    tensors = chain.graph.tensors
    (copy,) = parts.copies
    sent = tensors[copy.value].bytes
    result = sum(tensors[name].bytes for name in chain.graph.outputs)
    assert found.entering == {"cpu:0": inputs, "cpu:1": 0}
    assert found.behind == ({"cpu:0": 0, "cpu:1": sent}, {"cpu:0": 0, "cpu:1": result})
    alone = chain.predicted
    runs = [alone[name].peak - alone[name].resident for name in machine.names]
    assert found.most(1) == {
        "cpu:0": alone["cpu:0"].peak + inputs, "cpu:1": alone["cpu:1"].peak
    }  # fmt: skip
    assert found.most(4) == {
        "cpu:0": alone["cpu:0"].resident + runs[0] + 4 * inputs,
        # at work, one in the queue, one that waits to get in there, one that is done
        "cpu:1": alone["cpu:1"].resident + runs[1] + 2 * sent + max(result, 0),
    }
    assert chain.worst == found.most(chain.in_flight)


def test_no_more_is_held_than_was_counted(chain: Deployment, samples: list[Arrays]) -> None:
    log: list[Event] = []
    with chain.pipeline(3, log) as pipeline:
        list(pipeline.map(samples))
    found = record(chain.parts, chain.machine, samples[0], folder=chain.folder)
    counted = places(chain.parts, chain.machine, found.inside, chain.rounds(3))
    seen, most = counted.seen(log), counted.most(3)
    for name in chain.machine.names:
        assert counted.resident[name] < seen[name] <= most[name]
        assert abs(chain.worst[name] / most[name] - 1) < 0.001


def test_a_stage_over_its_limit_is_cut() -> None:
    """A stage that is one session holds its input to the end; in two it lets it go."""
    text = """g (float[64, 64] x) => (float[1] y) {
        a = Abs(x) b = Neg(a) c = Exp(b) d = MatMul(c, c) e = MatMul(d, d) f = MatMul(e, e)
        g = MatMul(f, f) r = ReduceMax<keepdims = 0>(g) y = Reshape(r, one) }"""
    model = parse(text)
    one = onnx.numpy_helper.from_array(np.array([1], np.int64), "one")
    model.graph.initializer.append(one)
    graph = build_graph(model)
    machine = processors(2)
    made = staged(graph, machine, in_flight=1)
    limits = {"cpu:1": made.worst["cpu:1"] - 1}
    table = dict.fromkeys(machine.names, analytic_costs(graph))
    cut = deploy_pipeline(graph, made.plan, machine, table, Terms(limits), Flow(1))
    assert cut.worst["cpu:1"] <= limits["cpu:1"]
    assert len(cut.parts.partitions) > 2
    given = [seeded_feeds(graph, seed) for seed in range(3)]
    with cut.pipeline(3) as pipeline:
        assert_same(list(pipeline.map(given)), wanted(cut, given))


def test_a_written_one_is_read_back(chain: Deployment, tmp_path: Path) -> None:
    from onnxremat import load_devices, load_pipeline

    path = tmp_path / "out.onnx"
    onnx.save(chain.model(), path)
    given = [seeded_feeds(chain.graph, seed) for seed in range(3)]
    with load_pipeline(path) as pipeline:
        assert pipeline.in_flight == chain.in_flight
        assert_same(list(pipeline.map(given)), wanted(chain, given))
    with load_devices(path) as model:  # one sample at a time
        assert_same([model.run(given[0])], wanted(chain, given[:1]))
