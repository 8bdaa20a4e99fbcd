"""ONNX files in and out; the border between files and :class:`Graph`.

Weights in external files stay there: they are never read into memory, and on save they are
referred to (same folder) or copied file to file (another folder). Weights that were
kept apart while the model was worked on (:mod:`onnxremat.graph.weights`) go back into its file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
from google.protobuf import json_format, text_format
from google.protobuf.message import DecodeError, EncodeError

from onnxremat.errors import ModelError, UsageError
from onnxremat.graph.atomic import atomic
from onnxremat.graph.dtypes import tensor_bytes
from onnxremat.graph.external import check_length, external_file, read_in, read_values, said_place
from onnxremat.graph.ir import Graph, Op, all_nodes, captures, subgraphs
from onnxremat.graph.text import check_attributes, check_text
from onnxremat.graph.topological import least_first
from onnxremat.graph.unforeseen import told
from onnxremat.graph.weights import (
    WeightFolder,
    lay_out,
    place,
    weight_bytes,
    without_bytes,
    write_whole,
)
from onnxremat.limits import NO_PIPES

# Broken files: as protobuf, and in the text formats that onnx tells by the suffix.
_BROKEN = (
    DecodeError, json_format.ParseError, text_format.ParseError, onnx.parser.ParseError, ValueError,
)  # fmt: skip
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f]")  # names go into files that have an entry per line
ORIGIN = "onnxremat.origin"  # node metadata: the op that a node recomputes
CHECK = "check the path"
SMALL = 4096  # bytes below which an external tensor is read: its values may be needed
INLINE_LIMIT = 1_900_000_000  # protobuf messages end at 2 GiB; leave room for the nodes
TINY = 1024  # bytes of a weight that stays in the model


def read_model(path: str | os.PathLike[str]) -> onnx.ModelProto:
    """Parse a model file; external weights are checked to be there but not read.

    Raises:
        ModelError: missing, unreadable, truncated or not an ONNX model, or external data missing.
    """
    file = Path(path)
    if not file.is_file():
        raise missing_file(file, ".onnx", ModelError)
    try:
        model = onnx.load_model(str(file), load_external_data=False)
    except _BROKEN as error:
        reason = str(error).splitlines()[0]
        raise ModelError(
            f"{file} is not a readable ONNX model",
            why=f"{reason} (truncated, or another kind of file)",
            hint="export or download it again",
        ) from error
    except OSError as error:
        raise ModelError(f"cannot read {file}", why=str(error)) from error
    check_text(model, str(file))
    check_attributes(model, str(file))
    if not model.graph.node and model.graph.output:
        raise computes_nothing(str(file))
    if not model.graph.node:
        raise ModelError(
            f"{file} holds no ONNX graph",
            why=f"{file.stat().st_size} bytes parsed to no node",
            hint="export or download it again",
        )
    check_external(model, file.parent)
    return model


def computes_nothing(name: str) -> ModelError:
    """The error for a model without a node."""
    return ModelError(
        f"{name} computes nothing",
        why="its graph has no node: every output is an input or a constant",
        hint="there is nothing to plan; use it as it is",
    )


def missing_file(
    file: Path, suffix: str, kind: type[UsageError] = UsageError, make: str = ""
) -> UsageError:
    """The error for a file that is not there.

    Args:
        suffix: of files that may be meant instead.
        make: how such a file is made.
    """
    folder = file.parent
    if file.is_dir():
        return kind(f"{file} is a folder", hint=make or "give the file inside")
    if file.exists():
        return kind(f"{file} is no regular file", why=NO_PIPES, hint="save it to a file first")
    if str(file) == "-":
        return kind("nothing is read from a pipe: '-'", hint="give the name of a file")
    if not folder.is_dir():
        return kind(f"no such file: {file}", why=f"there is no folder {folder}", hint=make or CHECK)
    near = sorted(path.name for path in folder.glob(f"*{suffix}") if path.is_file())
    few = ", ".join(near[:5]) + (f" and {len(near) - 5} more" if len(near) > 5 else "")
    hint = f"{suffix} files in {folder.resolve()}: {few or 'none'}"
    return kind(f"no such file: {file}", hint=f"{make}; {hint}" if make else hint)


def from_object(source: Any) -> onnx.ModelProto:
    """The model that an object of another library holds: a ``torch.onnx.ONNXProgram``, an
    ``onnxscript`` function, an ``onnx_graphsurgeon.Graph`` in its own node order.

    Raises:
        UsageError: it holds none, or one too large for a message.
    """
    try:
        if hasattr(source, "to_model_proto"):  # an onnxscript function
            return source.to_model_proto()
        model = getattr(source, "model_proto", None)  # an ONNXProgram
    except (EncodeError, ValueError) as error:  # more than 2 GiB
        raise UsageError(
            f"this {type(source).__name__} does not fit into one message",
            why=str(error).splitlines()[0] if str(error) else type(error).__name__,
            hint="save it (program.save('model.onnx', external_data=True)) and give the file",
        ) from error
    if isinstance(model, onnx.ModelProto):
        return model
    import onnx_graphsurgeon as gs

    if not isinstance(source, gs.Graph):
        raise UsageError(
            f"cannot read a model from a {type(source).__name__}",
            hint="give a path, an onnx.ModelProto, a torch.onnx.ONNXProgram or an "
            "onnx_graphsurgeon.Graph; of a torch.nn.Module onnxremat.from_torch makes one",
        )
    return gs.export_onnx(source)


def external_files(model: onnx.ModelProto) -> dict[str, int]:
    """External files the initializers live in, with the bytes each must at least have.

    Raises:
        ModelError: an offset or length is no number.
    """
    ends: dict[str, int] = {}
    for tensor in model.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            location, start, length = said_place(tensor)
            ends[location] = max(ends.get(location, 0), start + length)
    return ends


def files_of(model: onnx.ModelProto, folder: Path | None) -> tuple[Path, ...]:
    """Files in ``folder`` that the weights of a model lie in."""
    return () if folder is None else tuple(folder / at for at in external_files(model))


def check_external(model: onnx.ModelProto, folder: Path) -> None:
    """Look at what lies beside a model; weights without a length are given theirs (onnx would
    read the rest of the file), values of Constants and weights of bodies are read.

    Raises:
        ModelError: a file that the weights lie in is missing, too short, or not in the folder.
    """
    for location, end in external_files(model).items():
        check_length(external_file(folder, location), end)
    for tensor in model.graph.initializer:
        where, said = place(tensor), {entry.key for entry in tensor.external_data}
        if where is not None and "length" not in said:
            tensor.external_data.add(key="length", value=str(where.length))
    read_values(model, folder)


def read_small_weights(model: onnx.ModelProto, folder: Path | None) -> onnx.ModelProto:
    """The model with small external tensors (axes, shapes) read in: graphs need their values.

    Raises:
        ModelError: see :func:`check_external`.
    """
    small = [
        tensor
        for tensor in model.graph.initializer
        if tensor.data_location == onnx.TensorProto.EXTERNAL
        and tensor_bytes(tensor.data_type, tensor.dims) < SMALL
    ]
    if small and folder is not None:
        for tensor in small:
            read_in(tensor, folder)
    return model


def shell(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of everything of a model but its nodes, weights that the model holds itself included
    (:func:`light.read_light` leaves it no big ones)."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.node[:]
    return copy


def to_ops(model: onnx.ModelProto) -> tuple[Op, ...]:
    """Ops of a model in a topological order: the file's own when it is one.

    Raises:
        ModelError: the graph has a cycle, reads a tensor nobody makes, or writes one twice.
    """
    taken: set[str] = set()
    again: dict[str, int] = {}
    ops = []
    for index, node in enumerate(model.graph.node):
        ops.append(
            Op(
                _free(node.name or f"{node.op_type}_{index}", taken, again),
                node.op_type,
                node.domain,
                tuple(node.input),
                tuple(node.output),
                captures(node),
                node,
                origin=_metadata(node).get(ORIGIN, ""),
            )
        )
    return _sorted([_named_inside(op, taken, again) for op in ops], model)


def _free(said: str, taken: set[str], again: dict[str, int]) -> str:
    """A name, or one like it that is not taken yet; it is taken then."""
    base = name = _UNPRINTABLE.sub("_", said)
    while name in taken:
        again[base] = again.get(base, 0) + 1
        name = f"{base}_{again[base]}"
    taken.add(name)
    return name


def _named_inside(op: Op, taken: set[str], again: dict[str, int]) -> Op:
    """The op with a name for each node of its bodies that no other has: profiles tell kernels by
    names, and of two that share one each would have the workspace of either."""
    if not subgraphs(op.node):
        return op
    node = onnx.NodeProto()
    node.CopyFrom(op.node)
    for body in subgraphs(node):
        for index, inner in enumerate(all_nodes(body)):
            inner.name = _free(inner.name or f"{op.name}/{inner.op_type}_{index}", taken, again)
    return replace(op, node=node)


def _metadata(node: onnx.NodeProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in getattr(node, "metadata_props", ())}


def _sorted(ops: list[Op], model: onnx.ModelProto) -> tuple[Op, ...]:
    graph = model.graph
    known = {i.name for i in graph.input} | {t.name for t in graph.initializer}
    known |= {t.values.name for t in graph.sparse_initializer}
    writer: dict[str, Op] = {}
    for op in ops:
        for name in op.writes:
            if name in writer or name in known:
                raise ModelError(
                    f"tensor '{name}' is written twice",
                    where=f"node {op.name} ({op.op_type})",
                    hint="the file is not a valid ONNX graph; export it again",
                )
            writer[name] = op
    for op in ops:
        for name in op.reads:
            if name not in writer and name not in known:
                raise ModelError(
                    f"tensor '{name}' is read but nothing makes it",
                    where=f"node {op.name} ({op.op_type})",
                    hint="the file is not a valid ONNX graph; export it again",
                )
    if not graph.output:
        raise ModelError("the graph has no output", hint="name the values you want as outputs")
    for out in graph.output:
        if out.name not in writer and out.name not in known:
            raise ModelError(f"graph output '{out.name}' is made by no node")
    return _topological(ops)


def _topological(ops: list[Op]) -> tuple[Op, ...]:
    """Always the first op of the listing that can run."""
    makers = {name: index for index, op in enumerate(ops) for name in op.writes}
    ordered = least_first([{makers[name] for name in op.reads if name in makers} for op in ops])
    if len(ordered) < len(ops):
        stuck = ops[min(set(range(len(ops))) - set(ordered))]
        raise ModelError(
            "the graph has a cycle",
            where=f"through node {stuck.name} ({stuck.op_type})",
            hint="the file is not a valid ONNX graph; export it again",
        )
    return tuple(ops[index] for index in ordered)


def to_model(graph: Graph) -> onnx.ModelProto:
    """A model with the graph's ops in their order, value_info for every known shape
    (:mod:`onnxremat.graph.unforeseen` says which have names in it), metadata and doc strings kept.
    The initializers are those of ``graph.model``."""
    model = onnx.ModelProto()
    model.CopyFrom(graph.model)
    for op in graph.ops:
        node = model.graph.node.add()
        node.CopyFrom(op.node)
        node.name = op.name
        node.input[:] = op.inputs
        node.output[:] = op.outputs
        _set_origin(node, op.origin)
    signature = set(graph.outputs) | set(graph.inputs)
    del model.graph.value_info[:]
    for name, shape in told(graph):
        dtype = graph.tensors[name].dtype
        if name not in signature and dtype:
            model.graph.value_info.append(onnx.helper.make_tensor_value_info(name, dtype, shape))
    return model


def _set_origin(node: onnx.NodeProto, origin: str) -> None:
    """Say in a node's metadata which op it recomputes; an older entry is replaced."""
    if _metadata(node).get(ORIGIN, "") == origin:
        return
    kept = [(entry.key, entry.value) for entry in node.metadata_props if entry.key != ORIGIN]
    del node.metadata_props[:]
    for key, value in [*kept, (ORIGIN, origin)] if origin else kept:
        node.metadata_props.add(key=key, value=value)


