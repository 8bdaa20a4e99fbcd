"""What each op of a training step is for: forward, loss, chain, weight or update.

The backward pass has two kinds of ops. Those of the *chain* lead to gradients of values that vary
with the data: what an earlier layer waits for. The others only lead to gradients of weights: the
rest of the backward pass never waits for them, so they may run any time before the update (Oh et
al., Out-Of-Order BackProp). A step says in the metadata of every node what it is; recomputations
have it from the op they repeat, and what onnxruntime fuses anew gets it from its surroundings.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import onnx

from onnxremat.graph.ir import Graph, Op
from onnxremat.graph.traits import SIZES

PHASE, GRADIENT = "onnxremat.phase", "onnxremat.gradient"  # of nodes
PHASES = ("forward", "loss", "backward", "update")
CHAIN, WEIGHT = "chain", "weight"  # the two kinds of backward


def is_backward(op: Op) -> bool:
    """Whether an op, still under the name that it was emitted with, is of the backward pass."""
    return op.name.startswith("grad/")


def varying(ops: Iterable[Op], data: Collection[str]) -> set[str]:
    """Tensors that vary with some of the data; ``ops`` in a topological order."""
    found = set(data)
    for op in ops:
        if op.op_type not in SIZES and not found.isdisjoint(op.reads):
            found.update(op.writes)
    return found


def mark_gradients(ops: Sequence[Op], waited_for: Collection[str]) -> None:
    """Say of each backward op whether it is on the chain, in its node.

    Args:
        ops: what was emitted, in a topological order.
        waited_for: gradients of values that vary with the data.
    """
    wanted = set(waited_for)
    for op in reversed(ops):
        if _said(op.node).get(PHASE) != "backward":
            continue
        on_chain = not wanted.isdisjoint(op.writes)
        if on_chain:
            wanted.update(op.reads)
        op.node.metadata_props.add(key=GRADIENT, value=CHAIN if on_chain else WEIGHT)


def with_phase(op: Op) -> Op:
    """An op that says nothing of itself is one of the model's own: forward."""
    if PHASE in _said(op.node):
        return op
    node = onnx.NodeProto()
    node.CopyFrom(op.node)
    node.metadata_props.add(key=PHASE, value="forward")
    return replace(op, node=node)


def on_chain(op: Op) -> bool:
    """Whether an op says that an earlier layer waits for what it makes."""
    return _said(op.node).get(GRADIENT) == CHAIN


def inherit(made: Iterable[Op], replaced: Op) -> None:
    """Ops that stand for another are for the same gradient."""
    gradient = _said(replaced.node).get(GRADIENT)
    for op in made:
        if gradient and GRADIENT not in _said(op.node):
            op.node.metadata_props.add(key=GRADIENT, value=gradient)


def roles_of(graph: Graph) -> dict[str, str]:
    """Op name to its role in a training step, optimised or planned or not: ``forward``, ``loss``,
    ``chain``, ``weight`` or ``update``.

    What says nothing of itself (fused by onnxruntime, gates of a plan) comes right after what it
    reads; a backward op of these is on the chain where one of the chain reads from it.
    """
    said = {op.name: _said(op.node) for op in graph.ops}
    phases: dict[str, str] = {}
    for op in graph.ops:
        own = said[op.name].get(PHASE) or said.get(op.origin, {}).get(PHASE)
        before = (
            phases[graph.ops[graph.producer[n]].name] for n in op.reads if n in graph.producer
        )
        phases[op.name] = own or max(before, key=PHASES.index, default="forward")
    found = dict(phases)
    for op in reversed(graph.ops):
        if phases[op.name] == "backward":
            readers = (graph.ops[k].name for n in op.writes for k in graph.readers.get(n, ()))
            own = said[op.name].get(GRADIENT)
            found[op.name] = own or (CHAIN if any(found[r] == CHAIN for r in readers) else WEIGHT)
    return found


def _said(node: onnx.NodeProto) -> Mapping[str, str]:
    return {entry.key: entry.value for entry in node.metadata_props}
