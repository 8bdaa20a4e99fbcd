"""What settings mean where a model is planned for devices."""

from __future__ import annotations

from dataclasses import replace

from onnxremat.device.machine import PROVIDERS, STORAGE, Machine
from onnxremat.ort.offline import HOST, PORTABLE
from onnxremat.pipeline.settings import AUTO, Settings
from onnxremat.session.process import UPDATES


def settings_over_devices(machine: Machine, settings: Settings) -> tuple[Machine, Settings]:
    """The machine, and the settings, as such a plan is made."""
    if settings.target == AUTO:  # operators that every provider knows, or the processor's own
        computing = {device.provider for device in machine.devices} - {STORAGE}
        target = HOST if computing == {PROVIDERS["cpu"]} else PORTABLE
        settings = replace(settings, target=target)
    if UPDATES in settings.not_counted:
        left = tuple(part for part in settings.not_counted if part != UPDATES)
        settings = replace(settings, not_counted=left)  # devices always update in place
    train = settings.train
    if train is not None and machine.has(PROVIDERS["cuda"]):
        # Else CUDA would leave a part of every batch normalization and pooling to the processor.
        train = replace(train, portable=True)
    if train is not None and train.precision == "bf16" and machine.has(PROVIDERS["openvino"]):
        # Its products round float32 values: onnxruntime's own kernels for the processor have no
        # 16-bit ones to share with it.
        machine, train = machine.in_bfloat16(), replace(train, precision="fp32")
    return machine, replace(settings, train=train)
