"""From emitted ops to a graph: outputs under their names in the signature, no dead ops; who makes
and reads what."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxremat.errors import UsageError
from onnxremat.grad.tape import Tape
from onnxremat.graph.ir import Op

# Operators whose outputs from the second on may be left out.
IR_VERSION = 10  # of what is made: the first with metadata of nodes
OPTIONAL = frozenset(
    {
        "BatchNormalization", "Dropout", "GRU", "LSTM", "LayerNormalization", "MaxPool", "RNN",
        "SoftmaxCrossEntropyLoss",
    }
)  # fmt: skip


def named(t: Tape, ops: Sequence[Op], outputs: Mapping[str, str]) -> tuple[list[Op], list[str]]:
    """Outputs under their names in the signature: the tensor is renamed, or copied by an
    Identity where it has two names or is an input."""
    made = {name for op in ops for name in op.writes}
    renames: dict[str, str] = {}
    copies: list[tuple[str, str]] = []
    for name, tensor in outputs.items():
        t.declare(name, t.dtype(tensor), t.shape(tensor))
        if name == tensor:
            continue
        if tensor in made and tensor not in renames and tensor not in outputs:
            renames[tensor] = name
        else:
            copies.append((name, tensor))
    result = [
        op.renamed(op.name, renames, op.origin) if _touches(op, renames) else op for op in ops
    ]
    for name, tensor in copies:
        source = renames.get(tensor, tensor)
        node = helper.make_node("Identity", [source], [name])
        result.append(Op(t.fresh(f"{name}/Identity"), "Identity", "", (source,), (name,), (), node))
    return result, list(outputs)


def require_free(names: Iterable[str], taken: Container[str]) -> None:
    """Raises:
    UsageError: the model has a tensor of a name under which its step has something else.
    """
    for name in sorted(names):
        if name in taken:
            raise UsageError(
                f"the model has a tensor '{name}'",
                why="its training step has an input or output of its own of that name",
                hint="give the tensor another name",
            )


def zeros_of(t: Tape, names: Iterable[str]) -> list[onnx.TensorProto]:
    """Tensors of zeros, of the types and shapes that a tape knows."""
    kinds = {name: helper.tensor_dtype_to_np_dtype(t.dtype(name)) for name in names}
    return [numpy_helper.from_array(np.zeros(t.shape(n), kind), n) for n, kind in kinds.items()]


def _touches(op: Op, names: Mapping[str, str]) -> bool:
    return any(name in names for name in (*op.inputs, *op.outputs, *op.captures))


def _without_idle_outputs(op: Op, wanted: Collection[str]) -> Op:
    """An output that is named but not read would be held until the end of the run. In training
    mode a BatchNormalization has to have all three."""
    if op.op_type == "BatchNormalization" and len(op.outputs) > 1:
        return op
    used = [op.outputs[0], *(name if name in wanted else "" for name in op.outputs[1:])]
    while not used[-1]:
        used.pop()
    return replace(op, outputs=tuple(used))


def makers_and_readers(ops: Sequence[Op]) -> tuple[dict[str, Op], dict[str, list[Op]]]:
    """For each tensor the op that makes it, and those that read it, as they are listed."""
    readers: dict[str, list[Op]] = {}
    for op in ops:
        for name in op.reads:
            readers.setdefault(name, []).append(op)
    return {name: op for op in ops for name in op.writes}, readers


def needed(ops: Sequence[Op], outputs: Collection[str]) -> list[Op]:
    """Ops that an output depends on, without the outputs nobody reads."""
    wanted, kept = set(outputs), []
    for op in reversed(ops):
        if wanted.isdisjoint(op.writes):
            continue
        wanted.update(op.reads)
        kept.append(_without_idle_outputs(op, wanted) if op.op_type in OPTIONAL else op)
    return kept[::-1]
