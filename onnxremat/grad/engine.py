"""The reverse walk: from cotangents of some tensors to cotangents of others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from onnxremat.grad import registry
from onnxremat.grad.call import Call
from onnxremat.grad.tape import FLOATS, Shape, Tape
from onnxremat.graph.ir import Op

UNKNOWN = 0  # element type of values that are no tensors


@dataclass(frozen=True)
class Backward:
    """What the walk made.

    Attributes:
        forward: the forward ops, some with outputs added that the backward ops read.
        gradients: cotangent per wanted tensor that has one.
    """

    forward: tuple[Op, ...]
    gradients: Mapping[str, str]


def dependents(ops: Sequence[Op], wanted: Collection[str], tape: Tape) -> set[str]:
    """Floating-point tensors that vary smoothly with a wanted one."""
    found = set(wanted)
    for op in ops:
        if registry.stops(op) or found.isdisjoint(op.reads):
            continue
        for name in op.writes:
            kind = tape.tensors[name].dtype if name in tape.tensors else UNKNOWN
            if kind in FLOATS or kind == UNKNOWN:
                found.add(name)
    return found


class Walk:
    """Reverse accumulation over ops in a topological order.

    Args:
        ops: the forward ops.
        tape: receives the backward ops; knows all shapes.
        opsets: operator set version per domain.
        constant_of: value of a tensor known before the run, else None.
        variants: rule variant per operator type, default the first registered.
    """

    def __init__(
        self,
        ops: Sequence[Op],
        tape: Tape,
        opsets: Mapping[str, int],
        constant_of: Callable[[str], np.ndarray | None],
        variants: Mapping[str, str] | None = None,
    ) -> None:
        self._ops, self._tape, self._opsets = ops, tape, opsets
        self._constant_of, self._variants = constant_of, variants or {}
        self._cotangents: dict[str, str] = {}
        self._outputs: dict[str, list[str]] = {}

    def run(self, seeds: Mapping[str, str], wanted: Collection[str]) -> Backward:
        """Walk back from ``seeds`` (cotangent per tensor) to ``wanted``.

        Raises:
            UnsupportedError: an op on the way has no rule, or its rule refuses the node.
        """
        smooth = dependents(self._ops, wanted, self._tape)
        for name, cotangent in seeds.items():
            if name in smooth:
                self._accumulate(name, cotangent)
        for op in reversed(self._ops):
            # Outputs are done here: every reader comes later in the order and was visited.
            cotangents = tuple(self._cotangents.get(name) for name in op.outputs)
            if any(cotangents) and not smooth.isdisjoint(op.reads) and not registry.stops(op):
                self._visit(op, cotangents, smooth)
            for name in op.writes:
                if name not in wanted:
                    self._cotangents.pop(name, None)
        gradients = {n: self._cotangents[n] for n in wanted if n in self._cotangents}
        return Backward(tuple(self._extended(op) for op in self._ops), gradients)

    def _visit(self, op: Op, cotangents: tuple[str | None, ...], smooth: set[str]) -> None:
        if op.captures and not smooth.isdisjoint(op.captures):
            version = self._opsets.get("", 1)
            raise registry.missing_rule(op, version, "a body of this node reads a trained tensor")
        rule = registry.find(op, self._opsets, self._variants)
        call = Call(
            op,
            self._tape,
            cotangents,
            tuple(bool(name) and name in smooth for name in op.inputs),
            self._opsets.get(rule.domain, 1),
            self._constant_of,
            self._add_output,
        )
        with self._tape.scope(f"grad/{op.name}", "backward"):
            for position, cotangent in enumerate(rule.function(call)):
                if cotangent is not None and call.need(position):
                    self._accumulate(op.inputs[position], cotangent)

    def _accumulate(self, name: str, cotangent: str) -> None:
        """Add a contribution; rules may leave broadcast axes in it."""
        tape = self._tape
        cotangent = tape.unbroadcast(cotangent, tape.shape(name))
        cotangent = tape.cast(cotangent, tape.dtype(name))
        earlier = self._cotangents.get(name)
        self._cotangents[name] = cotangent if earlier is None else tape.add(earlier, cotangent)

    def _add_output(self, op: Op, position: int, dtype: int, shape: Shape) -> str:
        outputs = self._outputs.setdefault(op.name, list(op.outputs))
        outputs += [""] * (position + 1 - len(outputs))
        if not outputs[position]:
            name = self._tape.fresh(f"{op.name}_saved{position}")
            outputs[position] = self._tape.declare(name, dtype, shape)
        return outputs[position]

    def _extended(self, op: Op) -> Op:
        if op.name not in self._outputs:
            return op
        return replace(op, outputs=tuple(self._outputs[op.name]))
