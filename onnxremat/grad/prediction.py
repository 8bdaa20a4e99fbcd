"""What a loss compares with the target: an output of the model, or what its last activation gets.

A Softmax or Sigmoid that the loss contains is cut off. Models often bring its result into another
shape, order or precision (``torch.sigmoid(x).squeeze(-1)``, probabilities of half precision as
float32), or take some of it. That may as well be done before; so it is, and the activation comes
last. Only a cast that loses digits stays behind it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import onnx
from onnx import helper

from onnxremat.grad.losses import Loss, check_prediction
from onnxremat.grad.tape import FLOATS, Shape
from onnxremat.graph.dtypes import tensor_bytes
from onnxremat.graph.ir import Graph, Op, Role, Tensor
from onnxremat.graph.traits import MOVING, is_alias

ALONG_AXIS = frozenset({"LogSoftmax", "Softmax"})
ACTIVATIONS = ALONG_AXIS | {"Sigmoid"}
TAKING = MOVING | {"Gather"}  # elements of their first input, and nothing else
CASTS = frozenset({"Cast", "CastLike"})


@dataclass(frozen=True)
class Compared:
    """What a loss compares.

    Attributes:
        graph: the forward pass, an activation that the loss contains last.
        name: a tensor of it.
        loss: of it; along the axis of the Softmax where nobody said another.
        doubt: what may not be as the user thinks, "" for nothing.
    """

    graph: Graph
    name: str
    loss: Loss
    doubt: str = ""


def compared(graph: Graph, output: str, loss: Loss) -> Compared:
    """What a loss compares where an output is to be compared.

    Raises:
        UsageError: there is no such output, or it holds no floating-point numbers, or nothing.
    """
    check_prediction(graph.tensors, output, graph.outputs)
    made = activation_last(graph, output)
    op = _maker(made, output)
    if op is not None and op.op_type in CASTS:
        op = _maker(made, op.inputs[0])
    if op is not None:
        shape = made.tensors[output].shape or ()
        within = loss.within(op.op_type, _axis(made, op), shape)
        if within is not None:
            return Compared(made, op.inputs[0], within)
    return Compared(graph, output, loss, _doubt(graph, output, loss))


def _doubt(graph: Graph, output: str, loss: Loss) -> str:
    """That a loss of logits takes probabilities for these."""
    name, ways = output, list[str]()
    while loss.activations and (op := _maker(graph, name)) is not None:
        if op.op_type in ACTIVATIONS:
            by = f" by way of {', '.join(reversed(ways))}" if ways else ""
            return (
                f"the loss takes '{output}' for logits, and it is what {op.op_type} '{op.name}' "
                f"makes{by}, probabilities: export the model without it, name another loss, or "
                "have the model compute it (--loss-output)"
            )
        if op.op_type not in TAKING | {"Clip"}:
            break
        ways.append(op.op_type)
        name = op.inputs[0]
    return ""


def activation_last(graph: Graph, output: str) -> Graph:
    """The graph with an output that is an activation's result in another shape, order or precision
    as the activation of what it gets in that one; the same object where it is no such thing."""
    moves, activation, axis = _behind(graph, output)
    if not moves or activation is None:
        return graph
    return _with_moves_first(graph, moves, activation, axis)


def _behind(graph: Graph, output: str) -> tuple[list[Op], Op | None, int]:
    """The ops between an activation and an output, first to last, the activation, and the axis that
    it has behind them; no activation where it does not commute with them."""
    name, moves = output, list[Op]()
    while (op := _maker(graph, name)) is not None:
        if op.op_type in ACTIVATIONS:
            axis = _axis_behind(graph, op, moves[::-1]) if op.op_type in ALONG_AXIS else 0
            return moves[::-1], None if axis is None else op, axis or 0
        if op.op_type not in TAKING or not _is_known(graph, op):
            break
        moves.append(op)
        name = op.inputs[0]
    return [], None, 0


def _maker(graph: Graph, name: str) -> Op | None:
    """The op of ONNX that makes a tensor, if any."""
    op = graph.ops[graph.producer[name]] if name in graph.producer else None
    return op if op is not None and op.standard else None


def _is_known(graph: Graph, op: Op) -> bool:
    """Whether what an op moves, and makes of it, are floating-point tensors of known sizes."""
    both = [graph.tensors[name] for name in (op.inputs[0], op.outputs[0])]
    return all(each.shape is not None and each.dtype in FLOATS for each in both)


def _axis(graph: Graph, op: Op) -> int:
    """Of a Softmax, counted from 0."""
    rank = len(graph.tensors[op.outputs[0]].shape or ())
    given = next((a.i for a in op.node.attribute if a.name == "axis"), -1)
    return int(given) % rank if rank else 0


def _axis_behind(graph: Graph, op: Op, moves: list[Op]) -> int | None:
    """The axis along which a softmax goes behind ops that move its elements, None where there is
    no such."""
    axis = _axis(graph, op)
    for move in moves:
        old, new = (graph.tensors[name].shape or () for name in (move.inputs[0], move.outputs[0]))
        found: int | None = axis
        if move.op_type == "Transpose":
            order = next((list(a.ints) for a in move.node.attribute if a.name == "perm"), None)
            found = (order or [*range(len(old))][::-1]).index(axis)
        elif is_alias(move):
            found = _same_axis(old, new, axis)
        elif move.op_type not in CASTS:
            return None
        if found is None:
            return None
        axis = found
    return axis


def _same_axis(old: Shape, new: Shape, axis: int) -> int | None:
    """An axis of the same elements in another shape."""
    before = math.prod(old[:axis])
    found = (k for k, d in enumerate(new) if d == old[axis] and math.prod(new[:k]) == before)
    return next(found, None)


def _with_moves_first(graph: Graph, moves: list[Op], activation: Op, axis: int) -> Graph:
    tensors, ops = dict(graph.tensors), list[Op]()
    name, output = activation.inputs[0], moves[-1].outputs[0]
    for move in moves:
        kinds = tensors[name].dtype, tensors[move.outputs[0]].dtype
        if move.op_type in CASTS and _width(kinds[0]) >= _width(kinds[1]):
            continue
        kind = kinds[move.op_type in CASTS]
        made = _like(tensors, move.outputs[0], kind, "logits")
        again = f"{made}/{move.op_type}"
        ops.append(replace(move, name=again, inputs=(name, *move.inputs[1:]), outputs=(made,)))
        name = made
    kind, wanted = tensors[name].dtype, tensors[output].dtype
    made = output if kind == wanted else _like(tensors, output, kind, "wide")
    node = onnx.NodeProto()
    node.CopyFrom(activation.node)
    if activation.op_type in ALONG_AXIS:
        kept = [a for a in node.attribute if a.name != "axis"]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute("axis", axis)])
    last = moves[-1].name  # which goes
    ops.append(replace(activation, name=last, inputs=(name,), outputs=(made,), node=node))
    if made != output:
        cast = helper.make_node("Cast", [made], [output], name=f"{made}/Cast", to=wanted)
        ops.append(Op(cast.name, "Cast", "", (made,), (output,), (), cast))
    place = graph.producer[output]
    every = [*graph.ops[:place], *ops, *graph.ops[place + 1 :]]
    return graph.with_ops(_without_idle(graph, every, [*moves[-2::-1], activation]), tensors)


def _width(kind: int) -> int:
    """Bytes of an element."""
    return tensor_bytes(kind, ())


def _like(tensors: dict[str, Tensor], name: str, kind: int, end: str) -> str:
    """A tensor as large as another, of an element type."""
    like, made = tensors[name], f"{name}/{end}"
    while made in tensors:
        made += "_"
    size = tensor_bytes(kind, like.shape or ())
    tensors[made] = replace(like, name=made, dtype=kind, bytes=size, role=Role.ACTIVATION)
    return made


def _without_idle(graph: Graph, ops: list[Op], perhaps: list[Op]) -> list[Op]:
    """Ops without some, last to first, that nobody reads."""
    for op in perhaps:
        others = [each for each in ops if each.name != op.name]
        if {*op.writes}.isdisjoint({*graph.outputs, *(n for each in others for n in each.reads)}):
            ops = others
    return ops
