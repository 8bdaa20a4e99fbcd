"""Which parameters an update treats alike, and the formula by which it does so.

Most optimizers compute every element of a parameter from the same element of its gradient and
state. Parameters of one formula can then lie one behind the other and be updated as one long row,
any stretch of it by itself: processes can share the work evenly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import TensorProto, helper
from onnx.numpy_helper import to_array

from onnxremat.grad.description import StepSignature
from onnxremat.graph.ir import Graph, Op
from onnxremat.graph.onnx_io import to_model
from onnxremat.graph.overwriting import late_in_any_order
from onnxremat.ort.infer import build_graph
from onnxremat.ort.offline import optimise
from onnxremat.workers.sums.fused import OPERATORS

GRADIENT, STATE = "gradient/", "state/"  # and a number: inputs of a formula
NEW = ".next"


@dataclass(frozen=True)
class Alike:
    """Parameters of one formula.

    Attributes:
        formula: reads ``gradient/0`` and so on, one per process, whose sum it takes, ``state/0``
            and so on, all of any one length, and ``given``; makes ``state/0.next`` where that
            state changes.
        sums: of gradients, one per parameter.
        states: per parameter its names of ``state/0`` and so on, itself among them.
        changes: which of these have new values.
        given: numbers that all share: rates, and what the counter of steps leads to.
    """

    formula: onnx.ModelProto
    sums: tuple[str, ...]
    states: tuple[tuple[str, ...], ...]
    changes: tuple[int, ...]
    given: tuple[str, ...]


@dataclass(frozen=True)
class Formulas:
    """An update by formulas.

    Attributes:
        update: as onnxruntime simplified it.
        common: ops that need no gradient.
        alike: the rest.
    """

    update: Graph
    common: tuple[Op, ...]
    alike: tuple[Alike, ...]


def formulas_of(update: Graph, told: StepSignature, ranks: int) -> Formulas | None:
    """The update by formulas; None where it is none of single elements (a norm of gradients), or
    not in single precision.

    Args:
        told: what its inputs and outputs mean.
        ranks: whose gradients are to be added up.
    """
    graph = _without_zeros(build_graph(optimise(to_model(update), "portable", None)))
    pairs, sums = told.updates, [name for _, name in told.gradients]
    if late_in_any_order(graph.ops, pairs, ()):
        return None
    from_sums = _reached(graph, {name: {name} for name in sums})
    own = {old: from_sums[new] for old, new in pairs.items() if from_sums.get(new)}
    of = _reached(graph, {name: {name} for name in sums} | own)
    if any(len(found) > 1 for found in of.values()):
        return None
    cones: dict[str, list[Op]] = {name: [] for name in sums}
    common = list[Op]()
    for op in graph.ops:
        found = of[op.writes[0]]
        (cones[next(iter(found))] if found else common).append(op)
    rows: dict[object, list[_Row]] = {}
    for name, ops in cones.items():
        row = _Row.of(graph, name, ops, own, pairs)
        if row is None:
            return None
        rows.setdefault(row.signature, []).append(row)
    return Formulas(graph, tuple(common), tuple(_alike(graph, row, ranks) for row in rows.values()))


def _without_zeros(graph: Graph) -> Graph:
    """Without sums with zero: what held updates back in the step in one piece is one."""
    zeros = {
        tensor.name
        for tensor in graph.model.graph.initializer
        if tensor.data_type == TensorProto.FLOAT and not (tensor.dims or to_array(tensor))
    }
    names, kept = dict[str, str](), list[Op]()
    for each in graph.ops:
        op = each.renamed(each.name, names)
        terms = [name for name in op.inputs if name not in zeros]
        if op.op_type == "Add" and len(terms) == 1 and op.writes[0] not in graph.outputs:
            names[op.writes[0]] = terms[0]
        else:
            kept.append(op)
    return graph.with_ops(kept)


def _reached(graph: Graph, seeds: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Of which seeds every value is made."""
    found = {name: set(of) for name, of in seeds.items()}
    for op in graph.ops:
        made = set[str]().union(*(found.get(name, ()) for name in op.reads))
        found.update((name, set(made)) for name in op.writes)
    return found


