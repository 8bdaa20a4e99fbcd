"""Plans for a device whose provider compiles its partitions, and keeps all that it computes in."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from onnxremat.cost.table import CostTable
from onnxremat.device.files import read_machine
from onnxremat.device.machine import Machine
from onnxremat.execute.deployment import Deployment
from onnxremat.pipeline.devices.device_plan import device_model
from onnxremat.pipeline.devices.kept_of_ops import MORE, seen_per_byte
from onnxremat.pipeline.devices.over_devices import OverDevices
from onnxremat.pipeline.devices.several_devices import DEARER, PRICE, SeveralDevices
from onnxremat.pipeline.devices.site import Site
from onnxremat.pipeline.phases import Phases
from onnxremat.pipeline.prepare import prepare
from onnxremat.pipeline.settings import Settings
from onnxremat.planner.search import warm_up
from onnxremat.planner.semantics import peaks
from onnxremat.planner.solution import Solution, Status
from tests.planner.asking import asked
from tests.toolbox import parse

HELD = 1 << 20  # bytes that OpenVINO was seen to hold
TEXT = """g (float[1024] x) => (float[1024] y) {
    a = Sin(x) b = Cos(a) c = Add(a, b) d = Sin(c) e = Cos(d) y = Add(d, e) }"""


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    """The compiled search is ready."""
    warm_up(2)


@pytest.fixture
def target() -> SeveralDevices:
    """OpenVINO takes a tenth of the time, in less than it was seen to hold."""
    machine, prepared = read_machine("cpu-openvino"), prepare(parse(TEXT), Settings(target="none"))
    names = [op.name for op in prepared.graph.ops]
    tables = {
        name: CostTable(dict.fromkeys(names, 1e-3 * share), {}, "given")
        for name, share in (("cpu", 1.0), ("openvino", 0.1))
    }
    site = Site(machine, {"cpu": 1 << 20, "openvino": HELD // 2})
    return SeveralDevices(prepared, site, tables, Phases())


def _planned(target: SeveralDevices) -> Solution:
    found = target.solve(target.aim, asked(threads=1))
    assert found.schedule is not None
    return found


def _carried_out(target: SeveralDevices, parts: int) -> OverDevices:
    """In so many partitions of OpenVINO's."""
    row = [SimpleNamespace(device="openvino")] * parts
    made = SimpleNamespace(parts=SimpleNamespace(partitions=row), machine=Machine)
    return OverDevices(cast(Deployment, made))


def test_a_plan_takes_what_it_took(target: SeveralDevices) -> None:
    found = _planned(target)
    assert {step.device for step in found.schedule.steps} == {1}
    share = seen_per_byte(target.model.problem, found.schedule, 1, HELD)
    prepared = target.prepared
    model = device_model(prepared.graph, target.site, target.tables, (), {"openvino": share})
    planned, before = peaks(model.problem, found.schedule), found.peaks[1]
    assert planned[0] == 0
    assert planned[1] - before == pytest.approx(MORE * (HELD - before), rel=1e-3)
    assert seen_per_byte(target.model.problem, found.schedule, 1, before) == 0


def test_less_runs_where_more_was_held(target: SeveralDevices) -> None:
    found = _planned(target)
    aim = target.lower(target.aim, found, _carried_out(target, 1), {"openvino": HELD // 2})
    assert not aim.price
    assert dict(aim.limits) == dict(target.limits)
    again = target.solve(aim, asked(threads=1))
    assert again.schedule is not None
    ops = {step.item for step in again.schedule.steps if step.runs and step.device == 1}
    assert 0 < len(ops) < len(target.prepared.graph.ops)
    assert again.peaks == tuple(peaks(target.model.problem, again.schedule))


def test_what_was_seen_proves_nothing(target: SeveralDevices) -> None:
    """Neither a bound nor that there is no plan: it is no more than a guess of the next one."""
    found = _planned(target)
    aim = target.lower(target.aim, found, _carried_out(target, 1), {"openvino": HELD // 2})
    again = target.solve(aim, asked(threads=1))
    assert again.certificate.bound <= target.model.problem.least_seconds * (1 + 1e-9)
    hopeless = replace(aim, per_byte=dict.fromkeys(target.site.machine.names, 1e9))
    assert target.solve(hopeless, asked(threads=1)).status is Status.UNKNOWN


def test_many_partitions_have_a_price(target: SeveralDevices) -> None:
    found = _planned(target)
    first = target.lower(target.aim, found, _carried_out(target, 3), {"openvino": 1})
    gained = target.model.problem.alone - found.time
    assert first.price["openvino"] == pytest.approx(max(PRICE, gained / 3))
    second = target.lower(first, found, _carried_out(target, 3), {"openvino": 1})
    assert second.price["openvino"] == pytest.approx(DEARER * first.price["openvino"])


def test_the_next_plan_begins_with_what_was_learned(target: SeveralDevices) -> None:
    found = _planned(target)
    aim = target.lower(target.aim, found, _carried_out(target, 1), {"openvino": HELD // 2})
    later = replace(target, learned=aim)
    assert later.aim.per_byte == aim.per_byte
    assert dict(later.aim.limits) == dict(target.limits)
    assert later.of(target.prepared).aim.per_byte == {}
