"""Gates: keep onnxruntime from merging a recomputation with its first run.

Its common-subexpression elimination merges two ops with equal inputs. A gate gives the
recomputation another input: ``Size(dep) -> Mul(zeros) -> Reshape(x)``, a Reshape to ``[0, 0, ..]``
that copies every dimension. It shares x's buffer (nothing is copied), costs 1-3 us, depends on
``dep`` so it cannot move before it, and is not folded, even with static shapes (Shape would be).
Only the first op of a recomputed stretch needs one: the rest reads copies, which differ already.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxremat.errors import UnsupportedError
from onnxremat.graph.ir import Graph, Op, Role, Tensor
from onnxremat.graph.traits import is_alias
from onnxremat.graph.unforeseen import is_left

PREFIX = "onnxremat.gate"
SIZE = "_size"
ZERO = "_zero"


def add_gates(graph: Graph) -> Graph:
    """The expanded graph with a gate before every recomputation that equals an earlier op.

    Raises:
        UnsupportedError: a recomputed op has no input a gate can be put on.
    """
    builder = _Gates(graph)
    for step, op in enumerate(graph.ops):
        key = _key(op)
        if op.origin and key in builder.seen:
            op = builder.gated(step, op)
        builder.seen.add(_key(op))
        builder.ops.append(op)
    ops = []
    for op in builder.ops:
        ops.append(op)
        ops += [builder.sizes[name] for name in op.writes if name in builder.sizes]
    ops[:0] = [builder.sizes[name] for name in graph.inputs if name in builder.sizes]
    return graph.with_ops(ops, builder.tensors).with_weights(builder.zeros.values())


def _key(op: Op) -> tuple[object, ...]:
    attributes = tuple(sorted(a.SerializeToString() for a in op.node.attribute))
    return (op.domain, op.op_type, op.inputs, len(op.outputs), attributes)


class _Gates:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.ops: list[Op] = []
        self.tensors = dict(graph.tensors)
        self.zeros: dict[int, onnx.TensorProto] = {}
        self.sizes: dict[str, Op] = {}  # the Size op of each value gates wait for
        self.seen: set[tuple[object, ...]] = set()
        self.used: set[tuple[str, str]] = set()
        self.count = 0
        self.views = {op.outputs[0] for op in graph.ops if is_alias(op)}
        self.last_reader = {name: rows[-1] for name, rows in graph.readers.items()}
        self.stay = set(graph.outputs)
        self.alive: list[str] = []  # may be, of what ops before ``reached`` make; the latest last
        self.reached = 0

    def gated(self, step: int, op: Op) -> Op:
        """``op`` reading one of its inputs through a new gate."""
        position, source = self._input(op)
        dep = self._dependency(step, source)
        self.used.add((source, dep))
        name = self._fresh()
        rank = len(self.tensors[source].shape or ())
        zeros = self._zeros(rank)
        # Listed right after its value is made, so that it never extends that value's life.
        if dep not in self.sizes:
            self.sizes[dep] = self._op("Size", name + SIZE, (dep,), TensorProto.INT64, ())
        size = self.sizes[dep].outputs[0]
        self.ops.append(self._op("Mul", name + ZERO, (size, zeros), TensorProto.INT64, (rank,)))
        tensor = self.tensors[source]
        self.ops.append(
            self._op("Reshape", name, (source, name + ZERO), tensor.dtype, tensor.shape or ())
        )
        inputs = list(op.inputs)
        inputs[position] = name
        return replace(op, inputs=tuple(inputs))

    def _input(self, op: Op) -> tuple[int, str]:
        """The input to gate: an activation, else a graph input, else a weight (which would no
        longer be a constant the runtime can prepack). A value that another Reshape shows comes
        last among its kind: onnxruntime may join two Reshapes and lose the gate."""
        ranks = {Role.ACTIVATION: 0, Role.OUTPUT: 1, Role.INPUT: 2, Role.WEIGHT: 3}
        choices = [
            (
                not is_left(self.tensors[name]),
                ranks[self.tensors[name].role],
                name in self.views,
                position,
                name,
            )
            for position, name in enumerate(op.inputs)
            if name and self.tensors[name].dtype and self.tensors[name].shape is not None
        ]
        if not choices:
            raise UnsupportedError(
                f"op {op.origin} cannot be recomputed", why="it has no tensor input to gate"
            )
        *_, position, name = min(choices)
        return position, name

    def _dependency(self, step: int, source: str) -> str:
        """A value made before ``step`` that no other gate on ``source`` waits for (equal gates
        would be merged): one that is alive there, an input, else any."""
        for earlier in range(self.reached, step):
            self.alive += reversed(self._made(earlier))
        self.reached = step
        passed: list[str] = []
        while self.alive and (not passed or (source, passed[-1]) in self.used):
            name = self.alive.pop()
            if name in self.stay or self.last_reader.get(name, -1) >= step:
                passed.append(name)  # what is dead stays dead, and is not looked at again
        self.alive += reversed(passed)
        dead = (name for earlier in range(step - 1, -1, -1) for name in self._made(earlier))
        near = (*passed[-1:], *self.graph.inputs)
        free = (name for name in chain(near, dead) if (source, name) not in self.used)
        first = next(free, None)
        if first is None:
            raise UnsupportedError(
                f"tensor '{source}' is recomputed from more often than there are values to wait for"
            )
        # A dead value that onnxruntime leaves as it is rather than one alive that it casts first.
        return next((name for name in chain([first], free) if is_left(self.tensors[name])), first)

    def _made(self, step: int) -> list[str]:
        return [name for name in self.graph.ops[step].writes if self.tensors[name].dtype]

    def _fresh(self) -> str:
        """A gate name that the graph does not have yet, as a planned model may."""
        while True:
            name = f"{PREFIX}{self.count}"
            self.count += 1
            made = {name, name + SIZE, name + ZERO}
            if not (made & self.tensors.keys() or made & self.graph.names_inside):
                return name

    def _zeros(self, rank: int) -> str:
        name = f"onnxremat.zeros{rank}"
        while name in self.graph.tensors or name in self.graph.names_inside:
            name += "_"
        if rank not in self.zeros:
            self.zeros[rank] = numpy_helper.from_array(np.zeros(rank, np.int64), name)
            self.tensors[name] = Tensor(name, TensorProto.INT64, (rank,), 8 * rank, Role.WEIGHT)
        return name

    def _op(
        self, op_type: str, name: str, inputs: tuple[str, ...], dtype: int, shape: tuple[int, ...]
    ) -> Op:
        node = helper.make_node(op_type, inputs, [name], name=name)
        shown = op_type == "Reshape" and self.tensors[inputs[0]]
        size, seen = (shown.bytes, shown.seen) if shown else (8 * int(np.prod(shape)), False)
        self.tensors[name] = Tensor(name, dtype, shape, size, Role.ACTIVATION, seen)
        return Op(name, op_type, "", inputs, (name,), (), node)
