"""What is told to onnxruntime about a GPU, where there is none: libraries, options, pools."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import models
from onnxremat.api import optimize
from onnxremat.cost import detect
from onnxremat.cost.analytic import Roofline
from onnxremat.cost.foreign import foreign_costs
from onnxremat.device.files import read_machine
from onnxremat.device.machine import PROVIDERS, Device
from onnxremat.grad import Settings as Training
from onnxremat.graph.onnx_io import to_model
from onnxremat.ort import providers, values
from onnxremat.ort.feeds import seeded_feeds
from onnxremat.ort.infer import build_graph
from onnxremat.ort.profile import profile
from onnxremat.ort.session import TUNED
from onnxremat.pipeline.settings import Settings
from onnxremat.planner.options import PlanOptions
from onnxremat.rewrite.partition import Copy

GPU = Device("cuda:0", PROVIDERS["cuda"])


def test_libraries_are_loaded_before_cuda_is_tried(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """pip's packages of CUDA and cuDNN are found only when onnxruntime is told to load them, also
    from another folder than onnxruntime's own."""
    (tmp_path / "nvidia" / "cu13" / "lib").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path)
    told: list[str] = []

    def preload(directory: str = "libraries") -> None:
        told.append(directory)

    monkeypatch.setattr(ort, "preload_dlls", preload)

    def opened(*args: Any, **more: Any) -> Any:
        told.append("session")
        raise RuntimeError("no GPU")

    monkeypatch.setattr(ort, "InferenceSession", opened)
    providers.load_cuda_libraries.cache_clear()
    providers._missing.cache_clear()
    assert "does not start here" in providers.missing(GPU)
    assert (told[0], told[-1]) == ("libraries", "session")
    assert str(tmp_path / "nvidia" / "cu13" / "lib") in told[1:-1]
    providers.load_cuda_libraries.cache_clear()
    providers._missing.cache_clear()


def test_a_pool_keeps_its_first_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime cannot make it anew: sessions of another limit are told to have their own."""
    asked: list[str] = []
    monkeypatch.setattr(values, "_pools", {})
    monkeypatch.setattr(
        ort, "create_and_register_allocator_v2", lambda name, *rest: asked.append(name)
    )
    assert values.share_gpu_arena(0, 1 << 30)
    assert values.share_gpu_arena(0, 1 << 30)
    assert not values.share_gpu_arena(0, 1 << 29)
    assert values.share_gpu_arena(1, 1 << 29)
    assert asked == [PROVIDERS["cuda"]] * 2
    assert providers.limited(GPU, 1 << 29).options["gpu_mem_limit"] == str(1 << 29)
    assert providers.limited(Device("cpu"), 1 << 29).options == {}


def test_convolutions_get_the_same_algorithm_every_time() -> None:
    """By timing, a recomputation could get other bits than its first run."""
    options = providers._named_options(PROVIDERS["cuda"], 1, {})
    assert options["cudnn_conv_algo_search"] == "HEURISTIC"
    assert (options["device_id"], options["use_tf32"]) == ("1", "0")
    given = {"cudnn_conv_algo_search": "EXHAUSTIVE"}
    assert providers._named_options(PROVIDERS["cuda"], 0, given) == {
        **options,
        **given,
        "device_id": "0",
    }


def test_workspace_is_what_kernels_were_counted_to_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the whole graph, run once under the meter on the device."""
    monkeypatch.setattr("onnxremat.cost.foreign.SECONDS", 1e-4)
    graph = build_graph(models.build("lenet", batch=2))
    table = foreign_costs(graph, seeded_feeds(graph), Device("cpu", threads=1), Roofline())
    assert set(table.seconds) == {op.name for op in graph.ops}
    convolutions = [op.name for op in graph.ops if op.op_type == "Conv"]
    counted = profile(to_model(graph), seeded_feeds(graph), replace(TUNED, threads=1))
    wanted = {kernel.name: kernel.scratch for kernel in counted.kernels}
    assert {name: table.scratch[name] for name in wanted} == wanted
    assert any(wanted[name] for name in convolutions)  # an estimate would say so too


