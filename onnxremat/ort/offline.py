"""Offline optimisation: the graph onnxruntime would make at load, as a model of its own.

What is planned must be what runs, so the graph is fused first and planned afterwards. onnxruntime
does not promise that it opens a file that it saved: :func:`optimised_for` makes sure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto

from onnxremat.errors import ModelError
from onnxremat.graph.bodies import bytes_inside, with_weights_outside
from onnxremat.graph.dtypes import tensor_bytes
from onnxremat.graph.ir import Graph, all_nodes, captures, rename_captures, subgraphs
from onnxremat.graph.light import read_light, read_structure
from onnxremat.graph.onnx_io import to_ops
from onnxremat.graph.temporary import cut_short, scratch_folder
from onnxremat.graph.traits import ONNX
from onnxremat.graph.weights import WeightFolder, set_apart
from onnxremat.ort.blocks import name_layouts
from onnxremat.ort.infer import build_graph, is_big, weights_as_inputs
from onnxremat.ort.session import Options, open_session, session_options
from onnxremat.ort.unfold import unfold
from onnxremat.ort.weights import held_bytes

# What a file may contain: standard operators (runs anywhere), onnxruntime's fused operators (runs
# on any onnxruntime), or layouts for this processor as well (runs on this kind of machine).
HOST, PORTABLE = "host", "portable"
TARGETS = {"none": "disable", PORTABLE: "basic", "onnxruntime": "extended", HOST: "all"}
HEAVY = 512 << 20  # bytes of weights from which the structure alone is optimised
LADDER = tuple(TARGETS)  # each one's operators are among the next one's
# Values of a Constant that are no tensors, with their element types.
_PLAIN = {
    "value_float": TensorProto.FLOAT, "value_floats": TensorProto.FLOAT,
    "value_int": TensorProto.INT64, "value_ints": TensorProto.INT64,
    "value_string": TensorProto.STRING, "value_strings": TensorProto.STRING,
}  # fmt: skip
OURS = "/ort"  # ends the names of constants that onnxruntime made


@dataclass(frozen=True)
class Optimised:
    """A model after onnxruntime's load-time optimisations, that onnxruntime opens again.

    Attributes:
        graph: the same with sizes.
        folder: where its external weights are.
        target: what it was really optimised for, a key of :data:`TARGETS`.
        why: what onnxruntime said of the target that was asked for, "" where it was kept.
        lasting: :func:`lasting_tensors` of it, None where nobody asked.
        folded: tensors that ops of it make, and that a session of the original computes at load
            and keeps for the whole run instead.
    """

    model: onnx.ModelProto
    graph: Graph
    folder: Path | None
    target: str
    why: str = ""
    lasting: frozenset[str] | None = None
    folded: frozenset[str] = frozenset()


def optimised_for(
    model: onnx.ModelProto,
    target: str,
    folder: Path | None,
    *,
    to_write: bool = True,
    saved: onnx.ModelProto | None = None,
) -> Optimised:
    """The model optimised for ``target``, or for the next lower one whose result onnxruntime opens
    both with the options of plans and with its own. ``none`` leaves the model as it is.

    Args:
        target: a key of :data:`TARGETS`.
        folder: where the external weights of ``model`` are.
        to_write: False leaves out whether onnxruntime opens it, for what is only looked at.
        saved: what a session of ``model`` that optimised for ``target`` has saved, as
            :func:`read_saved` reads it; it is changed. None where none has.
    """
    why = ""
    for lower in reversed(LADDER[1 : LADDER.index(target) + 1]):
        try:
            found, folded = _optimise(model, lower, folder, saved if lower == target else None)
            # Of what bodies read from around them, onnxruntime folds results into them.
            made, place = set_apart(with_weights_outside(found), folder)
            graph = build_graph(made, place, opened=to_write)  # with the options of plans
            lasting = frozenset(lasting_tensors(made, place)) if to_write else None  # and its own
        except ModelError as error:
            why = why or error.why or error.what
        else:
            return Optimised(made, graph, place, lower, why, lasting, folded)
    made, place = set_apart(optimise(model, "none", folder), folder)
    return Optimised(made, build_graph(made, place), place, "none", why)


def _constants_as_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model as every session holds it: a Constant is a weight, no op that runs."""
    found = {i: t for i, node in enumerate(model.graph.node) if (t := _constant(node)) is not None}
    if not found:
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    kept = [node for i, node in enumerate(model.graph.node) if i not in found]
    del made.graph.node[:]
    made.graph.node.extend(kept)
    made.graph.initializer.extend(found.values())
    return made


