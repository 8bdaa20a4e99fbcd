"""A Loop whose number of runs is known, written out run by run.

Exporters write EmbeddingBag, and Python loops over tensors, as Loops; their bodies have no
gradient. How often a Loop runs is known where its trip count is, or where its condition follows
from values that are known before the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import helper

from onnxremat.grad.control.branches import renamed_node
from onnxremat.grad.lowering.writer import Writer
from onnxremat.graph.ir import Graph, Op, captures

if TYPE_CHECKING:
    from onnx.reference import ReferenceEvaluator

LONGEST = 4096  # runs of a loop that are written out
MOST = 200_000  # nodes that one loop may become
Known = Mapping[str, np.ndarray]


def runs_of_loop(graph: Graph, op: Op, known: Known) -> int | None:
    """How often a Loop runs, None where that is not known or too often to be written out.

    Args:
        known: values of the tensors it reads, as far as they are known before the run.
    """
    runs = count_of_loop(graph, op, known)
    if runs is None or runs > LONGEST or runs * len(_body(op).node) > MOST:
        return None
    return runs


def count_of_loop(graph: Graph, op: Op, known: Known) -> int | None:
    """How often a Loop runs, None where that is not known.

    Args:
        known: values of the tensors it reads, as far as they are known before the run.
    """
    body = _body(op)
    trips = known.get(op.inputs[0]) if op.inputs[0] else np.array(LONGEST)
    start = known.get(op.inputs[1]) if len(op.inputs) > 1 and op.inputs[1] else np.array(True)
    if trips is None or start is None:
        return None
    limit = max(0, int(np.asarray(trips).reshape(())))
    if not bool(np.asarray(start).reshape(())):
        return 0
    deciding = _Deciding(body, graph.opsets)
    if deciding.steady:
        return limit if op.inputs[0] else None
    if limit > LONGEST:
        return None
    return deciding.count(limit, bool(op.inputs[0]), op.inputs[2:], known)


def always_goes_on(op: Op) -> bool:
    """Whether a Loop, once begun, ends by its count alone."""
    return _Deciding(_body(op), {}).steady


class _Deciding:
    """The part of a body that decides whether the loop goes on."""

    def __init__(self, body: onnx.GraphProto, opsets: Mapping[str, int]) -> None:
        self.body, self.opsets = body, opsets
        makers = {name: node for node in body.node for name in node.output}
        self.given = [value.name for value in body.input]
        self.passed = [value.name for value in body.output]
        self.inner = {tensor.name for tensor in body.initializer}
        needed, waiting = set(), [self.passed[0]]
        while waiting:
            name = waiting.pop()
            if name in needed:
                continue
            needed.add(name)
            if name in makers:
                node = makers[name]
                waiting += [n for n in (*node.input, *captures(node)) if n]
            elif name in self.given[2:]:  # a state: what it is in the next run matters too
                waiting.append(self.passed[self.given.index(name) - 1])
        self.needed = needed
        self.nodes = [n for n in body.node if not needed.isdisjoint(n.output)]
        kinds = {node.op_type for node in self.nodes}
        constant = self.passed[0] == self.given[1] or (
            kinds <= {"Identity", "Cast"} and needed - set(makers) <= {self.given[1]}
        )
        self.steady = constant

    def count(self, limit: int, limited: bool, states: tuple[str, ...], known: Known) -> int | None:
        """Runs until the condition fails."""
        wanted = [k for k in range(2, len(self.given)) if self.given[k] in self.needed]
        values = {self.given[k]: known.get(states[k - 2]) for k in wanted}
        free = self.needed - set(self.given) - {n for node in self.nodes for n in node.output}
        outer = {name: known.get(name) for name in free - self.inner}
        if any(value is None for value in (*values.values(), *outer.values())):
            return None
        evaluate = self._evaluator([*values, *outer], wanted)
        for run in range(limit):
            feeds = {**outer, **values, self.given[0]: np.array(run), self.given[1]: np.array(True)}
            try:
                found = evaluate.run(None, {n: feeds[n] for n in evaluate.input_names})
            except Exception:  # whatever numpy raises: then it is not known
                return None
            values = dict(zip(values, found[1:], strict=True))
            if not bool(np.asarray(found[0]).reshape(())):
                return run + 1
        return limit if limited else None

    def _evaluator(self, names: list[str], wanted: list[int]) -> ReferenceEvaluator:
        from onnx.reference import ReferenceEvaluator  # long to import, seldom needed

        used = {n for node in self.nodes for n in (*node.input, *captures(node))}
        inputs = [*names, *(n for n in self.given[:2] if n in used)]
        outputs = [self.passed[0], *(self.passed[k - 1] for k in wanted)]
        graph = helper.make_graph(
            self.nodes,
            "deciding",
            [onnx.ValueInfoProto(name=name) for name in inputs],
            [onnx.ValueInfoProto(name=name) for name in outputs],
            [t for t in self.body.initializer if t.name in used],
        )
        opsets = [helper.make_opsetid(domain, v) for domain, v in self.opsets.items()]
        return ReferenceEvaluator(helper.make_model(graph, opset_imports=opsets))


def _body(op: Op) -> onnx.GraphProto:
    return next(a.g for a in op.node.attribute if a.name == "body")


def write_out(w: Writer, runs: int) -> None:
    """The nodes of all runs; values of run k are named after the loop and k."""
    body: onnx.GraphProto = w.attributes["body"]
    states = list(w.op.inputs[2:])
    scanned: list[list[str]] = [[] for _ in body.output[1 + len(states) :]]
    made = [name for node in body.node for name in node.output if name]
    made += [tensor.name for tensor in body.initializer]
    given = [value.name for value in body.input]
    for run in range(runs):
        prefix = f"{w.op.name}/{run}/"
        names = {name: prefix + name for name in made}
        names[given[0]] = w.constant(np.array(run))
        names[given[1]] = w.constant(np.array(True), onnx.TensorProto.BOOL)
        names.update(zip(given[2:], states, strict=True))
        for tensor in body.initializer:
            copy = onnx.TensorProto()
            copy.CopyFrom(tensor)
            copy.name = names[tensor.name]
            w.initializers.append(copy)
        w.nodes.extend(renamed_node(node, names, prefix) for node in body.node)
        passed = [names.get(value.name, value.name) for value in body.output[1:]]
        states = passed[: len(states)]
        for rows, name in zip(scanned, passed[len(states) :], strict=True):
            rows.append(w("Unsqueeze", name, w.constant([0])))
    for name, output in zip(states, w.op.outputs, strict=False):
        if output:
            w("Identity", name, to=output)
    for rows, output in zip(scanned, w.op.outputs[len(states) :], strict=False):
        if output and not rows:
            raise w.unsupported("it runs 0 times and returns what its runs make")
        if output:
            w("Concat", *rows, to=output, axis=0)