def test_gpus_are_measured_on_values_that_take_longer_than_a_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: dict[str, int] = {}

    def seconds(device: Device, op_type: str, shape: tuple[int, ...]) -> float:
        seen[op_type] = int(np.prod(shape))
        return 1e-3

    monkeypatch.setattr(detect, "_seconds", seconds)
    monkeypatch.setattr(detect, "_gpu_memory", lambda device: 1 << 34)
    found = detect.with_speeds(GPU)
    # A tenth of the peak of a large GPU of 2026 still takes over 100 us, ten times a call.
    assert found.flops == 2e3 * detect.WIDE**3
    assert 2.0 * detect.WIDE**3 / 1e15 > 1e-3
    assert seen["Add"] * 12 / 4e12 > 1e-4
    detect.memory_traffic.cache_clear()


def test_a_step_planned_for_cuda_uses_what_cuda_has(tmp_path: Path) -> None:
    """No training-mode BatchNormalization and no MaxUnpool: else the processor would run them."""
    machine = read_machine("cpu-cuda")
    model = models.build("unet", batch=1, size=16, width=4, levels=2)
    settings = Settings(train=Training(), measure=False)
    made = optimize(model, devices=machine, settings=settings, options=PlanOptions(work=20))
    ops = made.prepared.graph.ops
    assert not any(op.op_type == "MaxUnpool" for op in ops)
    norms = [op for op in ops if op.op_type == "BatchNormalization"]
    assert norms
    assert not any(a.name == "training_mode" and a.i for op in norms for a in op.node.attribute)
    (tmp_path / "a.onnx.options.json").write_text("of a model for one session, there before")
    assert made.save(tmp_path / "a.onnx") == list(tmp_path.iterdir())


def test_a_gpu_alone_holds_state_and_gets_inputs_first() -> None:
    """Of a step with the processor's memory beside it; the planner's first answers over both were
    worse where the GPU is many times quicker."""
    machine = read_machine("cpu-cuda")
    assert [device.holds_state for device in machine.devices] == [False, True]
    model = models.build("resnet20", batch=512, size=16, width=8, blocks=1)
    settings = Settings(train=Training(optimizer="sgd", portable=True), measure=False)
    made = optimize(
        model,
        budget="cuda:0=0.8x",
        devices=machine,
        settings=settings,
        options=PlanOptions(work=400),
    )
    parts, graph = made.deployment.parts, made.prepared.graph
    assert {part.device for part in parts.partitions} == {"cuda:0"}
    first = parts.actions[: len(graph.inputs)]
    copies = [action.value for action in first if isinstance(action, Copy)]
    state = {old for old, _ in parts.pairs}
    assert state
    assert not state & set(copies)
    assert set(copies) == {name for name in graph.inputs if graph.readers.get(name)} - state
    assert made.plan.provenance.bound <= made.deployment.makespan


def test_what_counts_sizes_belongs_to_the_session_of_a_gpu() -> None:
    graph = build_graph(models.build("lenet", batch=2))
    big, size = graph.ops[0], SimpleNamespace(op_type="Size", reads=("x",), writes=("y",))
    assert not providers.beside_gpu(graph, big, GPU)
    assert not providers.beside_gpu(graph, big, Device("cpu"))
    number = SimpleNamespace(op_type="Mul", reads=("n",), writes=("m",))
    tensors = {**graph.tensors, **{n: SimpleNamespace(bytes=8) for n in ("n", "m", "y")},
               "x": SimpleNamespace(bytes=1 << 20)}  # fmt: skip
    small = SimpleNamespace(tensors=tensors)
    assert providers.beside_gpu(small, number, GPU)
    assert providers.beside_gpu(small, size, GPU)
