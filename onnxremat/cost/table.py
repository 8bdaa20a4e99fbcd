"""Seconds and scratch bytes per op, each entry with its source."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from math import prod

import numpy as np
import onnx

from onnxremat.graph.chosen import choosing
from onnxremat.graph.ir import Graph, Op
from onnxremat.graph.spans import Facts
from onnxremat.graph.traits import has_bodies

SMALL = 64  # elements of a constant that a kernel may go by


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


def signatures(graph: Graph, feeds: Mapping[str, np.ndarray] | None = None) -> dict[str, str]:
    """What the cost of each op depends on, by op name: operator in its version, attributes, types
    and shapes, the values of small constants (an exponent, a number of trips), and of given inputs
    that say what an If or a Loop runs.

    Args:
        feeds: inputs that the graph is measured with.
    """
    facts, opsets = Facts(graph), graph.opsets

    def version(op: Op) -> int:
        domain = "" if op.standard else op.domain
        return _since(op.op_type, domain, opsets.get(domain, 1))

    return {op.name: _signature(op, version(op), facts, feeds or {}) for op in graph.ops}


def _signature(op: Op, version: int, facts: Facts, feeds: Mapping[str, np.ndarray]) -> str:
    graph = facts.graph
    tensors = [graph.tensors.get(name) for name in (*op.inputs, *op.captures, *op.outputs)]
    shapes = [(t.dtype, t.shape, graph.is_constant(t)) if t else None for t in tensors]
    attributes = sorted(a.SerializeToString() for a in op.node.attribute)
    chosen = sorted(choosing(graph, op)) if has_bodies(op) else ()
    values = [_small(facts, name) for name in (*op.inputs, *chosen)]
    values += [_told(feeds[name]) for name in chosen if name in feeds]
    text = repr((op.domain, op.op_type, version, shapes, values)).encode() + b"".join(attributes)
    return hashlib.sha256(text).hexdigest()[:24]


@cache
def _since(kind: str, domain: str, at: int) -> int:
    """The version of an operator: a Softmax along an axis is not what it was before version 13."""
    try:
        return int(onnx.defs.get_schema(kind, at, domain).since_version)
    except onnx.defs.SchemaError:  # of onnxruntime's own
        return at


def _small(facts: Facts, name: str) -> str:
    """A constant of whole numbers, or of one number, that a kernel may go by; "" for others."""
    tensor = facts.graph.tensors.get(name)
    if tensor is None or tensor.shape is None or prod(tensor.shape) > SMALL:
        return ""
    found = facts.constant(name)
    if found is None or (found.size != 1 and found.dtype.kind not in "iub"):
        return ""
    return _told(found)


def _told(value: np.ndarray | list[np.ndarray]) -> str:
    """An array, or a sequence of arrays, as text."""
    if isinstance(value, list):
        return " ".join(map(_told, value))
    words = value.dtype == object
    data = repr(value.tolist()).encode() if words else value.tobytes()
    return f"{value.dtype}{value.shape}{hashlib.sha256(data).hexdigest()}"
