"""Costs, speeds and links of devices: measured where they are, estimated where not."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest

from onnxremat.cost import devices, links
from onnxremat.cost.analytic import Roofline
from onnxremat.cost.detect import detect
from onnxremat.cost.devices import device_costs, estimated, roofline
from onnxremat.cost.foreign import foreign_costs
from onnxremat.cost.links import measure_link
from onnxremat.cost.measure import Measuring
from onnxremat.cost.table import CostTable
from onnxremat.device.files import machine_toml, parse_machine, read_machine
from onnxremat.device.machine import PROVIDERS, Device
from onnxremat.ort.feeds import seeded_feeds
from tests.devices.plans import processors
from tests.toolbox import graph_of, training_chain


def test_the_processor_is_measured_and_others_are_estimated() -> None:
    graph = training_chain(3, 32, 64)
    machine = read_machine("cpu-cuda")
    tables = device_costs(graph, machine, seeded_feeds(graph))
    assert tables["cpu"].source in ("measured", "cached")
    if tables["cuda:0"].source.startswith("measured"):
        pytest.skip("a CUDA GPU is here")
    assert tables["cuda:0"].source == "analytic, calibrated by cpu"
    assert set(tables["cuda:0"].seconds) == {op.name for op in graph.ops}


def test_processors_with_as_many_threads_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two measurements beside other work may differ by any factor; what is measured does not."""
    graph, drift = training_chain(2, 16, 32), iter((1.0, 9.0, 1.0))

    def measured(*given: object, threads: int, **more: object) -> tuple[CostTable, None]:
        took = threads * next(drift)
        return CostTable({op.name: took for op in graph.ops}, {}, "measured"), None

    monkeypatch.setattr(devices, "measure_costs", measured)
    machine = processors(3)
    machine = machine.with_devices(
        [replace(d, threads=1 + n // 2) for n, d in enumerate(machine.devices)]
    )
    tables = device_costs(graph, machine, seeded_feeds(graph))
    assert tables["cpu:0"] == replace(tables["cpu:1"], device="cpu:0")
    assert tables["cpu:2"].total == pytest.approx(18 * tables["cpu:0"].total)


def test_nothing_is_measured_for_a_machine_that_is_elsewhere() -> None:
    graph = training_chain(2, 16, 32)
    machine = read_machine("raspberry-pi-5")
    tables = device_costs(graph, machine, seeded_feeds(graph))
    assert tables["cpu"].source == "analytic, calibrated by this machine"
    plain = device_costs(graph, machine, None)
    assert plain["cpu"].source == "analytic"


def test_an_estimate_follows_what_a_measured_device_took() -> None:
    """A device of the same figures gets the measured times, one of half the speed twice them."""
    graph = training_chain(2, 256, 512)
    fast = Device("fast", PROVIDERS["cpu"], flops=1e10, bandwidth=1e9)
    slow = Device("slow", PROVIDERS["cpu"], flops=5e9, bandwidth=5e8)
    seconds = {op.name: 3e-3 for op in graph.ops}
    known = [(fast, CostTable(seconds, {}, "measured"))]
    again = estimated(graph, fast, known)
    assert again.total == pytest.approx(sum(seconds.values()), rel=0.5)
    half = estimated(graph, slow, known)
    heavy = [op.name for op in graph.ops if op.op_type == "MatMul"]
    for name in heavy:
        assert half.seconds[name] == pytest.approx(2 * again.seconds[name], rel=0.05)
    assert roofline(slow).flops == 5e9


def test_links_are_measured_by_copies() -> None:
    a, b = processors(2).devices
    link = measure_link(a, b)
    assert link.shared  # one memory: values are handed over
    assert link.origin == "measured"
    assert link.bandwidth > 0
    assert link.latency > 0


def test_bandwidth_and_latency_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that a copy moves by its bytes, and a look by a little."""
    now = [0.0]

    def clock() -> float:
        now[0] += 2e-6
        return now[0]

    def copy(value, target, copies):
        now[0] += 1e-3 + value.numpy().nbytes / 2e9

    monkeypatch.setattr(links, "moved", copy)
    a, b = processors(2).devices
    handed = measure_link(a, b, clock)
    assert handed.bandwidth == pytest.approx(2e9)
    assert handed.latency == pytest.approx(1e-6)  # half of there and back
    crossed = measure_link(a, Device("cuda:0", PROVIDERS["cuda"]), clock)
    assert crossed.bandwidth == pytest.approx(2e9)
    assert crossed.latency == pytest.approx(1e-3 + 2e-6, rel=1e-3)


def test_detection_writes_a_machine_file() -> None:
    machine = detect()
    assert machine.devices[0].name == "cpu"
    assert machine.devices[0].flops > 0
    assert machine.devices[0].bandwidth > 0
    again = parse_machine(machine_toml(machine), "detected")
    assert again.names == machine.names


def test_an_op_that_ends_the_process_does_not_run_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child dies while it measures the second op; the rest is measured by another one."""
    graph = graph_of("g (float[4] x) => (float[4] y) { a = Sin(x) b = Cos(a) y = Tanh(b) }")
    names = [op.name for op in graph.ops]
    requests = []

    def answers(request, until):
        requests.append(request)
        if request["whole"]:
            yield {"call": 1e-5}
            yield {"taken": names}
            yield {"whole": 1e-3}
        for index in range(request["start"], request["count"]):
            yield {"op": index}
            if index == 1:
                return
            yield {"op": index, "seconds": 1e-3}
        yield {"done": True}

    monkeypatch.setattr("onnxremat.cost.foreign._answers", answers)
    device = Device("other", PROVIDERS["openvino"])
    table = foreign_costs(graph, seeded_feeds(graph), device, Roofline(), Measuring(fresh=True))
    assert set(table.seconds) == {names[0], names[2]}
    assert table.seconds[names[0]] == pytest.approx(1e-3 - 1e-5)
    assert table.notes == (f"{device.provider} ends the process on op '{names[1]}'",)
    assert [(r["start"], r["whole"]) for r in requests] == [(0, True), (2, False)]


def test_what_there_is_no_time_to_measure_is_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that says which ops the provider takes, times one of them, and does not end; its
    library prints, too."""
    graph = training_chain(2, 16, 32)
    names = [op.name for op in graph.ops]
    said = ({"taken": names}, {"op": 0, "seconds": 1e-3})
    lines = "{library: loaded}\n[1]\n" + "".join(json.dumps(answer) + "\n" for answer in said)
    code = f"import time; print({lines!r}, flush=True); time.sleep(1000)"
    monkeypatch.setattr("onnxremat.cost.foreign.CHILD", (sys.executable, "-c", code))
    device = Device("other", PROVIDERS["openvino"])
    table = foreign_costs(
        graph, seeded_feeds(graph), device, Roofline(), Measuring(fresh=True, within=0.5)
    )
    assert set(table.seconds) == set(names)
    assert table.seconds[names[0]] == pytest.approx(1e-3)
    assert "are estimated" in table.notes[0]


def test_ops_are_scaled_to_what_stretches_of_them_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """By themselves all ops take alike; together the first half takes three times the second."""
    text = " ".join(f"v{i + 1} = Sin(v{i})" for i in range(16))
    graph = graph_of(f"g (float[4] v0) => (float[4] v16) {{ {text} }}")
    names = [op.name for op in graph.ops]
    took = [3e-3 + 1e-5] * 4 + [1e-3 + 1e-5] * 4

    def answers(request, until):
        yield {"call": 1e-5}
        yield {"taken": names}
        yield {"whole": 16e-3}
        yield from ({"stretch": seconds} for seconds in took)
        for index in range(request["count"]):
            yield {"op": index, "seconds": 5e-3}
        yield {"done": True}

    monkeypatch.setattr("onnxremat.cost.foreign._answers", answers)
    device = Device("other", PROVIDERS["openvino"])
    table = foreign_costs(graph, seeded_feeds(graph), device, Roofline(), Measuring(fresh=True))
    assert [table.seconds[name] for name in names] == pytest.approx([1.5e-3] * 8 + [0.5e-3] * 8)
    assert "stretches" in table.source
