"""Lets OpenVINO's plugin serve the processor at hand, in the process of a test.

OpenVINO computes on any x86-64 processor; its onnxruntime plugin offers a processor only when it
is Intel's. So that these tests run elsewhere too, onnxruntime's note of the maker is changed in
memory, after checking that it is where it is taken to be.
"""

from __future__ import annotations

import ctypes
import os
import platform
from pathlib import Path

INTEL = 0x8086


def openvino_here() -> str:
    """Make OpenVINO usable if it can be; why not otherwise."""
    try:
        import onnxruntime_ep_openvino  # noqa: F401
    except ImportError:
        return "onnxruntime-ep-openvino is not installed: pip install 'onnxremat[openvino]'"
    if platform.machine() not in ("x86_64", "AMD64"):
        return "OpenVINO's processor plugin is for x86-64"
    as_intel()
    _for_children()
    from onnxremat.device.machine import PROVIDERS, Device
    from onnxremat.ort.providers import missing

    return missing(Device("openvino", PROVIDERS["openvino"]))


def as_intel() -> None:
    """Change the note of the maker in this process."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    for device in getattr(state, "get_hardware_devices", list)():
        if device.type.name != "CPU" or device.vendor_id == INTEL:
            continue
        address = ctypes.c_void_p.from_address(id(device) + 2 * ctypes.sizeof(ctypes.c_void_p))
        words = (ctypes.c_uint32 * 3).from_address(address.value or 0)
        if list(words) == [0, device.vendor_id, device.device_id]:
            words[1] = INTEL


def _for_children() -> None:
    """Have processes started from here do the same when they start."""
    here = Path(__file__).resolve().parent
    paths = [str(here / "startup"), str(here.parent.parent), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    os.environ["ONNXREMAT_TESTS_ANY_PROCESSOR"] = "1"
