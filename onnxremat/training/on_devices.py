"""A training step that was planned over devices of this processor, as what a trainer runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from onnx import helper

from onnxremat.device.host import processors
from onnxremat.device.machine import Machine
from onnxremat.execute.deployment import Deployment, read_deployment
from onnxremat.execute.executor import Executor
from onnxremat.graph.ir import Tensor
from onnxremat.ort.binding import BoundState, absent, check_input
from onnxremat.ort.providers import CPU, missing
from onnxremat.training.state import Opening


def planned_steps(opening: Opening, arrays: Mapping[str, np.ndarray]) -> DeviceSteps | str:
    """Steps over the devices that a file was planned for, if a trainer can carry them out here:
    they read the processor's memory, and the update belongs to the step. Otherwise why not, "" for
    a file whose plan is one session of the processor.

    Args:
        arrays: parameters and optimizer state.

    Raises:
        UsageError, ModelError: see :func:`read_deployment`.
    """
    step = opening.step
    if step.file is None or not step.devices:
        return ""
    if opening.options is not None:
        return "not on the devices it was planned for: options of one session are given"
    if opening.update is not None:
        return "a step that accumulates runs on one device, not on those it was planned for"
    if not opening.device.in_host_memory:
        return f"all on {opening.device.name}, as asked for, not on the devices of the plan"
    made = read_deployment(step.file)
    parts = made.parts.partitions
    if len(parts) == 1 and made.machine.device(parts[0].device).provider == CPU:
        return ""  # the same as one session
    for name in dict.fromkeys(part.device for part in parts):
        device = made.machine.device(name)
        if not device.in_host_memory:
            return f"device '{device.name}' has a memory of its own: all on the processor"
        why = missing(device)
        if why:
            return f"device '{device.name}' is not here, {why}: all on the processor"
    return DeviceSteps(made, arrays, opening.device.threads)


def side_by_side(machine: Machine) -> bool:
    """Whether there is a core for every thread of every device."""
    threads = (d.threads or processors() for d in machine.devices if d.computes)
    return sum(threads) <= processors()


def _element(tensor: Tensor) -> np.dtype:
    return np.dtype(helper.tensor_dtype_to_np_dtype(tensor.dtype))


class DeviceState(BoundState):
    """Arrays of parameters and optimizer state whose values an executor keeps where its devices see
    them; both are the same only after :meth:`pull` or :meth:`push`."""

    def __init__(self, arrays: Mapping[str, np.ndarray], executor: Executor) -> None:
        super().__init__(arrays)
        self._executor = executor

    def updated(self) -> None:
        """A step has written new values."""
        self._behind = True

    def pull(self) -> None:
        """Bring what devices hold into the arrays."""
        if self._behind:
            self._executor.pull_state()
            self._behind = False

    def push(self, *names: str) -> None:
        """Bring arrays to where devices read them: some, or all of them."""
        self._executor.push_state(names or self.arrays)
        self._behind = self._behind and bool(names)


class DeviceSteps:
    """Steps over the devices that they were planned for.

    Args:
        made: the plan.
        arrays: parameters and optimizer state; read now, and written by :meth:`DeviceState.pull`.
        threads: of every device, 0 for those it was planned with.

    Raises:
        MissingComponentError: a device's provider is not here.
    """

    def __init__(
        self, made: Deployment, arrays: Mapping[str, np.ndarray], threads: int = 0
    ) -> None:
        if threads:
            devices = [replace(device, threads=threads) for device in made.machine.devices]
            made = replace(made, machine=made.machine.with_devices(devices))
        overlap = None if side_by_side(made.machine) else False
        self.made = made
        self._executor = made.executor(arrays, overlap)
        self.state = DeviceState(arrays, self._executor)
        given = (made.graph.tensors[name] for name in made.graph.inputs if name not in arrays)
        self._buffers = {t.name: np.empty(t.shape or (), _element(t)) for t in given}

    def describe(self) -> str:
        """Who does what, in a sentence."""
        counts: dict[str, int] = {}
        for part in self.made.parts.partitions:
            counts[part.device] = counts.get(part.device, 0) + 1
        told = (f"{count} on '{name}'" for name, count in counts.items())
        return f"partitions as planned: {', '.join(told)}"

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """One step; results are copies.

        Raises:
            UsageError: an input is missing, or of another shape or type.
            ModelError: onnxruntime stopped.
            StoppedError: :meth:`abandon` was called; the state may be half updated.
        """
        for name, buffer in self._buffers.items():
            if name not in feeds:
                raise absent(name, feeds)
            array = np.asarray(feeds[name])
            check_input(name, array, buffer.dtype, buffer.shape)
            np.copyto(buffer, array, casting="same_kind")
        try:
            return self._executor.run(self._buffers)
        finally:
            self.state.updated()

    def abandon(self) -> None:
        """Stop the step that is on, before its next partition, and every later one."""
        self._executor.abandon()
