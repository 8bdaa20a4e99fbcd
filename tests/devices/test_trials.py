"""A trial run corrects costs, and the plan that is quicker when tried out is taken."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from onnxremat.cost.boundaries import call_seconds
from onnxremat.cost.table import CostTable
from onnxremat.device.machine import Device
from onnxremat.execute import inside
from onnxremat.execute.action_times import action_seconds
from onnxremat.execute.calibration import corrected, tried
from onnxremat.execute.deployment import Deployment, deploy
from onnxremat.execute.inside import Inside
from onnxremat.execute.partition_cuts import Terms
from onnxremat.graph.ir import Graph
from onnxremat.graph.onnx_io import to_model
from onnxremat.pipeline.artifact import Artifact
from onnxremat.pipeline.closed_loop import Aim, Candidate, attempt
from onnxremat.pipeline.devices import device_ways
from onnxremat.pipeline.devices.several_devices import SeveralDevices
from onnxremat.pipeline.devices.site import Site
from onnxremat.pipeline.optimize import Request, optimize
from onnxremat.pipeline.phases import Phases
from onnxremat.pipeline.prepare import prepare
from onnxremat.pipeline.prepared import Prepared
from onnxremat.pipeline.settings import Settings
from onnxremat.planner.options import PlanOptions
from onnxremat.report.device_tables import device_table
from onnxremat.rewrite.partition import Partition
from onnxremat.schedule.assign import assigned
from tests.devices.plans import processors
from tests.limits import LONG
from tests.toolbox import graph_of, training_chain

SINES = " ".join(f"v{i + 1} = Sin(v{i})" for i in range(12))
CHAIN = f"g (float[1000] v0) => (float[1000] v12) {{ {SINES} }}"
HERE = {"cpu:0": False, "cpu:1": False}


@pytest.fixture(scope="module")
def there_and_back() -> Deployment:
    """Twelve ops, two by two on one device and the other: six partitions."""
    graph = graph_of(CHAIN)
    graph = graph.with_ops([op.renamed(op.outputs[0], {}) for op in graph.ops], graph.tensors)
    machine = processors(2)
    places = {op.name: machine.names[i // 2 % 2] for i, op in enumerate(graph.ops)}
    table = CostTable({op.name: 1e-3 for op in graph.ops}, {}, "given")
    return deploy(graph, assigned(graph, places, machine), machine, dict.fromkeys(HERE, table))


def tables(made: Deployment) -> dict[str, CostTable]:
    return {n: CostTable({op.name: 1e-3 for op in made.graph.ops}, {}, "given") for n in HERE}


def with_times(made: Deployment, took: dict[str, list[float]]) -> Deployment:
    """As if a trial had told these seconds of the partitions of each device."""
    rows = {name: iter(row) for name, row in took.items()}
    devices = {i: getattr(a, "device", None) for i, a in enumerate(made.parts.actions)}
    return replace(made, tried=({i: next(rows[d]) if d else 0.0 for i, d in devices.items()},))


def test_corrected_costs_tell_what_the_trial_told(there_and_back: Deployment) -> None:
    took = {"cpu:0": [4e-3, 2e-3, 3e-3], "cpu:1": [1e-3, 2e-3, 2e-3]}
    made = with_times(there_and_back, took)
    costs = corrected(tables(made), made, opaque=HERE)
    told = action_seconds(made.parts, made.machine, costs)
    assert told == pytest.approx(made.tried[0])
    assert replace(made, seconds=told).makespan_of_costs == pytest.approx(made.makespan)
    assert costs["cpu:0"].source == "given, corrected by a trial run"
    # What ran on the other device is thought to be as much dearer here as the rest was.
    ran = {op.name for p in made.parts.partitions if p.device == "cpu:0" for op in p.graph.ops}
    other = {seconds for op, seconds in costs["cpu:0"].seconds.items() if op not in ran}
    assert len(other) == 1
    (usual,) = other
    assert usual == pytest.approx((9e-3 - 3 * call_seconds(tables(made)["cpu:0"])) / 6, rel=1e-6)


def test_what_all_calls_have_in_common_is_the_price_of_a_call() -> None:
    graph = graph_of(CHAIN)
    graph = graph.with_ops([op.renamed(op.outputs[0], {}) for op in graph.ops], graph.tensors)
    machine = processors(2)
    lengths = [1, 0, 3, 0, 0, 1, 0, 2, 0, 1, 0, 0]  # places: runs of ops of several lengths
    places = {op.name: machine.names[lengths[i] == 0] for i, op in enumerate(graph.ops)}
    table = CostTable({op.name: (i + 1) * 1e-3 for i, op in enumerate(graph.ops)}, {}, "given")
    costs = dict.fromkeys(HERE, table)
    made = deploy(graph, assigned(graph, places, machine), machine, costs)
    made = replace(made, tried=({i: 2 * s + 5e-3 for i, s in made.seconds.items()},))
    found = corrected(costs, made, opaque={"cpu:0": True, "cpu:1": False})
    assert found["cpu:0"].call == pytest.approx(5e-3, rel=0.02)
    doubled = found["cpu:0"].seconds
    for part in made.parts.partitions:
        if part.device == "cpu:0":
            for op in part.graph.ops:
                assert doubled[op.name] == pytest.approx(2 * table.seconds[op.name], rel=0.02)
    assert found["cpu:1"].call == 0.0


def test_a_trial_times_every_action_and_leaves_the_inputs_alone() -> None:
    prepared = prepare(to_model(training_chain(4, 8, 16)), Settings(threads=1, target="none"))
    machine = processors(2)
    assert prepared.feeds is not None
    before = {name: value.copy() for name, value in prepared.feeds.items()}
    ops = prepared.graph.ops
    places = {op.name: machine.names[i * 2 // len(ops)] for i, op in enumerate(ops)}
    table = CostTable({op.name: 1e-6 for op in ops}, {}, "given")
    plan = assigned(prepared.graph, places, machine)
    made = deploy(prepared.graph, plan, machine, dict.fromkeys(HERE, table),
                  terms=Terms(pairs=prepared.in_place))  # fmt: skip
    found = tried(made, prepared.feeds, seconds=0.05)
    assert len(found.tried) >= 5
    for run in found.tried:
        assert set(run) == set(range(len(made.parts.actions)))
        assert all(seconds > 0 for seconds in run.values())
    spans = sorted(replace(found, tried=(run,)).makespan for run in found.tried)
    assert spans[0] <= found.makespan <= spans[-1]
    assert found.makespan_of_costs == made.makespan
    for name, value in prepared.feeds.items():
        assert (value == before[name]).all()
    stopped = tried(made, prepared.feeds, seconds=60, stop=lambda: True)
    assert len(stopped.tried) == 1


@pytest.fixture(scope="module")
def branches() -> Prepared:
    """Two chains of five ops that run side by side, each op for a millisecond."""
    rows = [
        f"{v}{i + 1} = {op}({v}{i})" for v, op in (("a", "Sin"), ("b", "Cos")) for i in range(5)
    ]
    graph = graph_of(f"""g (float[64, 64] a0, float[64, 64] b0) => (float[64, 64] y) {{
        {" ".join(rows)}  y = Add(a5, b5)
    }}""")
    settings = Settings(threads=1, target="none", split_batch=(), costs=millisecond)
    return prepare(to_model(graph), settings)


def millisecond(graph: Graph) -> CostTable:
    return CostTable({op.name: 1e-3 for op in graph.ops}, {}, "given")


def test_the_plan_that_is_quickest_in_its_trial_is_taken(
    branches: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trials that tell of a device ten times slower than thought move the work away from it."""
    seen: list[float] = []

    def slow_second(made: Deployment, *_: object, **__: object) -> Deployment:
        each = {"cpu:0": 1.5e-3, "cpu:1": 10e-3}
        slow = {
            i: each[part.device] * len(part.graph.ops) if isinstance(part, Partition) else 0.0
            for i, part in enumerate(made.parts.actions)
        }
        found = replace(made, tried=(slow,))
        seen.append(found.makespan)
        return found

    monkeypatch.setattr(device_ways, "tried", slow_second)
    monkeypatch.setattr(device_ways, "_singles", lambda *_: ([], None))
    monkeypatch.setattr(device_ways, "never_slower", lambda target, best, *_: best)
    machine = processors(2)
    entered = 0

    @contextmanager
    def during() -> Iterator[None]:
        nonlocal entered
        entered += 1
        yield

    result = optimize(
        branches,
        Request(
            "2x", machine, PlanOptions(time_limit=LONG, gap=0.2, threads=1), objective="makespan",
            bench_seconds=0, during=during,
            costs=lambda prepared: dict.fromkeys(machine.names, prepared.costs),
        ),
    )  # fmt: skip
    assert result.deployment.makespan == min(seen)
    assert entered == len(seen) > 1
    assert result.deployment.makespan < 0.5 * seen[0]
    assert {part.device for part in result.deployment.parts.partitions} == {"cpu:0"}
    facts = result.facts()
    assert facts["tried"]
    assert facts["makespan_predicted"] == min(seen)
    text = str(device_table(facts).renderables[1])  # type: ignore[attr-defined]
    assert "from a trial of its partitions" in text


