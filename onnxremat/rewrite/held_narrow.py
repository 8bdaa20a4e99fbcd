"""Weights that lie in half of their width until they are read, where a budget asks for it.

A processor without kernels for half precision computes in float32: onnxruntime casts the weights of
a float16 model as it loads it, and holds twice the bytes of the file for good. A weight of which
every value is a float16 or bfloat16 number can lie as such, and a Cast make it wide before each
reading: the wide one is then a value like others, given back once it was read. No value changes.
Kernels do not pack what is no constant, and the Cast runs every time, which takes longer.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from onnxremat.graph.dtypes import tensor_bytes
from onnxremat.graph.equal_weights import weight_values
from onnxremat.graph.ir import Graph, Op, Role, Tensor
from onnxremat.graph.weights import WeightFolder, place, without_bytes
from onnxremat.rewrite.turned import MICROSOFT, can_turn, import_products, read_turned, reads_turned
from onnxremat.rewrite.unpacked import list_as_inputs

LEAST = 256 << 10  # bytes of a weight that is worth a Cast
FEW, BLOCK = 64, 1 << 20  # elements that are looked at first, and at once
ROWS = 1024  # of a transpose that are made at once
HALF, BRAIN = TensorProto.FLOAT16, TensorProto.BFLOAT16
OTHERS = {
    (MICROSOFT, "FusedMatMul"), (MICROSOFT, "FusedGemm"), (MICROSOFT, "FusedConv"),
    ("com.microsoft.nchwc", "Conv"),
}  # fmt: skip
BRAIN_SINCE = 13  # opset of a Cast from bfloat16


def narrow_weights(graph: Graph, folder: Path | None) -> dict[str, int]:
    """Float32 weights that a narrower type holds without loss, the largest first, and that type.

    Args:
        folder: where external weights are.
    """
    inside = {n for op in graph.ops for n in op.captures}.union(graph.outputs)
    inside.update(name for op in graph.ops if not _takes_values(op) for name in op.inputs)
    found: dict[str, int] = {}
    for tensor, data in weight_values(graph, folder, LEAST):
        if tensor.data_type == TensorProto.FLOAT and tensor.name not in inside:
            kind = _holding(data.view(np.uint32), graph.opsets.get("", 1) >= BRAIN_SINCE)
            if kind is not None:
                found[tensor.name] = kind
    return dict(sorted(found.items(), key=lambda item: -graph.tensors[item[0]].bytes))


def _takes_values(op: Op) -> bool:
    """Its kernel takes for a weight what is none; some of onnxruntime's own do not."""
    return op.standard or (op.domain, op.op_type) in OTHERS


def _holding(bits: np.ndarray, brain: bool) -> int | None:
    """The type of half the width that holds all these float32 numbers."""
    kinds = [HALF, BRAIN] if brain else [HALF]
    starts = (0, *range(FEW, len(bits), BLOCK))
    for start, end in zip(starts, (*starts[1:], len(bits)), strict=True):
        piece = bits[start:end]
        kinds = [kind for kind in kinds if np.array_equal(_wide(_narrow(piece, kind), kind), piece)]
        if not kinds:
            return None
    return kinds[0]


def _narrow(bits: np.ndarray, kind: int) -> np.ndarray:
    """Numbers of the narrower type, as 16 bits each."""
    if kind == BRAIN:
        return (bits >> 16).astype(np.uint16)
    with np.errstate(over="ignore", invalid="ignore"):
        return bits.view(np.float32).astype(np.float16).view(np.uint16)


def _wide(bits: np.ndarray, kind: int) -> np.ndarray:
    """Float32 numbers of narrower ones, as 32 bits each."""
    if kind == BRAIN:
        return bits.astype(np.uint32) << 16
    return bits.view(np.float16).astype(np.float32).view(np.uint32)


def turned_weights(graph: Graph, names: Collection[str], *, standard: bool) -> set[str]:
    """Those of these matrices that are better read as their transpose: by products alone, which
    without packing read columns in few strides then, and of more than one row.

    Args:
        standard: with standard operators alone.
    """
    return {
        name
        for name in names
        if (readers := graph.readers.get(name))  # the file may hold what nobody reads
        and all(_better(graph.ops[index], name, graph, standard) for index in readers)
    }


