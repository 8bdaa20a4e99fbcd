"""This machine as a machine file: providers, threads, memory, speeds, links."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
from onnx import TensorProto, helper

from onnxremat.cost.links import measure_link
from onnxremat.device.machine import OWN_MEMORY, PROVIDERS, Device, Machine
from onnxremat.ort.binding import wrap
from onnxremat.ort.plugins import plugin_device
from onnxremat.ort.providers import here, open_on
from onnxremat.ort.session import TUNED
from onnxremat.ort.values import Stage

# On the host, and where a device is some thousand times as quick as a call of it takes.
WIDTH, WIDE = 768, 8192  # of the square matrices multiplied
COPIED, FAR = 1 << 25, 1 << 28  # bytes of the values added; more than a cache holds
SECONDS = 0.4  # aim for this much measuring per speed


def detect(say: Callable[[str], None] | None = None) -> Machine:
    """Find devices and measure them: float32 multiply-adds, memory traffic, links by copies."""
    say = say or (lambda _: None)
    devices = []
    for device in here():
        say(f"measuring {device.name}")
        devices.append(with_speeds(device))
    links = []
    for source in devices:
        for target in devices:
            if source is not target:
                say(f"measuring the link from {source.name} to {target.name}")
                links.append(measure_link(source, target))
    return Machine(tuple(devices), tuple(links), "detected")


def with_speeds(device: Device) -> Device:
    """The device with its measured multiply-adds and memory traffic per second."""
    width = WIDTH if device.in_host_memory else WIDE
    product = _seconds(device, "MatMul", (width, width))
    return replace(
        device,
        memory=device.memory or _gpu_memory(device),
        flops=2.0 * width**3 / product,
        bandwidth=memory_traffic(device),
        source="measured",
    )


@cache
def memory_traffic(device: Device) -> float:
    """Bytes per second that an addition of two long vectors reads and writes; measured once."""
    size = COPIED if device.in_host_memory else FAR
    return 3.0 * size / _seconds(device, "Add", (size // 4,))


def _seconds(device: Device, op_type: str, shape: tuple[int, ...]) -> float:
    """Quickest run of an op on two values, on the device."""
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in ("a", "b", "c")]
    node = helper.make_node(op_type, ["a", "b"], ["c"])
    graph = helper.make_graph([node], "speed", values[:2], values[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    stage = Stage(open_on(device, model, TUNED), device, ("c",), {})
    for name in ("a", "b"):
        stage.bind(name, wrap(np.ones(shape, np.float32)))
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < 3 or time.perf_counter() - start < SECONDS:
        begin = time.perf_counter()
        stage.run([])
        times.append(time.perf_counter() - begin)
    return min(times)


def _gpu_memory(device: Device) -> int:
    """Bytes of an NVIDIA GPU, by its own tool; 0 where that is not there."""
    told = _told_of_gpu(device, "memory.total") if device.provider == PROVIDERS["cuda"] else ()
    try:
        return int(told[0].split()[0]) << 20
    except (ValueError, IndexError):
        return 0


def hardware(device: Device) -> tuple[str, ...]:
    """What tells a device and its provider from others of the same name and number: costs that a
    folder shared by machines keeps, or that were measured before a new card or driver came, are
    not of this one. Nothing of what cannot be asked."""
    if device.provider in OWN_MEMORY:
        return _told_of_gpu(device, "name", "driver_version")
    found = plugin_device(device)
    if found is None:
        return ()
    version = str(found.ep_metadata.get("version", ""))
    return version, *(str(fact) for fact in (found.device.vendor_id, found.device.device_id))


def _told_of_gpu(device: Device, *asked: str) -> tuple[str, ...]:
    """What NVIDIA's tool says of a GPU; nothing where that is not there."""
    import subprocess

    number = _of_all_gpus(device.index)
    if not number:
        return ()
    command = ["nvidia-smi", f"--query-gpu={','.join(asked)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            [*command, f"--id={number}"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ()
    return tuple(word.strip() for word in done.stdout.strip().split(","))


def _of_all_gpus(index: int) -> str:
    """The number or name among all GPUs of one of those that CUDA shows; "" where it shows none."""
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    if shown is None:
        return str(index)
    names = [name.strip() for name in shown.split(",")]
    return names[index] if index < len(names) else ""