def test_partitions_that_hold_their_buffers_for_good_become_fewer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each partition on a provider that compiles it takes room: few of them fit, and are found.
    Products are quick there and all else is slow, so that the first plan has many."""
    step = to_model(training_chain(3, 16, 512))
    chain = prepare(step, Settings(threads=1, target="none", measure=False))
    machine = processors(2)
    products = {op.name: op.op_type == "MatMul" for op in chain.graph.ops}
    tables = {
        name: CostTable(
            {op: 1e-3 if product == there else 3e-3 for op, product in products.items()},
            {},
            "given",
        )
        for name, there in (("cpu:0", False), ("cpu:1", True))
    }  # fmt: skip
    room = 4 << 20
    real = inside.predicted_inside

    def held(part: Partition, device: Device, _: object) -> Inside:
        return replace(real(part, device, {}), weights=room)

    monkeypatch.setattr(Device, "opaque", property(lambda device: device.name == "cpu:1"))
    monkeypatch.setattr(inside, "opaque_inside", held)
    planned: list[int] = []
    lower = SeveralDevices.lower

    def noted(self: SeveralDevices, aim: Aim, found: object, artifact: Artifact, over: dict) -> Aim:
        planned.append(sum(part.device == "cpu:1" for part in artifact.made.parts.partitions))
        return lower(self, aim, found, artifact, over)

    monkeypatch.setattr(SeveralDevices, "lower", noted)
    most = int(0.8 * chain.baseline_peak)
    site = Site(machine, {"cpu:0": most, "cpu:1": 2 * room + most})
    target = SeveralDevices(chain, site, tables, Phases())
    candidate = attempt(target, PlanOptions(time_limit=LONG, threads=1))
    assert isinstance(candidate, Candidate)
    made = candidate.artifact.made
    assert made.predicted["cpu:1"].peak <= 2 * room + most
    assert planned
    assert planned[0] > 2  # the first plan had too many
    assert sum(part.device == "cpu:1" for part in made.parts.partitions) <= 2
