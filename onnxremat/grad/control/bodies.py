"""Bodies of If, Loop and Scan on the way of gradients.

A body becomes a graph of its own, as the whole model did: written out, every size a number. The
same walk goes back over it (:class:`~onnxremat.grad.engine.Walk`), and what that emits is the body
of another op, behind the forward ops that it reads, which are computed once more there. Nothing of
a body is kept for that but what goes from run to run.

Names in such a body are new; constants are initializers of the step, which bodies may read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import helper

from onnxremat.errors import ModelError, UnsupportedError
from onnxremat.grad.assembly import needed
from onnxremat.grad.call import Call
from onnxremat.grad.constants import Constants
from onnxremat.grad.control.apart import Typed, body_apart, outside
from onnxremat.grad.control.run_sizes import DRAWN
from onnxremat.grad.engine import Walk, dependents
from onnxremat.grad.forward import settled
from onnxremat.grad.tape import Tape
from onnxremat.graph.ir import Graph, Op, Role, all_nodes


@dataclass(frozen=True)
class Body:
    """A body as a graph, and where its backward ops go.

    Attributes:
        graph: its ops, all names new but those of what it reads from outside.
        inputs: what it is given, in order, by the names in the graph.
        outputs: what it returns, in order, each made by an op of its own.
        tape: receives the backward ops.
        walk: goes back over it.
    """

    graph: Graph
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tape: Tape
    walk: Walk

    def dependents(self, names: Collection[str]) -> set[str]:
        """Tensors of the body that vary smoothly with some others."""
        return dependents(self.graph.ops, names, self.tape)

    def ancestors(self, names: Collection[str]) -> set[str]:
        """Tensors that some depend on, these included."""
        found = set(names)
        for op in reversed(self.graph.ops):
            if not found.isdisjoint(op.writes):
                found.update(op.reads)
        return found

    def gradients(self, seeds: Mapping[str, str], wanted: Collection[str]) -> Mapping[str, str]:
        """Walk back from cotangents of some outputs; the cotangent of each wanted tensor that has
        one."""
        return self.walk.run(seeds, wanted).gradients

    def written(
        self, inputs: Sequence[str], outputs: Sequence[str], first: Sequence[Op] = ()
    ) -> onnx.GraphProto:
        """The forward ops and the backward ones, as far as the outputs need them.

        Args:
            inputs: what the new body is given.
            outputs: what it returns: tensors of this body, or from outside.
            first: ops that come before all others.
        """
        t = self.tape
        ops = [*first, *self.walk.extended(), *t.ops]
        made = {name for op in ops for name in op.writes}
        names = list[str]()
        for name in outputs:
            if name not in made or name in names:  # a body returns what it makes, each once
                emitted = t.op("Identity", name, shape=t.shape(name))
                ops.append(t.ops[-1])
                name = emitted
            names.append(name)
        return helper.make_graph(
            [node_of(op) for op in needed(ops, names)],
            "backward",
            [self._value(name) for name in inputs],
            [self._value(name) for name in names],
        )

    def read_by(self, outputs: Collection[str]) -> set[str]:
        """All tensors that the ops read which some outputs need, and these."""
        ops = needed([*self.walk.extended(), *self.tape.ops], outputs)
        return {name for op in ops for name in op.reads}.union(outputs)

    def _value(self, name: str) -> onnx.ValueInfoProto:
        t = self.tape
        shape = [None if t.varies(d) else d for d in t.shape(name)]
        return helper.make_tensor_value_info(name, t.dtype(name), shape)


def node_of(op: Op) -> onnx.NodeProto:
    """The node of an op, by its own names."""
    node = onnx.NodeProto()
    node.CopyFrom(op.node)
    node.name = op.name
    node.input[:], node.output[:] = op.inputs, op.outputs
    return node


def body_of(call: Call, attribute: str, given: Sequence[Typed | np.ndarray]) -> Body:
    """A body of an op, ready for a walk back.

    Args:
        call: about the op.
        attribute: which body.
        given: type and shape of each of its inputs; or its value, where that is known.

    Raises:
        UnsupportedError: it draws random numbers, a size in it is not known, or something in it
            has no gradient.
    """
    body: onnx.GraphProto = call.attribute(attribute)
    _refuse_drawn(call, body)
    walk = call.walk
    try:
        model = body_apart(body, given, call.tape.tensors, walk.constant_of, walk.opsets)
        made = settled(model)
    except (ModelError, UnsupportedError) as error:
        why = str(error.why or "").strip().splitlines()
        raise call.unsupported(": ".join(["in its body", error.what, *why[:1]])[:300]) from error
    return _renamed(call, attribute, made, [v.name for v in body.input])


def _refuse_drawn(call: Call, body: onnx.GraphProto) -> None:
    """Raises:
    UnsupportedError: it draws random numbers, which would be others when it is computed again.
    """
    for node in all_nodes(body):
        drawn = node.op_type in DRAWN and node.domain in ("", "ai.onnx")
        if drawn and (node.op_type != "Dropout" or len(node.input) > 2):
            raise call.unsupported(
                f"node '{node.name}' ({node.op_type}) in its body draws random numbers, which "
                "would be others in the backward pass"
            )


def _renamed(call: Call, part: str, graph: Graph, inputs: Sequence[str]) -> Body:
    """The body with names that nothing else has, known to the tape."""
    t, outer = call.tape, set(outside(call.attribute(part)))
    prefix = t.fresh(f"{call.op.name}/{part}") + "/"
    stored = graph.model.graph.initializer
    every = {*graph.tensors, *(tensor.name for tensor in stored), *inputs}.difference(outer)
    names = {name: prefix + name for name in every if name}
    frame = onnx.ModelProto()
    frame.opset_import.extend(graph.model.opset_import)
    for tensor in stored:
        new = frame.graph.initializer.add()
        new.CopyFrom(tensor)
        new.name = names.get(tensor.name, tensor.name)
        if tensor.name not in outer:
            t.initializers.append(new)
            t.declare(new.name, new.data_type, new.dims)
    for name, tensor in graph.tensors.items():
        if name not in outer:
            t.tensors[names[name]] = replace(tensor, name=names[name], role=Role.ACTIVATION)
    ops = tuple(op.renamed(prefix + op.name, names) for op in graph.ops)
    given, returned = (tuple(names.get(n, n) for n in f) for f in (graph.inputs, graph.outputs))
    tensors = {n: t.tensors[n] for op in ops for n in (*op.reads, *op.writes)}
    inner = t.inside(next(filter(None, call.cotangents)))
    made = Graph(ops, tensors, given, returned, frame)
    walk = call.walk.inside(made, inner, Constants(made))
    return Body(made, tuple(names[name] for name in inputs), returned, inner, walk)