def write_model(
    model: onnx.ModelProto,
    path: str | os.PathLike[str],
    weights_from: Path | None = None,
    keep: Iterable[Path] = (),
) -> list[Path]:
    """Write a model atomically; returns all files written.

    Args:
        model: initializers inline, or external relative to ``weights_from``.
        path: the file to write.
        weights_from: folder the external locations of ``model`` are relative to. Weights of a
            :class:`WeightFolder` are written into the model. When another folder is not that of
            the output, they are copied beside the output, to ``<name>.data``; so are those that
            the model holds, where they are more than a message of protobuf can.
        keep: files that are not written over: of what the model was made from, and its weights.

    Raises:
        UsageError: the folder is not writable, or the output is one of ``keep``.
    """
    target = Path(path)
    # Not Path.resolve(), which raises where links lead to each other.
    kept = {os.path.realpath(place) for place in (*keep, *files_of(model, weights_from))}
    if os.path.realpath(target) in kept:
        raise overwrites(target)
    inside = isinstance(weights_from, WeightFolder) or not external_files(model)
    moved, beside = _moved(model, weights_from, target), list[Path]()
    with ExitStack() as stack:  # both are written before any takes its place, the model last
        made = stack.enter_context(atomic(target))
        if moved:
            beside.append(_beside(target, kept))
            model, waiting = without_bytes(model, moved, weights_from)
            with stack.enter_context(atomic(beside[0])).open("wb") as file:
                lay_out(waiting, file, beside[0].name)
        with made.open("wb") as out:
            if inside and not moved:
                write_whole(model, weights_from, out)
            else:
                out.write(model.SerializeToString())
        if beside:  # a process that ends between the two leaves no old model beside new weights
            Path(os.path.realpath(target)).unlink(missing_ok=True)
    return [target, *beside]


def overwrites(path: Path | str) -> UsageError:
    """The output is where the input is, or its weights are."""
    return UsageError(
        f"the output is a file of the input: {path}", hint="choose another name for the output"
    )


def _moved(model: onnx.ModelProto, folder: Path | None, target: Path) -> set[int]:
    """Which initializers (their numbers) go to a file of their own beside ``target``: those in
    files that are not beside it, and where the model would hold too much, all big ones it holds."""
    stored = model.graph.initializer
    external = {i for i, tensor in enumerate(stored) if place(tensor)}
    inside = {i for i, tensor in enumerate(stored) if len(tensor.raw_data) >= TINY}
    if isinstance(folder, WeightFolder):
        inside, external = inside | external, set()
    elif folder is None or folder.resolve() == target.parent.resolve():
        external = set()
    if sum(weight_bytes(stored[i]) for i in inside) > INLINE_LIMIT:
        return inside | external
    return external


def _beside(target: Path, kept: Container[str]) -> Path:
    """A file for the weights of ``target``, another one than those that stay."""
    name = target.name
    while os.path.realpath(file := target.parent / f"{name}.data") in kept:
        name += "_"
    return file
