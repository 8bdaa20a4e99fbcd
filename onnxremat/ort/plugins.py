"""Providers that come as a library of their own: registered with onnxruntime, and their devices."""

from __future__ import annotations

import ctypes
import importlib
from functools import cache
from pathlib import Path
from typing import Any

from onnxremat.device.host import made_by_intel
from onnxremat.device.machine import PROVIDERS, Device, short_name

OPENVINO = PROVIDERS["openvino"]
PLUGINS = {OPENVINO: "onnxruntime_ep_openvino", PROVIDERS["webgpu"]: "onnxruntime_ep_webgpu"}


@cache
def registered(provider: str) -> bool:
    """Load a provider that comes as a plugin library; whether it is there."""
    import onnxruntime as ort

    try:
        plugin = importlib.import_module(PLUGINS[provider])
    except ImportError:
        return False
    library = plugin.get_library_path()
    if provider == OPENVINO and not made_by_intel() and not intel_only():
        library = str(_any_maker())
    try:
        ort.register_execution_provider_library(short_name(provider), library)
    except Exception as error:  # onnxruntime raises a dozen unrelated types
        return "already registered" in str(error)
    return True


def plugin_device(device: Device) -> Any:
    """onnxruntime's handle of a device whose provider is a plugin library; None for others."""
    return offered(device.provider, device.options.get("device", "CPU"))


def offered(provider: str, hardware: str) -> Any:
    """The same by provider and kind of hardware (CPU, GPU, NPU)."""
    import onnxruntime as ort

    if provider not in PLUGINS or not registered(provider):
        return None
    for found in ort.get_ep_devices():
        kind = found.ep_metadata.get("ov_device", found.device.type.name)
        if found.ep_name == provider and kind == hardware:
            return found
    return None


@cache
def intel_only() -> str:
    """Why OpenVINO's plugin cannot have another maker's processor; "" where it can.

    OpenVINO computes on any x86-64 processor, its plugin lists Intel's only. A library of ours,
    which onnxruntime loads in its place, loads it and tells it that the processor is one.
    """
    library = _any_maker()
    if library is None:
        return "the package was installed without the compiled library that serves others"
    try:
        c = ctypes.CDLL(str(library))
        c.any_maker.restype, c.any_maker.argtypes = ctypes.c_char_p, [ctypes.c_char_p]
        plugin = importlib.import_module(PLUGINS[OPENVINO]).get_library_path()
        return str((c.any_maker(str(plugin).encode()) or b"").decode(errors="replace"))
    except (OSError, AttributeError) as error:
        return f"the compiled library that serves others does not load: {error}"


def _any_maker() -> Path | None:
    """The library, which is compiled at installation where there is a compiler."""
    return next(iter(sorted(Path(__file__).parent.glob("_any_maker*.so"))), None)
