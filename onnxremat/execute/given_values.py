"""The caller's arrays as values that sessions read and update: inputs, parameters, state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx

from onnxremat.device.machine import Device, Machine
from onnxremat.errors import UsageError
from onnxremat.execute.pools import pooled
from onnxremat.ort.binding import check_names, wrap
from onnxremat.ort.values import Copies, as_array, moved, shared_empty, view
from onnxremat.rewrite.partition import Partitioned


def memory(device: Device) -> str:
    """The memory a device reads: the process's, or its own."""
    return "host" if device.in_host_memory else device.name


class GivenValues:
    """Values over the caller's arrays where host sessions read them, copies elsewhere.

    Args:
        state: array per input that the model updates in place.

    Attributes:
        updated: result to the state it is written into.
        pool: values in the memory of a plugin provider, with its device.

    Raises:
        UsageError: state that is no input, of another shape or type, or cannot be written.
    """

    def __init__(
        self,
        parts: Partitioned,
        machine: Machine,
        state: Mapping[str, np.ndarray],
        copies: Copies,
    ) -> None:
        self._inputs = {name: parts.graph.tensors[name] for name in parts.graph.inputs}
        self.updated = {new: old for old, new in parts.pairs if old in state}
        self.pool = pooled(parts, machine)
        self._state, self._copies = dict(state), copies
        self._home = self._homes(parts, machine)
        self._arrays: dict[str, np.ndarray] = {}  # the caller's
        self._values: dict[str, Any] = {}
        for name, array in self._state.items():
            self._take(name, self._checked(name, array))

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def memory(self, name: str) -> str:
        """Where a value lies."""
        return memory(self._home[name]) if name in self._home else "host"

    def feed(self, feeds: Mapping[str, np.ndarray]) -> list[str]:
        """Take the inputs of a run, all or none of them; returns those that are new values, to be
        bound.

        Raises:
            UsageError: an input is missing, of another shape or type, or not the model's.
        """
        names = [name for name in self._inputs if name not in self._state]
        check_names(feeds, names)
        fresh = [name for name in names if self._arrays.get(name) is not feeds[name]]
        # Before any is taken: else one that is would be bound in no run after this one.
        checked = {name: self._checked(name, feeds[name]) for name in fresh}
        for name in names:
            if name in checked:
                self._take(name, checked[name])
            elif name in self.pool:  # it may have been written in place
                self._fill(name)
        return fresh

    def copied(self, feeds: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Values of the inputs of one run that nobody else holds: copies, where host sessions or a
        plugin provider read them.

        Raises:
            UsageError: an input is missing, of another shape or type, or not the model's.
        """
        found = {}
        check_names(feeds, self._inputs)
        for name, tensor in self._inputs.items():
            array = self._checked(name, feeds[name])
            if name in self.pool:
                found[name] = shared_empty(self.pool[name], tensor.dtype, tensor.shape or ())
                np.copyto(view(found[name]), array)
            else:
                found[name] = wrap(np.array(array, order="C"))
        return found

    def pull_state(self) -> None:
        """Bring state that is kept elsewhere back into the caller's arrays."""
        for name in self._state:
            if name in self._home or name in self.pool:
                np.copyto(self._state[name], as_array(self._values[name], self._copies))

    def push_state(self, names: Iterable[str]) -> None:
        """Bring the caller's arrays of some state to where it is kept."""
        for name in names:
            if name in self.pool:
                self._fill(name)
            elif name in self._home:
                self._values[name].update_inplace(self._state[name])

    def _homes(self, parts: Partitioned, machine: Machine) -> dict[str, Device]:
        """State to the device that updates it, where that has a memory of its own."""
        homes = {}
        for part in parts.partitions:
            device = machine.device(part.device)
            for new in part.graph.outputs:
                if new in self.updated and not device.in_host_memory:
                    homes[self.updated[new]] = device
        return homes

    def _take(self, name: str, checked: np.ndarray) -> None:
        """Make a value over the caller's array."""
        array = np.asarray(checked, order="C")
        self._arrays[name] = array  # another object when it was converted: then bound every run
        if name in self.pool:
            if name not in self._values:
                tensor = self._inputs[name]
                self._values[name] = shared_empty(self.pool[name], tensor.dtype, tensor.shape or ())
            self._fill(name)
            return
        self._values[name] = wrap(array)
        if name in self._home:
            self._values[name] = moved(self._values[name], self._home[name], self._copies)

    def _checked(self, name: str, given: np.ndarray) -> np.ndarray:
        tensor = self._inputs.get(name)
        if tensor is None:
            raise UsageError(f"the model has no input '{name}'")
        array = np.asarray(given)
        wanted = onnx.helper.tensor_dtype_to_np_dtype(tensor.dtype)
        if array.shape != tensor.shape or array.dtype != wanted:
            raise UsageError(
                f"input '{name}' is {array.dtype}{list(array.shape)}, the model wants "
                f"{wanted}{list(tensor.shape or ())}"
            )
        if name in self._state and not (array.flags.c_contiguous and array.flags.writeable):
            raise UsageError(f"state '{name}' has to be a contiguous array that can be written")
        return array

    def _fill(self, name: str) -> None:
        """Bring the caller's array to where a plugin provider reads it."""
        self._copies.between += 1
        np.copyto(view(self._values[name]), self._arrays[name])
