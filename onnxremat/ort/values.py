"""Values that sessions hand to each other without numpy: made, moved, looked at."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from onnxremat.device.machine import PROVIDERS, Device
from onnxremat.graph.ir import Tensor
from onnxremat.ort.binding import wrap
from onnxremat.ort.plugins import plugin_device
from onnxremat.ort.providers import place

SHARED = "session.use_env_allocators"  # take the pools that all sessions of the process share


class Copies:
    """How often bytes of values were copied: between devices, and to and from numpy."""

    def __init__(self) -> None:
        self.between = self.numpy = 0


def moved(value: Any, target: Device, copies: Copies) -> Any:
    """A copy of a value in the memory of a device: one transfer, nothing in between."""
    import onnxruntime as ort

    copies.between += 1
    kind, index = place(target)
    # A view where the value lies in host memory, else one transfer to there.
    array = value.numpy()
    if kind != "cpu":
        return ort.OrtValue.ortvalue_from_numpy(array, kind, index)
    return wrap(array.copy() if value.device_name() == "cpu" else array)


def as_array(value: Any, copies: Copies) -> np.ndarray:
    """The value as an array of its own."""
    copies.numpy += 1
    array: np.ndarray = value.numpy()
    return array.copy() if value.device_name() == "cpu" else array


def made_array(value: Any, copies: Copies) -> np.ndarray:
    """What a session made as an array, in the memory that it was made in."""
    copies.numpy += 1
    array: np.ndarray = value.numpy()  # keeps the value
    return array


def view(value: Any) -> np.ndarray:
    """The bytes of a value in host memory as an array over them; writing changes the value."""
    array: np.ndarray = value.numpy()
    return array


@cache
def shared_memory(device: Device) -> Any:
    """Host memory that a plugin provider reads and writes where it lies, and so does the processor;
    None where there is none. What lies elsewhere onnxruntime copies when it is bound, and a change
    of it afterwards is not seen."""
    import onnxruntime as ort

    plugin = plugin_device(device)
    if plugin is None:
        return None
    return plugin.memory_info(ort.OrtDeviceMemoryType.HOST_ACCESSIBLE)


def shared_empty(device: Device, dtype: int, shape: tuple[int, ...]) -> Any:
    """A value in :func:`shared_memory`."""
    import onnxruntime as ort

    return ort.OrtValue.ortvalue_from_shape_and_type(
        list(shape), dtype, memory_info=shared_memory(device)
    )


def value_at(address: int, tensor: Tensor) -> Any | None:
    """A value over host memory that others own; None where its size may differ from run to run, or
    NumPy has no such elements."""
    if tensor.seen or tensor.shape is None or not tensor.bytes:
        return None
    dtype = helper.tensor_dtype_to_np_dtype(tensor.dtype)
    plain = dtype.kind not in "OV" or tensor.dtype == TensorProto.BFLOAT16
    if not plain or dtype.itemsize * math.prod(tensor.shape) != tensor.bytes:
        return None
    memory = memoryview((ctypes.c_char * tensor.bytes).from_address(address))
    return wrap(np.frombuffer(memory, dtype).reshape(tensor.shape))


@cache
def nothing() -> Any:
    """A value of no size to speak of, bound where a big one was, so that that one can go."""
    return wrap(np.zeros(1, np.float32))


@cache
def share_arena() -> bool:
    """One pool of host memory for all sessions that ask for it (``session.use_env_allocators``),
    so that what one partition gives back the next one takes. Whether there is one."""
    import onnxruntime as ort

    memory = ort.OrtMemoryInfo(
        "Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT
    )
    try:
        ort.create_and_register_allocator(memory, ort.OrtArenaCfg({"arena_extend_strategy": 1}))
    except Exception as error:  # onnxruntime raises a dozen unrelated types
        return "already registered" in str(error)
    return True


_pools: dict[int, int] = {}  # limit of the pool of each CUDA device that has one


def share_gpu_arena(index: int, limit: int) -> bool:
    """One pool of a CUDA device's memory for all sessions that ask for it, of at most ``limit``
    bytes (0 for no limit): what would go beyond fails instead.

    onnxruntime keeps a pool, with its limit, as long as the process lasts. Whether there is one of
    this limit; where there is one of another, sessions need pools of their own.
    """
    import onnxruntime as ort

    if index in _pools:
        return _pools[index] == limit
    kind = ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR
    memory = ort.OrtMemoryInfo("Cuda", kind, index, ort.OrtMemType.DEFAULT)
    settings = {"arena_extend_strategy": 1, **({"max_mem": limit} if limit else {})}
    try:
        ort.create_and_register_allocator_v2(
            PROVIDERS["cuda"], memory, {"device_id": str(index)}, ort.OrtArenaCfg(settings)
        )
    except Exception:  # onnxruntime raises a dozen unrelated types; another's pool among them
        return False
    _pools[index] = limit
    return True


class Stage:
    """A session whose outputs are allocated as it runs and handed on; inputs are bound by name.

    Args:
        session: an ``InferenceSession``.
        device: where its values lie.
        outputs: names of the outputs to hand on, in this order.
        fixed: outputs that are written into given values (state updated in place).
        fresh: makers of the values that other outputs are written into, a new one every run.

    Attributes:
        names: all outputs but fixed ones, in the order in which :meth:`run` returns their values.
    """

    def __init__(
        self,
        session: Any,
        device: Device,
        outputs: tuple[str, ...],
        fixed: Mapping[str, Any],
        fresh: Mapping[str, Callable[[], Any]] | None = None,
    ) -> None:
        self.session = session
        self._binding = session.io_binding()
        self._place = place(device)
        self._fresh = dict(fresh or {})
        self.names = [name for name in outputs if name not in fixed]
        # Outputs come back in the order in which they were first bound.
        self._bound, self._at = [*self.names], [*range(len(self.names))]
        for name in self.names:
            self._binding.bind_output(name, *self._place)
        for name, value in fixed.items():
            self._binding.bind_ortvalue_output(name, value)

    def bind(self, name: str, value: Any) -> None:
        """Read this value as an input from now on."""
        self._binding.bind_ortvalue_input(name, value)

    def write_into(self, values: Mapping[str, Any]) -> None:
        """From now on write these outputs into given values, and hand on the others."""
        for name in self._bound:
            if name in values:
                self._binding.bind_ortvalue_output(name, values[name])
            elif name not in self.names:
                self._binding.bind_output(name, *self._place)
        self._at = [at for at, name in enumerate(self._bound) if name not in values]
        self.names = [self._bound[at] for at in self._at]

    def run(self, inputs: Sequence[tuple[str, Any]]) -> list[Any]:
        """One run; returns the values of all outputs but fixed ones and keeps no hold on them.

        Args:
            inputs: bound for this run alone.
        """
        binding = self._binding
        for name, value in inputs:
            binding.bind_ortvalue_input(name, value)
        for name, make in self._fresh.items():
            binding.bind_ortvalue_output(name, make())
        self.session.run_with_iobinding(binding)
        made = binding.get_outputs() if self._at else []
        values = [made[at] for at in self._at]
        for name in self.names:
            binding.bind_output(name, *self._place)
        for name, _ in inputs:
            binding.bind_ortvalue_input(name, nothing())
        return values
