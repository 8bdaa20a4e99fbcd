"""Folded constants that come back as the ops that make them.

onnxruntime folds what follows from constants alone as it loads a file, and holds it for good.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import onnx
from onnx import numpy_helper

from onnxremat.graph.dtypes import tensor_bytes
from onnxremat.graph.ir import Op
from onnxremat.graph.onnx_io import to_ops
from onnxremat.graph.traits import ONNX
from onnxremat.graph.unforeseen import BOUNDS
from onnxremat.ort.session import Options, open_session, session_options

UNFOLD = 64 << 10  # bytes from which a folded constant is worth making anew
UNFOLD_OPS = 64  # that a constant is made of anew at most
SIZES = 1 << 10  # bytes of a constant that sizes are made of
NODE = 5 << 10  # bytes that a session keeps of an op (``session/structures.py``)


def unfold(model: onnx.ModelProto, graph: onnx.GraphProto) -> frozenset[str]:
    """Take back constant folding where it swells memory; what was taken back.

    A big tensor of zeros made from a small shape (the start of a scatter, a mask) is folded into
    a weight that stays for the whole run; made by its op it lives for a few steps. So a folded
    constant comes back as the original nodes when what they start from is less than half its size,
    these are few, and what a session keeps of them is less than it. (Masks of shifted windows come
    of hundreds of ops on sizes, whose results onnxruntime infers only by folding them.)

    What says how large a value is stays folded, and the graph says the shape of what comes back:
    where a size is the outcome of ops (``expand(n, -1)`` compares with -1 first) nothing infers it.
    """
    original = {t.name for t in model.graph.initializer}
    sizes = {t.name: tensor_bytes(t.data_type, t.dims) for t in graph.initializer}
    folded = [n for n, size in sizes.items() if n not in original and size >= UNFOLD]
    if not folded:
        return frozenset()
    ops = to_ops(model)
    writer = {name: index for index, op in enumerate(ops) for name in op.writes}
    weights = {t.name: t for t in model.graph.initializer}
    present = {name for node in graph.node for name in node.output}
    revived: set[int] = set()
    for name in sorted(folded, key=sizes.__getitem__, reverse=True):
        chain, sources = _ancestors(name, ops, writer, present | set(sizes) - {name})
        start = sum(
            tensor_bytes(weights[s].data_type, weights[s].dims) for s in sources if s in weights
        )
        more = len(chain - revived)
        few = more <= UNFOLD_OPS and more * NODE < sizes[name] - start
        if name in writer and 2 * start < sizes[name] and few:
            revived |= chain
    written = {name for index in revived for name in ops[index].writes}
    back = [t for t in graph.initializer if t.name in written]
    known = weights | {t.name: t for t in graph.initializer}
    again, sizes_of = _without_sizes([ops[i] for i in sorted(revived)], back, known, model)
    made = {name for op in again for name in op.writes}
    kept = [t for t in graph.initializer if t.name not in made] + sizes_of
    have = {t.name for t in kept}
    needed = {name for op in again for name in op.reads} - have - made
    kept += [weights[name] for name in needed if name in weights]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    said = {value.name for value in graph.value_info}
    graph.value_info.extend(
        onnx.helper.make_tensor_value_info(t.name, t.data_type, t.dims)
        for t in back
        if t.name not in said
    )
    nodes = [op.node for op in again] + list(graph.node)
    del graph.node[:]
    graph.node.extend(nodes)
    return frozenset(t.name for t in back)


def _ancestors(
    name: str, ops: Sequence[Op], writer: Mapping[str, int], stop: Collection[str]
) -> tuple[set[int], set[str]]:
    """Ops that make ``name`` from constants, and the constants they start from."""
    chain: set[int] = set()
    sources: set[str] = set()
    waiting = [name]
    while waiting:
        tensor = waiting.pop()
        index = writer.get(tensor)
        if index is None or (tensor in stop and tensor != name):
            sources.add(tensor)
        elif index not in chain:
            chain.add(index)
            waiting += ops[index].reads
    return chain, sources


def _without_sizes(
    ops: list[Op],
    back: Collection[onnx.TensorProto],
    known: Mapping[str, onnx.TensorProto],
    model: onnx.ModelProto,
) -> tuple[list[Op], list[onnx.TensorProto]]:
    """The ops that are left of those that make ``back``, where sizes that they make are constants;
    and these."""
    sizes = _sizes(ops, known, model)
    needed: list[Op] = []
    read = {t.name for t in back}
    for op in reversed(ops):
        if not read.isdisjoint(set(op.writes) - sizes.keys()):
            needed.append(op)
            read.update(op.reads)
    return needed[::-1], [tensor for name, tensor in sizes.items() if name in read]


def _sizes(
    ops: Sequence[Op], known: Mapping[str, onnx.TensorProto], model: onnx.ModelProto
) -> dict[str, onnx.TensorProto]:
    """What says how large a result of an op is, where another of the ops makes it of few constants
    and the shapes of the model's inputs."""
    writer = {name: index for index, op in enumerate(ops) for name in op.writes}
    sizing = (op for op in ops if op.domain in ONNX and op.op_type in BOUNDS)
    bounds = {name for op in sizing for name in op.inputs[BOUNDS[op.op_type] :][:1]}
    shapes = {
        value.name: _dims(value) for value in model.graph.input if _shows_size(value.name, ops)
    }
    made = onnx.GraphProto(name="sizes")
    chain: set[int] = set()
    given: set[str] = set()
    for name in sorted(bounds & writer.keys()):
        before, sources = _ancestors(name, ops, writer, set())
        if all(_is_small(known[s]) if s in known else shapes.get(s) for s in sources):
            chain |= before
            given |= sources
            made.output.add(name=name)
    if not made.output:
        return {}
    made.node.extend(ops[index].node for index in sorted(chain))
    made.initializer.extend(known[name] for name in given if name in known)
    feeds = {name: np.zeros(shapes[name], np.int8) for name in given if name not in known}
    for name, array in feeds.items():  # of which nothing but the shape is read
        kind = onnx.helper.make_tensor_type_proto(onnx.TensorProto.INT8, array.shape)
        made.input.add(name=name, type=kind)
    small = onnx.ModelProto(
        ir_version=max(model.ir_version, 4), opset_import=model.opset_import, graph=made
    )
    session = open_session(small, session_options(Options(level="disable", threads=1)))
    names = [value.name for value in made.output]
    values = zip(names, session.run(names, feeds), strict=True)
    return {name: numpy_helper.from_array(value, name) for name, value in values}


def _shows_size(name: str, ops: Iterable[Op]) -> bool:
    """Whether the ops read nothing but the shape of a value."""
    return all(op.op_type in ("Shape", "Size") for op in ops if name in op.reads)


def _dims(value: onnx.ValueInfoProto) -> tuple[int, ...]:
    """Shape of an input of the model, () where not all of it is known."""
    dims = value.type.tensor_type.shape.dim
    return tuple(d.dim_value for d in dims) if all(d.dim_value for d in dims) else ()


def _is_small(tensor: onnx.TensorProto) -> bool:
    inside = tensor.data_location != onnx.TensorProto.EXTERNAL
    return inside and tensor_bytes(tensor.data_type, tensor.dims) <= SIZES