def _constant(node: onnx.NodeProto) -> onnx.TensorProto | None:
    """The value of a Constant, named as its output; None for other ops and for sparse ones."""
    if node.op_type != "Constant" or node.domain not in ONNX or len(node.attribute) != 1:
        return None
    (said,) = node.attribute
    tensor = onnx.TensorProto()
    if said.name == "value":
        tensor.CopyFrom(said.t)
        tensor.name = node.output[0]
        return tensor
    if said.name not in _PLAIN:
        return None
    value = onnx.helper.get_attribute_value(said)
    dims = [len(value)] if isinstance(value, list) else []
    values = value if isinstance(value, list) else [value]
    return onnx.helper.make_tensor(node.output[0], _PLAIN[said.name], dims, values)


def _unpacked(made: Any) -> Any:
    """The options for a session that never runs: its kernels pack no weights."""
    made.add_session_config_entry("session.disable_prepacking", "1")
    return made


def optimise(model: onnx.ModelProto, target: str, folder: Path | None) -> onnx.ModelProto:
    """The model after onnxruntime's load-time optimisations for ``target``.

    Weights of more than 512 MiB stay where they are: the structure is optimised with big weights
    as inputs, so rewrites that would change such weights (folding a normalisation into a
    convolution, say) do not happen.

    Args:
        target: a key of :data:`TARGETS`.
        folder: where the external weights of ``model`` are; new ones are kept there where it is a
            :class:`WeightFolder`, else in the model.

    Raises:
        ModelError: onnxruntime refuses the model.
    """
    return _optimise(model, target, folder)[0]


def _optimise(
    model: onnx.ModelProto, target: str, folder: Path | None, saved: onnx.ModelProto | None = None
) -> tuple[onnx.ModelProto, frozenset[str]]:
    """:func:`optimise`, and :attr:`Optimised.folded`."""
    model = _constants_as_weights(model)
    if target == "none":
        return _without_defaults(model), frozenset()
    if saved is None:
        with _saved(model, TARGETS[target], folder) as path:
            saved = read_saved(path, folder)
    return _restored(model, saved)


