"""Seconds and scratch bytes per op, each entry with its source."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from onnxremat.graph.ir import Graph, Op


@dataclass(frozen=True)
class KernelCosts:
    """What a kernel costs beside the rows it computes; as usual where nothing was measured.

    Attributes:
        call: seconds.
        rate: bytes per second of what it reads again or copies, as long as a core's cache holds it.
    """

    call: float = 3e-6
    rate: float = 2e10


@dataclass(frozen=True)
class CostTable:
    """What each op of a graph costs on one device.

    Attributes:
        seconds: per op name, dispatch included.
        scratch: workspace bytes per op name.
        source: ``measured``, ``cached`` or ``analytic``.
        dispatch: seconds of ``seconds`` that are the runtime's own per-op overhead.
        device: what it was measured on, for people.
        value: seconds that each input or output adds to calling a session.
        call: seconds to call a session, whatever it computes; 0 for onnxruntime's own.
        bandwidth: bytes per second of the device's memory, 0 when not known.
        kernels: what each kernel costs beside its rows.
        apart: seconds of one run of every op on this device alone, where a trial beside others has
            corrected ``seconds`` since; 0 where none has.
    """

    seconds: dict[str, float]
    scratch: dict[str, int]
    source: str
    dispatch: float = 0.0
    device: str = "cpu"
    notes: tuple[str, ...] = field(default=())
    bandwidth: float = 0.0
    value: float = 0.0
    call: float = 0.0
    kernels: KernelCosts = field(default_factory=KernelCosts)
    apart: float = 0.0

    @property
    def total(self) -> float:
        """Seconds of one run of every op."""
        return sum(self.seconds.values())

    @property
    def alone(self) -> float:
        """The same where no other device is at work and all ops are in one piece."""
        return self.apart or self.total


def signature(graph: Graph, op: Op) -> str:
    """What the cost of an op depends on: operator, attributes, types and shapes."""
    tensors = [graph.tensors.get(name) for name in (*op.inputs, *op.captures, *op.outputs)]
    shapes = [(t.dtype, t.shape, graph.is_constant(t)) if t else None for t in tensors]
    attributes = sorted(a.SerializeToString() for a in op.node.attribute)
    text = repr((op.domain, op.op_type, shapes)).encode() + b"".join(attributes)
    return hashlib.sha256(text).hexdigest()[:24]
