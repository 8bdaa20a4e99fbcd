"""A training step and its update as graphs, to be cut to parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx
from onnx import helper

from onnxremat.grad.description import StepSignature, training_of
from onnxremat.grad.update import SHARE, update_of
from onnxremat.graph.ir import Graph, Op
from onnxremat.graph.traits import is_alias
from onnxremat.ort.infer import build_graph
from onnxremat.workers.sums.layers import Key, Layers, layers_of


@dataclass(frozen=True)
class Halves:
    """A step that gathers, and its update.

    Attributes:
        step, update: without what parameters and state begin with.
        about, told: what inputs and outputs of the step and of the update mean.
    """

    step: Graph
    about: StepSignature
    update: Graph
    told: StepSignature

    def layers(self, cuts: Sequence[str]) -> Layers:
        """The step, cut before these ops of the forward pass."""
        sums = [self.about.updates[name] for _, name in self.told.gradients]
        return layers_of(self.step, cuts, sums, self.about.updates)

    def homes(self, layers: Layers) -> Mapping[str, Key]:
        """Sum of a gradient to the part that completes it."""
        return {name: layers.home[self.about.updates[name]] for _, name in self.told.gradients}


def halves_of(model: onnx.ModelProto, folder: Path | None) -> Halves:
    """Of a step that gathers.

    Args:
        folder: of weights that are left in files.

    Raises:
        ModelError: the model is not valid.
    """
    update = update_of(model)
    assert update is not None, "the step gathers"
    step = build_graph(_without_first_values(model), folder)
    return Halves(step, training_of(model), build_graph(update), training_of(update))


def written(halves: Halves) -> tuple[Halves, frozenset[str]]:
    """The same for a step that updates with every batch, by sums that are means already: gradients
    are written where their sums would be, not added to zeros, and these are not multiplied.

    Returns:
        Also the sums that need not be zeros before a batch any more. The shape of a gradient may
        be another than its parameter's: that of what is reshaped to it last.
    """
    graph, updates = halves.step, halves.about.updates
    names: dict[str, str] = {}
    tensors = dict(graph.tensors)
    changed: dict[str, Op | None] = {}
    found = {name for _, name in halves.told.gradients if updates[name] in graph.producer}
    for name in sorted(found):
        new = updates[name]
        op = graph.ops[graph.producer[new]]
        made = [n for n in op.inputs if n != name]
        if op.op_type != "Add" or len(made) != 1 or len(graph.readers.get(name, ())) != 1:
            found.discard(name)
            continue
        source, between = _bare(graph, made[0])
        if _may_be_written(graph, source, new) and source not in names:
            names[source] = new
            changed.update(dict.fromkeys([op.name, *between]))
            tensors[new] = replace(tensors[new], shape=tensors[source].shape)
        else:
            node = helper.make_node("Identity", made, [new], op.name)
            changed[op.name] = replace(op, op_type="Identity", inputs=tuple(made), node=node)
    ops = [each for op in graph.ops if (each := changed.get(op.name, op)) is not None]
    step = graph.with_ops([op.renamed(op.name, names) for op in ops], tensors)
    return replace(halves, step=step, update=_unshared(halves)), frozenset(found)


def _unshared(halves: Halves) -> Graph:
    """The update without the product of each sum and its share."""
    update, names, gone = halves.update, dict[str, str](), set[str]()
    for name, sum_ in halves.told.gradients:
        op = update.ops[update.producer[name]] if name in update.producer else None
        if op is not None and op.op_type == "Mul" and set(op.inputs) == {sum_, SHARE}:
            names[name] = sum_
            gone.add(op.name)
    kept = (op for op in update.ops if op.name not in gone)
    return update.with_ops(op.renamed(op.name, names) for op in kept)


def _bare(graph: Graph, name: str) -> tuple[str, list[str]]:
    """What a value only shows in another shape, and the ops that do so, read by nobody else."""
    between: list[str] = []
    while (at := graph.producer.get(name)) is not None:
        op = graph.ops[at]
        if not is_alias(op) or name in graph.outputs or len(graph.readers.get(name, ())) != 1:
            break
        between.append(op.name)
        name = op.inputs[0]
    return name, between


def _may_be_written(graph: Graph, name: str, new: str) -> bool:
    """What an op makes may have the name of a sum: it is what it is, and in a buffer of its own."""
    maker = graph.producer.get(name)
    if maker is None or name in graph.outputs or is_alias(graph.ops[maker]):
        return False
    one, other = graph.tensors[name], graph.tensors[new]
    return (one.dtype, one.bytes) == (other.dtype, other.bytes)


def _without_first_values(model: onnx.ModelProto) -> onnx.ModelProto:
    light, known = onnx.ModelProto(), {v.input for v in training_of(model).variables}
    light.CopyFrom(model)
    kept = [tensor for tensor in light.graph.initializer if tensor.name not in known]
    del light.graph.initializer[:]
    light.graph.initializer.extend(kept)
    # Parsed anew: a message keeps the memory of what was taken out of it as long as any part lives.
    return onnx.ModelProto.FromString(light.SerializeToString())
