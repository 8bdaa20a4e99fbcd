"""Budgets of devices are what the process takes: all is counted, and tried in a fresh one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from models import build
from onnxremat.device.machine import PROVIDERS
from onnxremat.errors import InfeasibleError
from onnxremat.execute.deployment import Deployment, deploy, read_deployment
from onnxremat.execute.device_memory import residents
from onnxremat.execute.exported import export_partitions, load_partitions
from onnxremat.execute.inside import insides
from onnxremat.execute.partition_cuts import Terms
from onnxremat.execute.resident import devices_rise
from onnxremat.grad import Settings as Training
from onnxremat.pipeline.limits import counted_on, device_limits, on_top
from onnxremat.pipeline.prepare import prepare
from onnxremat.pipeline.prepared import Prepared
from onnxremat.pipeline.settings import Settings
from onnxremat.pipeline.verify import verify
from onnxremat.rewrite.partition import Counted
from onnxremat.schedule.assign import assigned, split
from onnxremat.session.process import SESSION, SLACK
from onnxremat.session.resident import NO_LIMIT
from onnxremat.units import parse_budget
from tests.devices.plans import optimized, priced, processors
from tests.devices.test_state_on_devices import holders

MIB = 1 << 20
MACHINE = processors(2)
EVERYTHING = ("inputs", "state", "session")


@pytest.fixture(scope="module")
def step() -> Prepared:
    """A training step with 9 MiB of parameters and moments."""
    model = build("mlp", batch=512, features=64, width=512, layers=3, classes=10)
    return prepare(model, Settings(threads=1, train=Training(optimizer="adamw")))


def deployed(step: Prepared, stretch: int) -> Deployment:
    """Stretches of it on two devices in turn, its budgets what they take at worst."""
    graph, costs = step.graph, priced(step, MACHINE)
    halves = split(graph, ["cpu:0", "cpu:1"] * stretch, costs["cpu:0"].seconds)
    plan = assigned(graph, halves, MACHINE)
    counted = counted_on(step, MACHINE, {"cpu:0": 1, "cpu:1": 2})
    terms = Terms({}, step.in_place, step.folder, counted=counted)
    made = deploy(graph, plan, MACHINE, costs, terms)
    return replace(made, limits=dict(made.worst))


@pytest.fixture(scope="module")
def made(step: Prepared) -> Deployment:
    return deployed(step, 3)


def test_what_the_caller_holds_is_shared_by_the_budgets(step: Prepared) -> None:
    whole = step.beside.inputs + step.beside.state
    even = counted_on(step, MACHINE, {"cpu:0": 7, "cpu:1": 7})
    assert even.sessions
    assert sum(even.given.values()) == whole
    assert abs(even.given["cpu:0"] - even.given["cpu:1"]) <= 1
    uneven = counted_on(step, MACHINE, {"cpu:0": 1 * MIB, "cpu:1": 3 * MIB})
    assert uneven.given["cpu:1"] == pytest.approx(0.75 * whole, rel=1e-6)
    assert counted_on(step, MACHINE, {"cpu:1": 7}).given == {"cpu:0": whole}  # it has no limit
    nothing = counted_on(step, MACHINE, {"cpu:0": 0, "cpu:1": 0})  # shares of an empty model
    assert sum(nothing.given.values()) == whole
    held = counted_on(step, holders(2), {"cpu:0": 7, "cpu:1": 7})
    assert sum(held.given.values()) == step.beside.inputs  # state counts where it lives
    settings = replace(step.settings, not_counted=EVERYTHING)
    assert counted_on(replace(step, settings=settings), MACHINE, {}) == Counted()


def test_a_share_is_of_weights_and_values_and_the_rest_comes_on_top(step: Prepared) -> None:
    budgets = {"cpu:0": parse_budget("0.5x"), "cpu:1": parse_budget("64MiB")}
    top = on_top(step, MACHINE, Counted({"cpu:0": 5 * MIB}, True))
    session = top["cpu:1"]
    assert session > SESSION
    assert top["cpu:0"] == 5 * MIB + session
    assert on_top(step, MACHINE, Counted()) == {"cpu:0": 0, "cpu:1": 0}
    assert device_limits(MACHINE, budgets, 10 * MIB, top) == {
        "cpu:0": 5 * MIB + top["cpu:0"], "cpu:1": 64 * MIB,
    }  # fmt: skip


def test_every_part_is_counted_once(step: Prepared, made: Deployment) -> None:
    stays = {name: found.stays for name, found in made.predicted.items()}
    assert sum(row.given for row in stays.values()) == step.graph.input_bytes
    assert all(row.session > SESSION for row in stays.values())
    counts = {name: sum(p.device == name for p in made.parts.partitions) for name in stays}
    assert min(counts.values()) > 1
    bare = deployed(replace(step, settings=replace(step.settings, not_counted=EVERYTHING)), 3)
    for name, found in made.predicted.items():
        assert found.peak == bare.predicted[name].peak + stays[name].given + stays[name].session


def test_sessions_of_a_device_with_its_own_memory_lie_in_the_processor_s(made: Deployment) -> None:
    devices = [
        replace(MACHINE.device("cpu:1"), provider=PROVIDERS["cuda"]),
        MACHINE.device("cpu:0"),
    ]
    apart = MACHINE.with_devices(devices)
    stays = residents(made.parts, apart, insides(made.parts, apart, {}))
    assert stays["cpu:1"].session == 0
    both = sum(found.stays.session for found in made.predicted.values())
    assert stays["cpu:0"].session == both - SESSION


def test_planned_within_them(step: Prepared, warm: None) -> None:
    found = optimized(step.unmeasured, MACHINE, "0.9x", pins=[("update*", "cpu:1")])
    rows = {row["device"]: row for row in found.facts()["devices"]}
    assert sum(row["input_bytes"] for row in rows.values()) == step.graph.input_bytes
    for row in rows.values():
        assert row["peak_predicted_bytes"] <= row["peak_worst_case_bytes"] <= row["budget_bytes"]
    half = (step.beside.inputs + step.beside.state) // 2
    with pytest.raises(InfeasibleError):
        optimized(step.unmeasured, MACHINE, str(half))


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs /proc")
def test_a_fresh_process_keeps_the_sum(step: Prepared, made: Deployment, tmp_path: Path) -> None:
    path, source = tmp_path / "step.onnx", tmp_path / "source.onnx"
    onnx.save(made.model(), path)
    onnx.save(step.original, source)
    assert read_deployment(path).parts.counted == made.parts.counted
    found = verify(source, path, settings=Settings(threads=1), seeds=1)
    assert found.ok, found.checks
    (told,) = [check for check in found.checks if "fresh process" in check.name]
    if NO_LIMIT in told.text:
        pytest.skip(NO_LIMIT)
    room = sum(made.limits.values()) - step.graph.input_bytes
    assert room / 2 < found.resident["devices"] <= room + SLACK


def test_exported_partitions_give_back_what_they_held(made: Deployment, tmp_path: Path) -> None:
    export_partitions(made, tmp_path / "parts")
    with load_partitions(tmp_path / "parts") as executor:
        partitions = [i for i, a in enumerate(made.parts.actions) if i in executor.stages]
        assert executor._apart == set(partitions)


def test_of_other_providers_a_process_tells_nothing(made: Deployment) -> None:
    devices = [replace(d, provider=PROVIDERS["openvino"]) for d in MACHINE.devices]
    other = replace(made, machine=MACHINE.with_devices(devices))
    assert devices_rise(Path("x.onnx"), other, {}) is None