def _better(op: Op, name: str, graph: Graph, standard: bool) -> bool:
    weight, made = graph.tensors[name].shape, graph.tensors[op.outputs[0]].shape
    if weight is None or made is None or len(weight) != 2 or reads_turned(op):
        return False
    return prod(made[:-1]) > 1 and can_turn(op, name, graph, standard)


def narrowed(graph: Graph, kinds: Mapping[str, int], turned: Collection[str] = ()) -> Graph:
    """The graph that casts these weights before they are read; without their new values, which
    :func:`with_values` gives it.

    Args:
        kinds: weights, and the type that each lies in.
        turned: those of them that lie as their transpose.
    """
    taken = {*graph.tensors, *graph.names_inside, *(op.name for op in graph.ops)}
    names = {name: _free(f"{name}_narrow", taken) for name in kinds}
    tensors = dict(graph.tensors)
    for name, lies in names.items():
        wide = graph.tensors[name]
        shape = (wide.shape or ())[:: -1 if name in turned else 1]
        tensors[name] = replace(wide, shape=shape, role=Role.ACTIVATION)
        size = tensor_bytes(kinds[name], shape)
        tensors[lies] = Tensor(lies, kinds[name], shape, size, Role.WEIGHT)
    model = onnx.ModelProto()
    model.CopyFrom(graph.model)
    for tensor in model.graph.initializer:
        if tensor.name in names:
            if tensor.name in turned:
                tensor.dims[:] = reversed(tensor.dims)
            tensor.data_type, tensor.name = kinds[tensor.name], names[tensor.name]
    for index in reversed([i for i, v in enumerate(model.graph.input) if v.name in names]):
        del model.graph.input[index]
    list_as_inputs(model, names.values())  # or onnxruntime would cast them as it loads the model
    ops, made = [], set[str]()
    for op in graph.ops:
        for name in op.inputs:
            if name in names and name not in made:
                made.add(name)
                ops.append(_cast(names[name], name, taken))
        ops.append(read_turned(op, {}, graph) if any(n in turned for n in op.reads) else op)
    import_products(model, ops)
    return replace(graph, ops=tuple(ops), tensors=tensors, model=model)


def _cast(lies: str, wide: str, taken: Container[str]) -> Op:
    node = helper.make_node("Cast", [lies], [wide], name=_free(f"{wide}_wide", taken))
    node.attribute.append(helper.make_attribute("to", TensorProto.FLOAT))
    return Op(node.name, "Cast", "", (lies,), (wide,), (), node)


def _free(name: str, taken: Container[str]) -> str:
    while name in taken:
        name += "_"
    return name


def with_values(
    graph: Graph,
    before: Graph,
    kinds: Mapping[str, int],
    folder: Path | None,
    turned: Collection[str] = (),
) -> tuple[Graph, WeightFolder]:
    """What :func:`narrowed` made, with all its weights, big ones in a folder.

    Args:
        before: the graph that it was made of, with the wide values.
        folder: where external weights of that are.
    """
    stored = before.model.graph.initializer
    target = folder if isinstance(folder, WeightFolder) else WeightFolder.make()
    away = {i for i, tensor in enumerate(stored) if place(tensor) and target is not folder}
    chosen = away | {i for i, tensor in enumerate(stored) if tensor.name in kinds}
    _, waiting = without_bytes(before.model, chosen, folder)
    made, places = without_bytes(graph.model, chosen, None)
    target.keep(
        (new, _pieces(old, pieces, kinds.get(old.name), old.name in turned))
        for (old, pieces), (new, _) in zip(waiting, places, strict=True)
    )
    return replace(graph, model=made), target


def _pieces(
    weight: onnx.TensorProto, pieces: Iterator[bytes], kind: int | None, turned: bool
) -> Iterator[bytes]:
    """The bytes of a weight, in the narrower type where it has one."""
    if kind is not None:
        pieces = (_narrow(np.frombuffer(piece, np.uint32), kind).tobytes() for piece in pieces)
    if not turned:
        return pieces
    size = tensor_bytes(kind or weight.data_type, weight.dims) // prod(weight.dims)
    lies = np.frombuffer(b"".join(pieces), f"u{size}").reshape(tuple(weight.dims))
    blocks = (lies[:, at : at + ROWS].T for at in range(0, lies.shape[1], ROWS))
    return (np.ascontiguousarray(block).tobytes() for block in blocks)