@dataclass(frozen=True)
class _Row:
    """One parameter's ops.

    Attributes:
        names: of the values among them that are as long as the gradient, to those of the formula.
        given: other values that they read.
    """

    total: str
    ops: tuple[Op, ...]
    names: Mapping[str, str]
    states: tuple[str, ...]
    changes: tuple[int, ...]
    given: tuple[str, ...]
    signature: object

    @classmethod
    def of(
        cls,
        graph: Graph,
        total: str,
        ops: Sequence[Op],
        own: Mapping[str, set[str]],
        pairs: Mapping[str, str],
    ) -> _Row | None:
        """None where an op is no function of single elements."""
        shape, names = graph.tensors[total].shape, {total: "total"}
        states, given, steps = list[str](), dict[str, None](), []
        for op in ops:
            for name in op.reads:
                if name in own and name not in names:
                    names[name] = f"{STATE}{len(states)}"
                    states.append(name)
                elif name not in names:
                    given[name] = None
            names[op.writes[0]] = f"value/{len(names)}"
            attributes = tuple(sorted(a.SerializeToString() for a in op.node.attribute))
            steps.append((op.op_type, attributes, tuple(names.get(n, n) for n in op.inputs)))
            if not op.standard or op.op_type not in OPERATORS or len(op.writes) != 1:
                return None
        long = [graph.tensors[name] for name in names]
        short = [graph.tensors[name] for name in given]
        if any((t.dtype, t.shape) != (TensorProto.FLOAT, shape) for t in long):
            return None
        if any(t.dtype != TensorProto.FLOAT or not _one(t.shape) for t in short):
            return None  # the portable rewriting gives numbers the rank of what they multiply
        changes = [k for k, name in enumerate(states) if pairs[name] in names]
        names.update((pairs[states[k]], f"{STATE}{k}{NEW}") for k in changes)
        signature = tuple(steps), tuple(names[pairs[states[k]]] for k in changes), tuple(changes)
        return cls(total, tuple(ops), names, tuple(states), tuple(changes), tuple(given), signature)


def _alike(graph: Graph, rows: Sequence[_Row], ranks: int) -> Alike:
    """What rows of one signature have in common."""
    first = rows[0]
    constants = {t.name: t for t in graph.model.graph.initializer if t.name in first.given}
    given = tuple(name for name in first.given if name not in constants)
    gradients = [f"{GRADIENT}{k}" for k in range(ranks)]
    nodes = [helper.make_node("Sum", gradients, ["total"])]
    for op in first.ops:
        node = onnx.NodeProto()
        node.CopyFrom(op.node)
        node.name = op.name
        node.input[:] = [first.names.get(name, name) for name in op.inputs]
        node.output[:] = [first.names[name] for name in op.outputs]
        nodes.append(node)
    long = [*gradients, *(f"{STATE}{k}" for k in range(len(first.states)))]
    new = [f"{STATE}{k}{NEW}" for k in first.changes]

    def row(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["length"])

    numbers = [helper.make_tensor_value_info(name, TensorProto.FLOAT, []) for name in given]
    formula = helper.make_model(
        helper.make_graph(
            nodes, "formula", [*map(row, long), *numbers], list(map(row, new)),
            list(constants.values()),
        ),
        opset_imports=list(graph.model.opset_import), ir_version=graph.model.ir_version,
    )  # fmt: skip
    states = tuple(each.states for each in rows)
    return Alike(formula, tuple(each.total for each in rows), states, first.changes, given)


def _one(shape: Sequence[int] | None) -> bool:
    """A value of this shape is a single number."""
    return shape is not None and all(size == 1 for size in shape)
