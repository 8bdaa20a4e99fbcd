"""The reverse walk: from cotangents of some tensors to cotangents of others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from operator import itemgetter

import numpy as np
import onnx
from onnx import TensorProto as T

from onnxremat.grad import registry
from onnxremat.grad.added import added
from onnxremat.grad.call import Call
from onnxremat.grad.fake_quantised import PAIR, is_pair, straight
from onnxremat.grad.lowering.hidden import hiding, shown
from onnxremat.grad.precision import NORMS, SINGLE
from onnxremat.grad.roles import varying
from onnxremat.grad.stretches import Stretch, joined, stretch_of
from onnxremat.grad.tape import FLOATS, Shape, Tape
from onnxremat.graph.ir import Graph, Op

HALVES = frozenset({T.FLOAT16, T.BFLOAT16})
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
    for op in straight(ops, tape.tensors):
        if registry.stops(op) or found.isdisjoint(op.reads):
            continue
        for name in op.writes:
            kind = tape.tensors[name].dtype if name in tape.tensors else UNKNOWN
            if kind in FLOATS or kind == UNKNOWN:
                found.add(name)
    return found


class Walk:
    """Reverse accumulation over the ops of a forward pass.

    Attributes:
        data: inputs that change from run to run; None where that is not known.

    Args:
        graph: the forward pass, its ops in a topological order.
        tape: receives the backward ops; knows all shapes.
        constant_of: value of a tensor known before the run, else None.
        variant_of: variant of an op's rule, None for the default.
        sources: 16-bit tensor by the float32 tensor that was cast from it or to it: rules read
            the latter through a Cast of their own, so that it need not be kept.
        due: when each op can go back, where that is not in the reverse of their order: its
            contributions to cotangents are added up in this order, once all are there. Else each
            is added to those before it.
    """

    def __init__(
        self,
        graph: Graph,
        tape: Tape,
        constant_of: Callable[[str], np.ndarray | None],
        variant_of: Callable[[Op], str | None] = lambda _: None,
        sources: Mapping[str, str] | None = None,
        due: Mapping[str, int] | None = None,
    ) -> None:
        self.data: Collection[str] | None = None
        self._ops, self._tape, self._opsets = graph.ops, tape, graph.opsets
        self.constant_of, self._variant_of = constant_of, variant_of
        self._sources = sources or {}
        self._written = {op.name: op.outputs for op in graph.ops}
        self.spans: dict[str, range] = {}  # of the tape, per op: what its rule emitted
        self._due, self._now = due, 0
        self._cotangents: dict[str, str] = {}
        self._waiting: dict[str, list[tuple[int, str]]] = {}  # contributions not added yet
        self._stretches: dict[str, list[Stretch]] = {}  # of stretches, likewise
        self.gradient_of: dict[str, str] = {}  # cotangent per tensor of the forward pass
        self._outputs: dict[str, list[str]] = {}
        self._nodes: dict[str, onnx.NodeProto] = {}  # of ops whose body returns more
        self._hiding = hiding(graph, tape, constant_of)

    def run(self, seeds: Mapping[str, str], wanted: Collection[str]) -> Backward:
        """Walk back from ``seeds`` (cotangent per tensor) to ``wanted``.

        Raises:
            UnsupportedError: an op on the way has no rule, or its rule refuses the node.
            OnnxrematError: a rule leaves out a cotangent that is wanted.
        """
        smooth = dependents(self._ops, wanted, self._tape)
        for name, cotangent in seeds.items():
            if name in smooth:
                self._accumulate(name, cotangent)
        for op in reversed(straight(self._ops, self._tape.tensors)):
            # Outputs are done here: every reader comes later in the order and was visited.
            cotangents = tuple(self._total(name) for name in op.outputs)
            if any(cotangents) and not smooth.isdisjoint(op.reads) and not registry.stops(op):
                self._visit(op, cotangents, smooth)
            for name in op.writes:
                if name not in wanted:
                    self._cotangents.pop(name, None)
        gradients = {n: made for n in wanted if (made := self._total(n)) is not None}
        return Backward(self.extended(), gradients)

    def extended(self) -> tuple[Op, ...]:
        """The forward ops, with the outputs that rules asked for."""
        return tuple(self._extended(op) for op in self._ops)

    def _visit(self, op: Op, cotangents: tuple[str | None, ...], smooth: set[str]) -> None:
        if self._due is not None:
            self._now = self._due[op.name]
            if self._in_stretches(op, cotangents[0]):
                return
        hides, variant = self._hiding.get(op.outputs[0]), self._variant_of(op)
        if hides is not None:  # and not made again from the input, without what hides rows
            variant = "output"
        paired = is_pair(op, self._tape)
        rule = PAIR if paired else registry.find(op, self._opsets, variant)
        start = len(self._tape.ops)
        with self._tape.scope(f"grad/{op.name}", "backward"):
            if hides is not None:
                op = replace(op, outputs=(shown(op.outputs[0], hides, self._tape),))
            seen, cotangents = self._in_single(op, cotangents)
            call = Call(
                seen,
                self._tape,
                cotangents,
                tuple(
                    name in smooth and f"x{k}" not in rule.flat
                    for k, name in enumerate(op.operands)
                ),
                self._opsets.get(rule.domain, 1),
                self.constant_of,
                self._add_output,
                self,
            )
            found = rule.cotangents(call)  # or its refusal
            if not self._counts(op, cotangents):
                found = self._none_of(call)
            for position, cotangent in enumerate(found):
                if cotangent is not None and call.need(position):
                    self._accumulate(op.operands[position], cotangent)
        self.spans[op.name] = range(start, len(self._tape.ops))

    def _counts(self, op: Op, cotangents: Sequence[str | None]) -> bool:
        """Whether an output that leads to the loss has elements: kernels need not take the empty
        ones of others (onnxruntime 1.31 crashes in an empty ConvTranspose)."""
        made = zip(op.outputs, cotangents, strict=True)
        return any(self._tape.size(name) for name, cotangent in made if cotangent)

    def _none_of(self, call: Call) -> list[str | None]:
        """Zeros for all inputs that are wanted."""
        names = enumerate(call.op.operands)
        return [self._tape.zeros(name) if call.need(k) else None for k, name in names]

    def _in_single(
        self, op: Op, cotangents: tuple[str | None, ...]
    ) -> tuple[Op, tuple[str | None, ...]]:
        """The op as its rule is to see it: float32 tensors that were cast are cast again from
        (or to) 16 bits, and some ops in 16 bits are differentiated in float32."""
        if op.captures:  # bodies read them by these names
            return op, cotangents
        single = op.op_type in NORMS or (self._sources and op.op_type in SINGLE)
        if single and not any(self._tape.dtype(name) in HALVES for name in op.reads):
            single = False
        renames: dict[str, str] = {}
        late = next(d for d in cotangents if d)
        for name in (*op.reads, *op.writes):
            half = name if single and self._tape.dtype(name) in HALVES else self._sources.get(name)
            if half is not None and op.op_type != "Cast":
                renames[name] = self._tape.cast(self._tape.later(half, late), T.FLOAT)
        if single:
            cotangents = tuple(d and self._tape.cast(d, T.FLOAT) for d in cotangents)
        if not renames:
            return op, cotangents
        inputs = tuple(renames.get(name, name) for name in op.inputs)
        outputs = tuple(renames.get(name, name) for name in op.outputs)
        return replace(op, inputs=inputs, outputs=outputs), cotangents

    def _accumulate(self, name: str, cotangent: str) -> None:
        """Add a contribution; rules may leave broadcast axes in it."""
        tape = self._tape
        cotangent = tape.unbroadcast(cotangent, tape.shape(name))
        cotangent = tape.cast(cotangent, tape.dtype(name))
        if self._due is not None:
            self._waiting.setdefault(name, []).append((self._now, cotangent))
            return
        earlier = self._cotangents.get(name)
        self._cotangents[name] = cotangent if earlier is None else added(tape, earlier, cotangent)
        self.gradient_of[name] = self._cotangents[name]

    def _total(self, name: str) -> str | None:
        """The cotangent of a tensor, once all its contributions are there; None without any."""
        waiting = self._waiting.pop(name, None)
        stretches = self._stretches.pop(name, ())
        if waiting or stretches:
            tape = self._tape
            terms = [term for _, term in sorted(waiting or (), key=itemgetter(0))]
            with tape.scope(f"grad/{name}", "backward"):
                total = reduce(partial(added, tape), terms) if terms else None
                for axis in sorted({each.axis for each in stretches}):
                    along = [each for each in stretches if each.axis == axis]
                    total = joined(tape, name, along, total)
            assert total is not None
            self.gradient_of[name] = self._cotangents[name] = total
        return self._cotangents.get(name)

    def _in_stretches(self, op: Op, cotangent: str | None) -> bool:
        """Whether an op takes a stretch of its input, whose cotangent is put together later."""
        if cotangent is None:
            return False
        found = stretch_of(op, cotangent, self._tape, self.constant_of)
        if found is None:
            return False
        self._stretches.setdefault(op.inputs[0], []).append(found)
        return True

    def _add_output(self, op: Op, position: int, dtype: int, shape: Shape | None) -> str:
        outputs = self._outputs.setdefault(op.name, list(self._written[op.name]))
        outputs += [""] * (position + 1 - len(outputs))
        if not outputs[position]:
            name = self._tape.fresh(f"{op.name}_saved{position}")
            outputs[position] = self._tape.declare(name, dtype, shape)
        return outputs[position]

    def inside(
        self, graph: Graph, tape: Tape, constant_of: Callable[[str], np.ndarray | None]
    ) -> Walk:
        """A walk over a body of one of the ops, by the same rules."""
        return Walk(graph, tape, constant_of, self._variant_of)

    @cached_property
    def _varying(self) -> set[str]:
        return varying(self._ops, self.data or ())

    def is_still(self, name: str) -> bool:
        """Whether a tensor is made of parameters and constants alone, so that it may be the same
        number step after step."""
        return self.data is not None and name not in self._varying

    @property
    def opsets(self) -> Mapping[str, int]:
        """Operator set version per domain."""
        return self._opsets

    def give_body(self, op: Op, node: onnx.NodeProto) -> None:
        """Another node for an op, whose body returns more."""
        self._nodes[op.name] = node

    def _extended(self, op: Op) -> Op:
        if op.name not in self._outputs:
            return op
        node = self._nodes.get(op.name, op.node)
        return replace(op, outputs=tuple(self._outputs[op.name]), node=node)