def _without_defaults(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model in which inputs that have a value are constants, as every other target has them."""
    weights = {tensor.name for tensor in model.graph.initializer}
    kept = [value for value in model.graph.input if value.name not in weights]
    if len(kept) == len(model.graph.input):
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    del made.graph.input[:]
    made.graph.input.extend(kept)
    return made


def read_saved(path: Path, folder: Path | None) -> onnx.ModelProto:
    """What a session has saved, its big weights in ``folder`` where that is a WeightFolder."""
    if isinstance(folder, WeightFolder):
        return read_light(path, folder)[0]
    return onnx.load_model(str(path), load_external_data=False)


@contextmanager
def _saved(model: onnx.ModelProto, level: str, folder: Path | None) -> Iterator[Path]:
    """What onnxruntime makes of a model at load, as a file; weights in ``folder`` that it leaves as
    they are stay there."""
    source = onnx.ModelProto()
    source.CopyFrom(model if is_light(model) else weights_as_inputs(model))
    source.ir_version = max(source.ir_version, 4)
    for index, node in enumerate(source.graph.node):
        node.name = node.name or f"{node.op_type}_{index}"
    with scratch_folder() as scratch:
        path = Path(scratch) / "optimised.onnx"
        # Looking for buffers to take over, with the square of the ops, has no part in it.
        made = _unpacked(session_options(Options(level=level, reuse=False, threads=1)))
        made.optimized_model_filepath = str(path)
        open_session(source, made, folder)
        try:
            yield path
        except (DecodeError, FileNotFoundError) as error:
            raise cut_short("what onnxruntime made of the model") from error


def resident_weights(model: onnx.ModelProto, level: str, folder: Path | None) -> int:
    """Bytes of the weights a session holds after optimising at ``level``: folding may make new
    ones (a tensor of constants computed from its shape) and drop others.

    Raises:
        ModelError: onnxruntime refuses the model.
    """
    if level == "disable":
        return weights_held(model)
    with _saved(model, level, folder) as path:
        fused = read_structure(path)
    kept = () if is_light(model) else [t for t in model.graph.initializer if is_big(t)]
    return weights_held(fused, kept, _given(model))


def _given(model: onnx.ModelProto) -> set[str]:
    """Weights that may be given as inputs."""
    listed = {value.name for value in model.graph.input}
    return listed.intersection(tensor.name for tensor in model.graph.initializer)


def weights_held(
    model: onnx.ModelProto,
    further: Iterable[onnx.TensorProto] = (),
    given: Collection[str] = (),
) -> int:
    """Bytes of the weights that a session holds for a model that it leaves as it is.

    Args:
        further: weights that are inputs of ``model``, as which they were left out of it.
        given: those of them that may be given as inputs where they are not left out.
    """
    tensors = (*model.graph.initializer, *further)
    weights = {t.name: (t.data_type, tuple(t.dims)) for t in tensors}
    given = _given(model).union(given)
    returned = [value.name for value in model.graph.output]
    return held_bytes(to_ops(model), weights, given, returned) + bytes_inside(model)


def lasting_tensors(model: onnx.ModelProto, folder: Path | None) -> set[str]:
    """Tensors that are left when a session with default options has fused the model.

    Raises:
        ModelError: onnxruntime refuses the model.
    """
    with _saved(model, "all", folder) as path:
        fused = read_structure(path)
    return {name for node in fused.graph.node for name in node.output}


def weight_bytes(model: onnx.ModelProto) -> int:
    """Bytes of all initializers."""
    return sum(tensor_bytes(t.data_type, t.dims) for t in model.graph.initializer)


def is_light(model: onnx.ModelProto) -> bool:
    """Whether onnxruntime may compute with the weights of a model while it optimises."""
    return weight_bytes(model) <= HEAVY


def _restored(
    model: onnx.ModelProto, result: onnx.ModelProto
) -> tuple[onnx.ModelProto, frozenset[str]]:
    """The optimised nodes in the original frame: signature, metadata, doc strings, names; and
    :attr:`Optimised.folded`."""
    for name in ("ir_version", "producer_name", "producer_version", "domain", "doc_string"):
        setattr(result, name, getattr(model, name))
    result.ir_version = max(result.ir_version, 4)
    result.model_version = model.model_version
    del result.metadata_props[:]
    result.metadata_props.extend(model.metadata_props)
    graph = result.graph
    graph.name, graph.doc_string = model.graph.name, model.graph.doc_string
    for field, kept in ((graph.input, model.graph.input), (graph.output, model.graph.output)):
        del field[:]
        field.extend(kept)
    weights = {t.name for t in model.graph.initializer}
    used = {name for node in graph.node for name in (*node.input, *captures(node))}
    used |= {v.name for v in graph.output}
    for index in reversed(range(len(graph.initializer))):  # without copying those that stay
        if graph.initializer[index].name not in used:
            del graph.initializer[index]
    if not is_light(model):
        have = {t.name for t in graph.initializer}
        graph.initializer.extend(
            t
            for t in model.graph.initializer
            if t.name in used and t.name not in have and is_big(t)
        )
    del graph.input[:]
    graph.input.extend(v for v in model.graph.input if v.name not in weights)
    _restore_nodes(model, graph)
    name_layouts(graph)
    folded = unfold(model, graph)
    _name_apart(graph, set(_names(model.graph)), frozenset())
    present = {node.domain for node in all_nodes(graph)} | {""}
    imports = [entry for entry in result.opset_import if entry.domain in present]
    del result.opset_import[:]
    result.opset_import.extend(imports)
    return result, folded


def _restore_nodes(model: onnx.ModelProto, graph: onnx.GraphProto) -> None:
    """Give surviving nodes their metadata and doc strings back (onnxruntime drops them)."""
    original = {node.name: node for node in model.graph.node if node.name}
    for node in graph.node:
        source = original.get(node.name)
        if source is not None:
            node.doc_string = source.doc_string
            if not node.metadata_props:
                node.metadata_props.extend(source.metadata_props)


def _name_apart(graph: onnx.GraphProto, known: set[str], outer: frozenset[str]) -> None:
    """Give the constants that onnxruntime made (the shapes around a fused MatMul + Add, say) names
    that it does not give itself: at the next load it would make one of the same name, and stop. And
    give what a body makes (a Cast of half precision) another name than values around it have.

    Args:
        known: names of the model before; these stay.
        outer: names around a body.
    """
    taken, names = {*known, *_names(graph), *outer}, {}
    made = [name for node in graph.node for name in node.output]
    twice = [name for name in made if name in outer]
    for name in (*(t.name for t in graph.initializer if t.name not in known), *twice):
        new = name.removesuffix(OURS) + OURS
        while new in taken:
            new += "_"
        taken.add(new)
        names[name] = new
    for value in (*graph.initializer, *graph.output, *graph.value_info):
        value.name = names.get(value.name, value.name)
    here = outer.union(names.get(name, name) for name in made)
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        if names.keys() & set(captures(node)):
            node.CopyFrom(rename_captures(node, names))
        for body in subgraphs(node):
            _name_apart(body, taken - {t.name for t in body.initializer} | known, here)


def _names(graph: onnx.GraphProto) -> Iterator[str]:
    """Names of all tensors of a graph and of the bodies in it."""
    yield from (value.name for value in (*graph.input, *graph.initializer))
    for node in graph.node:
        yield from node.output
        for body in subgraphs(node):
            yield from _names(body)
