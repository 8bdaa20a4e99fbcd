"""Where a model is to run: a machine, what each device may use, and what is fixed beforehand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import onnx
from onnx import TensorProto

from onnxremat.device.machine import Machine
from onnxremat.errors import UnsupportedError
from onnxremat.graph.ir import Graph
from onnxremat.ort.providers import missing
from onnxremat.rewrite.partition import Counted


@dataclass(frozen=True)
class Site:
    """Where a model is to run.

    Attributes:
        limits: bytes per device, for those that have a limit: all that its budget counts.
        shares: devices whose budget is a share of the original's weights and values: what a session
            of the model takes besides came on top.
        counted: by these limits, beside what lies on the devices.
        pins: (pattern of op names or types, device).
        objective: ``time`` or ``makespan``.
    """

    machine: Machine
    limits: Mapping[str, int] = field(default_factory=dict)
    shares: frozenset[str] = frozenset()
    pins: Sequence[tuple[str, str]] = ()
    objective: str = "time"
    counted: Counted = field(default_factory=Counted)

    @property
    def absent(self) -> dict[str, str]:
        """Why nothing can be run on a device here, for each such device."""
        machine = self.machine
        if machine.elsewhere:
            return dict.fromkeys(machine.names, "the machine file says that it is elsewhere")
        return {d.name: reason for d in machine.devices if (reason := missing(d))}

    def alone(self, name: str) -> Site:
        """The same with one device that computes; those that only store values stay, and so does
        the processor, as one of them, where the device has a memory of its own: the caller's
        arrays come from there."""
        devices = [d if d.name == name else replace(d, holds_state=False)
                   for d in self.machine.devices]  # fmt: skip
        others = {d.name for d in devices if d.computes} - {name}
        if not self.machine.device(name).in_host_memory:
            others -= {d.name for d in devices if d.in_host_memory}
        links = [li for li in self.machine.links if not others & {li.source, li.target}]
        return replace(self, machine=replace(self.machine, devices=tuple(devices),
                                             links=tuple(links)))  # fmt: skip


def require_values(graph: Graph, original: onnx.ModelProto) -> None:
    """Fail before anything is priced where partitions cannot take or give what a model does.

    Args:
        original: what the graph was made of.

    Raises:
        UnsupportedError: an output is no result of an op, or no tensor; or an input holds strings.
    """
    hint, told = "plan without --devices", ""  # of the last one that cannot be
    for name in graph.outputs:
        if name not in graph.producer:
            made = any(name in node.output for node in original.graph.node)
            kind = "constant" if made else "a weight" if name not in graph.inputs else "an input"
            told = f"output '{name}' is {kind}: no op makes it, and so no device"
            before = "" if made else "put an Identity before it, or "
            if kind != "an input":  # else onnxruntime folds it
                before = before.replace(", or ", " and take ") + "--target none, or "
            hint = f"{before}plan without --devices"
        elif not graph.tensors[name].dtype:
            told = f"output '{name}' is no tensor, which partitions give"
    for name in graph.inputs:
        if graph.tensors[name].dtype == TensorProto.STRING:
            told = (
                f"input '{name}' holds strings, which onnxruntime's Python interface does not bind"
            )
    if told:
        raise UnsupportedError(told, hint=hint)
