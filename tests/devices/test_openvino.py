"""OpenVINO partitions beside onnxruntime's own, in one process."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from models import build
from onnxremat.cost.devices import covered, device_costs
from onnxremat.device.files import read_machine
from onnxremat.grad import Settings as Training
from onnxremat.ort.providers import plugin_options
from onnxremat.run.compare import compare
from onnxremat.run.deployment import Deployment, deploy
from onnxremat.run.prepare import Prepared, Settings, prepare
from onnxremat.run.verify_devices import run_whole, verify_devices
from onnxremat.schedule.assign import assigned, split
from tests.devices.any_processor import openvino_here

WHY = openvino_here()
pytestmark = pytest.mark.skipif(bool(WHY), reason=WHY)


def deployed(prepared: Prepared) -> Deployment:
    machine = read_machine("cpu-openvino")
    machine = machine.with_devices([replace(d, threads=1) for d in machine.devices])
    tables = device_costs(prepared.graph, machine, prepared.feeds)
    halves = split(prepared.graph, machine.names, tables["cpu"].seconds)
    takes = covered(tables)
    device_of = {op: at if op in takes[at] else "cpu" for op, at in halves.items()}
    plan = assigned(prepared.graph, device_of, machine, takes)
    return deploy(prepared.graph, plan, machine, tables, pairs=prepared.in_place)


def test_inference_in_two_partitions() -> None:
    prepared = prepare(build("resnet18", batch=1, size=32), Settings(threads=1))
    made = deployed(prepared)
    assert {part.device for part in made.parts.partitions} == {"cpu", "openvino"}
    assert prepared.feeds is not None
    found = verify_devices(made, prepared.feeds)
    assert found.ok, found.checks
    assert found.measured["openvino"].how == "heap of the process"
    assert found.measured["openvino"].peak > 0


def test_a_training_step() -> None:
    prepared = prepare(build("mlp", batch=8), Settings(threads=1, train=Training()))
    made = deployed(prepared)
    assert {part.device for part in made.parts.partitions} == {"cpu", "openvino"}
    feeds, pairs = dict(prepared.feeds or {}), dict(prepared.in_place)
    state = {name: np.array(feeds[name]) for name in pairs}
    given = {name: value for name, value in feeds.items() if name not in pairs}
    expected = dict(feeds)
    with made.executor(state) as executor:
        for _ in range(3):
            executor.run(given)
            whole = run_whole(prepared.graph, expected, made)
            expected |= {old: whole[new] for old, new in pairs.items()}
    found = compare(state, {name: expected[name] for name in pairs})
    assert found.worst < 1e-4


def test_it_computes_in_float32() -> None:
    """Left alone it takes bfloat16 where the processor has it: 2 % off on BERT."""
    device = read_machine("cpu-openvino").device("openvino")
    assert '"INFERENCE_PRECISION_HINT": "f32"' in plugin_options(device)["load_config"]
