"""Files planned for OpenVINO, opened by ``Trainer`` and ``load`` as any other file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxremat
from models import build, feeds
from onnxremat.cost.table import CostTable
from onnxremat.device.files import read_machine
from onnxremat.device.host import bfloat16
from onnxremat.device.machine import PROVIDERS, Device, Machine
from onnxremat.errors import StoppedError, UsageError
from onnxremat.execute.deployment import deploy, training_pairs
from onnxremat.execute.partition_cuts import Terms
from onnxremat.grad import differentiate, training_of
from onnxremat.ort.infer import build_graph
from onnxremat.ort.providers import assigned as taken_by
from onnxremat.ort.providers import missing, open_on
from onnxremat.ort.session import TUNED
from onnxremat.schedule.assign import assigned
from onnxremat.session import load as loading
from onnxremat.training import on_devices
from onnxremat.training.trainer import Trainer

WHY = missing(Device("openvino", PROVIDERS["openvino"]))
here = pytest.mark.skipif(bool(WHY), reason=WHY)
ROWS = 8


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An AdamW step some of whose products OpenVINO computes, in a file."""
    path = tmp_path_factory.mktemp("steps") / "step.onnx"
    return written(read_machine("cpu-openvino"), path)


def written(machine: Machine, path: Path) -> Path:
    model = differentiate(net(), optimizer="adamw")
    graph = build_graph(model)
    machine = machine.with_devices([replace(d, threads=1) for d in machine.devices])
    products = [op.name for op in graph.ops if op.op_type in ("MatMul", "Gemm")][:4]
    where = {op.name: "openvino" if op.name in products else "cpu" for op in graph.ops}
    table = CostTable({op.name: 1e-4 for op in graph.ops}, {}, "given")
    made = deploy(
        graph, assigned(graph, where, machine), machine, dict.fromkeys(machine.names, table),
        Terms(pairs=training_pairs(model)),
    )  # fmt: skip
    assert {part.device for part in made.parts.partitions} == {"cpu", "openvino"}
    onnx.save(made.model(), path)
    return path


def net() -> onnx.ModelProto:
    return build("mlp", batch=ROWS, width=16)


def batches(step: Path, count: int) -> list[dict[str, np.ndarray]]:
    about, rng = training_of(onnx.load(step)), np.random.default_rng(0)
    (name,), model = about.data, onnx.load(step)
    sizes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input}
    return [
        {
            name: rng.standard_normal(sizes[name]).astype(np.float32),
            about.target: rng.integers(0, 2, sizes[about.target]),
        }
        for _ in range(count)
    ]


@here
def test_it_learns_what_one_session_learns(step: Path) -> None:
    both = Trainer(step, net(), rate=0.01), Trainer(step, net(), rate=0.01, options=TUNED)
    assert "on 'openvino'" in both[0].describe()
    assert "openvino" not in both[1].describe()
    for batch in batches(step, 5):
        losses = [one.step(batch) for one in both]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    found, expected = (one.values() for one in both)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-3, atol=1e-5, err_msg=name)


@here
@pytest.mark.skipif(bfloat16() is False, reason="this processor has no bfloat16")
def test_with_products_in_bfloat16_it_learns_as_well(step: Path, tmp_path: Path) -> None:
    """Parameters and state stay float32: what a step adds to them is not rounded away."""
    narrow = written(read_machine("cpu-openvino").in_bfloat16(), tmp_path / "narrow.onnx")
    both = Trainer(step, net(), rate=1e-4), Trainer(narrow, net(), rate=1e-4)
    batch = batches(step, 1)[0]
    losses = np.array([[one.step(batch) for one in both] for _ in range(40)])
    assert (losses[:, 0] != losses[:, 1]).any()  # it did round
    np.testing.assert_allclose(losses[:, 1], losses[:, 0], rtol=2e-2)
    assert losses[-1, 1] < losses[0, 1] - 0.01
    steps = both[0].values(), both[1].values()
    before = {t.name: onnx.numpy_helper.to_array(t) for t in net().graph.initializer}
    for name in before:
        moved = [np.abs(values[name] - before[name]).mean() for values in steps]
        assert moved[1] == pytest.approx(moved[0], rel=0.1), name


@here
def test_a_checkpoint_goes_on_where_it_was(step: Path, tmp_path: Path) -> None:
    first, rows = Trainer(step, net(), rate=0.01), batches(step, 4)
    for batch in rows[:2]:
        first.step(batch)
    first.save(tmp_path / "at2")
    expected = [first.step(batch) for batch in rows[2:]]
    second = Trainer(step, net(), rate=0.01)
    second.step(rows[3])  # state of its own, that the checkpoint replaces
    second.resume(tmp_path / "at2")
    assert [second.step(batch) for batch in rows[2:]] == expected
    for name, value in first.values().items():
        np.testing.assert_array_equal(second.state[name], value, err_msg=name)


@here
def test_inputs_are_checked_and_a_run_can_be_stopped(step: Path) -> None:
    run, (batch,) = Trainer(step, net()), batches(step, 1)
    name = run.training.data[0]
    with pytest.raises(UsageError, match="has shape"):
        run.step({**batch, name: batch[name][:1]})
    run.step(batch)
    with pytest.raises(UsageError, match="no value for input"):
        run.step({run.training.target: batch[run.training.target]})
    run.abandon()
    with pytest.raises(StoppedError):
        run.step(batch)


def test_without_openvino_it_trains_on_the_processor_and_says_so(
    step: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_devices, "missing", lambda device: "no package" if device.opaque else "")
    run = Trainer(step, net(), rate=0.01)
    assert "device 'openvino' is not here, no package" in run.describe()
    assert np.isfinite(run.step(batches(step, 1)[0]))


@pytest.fixture
def inference(tmp_path: Path) -> Path:
    """A net that OpenVINO computes as a whole, in a file."""
    graph, machine = build_graph(net()), read_machine("cpu-openvino")
    table = CostTable({op.name: 1e-4 for op in graph.ops}, {}, "given")
    plan = assigned(graph, {op.name: "openvino" for op in graph.ops}, machine)
    made = deploy(graph, plan, machine, dict.fromkeys(machine.names, table))
    onnx.save(made.model(), tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


@here
def test_a_plan_of_one_partition_is_one_session_of_its_provider(inference: Path) -> None:
    session = onnxremat.load(inference, threads=1)
    assert set(taken_by(session).values()) == {PROVIDERS["openvino"]}
    assert "all on 'openvino'" in session.describe()
    x = feeds(net())
    expected = open_on(Device("cpu"), net(), TUNED).run(None, x)
    np.testing.assert_allclose(session.run(None, x)[0], expected[0], rtol=1e-4, atol=1e-5)


def test_without_its_provider_it_runs_on_the_processor_and_says_so(
    inference: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "missing", lambda device: "no package")
    session = onnxremat.load(inference, threads=1)
    assert "planned for 'openvino', which is not here: no package" in session.describe()
    x = feeds(net())
    expected = open_on(Device("cpu"), net(), TUNED).run(None, x)
    np.testing.assert_array_equal(session.run(None, x)[0], expected[0])
